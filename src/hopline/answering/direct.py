"""Answers that are looked up as a whole, in the turn of the event loop in which they are asked for.

A request for rows of a precomputed file takes a few microseconds: less than a queue, a prediction of its
cost and a batch would take. It bypasses them, and waits for no other request. What is not wholly a look-up
(an unknown, new or changed node, an inline node, a time cut) goes the ordinary way, where the rows that the
file has are looked up all the same.

A row that is not in memory would stop the loop until the disk has it. Such a request waits for a thread
that reads it, and then continues as the others do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopline.engine.ego import EgoModel
from hopline.engine.fallbacks import STALE_ROW
from hopline.engine.final_rows import Cold, FinalRows
from hopline.engine.model import Model
from hopline.engine.precomputed import FOUND, no_counts
from hopline.errors import BadRequest
from hopline.types import IdArray, ScoreRequest, ScoreResult

#: Nodes of the largest request that is answered so; larger ones are batches of their size.
MAX_NODES = 256


class DirectAnswers:
    """Answers from precomputed rows, given in the turn of the request.

    Args:
        precomputed: node type -> rows of the file.
        model: what they are rows of.
        name, version: as answers have them.
        default_outputs, output_names: of the model.

    Attributes:
        counts: rows by outcome.
        seconds: of the answers since they were last taken.
    """

    def __init__(
        self,
        precomputed: Mapping[str, FinalRows],
        model: Model | EgoModel,
        name: str,
        version: str,
        default_outputs: tuple[str, ...],
        output_names: tuple[str, ...],
    ) -> None:
        self.counts = no_counts()
        self.seconds: list[float] = []
        self._precomputed = precomputed
        graph: Any = model.graph
        self._live: Any = None
        if getattr(graph, "is_live", False):  # the computer pins its own versions, perhaps on a thread
            graph = self._live = graph.another()
        self._graph = graph
        head = model.spec.head
        self._is_link = head.kind == "link"
        self._types = (head.node_type, head.dst_node_type or head.node_type)
        self._rows = precomputed.get(head.node_type)
        self._index = graph.nodes[head.node_type].ids
        self._name = name
        self._version = version
        self._default_outputs = default_outputs
        self._output_names = frozenset(output_names)

    def answer(self, request: ScoreRequest, now: float) -> ScoreResult | list[Cold] | None:
        """The answer; a list of what a disk has to be asked for first; None: it is no whole look-up.

        Args:
            request: of present, known nodes or of pairs of them, as far as can be seen.
            now: seconds, as of time.perf_counter().
        """
        if self._live is None:
            return self._answer(request, now)
        with self._live:
            return self._answer(request, now)

    def close(self) -> None:
        """No more answers."""
        if self._live is not None:
            self._live.close()

    def _answer(self, request: ScoreRequest, now: float) -> ScoreResult | list[Cold] | None:
        try:
            if self._is_link:
                return None if request.pairs is None else self._cold_pairs(request.pairs, now)
            if request.pairs is not None or not len(request.nodes):
                return None
            ids = self._index.lookup(request.nodes)
        except BadRequest:
            return None  # the general path reports it
        rows, names = self._rows, request.outputs or self._default_outputs
        if rows is None or (request.outputs and not self._output_names.issuperset(names)):
            return None
        if rows.is_stale and request.degraded == "refuse":
            return None
        key: IdArray | slice
        if ids.shape[0] == 1:
            row = int(ids[0])
            if not 0 <= row < rows.num_rows:
                return None
            if not rows.near_row(names, row, now):
                cold = rows.cold(names, ids, now)
                if cold is not None:
                    return [cold]
            if not rows.holds(row):
                return None
            key = slice(row, row + 1)
        else:
            cold = rows.cold(names, ids, now)
            if cold is not None:
                return [cold]
            if ids.shape[0] > MAX_NODES or ids.min() < 0 or not rows.good(ids).all():
                return None
            key = ids
        self.counts[FOUND] += ids.shape[0]
        return ScoreResult(
            self._name,
            self._version,
            self._graph.version,
            rows.outputs(names, key),
            None,
            (STALE_ROW,) if rows.is_stale else (),
            graph_through_ms=0 if self._live is None else self._live.through_ms,
        )

    def _cold_pairs(self, pairs: Sequence[Any], now: float) -> list[Cold] | None:
        """Pairs are for the head to compute; what it needs of the disk is read before."""
        found = []
        for node_type, external in zip(self._types, pairs, strict=False):
            rows = self._precomputed.get(node_type)
            if rows is not None and len(external):
                ids = self._graph.nodes[node_type].ids.lookup(external)
                cold = rows.cold(("embedding",), ids, now)
                if cold is not None:
                    found.append(cold)
        return found or None
