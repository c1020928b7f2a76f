"""Nodes of raw columns: a model with its preprocessing in the artifact against the same over floats.

The graph and the weights are those of `benchmarks.serving`. Each node has 20 columns: 12 numbers, of which
some are missing, and 8 categories of 4 to 32 values. A ColumnTransformer (median, scaler, one-hot) makes
128 features of them. Two servers answer with the same module: one has the columns and the transformer in
its artifact, the other one has what `transform` gives. They are measured in turns; figures are medians.

    known     one node of the graph for each request: c1 p50, c32 req/s
    unseen    one new node with two neighbours: its columns by name, or its 128 features
    peer      FastAPI + pandas + scikit-learn + PyG, over the same columns

    python -m benchmarks.columns [--quick] [--small] [--seconds N] [--rounds N]

Answers are compared first: of known nodes with the module's on whole neighbourhoods, of unseen ones with
each other. Prints a table; the last line is one JSON object. Run it where nothing else runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import exact_nodes, hopline_server, load, report, serving, workload
from benchmarks.columns_table import draw, transformer
from benchmarks.load import ID, Request
from benchmarks.machine import commit, machine
from benchmarks.model_workload import Facts
from benchmarks.peers import COLUMNS_PEER
from benchmarks.report import Row
from benchmarks.server_process import Running, ServerFailed, ask, find_row, free_port, serve
from benchmarks.serving import Bench
from benchmarks.workload import Sizes

FORMAT = 1
#: Further neighbours of an unseen node; the first one is drawn.
FURTHER = (17, 99)
VARIANTS = ("columns", "floats")


def ensure(sizes: Sizes) -> Path:
    """The folder of the workload, in the form of `benchmarks.workload`, and its table."""
    folder = workload.cache_dir() / f"columns-{sizes.name}-v{FORMAT}"
    if not (folder / "workload.json").exists():
        base = workload.ensure(sizes)
        folder.mkdir(parents=True, exist_ok=True)
        for path in (base / "indptr.npy", base / "indices.npy", *base.glob("conv*.npy")):
            (folder / path.name).unlink(missing_ok=True)
            (folder / path.name).symlink_to(path)
        subprocess.run(
            [sys.executable, "-m", "benchmarks.columns", "--build", str(folder), str(base)], check=True
        )
        shutil.copy(base / "workload.json", folder)
    return folder


def build(folder: Path, base: Path) -> None:
    """Draw the table, and package the model over columns into `<folder>/columns`.

    Args:
        base: workload of the graph and the weights.
    """
    from hopline import package
    from hopline.graph import EdgeTable, Graph, NodeTable

    indptr = np.load(folder / "indptr.npy", mmap_mode="r")
    frame = draw(len(indptr) - 1)
    frame.to_parquet(folder / "columns.parquet")
    fitted = transformer().fit(frame)
    np.save(folder / "features.npy", fitted.transform(frame).astype(np.float32))
    ends = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    edges = np.stack([np.load(folder / "indices.npy"), ends])
    graph = Graph.from_tables(
        {"node": NodeTable(columns=frame)}, {("node", "to", "node"): EdgeTable(edges, by_row=True)}
    )
    graph.save(folder / "columns" / "graph")
    package(
        exact_nodes.module_of(base, Facts.read(base)),
        graph,
        folder / "columns" / "repository",
        name="sage",
        fanouts=[10, 5],
        task="embedding",
        preprocess={"node": fitted},
        overwrite=True,
    )


def unseen_requests(folder: Path) -> dict[str, Request]:
    """Variant, or "peer" -> the request for a new node whose first neighbour is drawn."""
    import pandas as pd

    first = pd.read_parquet(folder / "columns.parquet").iloc[0]
    columns = json.dumps({name: None if value != value else value for name, value in first.items()})
    features = json.dumps(np.load(folder / "features.npy", mmap_mode="r")[0].tolist())
    neighbors = f"[{ID},{','.join(map(str, FURTHER))}]"
    path = "/v1/models/sage/score"
    return {
        "columns": Request(path, f'{{"inline":[{{"columns":{columns},"neighbors":{neighbors}}}]}}'),
        "floats": Request(path, f'{{"inline":[{{"features":{features},"neighbors":{neighbors}}}]}}'),
        "peer": Request("/unseen", f'{{"columns":{columns},"neighbors":{neighbors}}}'),
    }


def measure(bench: Bench, server: Running, request: Request) -> Row:
    """Both loads of one kind of request."""
    for connections in (1, 32):
        load.run(
            server.port, request, connections=connections, seconds=bench.warmup_seconds,
            num_ids=serving.NUM_WARMUP_IDS, seed=1,
        )  # fmt: skip
    return Row(c1=bench.measure(server, request, 1), c32=bench.measure(server, request, 32))


@contextlib.contextmanager
def started(bench: Bench, variant: str) -> Iterator[Running]:
    """A server of one of the variants, or the peer, which answers as the module does."""
    port = free_port()
    if variant == "peer":
        peer = COLUMNS_PEER
        command = [serving.bench_python(), "-m", peer.module, "--workload", str(bench.folder)]
        with serve(
            [*command, "--port", str(port)], port, peer.request, num_outputs=bench.num_outputs
        ) as server:
            exact_nodes.compare(server.port, peer.request, bench.expected, 1)
            yield server
        return
    folder = bench.folder / "columns" if variant == "columns" else hopline_server.prepare(bench.folder)
    command = hopline_server.command(folder, port)
    with serve(command, port, hopline_server.REQUEST, num_outputs=bench.num_outputs) as server:
        exact_nodes.compare(server.port, hopline_server.REQUEST, bench.expected, 1)
        yield server


def unseen_row(server: Running, request: Request, node: int, length: int) -> np.ndarray[Any, Any]:
    """The answer to a new node. Raises: ServerFailed: there is none."""
    status, body = ask(server.port, request, node)
    row = find_row(json.loads(body), length) if status == 200 else None
    if row is None:
        raise ServerFailed(f"an unseen node: status {status}: {body[:300]!r}")
    return np.array(row)


def run(bench: Bench, rounds: int) -> dict[str, Any]:
    """Measure everything; print the table. Returns: the JSON line's object."""
    requests, rows = unseen_requests(bench.folder), dict[str, list[Row]]()
    exact = int(bench.expected[0][-1])
    answers: dict[str, Any] = {}
    has_peer = serving.is_installed(COLUMNS_PEER)
    for number in range(rounds):
        for variant in (*VARIANTS, *(["peer"] if has_peer else [])):
            print(f"  round {number + 1}: {variant}", file=sys.stderr, flush=True)
            with started(bench, variant) as server:
                answers[variant] = unseen_row(server, requests[variant], exact, bench.num_outputs)
                known = COLUMNS_PEER.request if variant == "peer" else hopline_server.REQUEST
                rows.setdefault(f"{variant} known", []).append(measure(bench, server, known))
                rows.setdefault(f"{variant} unseen", []).append(measure(bench, server, requests[variant]))
    found = {name: report.median_row(each) for name, each in rows.items()}
    print(report.table(found))
    difference = float(np.abs(answers["columns"] - answers["floats"]).max())
    result: dict[str, Any] = {
        "known_c1_p50": ratio(found, "known", "floats", lambda row: row.c1.p50_ms),
        "known_c32_rps": ratio(found, "known", "floats", lambda row: row.c32.rps),
        "unseen_c1_p50": ratio(found, "unseen", "floats", lambda row: row.c1.p50_ms),
        "unseen_c32_rps": ratio(found, "unseen", "floats", lambda row: row.c32.rps),
        "unseen_difference": difference,
        "rows": {name: row.figures() for name, row in found.items()},
        "ok": not any(row.failed for row in found.values()),
        "skipped": [] if has_peer else ["peer"],
    }
    if has_peer:
        result["unseen_peer_c1_p50"] = ratio(found, "unseen", "peer", lambda row: 1 / row.c1.p50_ms)
        result["unseen_peer_c32_rps"] = ratio(found, "unseen", "peer", lambda row: row.c32.rps)
    else:
        print("skipped the peer: not installed (benchmarks/setup installs it)")
    return result


def ratio(found: dict[str, Row], kind: str, other: str, figure: Any) -> float:
    """A figure of the model over columns, divided by that of another server."""
    return round(figure(found[f"columns {kind}"]) / figure(found[f"{other} {kind}"]), 3)


def main() -> int:
    """Run the command. Returns 0 if no request failed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--quick", action="store_true", help="5 s per measurement, 3 rounds")
    parser.add_argument("--seconds", type=float, help="per measurement; default 20, with --quick 5")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="50 k nodes, 1 M edges: to try the harness")
    parser.add_argument("--build", type=Path, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.build is not None:
        build(*args.build)
        return 0
    load.require_wrk()
    if (busy := os.getloadavg()[0]) > 0.5:
        print(f"load average {busy:.1f}: other programs will disturb the figures", file=sys.stderr)
    sizes = workload.SMALL if args.small else workload.FULL
    folder = ensure(sizes)
    seconds = args.seconds or (5.0 if args.quick else 20.0)
    bench = Bench(
        folder=folder,
        model="sage",
        num_ids=sizes.num_nodes,
        num_outputs=workload.NUM_OUTPUTS,
        expected=exact_nodes.ensure(folder),
        seconds=seconds,
        warmup_seconds=1.0,
        seeds=count(1000),
    )
    config = {"workload": sizes.name, "seconds": seconds, "rounds": args.rounds, "workers": 1}
    result = run(bench, args.rounds)
    print(json.dumps(result | {"config": config, "machine": machine(), "commit": commit()}))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
