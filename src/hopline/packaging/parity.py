"""Comparisons: of served answers with the module's, and of the traced model with itself on another graph.

Code whose rows depend on each other is refused. Shapes alone do not distinguish `x - x.mean(0)` from
`x - 1`; values do: the traced model runs on another graph that has the same nodes.

Agreement means |a - b| <= 1e-4 + 1e-4 |b| in every element.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from hopline.errors import NotSplittable, ParityError
from hopline.packaging.arguments import Binding
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.locality import renumbered
from hopline.packaging.reference import as_rows, differ
from hopline.packaging.trace import Traced, describe
from hopline.types import AnyArray, FloatArray

#: Absolute tolerance, and relative for values above 1.
TOLERANCE = 1e-4


def difference(actual: AnyArray, expected: AnyArray, slack: Any = 0.0) -> tuple[float, Any]:
    """The largest absolute difference of two arrays [n, c], and where they agree least.

    Args:
        slack: that is allowed beyond the tolerance, a number or [n, 1].

    Returns: the difference; the row and column of one that is beyond the tolerance, or None.
    """
    with np.errstate(invalid="ignore"):
        found = np.abs(actual.astype(np.float64) - expected)
    found[(actual == expected) | (np.isnan(actual) & np.isnan(expected))] = 0.0
    allowed = TOLERANCE * np.where(np.isfinite(expected), np.abs(expected), 0.0) + slack
    excess = np.where(np.isnan(found), np.inf, found) - allowed
    is_far = excess.size and excess.max() > TOLERANCE
    place = np.unravel_index(int(excess.argmax()), excess.shape) if is_far else None
    return float(found.max(initial=0.0)), place


def compare(what: str, actual: FloatArray, expected: FloatArray) -> float:
    """Largest absolute difference of two arrays.

    Raises:
        ParityError: beyond the tolerance, or another shape; `what` names the array.
    """
    if actual.shape != expected.shape:
        raise ParityError(f"{what} has shape {actual.shape}, the PyG module gives {expected.shape}")
    largest, place = difference(actual, expected)
    if place is not None:
        raise ParityError(
            f"{what} differs from the PyG module: {actual[place]:.6g} instead of {expected[place]:.6g} in "
            f"row {place[0]}, column {place[1]} (allowed {TOLERANCE:g} and {TOLERANCE:g} of it)"
        )
    return largest


def check_rows(traced: Traced, binding: Binding, graph: CheckGraph) -> None:
    """Run the traced model on a larger graph with its nodes in another order; rows of a node must agree.

    Args:
        graph: its first nodes are those of the check graph, with the same neighbourhoods.

    Raises:
        NotSplittable: naming the first value that mixes rows, and its source line.
    """
    rng = np.random.default_rng(0)
    order = {name: rng.permutation(len(rows)) for name, rows in graph.features.items()}
    place = {name: torch.from_numpy(np.argsort(rows)) for name, rows in order.items()}
    recorder = _Recorder(traced.module)
    try:
        with torch.no_grad():
            recorder.run(binding.slots(renumbered(graph, order)))
    except Exception as error:  # code of the model
        failed = describe(traced.module, recorder.current) if recorder.current is not None else "it"
        raise NotSplittable(f"{failed} works only on all nodes together: {error}") from error
    for node, value in traced.values.items():
        domain = traced.domains.get(node)
        if domain is None or domain.kind != "node" or not _is_float(value):
            continue
        again = recorder.values[node]
        if not _is_float(again) or len(again) != len(place[domain.type]):
            continue
        if differ(as_rows(value), as_rows(again[place[domain.type][: len(value)]])).any():
            raise NotSplittable(
                f"{describe(traced.module, node)} mixes rows: a node's value depends on which other nodes "
                "are computed with it"
            )


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 0


class _Recorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.extra_traceback = False
        self.values: dict[fx.Node, Any] = {}
        self.current: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self.current = n
        self.values[n] = value = super().run_node(n)
        return value
