"""Selects, joins and renumbers rows of changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hopline.graph.live.changes import Changes, EdgeChanges, NodeChanges
from hopline.types import IdArray

PartT = TypeVar("PartT", EdgeChanges, NodeChanges)


def keep(changes: Mapping[str, PartT], wanted: NDArray[np.bool_], place: IdArray) -> dict[str, PartT]:
    """The rows of wanted events, under new positions; types without rows are left out.

    Args:
        wanted: bool [num_events]. place: int64 [num_events], the new positions of wanted ones.
    """
    kept = {}
    for name, part in changes.items():
        mask = wanted[part.order]
        if mask.any():
            chosen = take(part, mask)
            values = {each: getattr(chosen, each) for each in part.__dataclass_fields__}
            kept[name] = type(part)(**{**values, "order": place[chosen.order]})
    return kept


def choose(changes: Changes, wanted: NDArray[np.bool_]) -> Changes:
    """Some events of a batch, as a batch. Positions are left out.

    Args:
        wanted: bool [num_events].
    """
    place = np.cumsum(wanted) - 1
    times = changes.event_time_ms
    ids: Sequence[str] = ()
    if changes.event_ids:
        ids = [each for each, yes in zip(changes.event_ids, wanted.tolist(), strict=True) if yes]
    return Changes(
        keep(changes.edges, wanted, place),
        keep(changes.nodes, wanted, place),
        int(wanted.sum()),
        ids,
        None if times is None else times[wanted],
    )


def take(part: PartT, mask: NDArray[np.bool_]) -> PartT:
    """The rows of a mask, bool [n]."""
    if mask.all():
        return part
    chosen = mask.tolist()

    def rows(column: Any) -> Any:
        if column is None:
            return None
        if isinstance(column, np.ndarray):
            return column[mask]
        return [value for value, yes in zip(column, chosen, strict=True) if yes]

    return type(part)(**{name: rows(getattr(part, name)) for name in part.__dataclass_fields__})


def merge(parts: Sequence[PartT]) -> PartT:
    """Changes of one type from several, in order."""
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate([part.order for part in parts]), kind="stable")
    sorted_already = bool((order == np.arange(len(order))).all())

    def joined(name: str) -> Any:
        columns = [getattr(part, name) for part in parts]
        if name in ("has_time", "remove"):
            if all(column is None for column in columns):
                return None
            columns = [
                np.full(len(part), name == "has_time") if column is None else column
                for part, column in zip(parts, columns, strict=True)
            ]
        if columns[0] is None:
            return None
        if isinstance(columns[0], np.ndarray):
            column = np.concatenate(columns)
            return column if sorted_already else column[order]
        values = [value for column in columns for value in column]
        return values if sorted_already else [values[row] for row in order.tolist()]

    return type(parts[0])(**{name: joined(name) for name in parts[0].__dataclass_fields__})
