"""Precomputed answers: which file fits a model, which of its rows may be used, and the rows themselves.

The server, hybrid serving (`final_rows.py`) and functions (`hopline_serverless/known.py`) all read a file
through this module. It needs no compiled code, so that a function starts quickly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hopline.artifact import ModelSpec
from hopline.engine.precomputed_file.header import PrecomputedPlan
from hopline.engine.precomputed_file.reader import PrecomputedFile
from hopline.errors import PrecomputedFileError
from hopline.types import FloatArray, IdArray

#: Global ids -> which rows still equal the rows that would be computed now: int64 [n] -> bool [n].
Unchanged = Callable[[IdArray], NDArray[np.bool_]]

#: Outcomes of requested rows, by their label in the metrics.
FOUND, NEW, ABSENT, EXPIRED, CHANGED = "looked_up", "new", "absent", "expired", "changed"
OUTCOMES = (FOUND, NEW, ABSENT, EXPIRED, CHANGED)


class PrecomputedRows:
    """The precomputed rows of one node type.

    Args:
        file: of this model; see `check_fits`.
        spec: the model.
        ttl_s: rows older than this are computed; 0 for any age.
        is_stale: the rows are about another graph version, and are served anyway.
        rows_known: bool [N], rows that belong to the node of the same number here; None for all.
        unchanged: returns which rows are still valid on a live graph; None on a snapshot.
        clock_ms: ms since the epoch.

    Attributes:
        num_rows: of the file; nodes from there on are new.
        state_dim: columns of a final state.
        embedding: columns [a, b) of the state that are the embedding.
    """

    def __init__(
        self,
        file: PrecomputedFile,
        spec: ModelSpec,
        *,
        ttl_s: float = 0.0,
        is_stale: bool = False,
        rows_known: NDArray[np.bool_] | None = None,
        unchanged: Unchanged | None = None,
        clock_ms: Callable[[], float] = lambda: time.time() * 1e3,
    ) -> None:
        self.file = file
        self.node_type = file.header.plan.node_type
        self.num_rows = file.header.plan.num_nodes
        self.is_stale = is_stale
        self.unchanged = unchanged
        self._ttl_ms = ttl_s * 1e3
        self._clock_ms = clock_ms
        self._rows_known = rows_known
        self._computed_at = file.computed_at
        self._state = file.state
        self._logits = file.state if file.logits is None else file.logits
        self.state_dim = self._state.shape[1]
        self.embedding = spec.head.embedding or (0, self.state_dim)

    def holds(self, row: int) -> bool:
        """True if one row, at least 0, is valid; if not, `good` counts the reason."""
        if row >= self.num_rows:
            return False
        computed_at = self._computed_at[row]
        if computed_at == 0 or (self._ttl_ms and computed_at < self._clock_ms() - self._ttl_ms):
            return False
        if self._rows_known is not None and not self._rows_known[row]:
            return False
        return self.unchanged is None or bool(self.unchanged(np.array((row,), np.int64))[0])

    def good(self, ids: IdArray, counts: dict[str, int] | None = None) -> NDArray[np.bool_]:
        """Check which rows are valid and need not be computed.

        Args:
            ids: int64 [n], at least 0.
            counts: by outcome; the n outcomes are added.
        Returns: bool [n].
        """
        n = ids.shape[0]
        inside = ids < self.num_rows
        computed_at = (
            self._computed_at[np.where(inside, ids, 0)] if self.num_rows else np.zeros(n, np.int64)
        )
        good: NDArray[np.bool_] = inside & (computed_at != 0)
        if self._rows_known is not None:
            good[good] = self._rows_known[ids[good]]
        num_inside, num_there = int(np.count_nonzero(inside)), int(np.count_nonzero(good))
        if self._ttl_ms:
            good &= computed_at >= self._clock_ms() - self._ttl_ms
        num_young = int(np.count_nonzero(good))
        if self.unchanged is not None and num_young:
            good[good] = self.unchanged(ids[good])
        if counts is not None:
            num_good = int(np.count_nonzero(good))
            counts[FOUND] += num_good
            counts[NEW] += n - num_inside
            counts[ABSENT] += num_inside - num_there
            counts[EXPIRED] += num_there - num_young
            counts[CHANGED] += num_young - num_good
        return good

    def states(self, ids: IdArray) -> FloatArray:
        """Final states float32 [n, d] of valid rows."""
        found: FloatArray = self._state[ids]
        return found

    def logits(self, ids: IdArray | slice) -> FloatArray:
        """Logits float32 [n, c] of valid rows; for node heads."""
        found: FloatArray = self._logits[ids]
        return found

    def embeddings(self, ids: IdArray | slice) -> FloatArray:
        """Embeddings float32 [n, e] of valid rows."""
        a, b = self.embedding
        found: FloatArray = self._state[ids][:, a:b]
        return found

    @property
    def num_logits(self) -> int:
        """Columns of logits."""
        return int(self._logits.shape[1])


def check_fits(file: PrecomputedFile, spec: ModelSpec, own_hash: str) -> None:
    """Check that a file has the rows of a model.

    Args:
        own_hash: `model_hash` of the model's folder.

    Raises: PrecomputedFileError: the file is of another artifact, node type or shape; the error says which.
    """
    plan, path = file.header.plan, file.path
    if plan.model_hash != own_hash:
        raise PrecomputedFileError(
            f"{path} was computed by {plan.model}/{plan.version} with artifact "
            f"{plan.model_hash[:12]}…; the one that is loaded is {own_hash[:12]}…: run "
            "`hopline batch` with it"
        )
    head = spec.head
    types = (
        [head.node_type] if head.kind == "node" else [head.node_type, head.dst_node_type or head.node_type]
    )
    if plan.node_type not in types:
        raise PrecomputedFileError(
            f"{path} has rows of {plan.node_type!r}; {spec.name} needs rows of {' and '.join(types)}"
        )
    state_dim = spec.levels[-1][plan.node_type].state_dim
    #: Columns of logits that the file may have; where the state is the logits they may be omitted.
    logits = (head.output_dim,) if head.kind == "node" and head.file is not None else (0, head.output_dim)
    if plan.state_dim != state_dim or plan.output_dim not in logits:
        raise PrecomputedFileError(
            f"{path} has states of {plan.state_dim} and logits of {plan.output_dim} columns; {spec.name} "
            f"has {state_dim} and {logits[-1]}: run `hopline batch` for state and logits"
        )
    sampled = any(fanout >= 0 for fanouts in spec.fanouts.values() for fanout in fanouts)
    if plan.exact and (sampled or spec.max_degree is not None):
        raise PrecomputedFileError(
            f"{path} was computed over all neighbours, but {spec.name} samples them: answers for known and "
            "new nodes would not be comparable; run `hopline batch` with the model's fanouts"
        )


def on_other_graph(path: Path, plan: PrecomputedPlan, name: str, graph_version: str) -> str:
    """Message for rows that were computed on another graph."""
    return f"{path} was computed on graph {plan.graph_version}; {name} is served on {graph_version}"


_STALE_ADVICE = (
    'precomputed.stale = "compute" to compute, or "serve" to use its rows and mark the answers as degraded'
)
#: What the user can do; follows `on_other_graph`.
OTHER_GRAPH_ADVICE = f"run `hopline batch` on that graph; or set {_STALE_ADVICE}"
#: What the user can do where features come from a store.
STORE_ADVICE = f"set {_STALE_ADVICE}"


def no_counts() -> dict[str, int]:
    """Counts by outcome, all 0."""
    return dict.fromkeys(OUTCOMES, 0)
