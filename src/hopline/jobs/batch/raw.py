"""A graph's features as a file of float32 rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hopline.errors import BatchError
from hopline.files import publish_file
from hopline.graph import Graph
from hopline.graph.narrow import name_of
from hopline.graph.schema import quoted
from hopline.jobs.batch.states import RowFile, create, disk_errors

_ROWS = 1 << 16


def feature_file(graph: Graph, node_type: str, work: Path) -> Path:
    """The `.npy` file of a node type's features: the graph's own, or, if those are narrower, a widened
    copy in the run's work folder, created once.

    Raises:
        BatchError: the graph has no folder, or the disk is full.
    """
    if graph.path is None:
        raise BatchError("a batch run needs a saved graph; save it first")
    features = graph.nodes[node_type].features
    if name_of(features) == "float32":
        return graph.path / "nodes" / quoted(node_type) / "features.npy"
    path = work / "states" / f"raw.{quoted(node_type)}.npy"
    if path.is_file():
        return path
    draft = path.with_suffix(".tmp")
    create(draft, *features.shape)
    file = RowFile(draft, writable=True)
    for a in range(0, features.shape[0], _ROWS):
        rows = np.arange(a, min(a + _ROWS, features.shape[0]))
        file.write(rows, np.asarray(features[a : a + _ROWS], np.float32))
    file.close()
    with disk_errors(path):
        publish_file(draft, path, durable=True)
    return path
