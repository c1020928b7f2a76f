"""Which rows a model reads for given seeds, and which of them L1 lacks.

Sampling is keyed: the plan made here is the one that a worker makes. It is a superset of what the worker
lacks where that has an embedding table.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from hopline.artifact import ModelSpec
from hopline.engine.model import Model, load_model
from hopline.errors import ArtifactError
from hopline.features.near import NearRows
from hopline.graph import Graph
from hopline.types import FloatArray, IdArray


class Presence:
    """A `RowSource` that says which rows are near and copies none: enough to plan, not to compute."""

    def __init__(self, near: NearRows) -> None:
        self._near = near

    def read(self, ids: IdArray, out: FloatArray, *, stale: bool = False) -> IdArray:
        """As `RowSource.read`, but for the rows."""
        return self._near.cache.probe(ids, time.monotonic())

    def mean(self) -> FloatArray:
        """As `RowSource.mean`."""
        return self._near.mean()


class Neighborhood:
    """The sampled neighbourhoods of one model version.

    Raises:
        ArtifactError, SchemaMismatch: as for loading the model to serve it.
    """

    def __init__(self, folder: Path, spec: ModelSpec, graph: Graph, near: Mapping[str, NearRows]) -> None:
        sources = {name: Presence(rows) for name, rows in near.items()}
        model = load_model(folder, spec, graph, sources=sources)
        if not isinstance(model, Model):  # served whole: load_model says no where features are remote
            raise ArtifactError(f"{spec.name}/{spec.version} reads no features that could be prefetched")
        self._model = model

    def lacking(self, seeds: Mapping[str, IdArray], as_of: int) -> dict[str, IdArray]:
        """Rows that L1 lacks: node type -> int64 distinct ids.

        Args:
            seeds: node type -> int64 distinct global ids, of the types that the model's head reads.
        """
        return self._model.absent(seeds, as_of)

    @property
    def seed_types(self) -> frozenset[str]:
        """Node types that seeds may be of."""
        head = self._model.spec.head
        return frozenset((head.node_type, head.dst_node_type or head.node_type))
