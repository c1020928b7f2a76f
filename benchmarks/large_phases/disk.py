"""One host: a graph that is larger than the memory that the server may use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks import load, server_process
from benchmarks.hopline_server import REQUEST
from benchmarks.large_phases.limits import bounded, evict
from benchmarks.large_phases.model import NUM_OUTPUTS
from hopline.graph import Graph

#: Nodes of the runs that ask for the same ones again.
_REPEATED = 2_000


def measure(folder: Path, memory_bytes: int, seconds: float) -> dict[str, Any]:
    """Serve the graph of `folder` in bounded memory; figures of a cold server, and with repeated nodes."""
    graph = Graph.open(folder / "graph")
    evict(folder / "graph")
    port = server_process.free_port()
    with bounded(memory_bytes) as limit:
        command = limit.command(command_of(folder, port, f"state_cache.memory_bytes={memory_bytes // 4}"))
        with server_process.serve(
            command, port, REQUEST, num_outputs=NUM_OUTPUTS, timeout_s=600
        ) as running:
            rows = {
                name: load.run(
                    port, REQUEST, connections=connections, seconds=seconds, num_ids=num_ids, seed=seed
                )
                for seed, (name, connections, num_ids) in enumerate(
                    (
                        ("cold_c1", 1, graph.num_nodes),
                        ("cold_c32", 32, graph.num_nodes),
                        ("first_of_repeated_c32", 32, _REPEATED),
                        ("repeated_c1", 1, _REPEATED),
                        ("repeated_c32", 32, _REPEATED),
                    )
                )
            }
            figures = {name: figures_of(row) for name, row in rows.items()}
            return {
                **figures,
                "graph_bytes": graph.num_bytes,
                "memory_bytes": memory_bytes,
                "memory_peak_bytes": limit.peak(),
                "bounded_by": limit.how,
                "ready_s": round(running.ready_s, 1),
            }


def command_of(folder: Path, port: int, *settings: str) -> list[str]:
    """The command line of one worker that reads the graph from the disk."""
    return server_command(folder, port, f"graph.path={folder / 'graph'}", "graph.memory=disk", *settings)


def server_command(folder: Path, port: int, *settings: str) -> list[str]:
    """The command line of one worker on loopback."""
    command = [sys.executable, "-m", "hopline.cli", "serve", "--repository", str(folder / "repository")]
    command += ["--port", str(port), "--grpc-port", "-1"]
    for setting in settings:
        command += ["--set", setting]
    return command


def figures_of(row: load.Load) -> dict[str, float]:
    """Fields of a run in the JSON line."""
    return {
        "rps": round(row.rps, 1),
        "p50_ms": round(row.p50_ms, 3),
        "p99_ms": round(row.p99_ms, 3),
        "failed": sum(row.errors.values()),
    }
