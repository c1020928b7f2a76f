"""What was out of bounds in one interval, and which of it belongs together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hopline_mesh.tagae.roles import Role

#: Services are slots; of a service the caller is -1.
Key = tuple[int, int, str]


@dataclass(slots=True)
class Clue:
    """One series that is out of bounds.

    Attributes:
        service: slot; of a call path, the callee.
        caller: slot of the caller of a call path; -1 where a service itself was measured.
        feature: column, or kind of a trouble that Kubernetes reports.
        role: what the column is about; "trouble" for the latter, "gone" for what is not there any more.
        score: 1.0 = threshold.
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
        """What was measured."""
        return self.caller, self.service, self.feature


def together(clues: Iterable[Clue], calls: Iterable[tuple[int, int]]) -> list[list[Clue]]:
    """Clues in groups that call paths connect.

    Args:
        calls: caller and callee of call paths at the services of the clues. Services also belong together
            where what one calls calls the other.
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
    there = set(parent)
    above: dict[int, int] = {}
    for caller, callee in calls:
        if caller in there and callee in there:
            parent[root(caller)] = root(callee)
        elif caller in there:
            above[callee] = caller
    for caller, callee in calls:
        if callee in there and caller in above:
            parent[root(callee)] = root(above[caller])
    groups: dict[int, list[Clue]] = {}
    for clue in kept:
        groups.setdefault(root(clue.service), []).append(clue)
    return list(groups.values())
