"""Opens versions of a live graph as graphs, for code that reads all of one: batch runs, copies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from hopline.config.folders import needed_folder
from hopline.config.schema import Config
from hopline.errors import WriterUnavailable
from hopline.graph import Graph
from hopline.graph.file_watch import open_compared
from hopline.graph.live.history import LiveHistory, is_versions, parse_at
from hopline.graph.live.home import LOCK
from hopline.graph.live.lock import read_owner
from hopline.live import wire
from hopline.live.link import WriterLink

log = logging.getLogger(__name__)


def needed_graph(config: Config) -> Path:
    """The setting `graph.path` for `open_graph`. Raises: ConfigError: as `needed_folder`."""
    path = config.graph.path
    at_version = isinstance(path, Path) and is_versions(path)
    return path if isinstance(path, Path) and at_version else needed_folder(config, "graph.path")


def open_graph(path: Path, *, fresh: bool = True) -> Graph:
    """A graph folder, the newest version of a live folder, or a version of it by "FOLDER@+N".

    The version is named as the live graph's (`version.py`). Only the original graph and
    snapshots have folders. Of a folder that a server writes now, the newest snapshot is opened.

    Args:
        fresh: first have a running writer make a snapshot of the present version.

    Raises: GraphError: it cannot be opened, or nothing leads to that version.
    """
    return _opened(
        path, WriterLink.snapshot if fresh else WriterLink.status, lambda status: status.snapshot
    )


def open_present(path: Path) -> Graph:
    """As `open_graph`, but of a folder that a server writes now the present version; writes nothing."""
    return _opened(path, WriterLink.status, lambda status: status.sequence)


def _opened(
    path: Path,
    call: Callable[[WriterLink], Coroutine[Any, Any, wire.Status]],
    newest: Callable[[wire.Status], int],
) -> Graph:
    if not is_versions(path):
        return open_compared(path)
    folder, offset = parse_at(path)
    status = None if offset is not None else asyncio.run(_status(folder, call))
    with LiveHistory(folder, offset) as history:
        if offset is not None:
            history.reach(offset)
        while offset is None and (status is None or history.sequence < newest(status)):
            if not history.advance():
                break
        return history.graph()


async def _status(
    folder: Path, call: Callable[[WriterLink], Coroutine[Any, Any, wire.Status]]
) -> wire.Status | None:
    """The answer of the folder's writer; None if none runs."""
    socket = Path(read_owner(folder / LOCK).socket)
    if not socket.is_socket():
        return None
    link = WriterLink(socket, "reader")
    link.start()
    try:
        return await call(link)
    except WriterUnavailable as error:
        log.warning("%s; reading what is in %s", error, folder)
        return None
    finally:
        await link.close()
