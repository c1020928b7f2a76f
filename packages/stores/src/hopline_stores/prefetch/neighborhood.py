"""The rows that a model reads for given seeds, and the missing ones of them in the L1 feature cache.

Sampling is keyed: the plan is the same as a worker's plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from hopline.artifact import ModelSpec
from hopline.engine.model import load_model
from hopline.features.l1_rows import L1Rows
from hopline.graph import Graph
from hopline.types import FloatArray, IdArray


class Presence:
    """A `RowSource` that reports which rows are cached and copies none: enough to plan, not to compute."""

    ttl_s = math.inf

    def __init__(self, l1_rows: L1Rows) -> None:
        self._l1_rows = l1_rows

    def read(self, ids: IdArray, out: FloatArray, *, stale: bool = False) -> tuple[IdArray, float]:
        """See `RowSource.read`; does not copy rows."""
        return self._l1_rows.probe(ids), math.inf

    def age_s(self, stamp: float) -> float:
        """As `RowSource.age_s`; no stamps come from here."""
        return 0.0

    def mean(self) -> FloatArray:
        """See `RowSource.mean`."""
        return self._l1_rows.mean()


class Neighborhood:
    """The sampled neighbourhoods of one model version.

    Raises:
        ArtifactError, SchemaMismatch: as for loading the model to serve it.
    """

    def __init__(self, folder: Path, spec: ModelSpec, graph: Graph, l1_rows: Mapping[str, L1Rows]) -> None:
        sources = {name: Presence(rows) for name, rows in l1_rows.items()}
        self._keys = {name: rows.key or name for name, rows in l1_rows.items()}
        self._model = load_model(folder, spec, graph, sources=sources)

    def lacking(self, seeds: Mapping[str, IdArray], as_of: int) -> dict[str, IdArray]:
        """Return the missing rows of the L1 feature cache: name of the rows -> int64 distinct ids.

        The name is that of the node type, or of what the model's preprocessing makes of its columns.

        Args:
            seeds: node type -> int64 distinct global ids, of the types that the model's head reads.
        """
        found = self._model.absent(seeds, as_of)
        return {self._keys[name]: ids for name, ids in found.items()}

    @property
    def seed_types(self) -> frozenset[str]:
        """Node types of seeds."""
        head = self._model.spec.head
        return frozenset((*self._model.by_type, head.dst_node_type or head.node_type))
