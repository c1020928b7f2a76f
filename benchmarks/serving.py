"""Online serving: Hopline against the servers people use, in one run.

Same graph, model, load and machine; each server's answers are compared with the user's module first
(`benchmarks.exact_nodes`); one worker each, one server at a time, on
loopback. c1 is one connection, c32 is 32; every request asks for one node,
drawn uniformly. Hopline starts with an empty state cache (`hopline`), is measured
again after that first pass (`hopline_warm`), and once more when requests for all
nodes have filled the state cache (`hopline_filled`). It is measured again before
each peer, and its figures are medians, since the machine's speed drifts over a
run. Set the peers up with `benchmarks/setup`; those not installed are skipped and
named.

    python -m benchmarks.serving [--model sage|gatv2|hetero] [--quick] [--small] [--seconds N] [--peers a,b]

Prints a table; the last line is one JSON object. Ratios are Hopline over the
best peer of each figure: c1_p50 and c32_p99 want to be low, c32_rps high.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from benchmarks import exact_nodes, hopline_server, load, model_workload, report, workload
from benchmarks.load import Load, Request
from benchmarks.machine import commit, machine
from benchmarks.peers import PEERS, Peer
from benchmarks.report import Row
from benchmarks.server_process import Running, ServerFailed, free_port, serve
from benchmarks.workload import FloatArray, IdArray, Sizes

ROOT = Path(__file__).resolve().parents[1]

NUM_WARMUP_IDS = 100
"""Warm-up asks for these ids only: code paths warm up, Hopline's state cache as good as not."""


@dataclass(frozen=True)
class Bench:
    """Setup that all measurements share."""

    folder: Path
    model: str
    num_ids: int
    num_outputs: int
    expected: tuple[IdArray, FloatArray]
    seconds: float
    warmup_seconds: float
    seeds: Iterable[int]

    def measure(self, server: Running, request: Request, connections: int) -> Load:
        """One timed run, with its own seed."""
        print(f"    {connections} connection(s), {self.seconds:g} s", file=sys.stderr, flush=True)
        seed = next(iter(self.seeds))
        return load.run(
            server.port,
            request,
            connections=connections,
            seconds=self.seconds,
            num_ids=self.num_ids,
            seed=seed,
        )

    def warm_up(self, server: Running, request: Request, connections: int) -> None:
        """Compare answers with the module's, then a short run over few ids; its figures are dropped.

        Raises: ServerFailed: an answer differs.
        """
        exact_nodes.compare(server.port, request, self.expected, connections)
        load.run(
            server.port,
            request,
            connections=connections,
            seconds=self.warmup_seconds,
            num_ids=NUM_WARMUP_IDS,
            seed=1,
        )


def make_bench(model: str, sizes: Sizes, seconds: float, warmup_seconds: float) -> Bench:
    """A workload on disk, drawn if it is missing, and how it is measured."""
    folder = model_workload.ensure(model, sizes)
    facts = model_workload.Facts.read(folder)
    return Bench(
        folder=folder,
        model=model,
        num_ids=facts.num_ids,
        num_outputs=facts.num_outputs,
        expected=exact_nodes.ensure(folder),
        seconds=seconds,
        warmup_seconds=warmup_seconds,
        seeds=count(1000),
    )


def bench_python() -> str:
    """The interpreter of the peers' environment: $HOPLINE_BENCH_PYTHON, else `.venv-bench`."""
    return os.environ.get("HOPLINE_BENCH_PYTHON") or str(ROOT / ".venv-bench" / "bin" / "python")


def is_installed(peer: Peer) -> bool:
    """True if the peers' environment can find all that a peer imports."""
    probe = "import importlib.util as u, sys; sys.exit(any(u.find_spec(m) is None for m in sys.argv[1:]))"
    command = [bench_python(), "-c", probe, *peer.imports]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


def measure_peer_once(bench: Bench, peer: Peer, connections: int, extra: tuple[str, ...]) -> Load:
    """Start a fresh server with the extra arguments, and measure one load on it."""
    port = free_port()
    command = [bench_python(), "-m", peer.module, "--workload", str(bench.folder)]
    command += ["--port", str(port), *extra]
    with serve(
        command, port, peer.request, num_outputs=bench.num_outputs, environment=peer.environment
    ) as server:
        bench.warm_up(server, peer.request, connections)
        return bench.measure(server, peer.request, connections)


def measure_peer(bench: Bench, peer: Peer) -> Row:
    """A fresh server for each load, tuned for that load where the peer requires that."""
    return Row(
        c1=measure_peer_once(bench, peer, 1, peer.c1_args),
        c32=measure_peer_once(bench, peer, 32, peer.c32_args),
    )


def measure_hopline(bench: Bench) -> tuple[Row, Row, Row]:
    """Cold on a fresh process for each load; warm and filled on the second, after its cold pass.

    Returns: the cold, the warm and the filled row.
    """
    serve_dir = hopline_server.prepare(bench.folder)
    request = hopline_server.request(bench.model)

    def on_fresh_server(connections: int, measure: Callable[[Running], list[Load]]) -> list[Load]:
        port = free_port()
        command = hopline_server.command(serve_dir, port)
        with serve(command, port, request, num_outputs=bench.num_outputs) as server:
            bench.warm_up(server, request, connections)
            return measure(server)

    (cold_c1,) = on_fresh_server(1, lambda server: [bench.measure(server, request, 1)])

    def all_on_one(server: Running) -> list[Load]:
        loads = [bench.measure(server, request, connections) for connections in (32, 32, 1)]
        hopline_server.fill(server.port, bench.num_ids, request)
        return loads + [bench.measure(server, request, connections) for connections in (32, 1)]

    cold_c32, warm_c32, warm_c1, filled_c32, filled_c1 = on_fresh_server(32, all_on_one)
    return Row(cold_c1, cold_c32), Row(warm_c1, warm_c32), Row(filled_c1, filled_c32)


def run(bench: Bench, peers: list[str]) -> dict[str, object]:
    """Measure everything; print the table. Returns: the JSON line's object."""
    rows: dict[str, Row] = {}
    failed: dict[str, str] = {}

    def attempt(name: str, measure: Callable[[], dict[str, Row]]) -> None:
        print(f"  {name}", file=sys.stderr, flush=True)
        try:
            rows.update(measure())
        except (ServerFailed, RuntimeError, subprocess.SubprocessError) as error:
            # One server's failure is a line of the report; the others still count.
            failed[name] = f"{type(error).__name__}: {error}"

    installed = [name for name in peers if is_installed(PEERS[name])]
    skipped = [name for name in peers if name not in installed]
    rounds: list[tuple[Row, Row, Row]] = []

    def hopline() -> dict[str, Row]:
        rounds.append(measure_hopline(bench))
        medians = [report.median_row([each[k] for each in rounds]) for k in range(len(report.HOPLINE_ROWS))]
        return dict(zip(report.HOPLINE_ROWS, medians, strict=True))

    # Hopline again before each peer: the machine's speed drifts, and the median is of the whole run.
    attempt("hopline", hopline)
    for at, name in enumerate(installed):
        if at:
            attempt("hopline", hopline)
        attempt(name, lambda name=name: {name: measure_peer(bench, PEERS[name])})  # type: ignore[misc]
    print(report.table(rows))
    for name in skipped:
        print(f"skipped {name}: not installed (benchmarks/setup installs it)")
    for name, reason in failed.items():
        print(f"failed {name}: {reason}")
    return report.result(rows, failed) | {"skipped": skipped, "hopline_rounds": len(rounds)}


def main() -> int:
    """Run the command. Returns 0 if every row has figures, 1 if a server failed or a request failed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--model", choices=tuple(model_workload.MODELS), default="sage")
    parser.add_argument("--quick", action="store_true", help="5 s per measurement: a few minutes in all")
    parser.add_argument("--seconds", type=float, help="per measurement; default 20, with --quick 5")
    parser.add_argument("--small", action="store_true", help="50 k nodes, 1 M edges: to try the harness")
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated; default all")
    args = parser.parse_args()
    peers = [name for name in args.peers.split(",") if name]
    if unknown := set(peers) - set(PEERS):
        parser.error(f"unknown peers: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    load.require_wrk()
    if (busy := os.getloadavg()[0]) > 0.5:
        print(f"load average {busy:.1f}: other programs will disturb the figures", file=sys.stderr)
    sizes = workload.SMALL if args.small else workload.FULL
    seconds = args.seconds or (5.0 if args.quick else 20.0)
    bench = make_bench(args.model, sizes, seconds, warmup_seconds=1.0 if args.quick else 3.0)
    result = run(bench, peers) | {"model": args.model}
    config = {"workload": sizes.name, "seconds": seconds, "connections": [1, 32], "workers": 1}
    print(json.dumps(result | {"config": config, "machine": machine(), "commit": commit()}))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
