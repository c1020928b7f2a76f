"""Measure a look-up of precomputed answers over HTTP, against an echo server and against computing.

Three servers run at the same time and are asked in turns on one connection, so that other load on the
machine falls on all of them; of the rounds the median counts. A server that is not asked waits and costs
nothing.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import load
from benchmarks.lifecycle_phases.server import hopline
from benchmarks.load import Load, Request
from benchmarks.server_process import ask


@contextlib.contextmanager
def echo(num_bytes: int) -> Iterator[tuple[int, int]]:
    """The echo server for the length of a `with` block: (port, process id)."""
    words = [sys.executable, "-m", "benchmarks.batch_phases.echo", str(num_bytes)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def measure(
    repository: Path,
    graph: Path,
    table: Path,
    model: str,
    num_nodes: int,
    *,
    seconds: float = 1.0,
    rounds: int = 5,
) -> dict[str, Any]:
    """Ask for one node at a time, each drawn at random.

    Args:
        repository, graph: served.
        table: of all nodes of `model`, whose ids are 0 to num_nodes - 1.
        seconds: of a run. rounds: runs of each server.

    Returns: `lookup_p50_ms`, and the rest: p50 and p99 in ms, processor time of the server in µs for each
        request, of `lookup`, `echo` and `computed`; `lookup_over_echo`; rows looked up and not.
    """
    request = Request(f"/v1/models/{model}/score", f'{{"nodes":[{load.ID}]}}')
    runs: dict[str, list[tuple[Load, float]]] = {"echo": [], "lookup": [], "computed": []}
    with (
        hopline(repository, graph, precomputed__file=table) as looking,
        hopline(repository, graph) as computing,
    ):
        status, body = ask(looking.port, request, 0)
        if (status, body) != ask(computing.port, request, 0):
            raise RuntimeError(f"the answers differ with and without a table: {status} {body[:200]!r}")
        with echo(len(body)) as (echo_port, echo_pid):
            servers = {
                "echo": (echo_port, echo_pid),
                "lookup": (looking.port, looking.process.pid),
                "computed": (computing.port, computing.process.pid),
            }
            for number in range(-1, rounds):
                for name, (port, pid) in servers.items():
                    before = _cpu_s(pid)
                    found = load.run(
                        port, request, connections=1, seconds=seconds, num_ids=num_nodes, seed=number + 1
                    )
                    if found.failed:
                        raise RuntimeError(f"{name}: requests failed: {found.errors}")
                    if number >= 0:  # the first one warms up
                        runs[name].append((found, _cpu_s(pid) - before))
        rows = "hopline_precomputed_rows_total{"
        total = looking.metric(rows)
        looked_up = looking.metric(f'{rows}model="{model}",version="1",outcome="looked_up"')
    figures: dict[str, Any] = {}
    for name, each in runs.items():
        figures[name] = {
            "p50_ms": median(found.p50_ms for found, _ in each),
            "p99_ms": median(found.p99_ms for found, _ in each),
            "cpu_us": round(sum(cpu for _, cpu in each) / sum(f.num_requests for f, _ in each) * 1e6, 1),
        }
    return {
        "lookup_p50_ms": figures["lookup"]["p50_ms"],
        "lookup_over_echo": round(figures["lookup"]["p50_ms"] / figures["echo"]["p50_ms"], 2),
        "rows_looked_up": looked_up,
        "rows_computed": total - looked_up,
        **figures,
    }


def _cpu_s(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
