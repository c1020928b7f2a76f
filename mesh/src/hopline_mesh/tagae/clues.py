"""Evidence of one interval (*clues*), and its grouping by call paths."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hopline_mesh.tagae.roles import Role

#: Services are slots; of a service the caller is -1.
Key = tuple[int, int, str]


@dataclass(slots=True)
class Clue:
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
    """

    service: int
    caller: int
    feature: str
    role: Role | str
    score: float
    is_up: bool
    is_firm: bool
    expected: float | None
    seen: float | None

    @property
    def key(self) -> Key:
        """Identity of the series."""
        return self.caller, self.service, self.feature


def together(clues: Iterable[Clue], calls: Iterable[tuple[int, int]]) -> list[list[Clue]]:
    """Return clues in groups that call paths connect.

    Args:
        calls: caller and callee of call paths at the services of the clues. Services are also connected
            through one service in between.
    """
    parent: dict[int, int] = {}

    def root(slot: int) -> int:
        parent.setdefault(slot, slot)
        while parent[slot] != slot:
            parent[slot] = parent[parent[slot]]
            slot = parent[slot]
        return slot

    kept = list(clues)
    for clue in kept:
        root(clue.service)
        if clue.caller >= 0:
            parent[root(clue.caller)] = root(clue.service)
    with_clues = set(parent)
    above: dict[int, int] = {}
    for caller, callee in calls:
        if caller in with_clues and callee in with_clues:
            parent[root(caller)] = root(callee)
        elif caller in with_clues:
            above[callee] = caller
    for caller, callee in calls:
        if callee in with_clues and caller in above:
            parent[root(callee)] = root(above[caller])
    groups: dict[int, list[Clue]] = {}
    for clue in kept:
        groups.setdefault(root(clue.service), []).append(clue)
    return list(groups.values())
