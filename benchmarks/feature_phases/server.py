"""Start of Hopline for the phases: with its features in a store."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks import workload
from benchmarks.hopline_server import REQUEST
from benchmarks.server_process import Running, free_port, serve
from hopline.features.l1 import CachePlan

_PAGE_BYTES = 4096


def command(kind: str, serve_dir: Path, settings: Mapping[str, object]) -> list[str]:
    """A command line of `hopline <kind>`; settings by their paths."""
    told = [("--set", f"{name}={value}") for name, value in settings.items()]
    return [
        *(sys.executable, "-m", "hopline.cli", kind),
        *("--graph", str(serve_dir / "graph"), "--repository", str(serve_dir / "repository")),
        *(word for pair in told for word in pair),
    ]


@contextlib.contextmanager
def hopline(
    serve_dir: Path, settings: Mapping[str, object], num_outputs: int = workload.NUM_OUTPUTS
) -> Iterator[Running]:
    """A server for the length of a `with` block."""
    port = free_port()
    line = [*command("serve", serve_dir, settings), "--port", str(port), "--grpc-port", "-1"]
    with serve(line, port, REQUEST, num_outputs=num_outputs) as running:
        yield running


def l1_bytes(num_nodes: int, dim: int, num_rows: int, num_writers: int = 1) -> int:
    """`features.memory_bytes` with which L1 keeps so many rows, all writers' together."""
    fixed = CachePlan(num_nodes, dim, (0,) * num_writers).num_bytes
    return fixed + 3 * _PAGE_BYTES + num_rows * CachePlan.slot_bytes(dim)
