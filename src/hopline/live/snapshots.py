"""Opens a live graph as a snapshot, for code that reads all of it: batch runs, packaging, copies."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from hopline.errors import GraphError, WriterUnavailable
from hopline.graph import Graph
from hopline.graph.file_watch import open_compared
from hopline.graph.live.home import graph_folder
from hopline.graph.live.manifest import NAME, read_manifest
from hopline.graph.live.version import version_name
from hopline.live.link import WriterLink

log = logging.getLogger(__name__)


def open_graph(path: Path, *, fresh: bool = True) -> Graph:
    """A graph folder, or the newest snapshot of a live folder; see `open_snapshot`.

    Raises: GraphError.
    """
    return open_snapshot(path, fresh=fresh) if is_live_folder(path) else open_compared(path)


def is_live_folder(path: Path) -> bool:
    """True if a folder holds changes of a live graph."""
    return (path / NAME).is_file()


def open_snapshot(folder: Path, *, fresh: bool = True) -> Graph:
    """The newest snapshot of a live folder; its version is named as the live graph's (`version.py`).

    If there is none yet, the graph that the live graph began with.

    Args:
        fresh: first have a running writer make a snapshot of the present version.

    Raises: GraphError: it cannot be opened, or this is not a live folder.
    """
    socket = folder / "writer.sock"
    if fresh and socket.is_socket():
        try:
            asyncio.run(_snapshot_now(socket))
        except WriterUnavailable as error:
            log.warning("%s; using the newest existing snapshot", error)
    for _ in range(100):  # a snapshot may be replaced while it is opened
        manifest = read_manifest(folder)
        if manifest is None:
            raise GraphError(f"{folder} is not a folder of a live graph: it has no {NAME}")
        if not manifest.snapshots:  # nothing has changed, or no writer runs
            return open_compared(Path(manifest.base))
        entry = manifest.snapshots[0]
        try:
            graph = Graph.open(graph_folder(folder, entry))
        except GraphError:
            if read_manifest(folder) == manifest:
                raise
            continue
        graph.__dict__["version"] = entry.name or version_name(manifest.lineage, entry.sequence)
        return graph
    raise GraphError(f"{folder}: its snapshots are replaced faster than they can be opened")


async def _snapshot_now(socket: Path) -> None:
    link = WriterLink(socket, "snapshot")
    link.start()
    try:
        await link.snapshot()
    finally:
        await link.close()
