"""Which rows a model reads for given seeds, and which of them L1 lacks.

Sampling is keyed: the plan made here is the one that a worker makes. It is a superset of what the worker
lacks where that has an state cache.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from hopline.artifact import ModelSpec
from hopline.engine.model import Model, load_model
from hopline.errors import ArtifactError
from hopline.features.l1_rows import L1Rows
from hopline.graph import Graph
from hopline.types import FloatArray, IdArray


class Presence:
    """A `RowSource` that says which rows are l1_rows and copies none: enough to plan, not to compute."""

    def __init__(self, l1_rows: L1Rows) -> None:
        self._l1_rows = l1_rows

    def read(self, ids: IdArray, out: FloatArray, *, stale: bool = False) -> IdArray:
        """As `RowSource.read`, but for the rows."""
        return self._l1_rows.cache.probe(ids, time.monotonic())

    def mean(self) -> FloatArray:
        """As `RowSource.mean`."""
        return self._l1_rows.mean()


class Neighborhood:
    """The sampled neighbourhoods of one model version.

    Raises:
        ArtifactError, SchemaMismatch: as for loading the model to serve it.
    """

    def __init__(self, folder: Path, spec: ModelSpec, graph: Graph, l1_rows: Mapping[str, L1Rows]) -> None:
        sources = {name: Presence(rows) for name, rows in l1_rows.items()}
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
