"""Events of one type as columns, before they are checked against a graph's schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.types import AnyArray, IdArray


class Column(NamedTuple):
    """Values of one field of some events.

    Attributes:
        values: [n] or [n, d]; arbitrary for events without a value.
        present: bool [n]; None means that all events have a value.
    """

    values: AnyArray
    present: NDArray[np.bool_] | None = None

    def absent(self) -> NDArray[np.bool_]:
        """Events without a value, bool [n]."""
        if self.present is None:
            return np.zeros(len(self.values), np.bool_)
        return ~self.present


class Refused(msgspec.Struct, frozen=True, gc=False):
    """An event, or a whole payload, that cannot be a change of this graph.

    Attributes:
        payload: its number.
        index: of the event in it; -1 for all of it.
        event_id: "" if it has none or cannot be read.
    """

    payload: int
    index: int
    code: str
    reason: str
    event_id: str = ""


@dataclass(slots=True)
class Refusals:
    """Events that cannot be changes of this graph: number -> (code, reason). The first reason is kept."""

    by_number: dict[int, tuple[str, str]] = field(default_factory=dict)

    def add(self, number: int, code: str, reason: str) -> None:
        """Refuse one event."""
        self.by_number.setdefault(number, (code, reason))

    def add_all(self, numbers: IdArray, code: str, reason: str) -> None:
        """Refuse events for one reason."""
        for number in numbers.tolist():
            self.by_number.setdefault(number, (code, reason))


@dataclass(frozen=True, slots=True, eq=False)
class EdgeRows:
    """Events of one edge type.

    Attributes:
        numbers: int64 [n], ascending numbers of the events.
        src, dst: int64 [n], or n values of any type.
        remove: bool [n].
        time: int64; weight: any float; attr: numbers [n, d], as sent. None if no event has one.
        cells, texts: as in `EdgeChanges`.
    """

    numbers: IdArray
    src: IdArray | Sequence[Any]
    dst: IdArray | Sequence[Any]
    remove: NDArray[np.bool_]
    time: Column | None
    weight: Column | None
    attr: Column | None
    cells: AnyArray | None = None
    texts: AnyArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class NodeRows:
    """Events of one node type.

    Attributes:
        numbers: int64 [n], ascending numbers of the events.
        ids: int64 [n], or n values of any type.
        add: bool [n].
        features: numbers [n, d], as sent; None if no event has any.
        cells, texts: as in `NodeChanges`.
        time: int64; None if no event has one.
    """

    numbers: IdArray
    ids: IdArray | Sequence[Any]
    add: NDArray[np.bool_]
    features: Column | None
    cells: AnyArray | None = None
    texts: AnyArray | None = None
    time: Column | None = None
