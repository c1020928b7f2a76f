"""Evidence of one interval (*clues*), and its grouping by call paths."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline_mesh.changes import KubernetesTrouble
from hopline_mesh.detect.paths import Paths

#: Services are slots; of a service the caller is -1.
Key = tuple[int, int, str]


class Clue(msgspec.Struct, array_like=True):
    """One series that is out of bounds: evidence with slots instead of names.

    Attributes:
        service: slot; for a call path, of the callee.
        caller: slot of the caller of a call path; -1 for a service itself.
        feature: column, or kind of a trouble that Kubernetes reports.
        role: of the column; "trouble" for a trouble, "gone" for a removed service or call path.
        score: anomaly score; 1.0 = threshold.
        is_up: more than expected.
        is_firm: out of bounds for long enough.
        expected, seen: in the column's unit.
        trouble: that Kubernetes reports; None for a measurement.
    """

    service: int
    caller: int
    feature: str
    role: str
    score: float
    is_up: bool
    is_firm: bool
    expected: float | None
    seen: float | None
    trouble: KubernetesTrouble | None = None

    @property
    def key(self) -> Key:
        """Identity of the series."""
        return self.caller, self.service, self.feature


def services_of(clues: Iterable[Clue]) -> set[int]:
    """Return the slots of all services with evidence, callers included."""
    return {end for clue in clues for end in (clue.service, clue.caller) if end >= 0}


def together(clues: Iterable[Clue], paths: Paths) -> list[list[Clue]]:
    """Return clues in groups that call paths connect.

    Args:
        paths: at the services of the clues. Services are also connected through one service in between.
    """
    kept = list(clues)
    if not kept:
        return []
    ends = np.array([(clue.service, clue.caller) for clue in kept], np.int64)
    on_path = ends[:, 1] >= 0
    size = 1 + max(int(ends.max()), int(paths.src.max(initial=0)), int(paths.dst.max(initial=0)))
    has_clue = np.zeros(size, bool)
    has_clue[ends[ends >= 0]] = True
    src, dst = paths.src, paths.dst
    from_clue, to_clue = has_clue[src], has_clue[dst]
    above = np.full(size, -1)  # a caller with clues of a service without
    half = from_clue & ~to_clue
    above[dst[half]] = src[half]
    through = to_clue & (above[src] >= 0)
    both = from_clue & to_clue
    label = _components(
        size,
        np.concatenate([ends[on_path, 1], src[both], above[src[through]]]),
        np.concatenate([ends[on_path, 0], dst[both], dst[through]]),
    )
    groups: dict[int, list[Clue]] = {}
    for clue, group in zip(kept, label[ends[:, 0]].tolist(), strict=True):
        groups.setdefault(group, []).append(clue)
    return list(groups.values())


def _components(size: int, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the smallest member of each number's connected component, int64 [size].

    Args:
        a, b: ends of the connections.
    """
    label = np.arange(size)
    while True:
        low = np.minimum(label[a], label[b])
        lower = label.copy()
        np.minimum.at(lower, label[a], low)
        np.minimum.at(lower, label[b], low)
        lower = lower[lower]
        if (lower == label).all():
            return label
        label = lower
