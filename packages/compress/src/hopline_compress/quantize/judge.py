"""Compares the answers of two forms of a model for the judged nodes, in each bucket of degree.

The cost of a form, in points, is

    with labels            accuracy before - accuracy after
    classes, no labels     share of nodes whose label changes
    regression, embedding  root mean square of the difference, in % of that of the answers
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.artifact import ModelSpec
from hopline.engine.model import Model
from hopline.engine.tasks import labels as labels_of
from hopline.graph import Graph
from hopline.types import AnyArray, FloatArray, IdArray
from hopline_compress.quantize.nodes import JudgedNodes

_BATCH = 1024
_CLASSES = ("multiclass", "binary", "multilabel")


class BucketFigures(msgspec.Struct, frozen=True):
    """The figures of the nodes of one bucket.

    Attributes:
        name: the degrees in words.
        nodes: judged.
        drop: in points; see the module.
        agreement: share of nodes with the same label, in %; None for a task without labels.
        before, after: accuracy in %; None without labels.
        max_abs_diff: of a logit.
    """

    name: str
    nodes: int
    drop: float
    agreement: float | None
    before: float | None
    after: float | None
    max_abs_diff: float


class Figures(msgspec.Struct, frozen=True):
    """The figures of one form of a model against the original.

    Attributes:
        overall: over all nodes of the graph: buckets count by their share of it.
        buckets: ascending by degree.
        difference: root mean square of the logits' difference, in % of the logits' own.
    """

    overall: BucketFigures
    buckets: tuple[BucketFigures, ...]
    difference: float

    @property
    def worst(self) -> BucketFigures:
        """The bucket, or all nodes, where the cost is largest."""
        return max((self.overall, *self.buckets), key=lambda bucket: bucket.drop)

    @property
    def drop(self) -> float:
        """The largest cost, in points."""
        return self.worst.drop


@dataclass(frozen=True, eq=False)
class Judge:
    """Compares forms of a model with the original.

    Attributes:
        graph, judged: the nodes of the comparison.
        partners: for a model of pairs, the other end of each pair; ids of the head's second type.
        labels: int64 [n], -1 where unknown; None without labels.
        before: float32 [n, c], the original's logits.
    """

    graph: Graph
    judged: JudgedNodes
    partners: IdArray | None
    labels: IdArray | None
    before: FloatArray

    @classmethod
    def of(
        cls,
        folder: Path,
        spec: ModelSpec,
        graph: Graph,
        judged: JudgedNodes,
        labels: IdArray | None,
        rng: np.random.Generator,
    ) -> Judge:
        """Compute the original's answers."""
        partners: IdArray | None = None
        if spec.head.kind == "link":
            other = graph.nodes[spec.head.dst_node_type or spec.head.node_type].num_nodes
            partners = rng.integers(0, other, judged.nodes.shape)
        return cls(graph, judged, partners, labels, answers(folder, spec, graph, judged.nodes, partners))

    def compare(self, folder: Path, spec: ModelSpec) -> Figures:
        """The cost of the form of the model in `folder`."""
        after = answers(folder, spec, self.graph, self.judged.nodes, self.partners)
        names = self.judged.names
        found = [
            self._figures(spec.task, name, np.flatnonzero(self.judged.bucket == b), after)
            for b, name in enumerate(names)
        ]
        return Figures(self._overall(found), tuple(found), _difference(self.before, after))

    def _figures(self, task: str, name: str, rows: IdArray, after: FloatArray) -> BucketFigures:
        old, new = self.before[rows].astype(np.float64), after[rows].astype(np.float64)
        largest = float(np.abs(old - new).max(initial=0.0))
        if task not in _CLASSES:
            return BucketFigures(name, rows.size, _difference(old, new), None, None, None, largest)
        was, now = labels_of(task, self.before[rows]), labels_of(task, after[rows])
        agreement = _percent(was == now)
        if self.labels is None:
            return BucketFigures(name, rows.size, 100 - agreement, agreement, None, None, largest)
        right = self.labels[rows]
        before, now_right = _percent(was == right), _percent(now == right)
        return BucketFigures(name, rows.size, before - now_right, agreement, before, now_right, largest)

    def _overall(self, found: list[BucketFigures]) -> BucketFigures:
        weights = self.judged.shares / self.judged.shares.sum()

        def mean(values: list[float | None]) -> float | None:
            present = [value for value in values if value is not None]
            return float(np.dot(weights, present)) if len(present) == len(weights) else None

        return BucketFigures(
            "all nodes",
            sum(bucket.nodes for bucket in found),
            mean([bucket.drop for bucket in found]) or 0.0,
            mean([bucket.agreement for bucket in found]),
            mean([bucket.before for bucket in found]),
            mean([bucket.after for bucket in found]),
            max(bucket.max_abs_diff for bucket in found),
        )


def answers(
    folder: Path, spec: ModelSpec, graph: Graph, nodes: IdArray, partners: IdArray | None = None
) -> FloatArray:
    """Logits of nodes (or of pairs with their partners) as the server computes them: float32 [n, c]."""
    model = Model(folder, spec, graph)
    own, other = spec.head.node_type, spec.head.dst_node_type or spec.head.node_type
    found = []
    for a in range(0, nodes.shape[0], _BATCH):
        rows = nodes[a : a + _BATCH]
        states = [model.final_states({own: rows})[own].copy()]
        if partners is not None:
            distinct, numbers = np.unique(partners[a : a + _BATCH], return_inverse=True)
            states.append(model.final_states({other: distinct})[other][numbers])
        found.append(model.logits(*states).copy())
    return np.concatenate(found)


def _difference(before: AnyArray, after: AnyArray) -> float:
    """Root mean square of the difference, in % of that of `before`."""
    if not before.size:
        return 0.0
    size = float(np.sqrt(np.square(before.astype(np.float64)).mean()))
    return 100 * float(np.sqrt(np.square(before.astype(np.float64) - after).mean())) / (size or 1.0)


def _percent(values: NDArray[np.bool_]) -> float:
    return 100 * float(values.mean()) if values.size else 100.0
