"""How the serving benchmark starts Hopline: the only file here that knows its interfaces."""

from __future__ import annotations

from pathlib import Path

from benchmarks.load import ID, Request

REQUEST = Request("/v1/models/sage/score", f'{{"nodes":[{ID}]}}')


def prepare(workload_dir: Path) -> Path:
    """Package the workload's model and build its graph, unless that is done already.

    Args:
        workload_dir: a folder written by `benchmarks.workload`.
    Returns: the folder that `command` serves.
    """
    raise RuntimeError("hopline server not wired yet")


def command(serve_dir: Path, port: int) -> list[str]:
    """The command line of one Hopline worker on loopback, its table empty at the start."""
    raise RuntimeError("hopline server not wired yet")
