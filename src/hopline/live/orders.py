"""Builds the orders of the process that writes the live graph, from the settings.

Imports nothing heavy: supervisors do not load NumPy.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hopline.artifact import read_spec
from hopline.config.folders import live_folder, live_socket, needed_folder
from hopline.config.schema import Config
from hopline.errors import HoplineError

#: Levels of changed_at if no model is known in advance: enough for three layers.
_LEVELS = 4
#: Orders that are settings of the same name.
_SAME = ("stand_by_s", "snapshots", "spare_nodes", "spare_edges", "snapshot_bytes", "snapshot_s", "nice")


def writer_orders(
    config: Config, run_by: str, *, yields: bool = False, memory_fd: int = -1
) -> dict[str, Any]:
    """The orders of the writer of the live graph; see `live.process.WriterOrders`.

    Args:
        run_by: the command of this process, for the message of processes that find the folder in use.
        yields: True if it gives up the folder to a server's writer.
        memory_fd: of the memory that workers read, -1 for private memory.
    """
    live = config.live
    return {
        "graph": str(needed_folder(config, "graph.path")),
        "folder": str(live_folder(config)),
        "socket": str(live_socket(config)),
        "run_by": f"{run_by} (process {os.getpid()})",
        "yields": yields,
        "memory_fd": memory_fd,
        "follows": bool(live.stream),
        "num_levels": live.levels or levels_of(config.models.repository),
        "reads_degrees": live.degrees,
        "seen_events": live.remembered_events,
        "log_level": config.log.level.upper(),
        "drain_s": config.server.drain_timeout_s,
        **{name: getattr(live, name) for name in _SAME},
    }


def levels_of(repository: Path | str | None) -> int:
    """Levels of changed_at that the deepest model of a local repository needs, `LivePlan.num_levels`.

    Each level costs more than the one before by about the number of a node's neighbours: levels that no
    model reads were half of the writer's CPU time.
    """
    if repository is None or "://" in str(repository):
        return _LEVELS
    reaches = []
    for path in Path(repository).glob("*/*/model.json"):
        try:
            reaches.append(read_spec(path.parent, verify=False).reach)
        except HoplineError:
            continue  # of another kind; or the error is reported when the model is loaded
    return max(reaches) + 1 if reaches else _LEVELS
