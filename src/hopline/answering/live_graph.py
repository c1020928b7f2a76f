"""Opens the live graph of a host to read it: the memory that its writer fills."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path

from hopline.config.folders import live_folder, needed_folder
from hopline.config.schema import Config
from hopline.errors import ConfigError, GraphError
from hopline.graph import Graph
from hopline.graph.live.home import graph_folder
from hopline.graph.live.manifest import read_manifest
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.view import LiveView

log = logging.getLogger(__name__)

#: Seconds between looks whether the writer has filled the memory, and after which to say that it waits.
_LOOK_S, _PATIENCE_S = 0.01, 10.0


def open_live_graph(config: Config) -> LiveView:
    """A view of the graph that the writer of this host changes; waits until it exists.

    Raises:
        ConfigError: a setting does not go with a live graph.
        GraphError: the memory is another version's, or no snapshot fits it, or no process is left to fill
        it.
    """
    if config.features.prefetcher is not None:
        raise ConfigError(
            "features.prefetcher: a prefetcher reads a snapshot, and live.enabled is set; leave one of the "
            "two out"
        )
    memory = _filled(config.worker.live_memory)
    base = Graph.open(needed_folder(config, "graph.path"))
    plan = memory.plan
    if plan.lineage not in (base.version, base.lineage):
        raise GraphError(
            f"graph.path: {base.path} is graph {base.version}; the live graph began with {plan.lineage}"
        )
    newest = _with_enough_ids(live_folder(config), base, memory)
    ids = {name: nodes.ids for name, nodes in newest.nodes.items()}
    return LiveView(memory, base.schema, ids, base.path)


def _filled(path: str) -> LiveMemory:
    began = said = time.monotonic()
    descriptor = os.open(path, os.O_RDWR)
    try:
        memory = None
        while True:
            memory = memory or LiveMemory.attach(descriptor)
            if memory is not None and memory.is_filled:
                return memory
            # Our descriptor keeps it after its creator died, and no process would ever fill it.
            if not os.path.exists(path):
                raise GraphError("the live graph has no writer: the supervisor has ended")
            if time.monotonic() - said > _PATIENCE_S:
                said = time.monotonic()
                log.warning("waiting for the writer of the live graph for %.0f s", said - began)
            time.sleep(_LOOK_S)
    finally:
        os.close(descriptor)


def _with_enough_ids(folder: Path, base: Graph, memory: LiveMemory) -> Graph:
    """The original graph or the oldest snapshot with all nodes of the memory: newer ones lack some."""
    sequence = memory.plan.sequence
    for _ in range(100 if sequence else 0):  # a snapshot may be replaced while it is opened
        manifest = read_manifest(folder)
        for entry in reversed(manifest.snapshots if manifest is not None else ()):
            with contextlib.suppress(GraphError):
                if entry.sequence >= sequence:
                    return Graph.open(graph_folder(folder, entry))
        time.sleep(_LOOK_S)
    if sequence:
        raise GraphError(f"{folder}: no snapshot has the live graph's first {sequence} changes; restart it")
    return base
