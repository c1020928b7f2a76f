"""Refuses what JSON refuses: values in columns that the operation or the type of a row does not take.

A column that is null in a row is absent there. `Table` reads the columns that a row takes, and no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hopline.events import wire
from hopline.events.json_rows import in_order
from hopline.events.rows import Refusals
from hopline.graph.list_columns import lists_of
from hopline.graph.schema import ColumnSchema, GraphSchema
from hopline.types import IdArray


class Columns(Protocol):
    """The columns of a table of events; `ops` has positions in `wire.OPS`, -1 for unknown ones."""

    ops: NDArray[np.int32]

    @property
    def names(self) -> list[str]:
        """Of all columns."""

    def given(self, name: str) -> NDArray[np.bool_] | None:
        """Rows that have a value: bool [n]; None if no row has one."""


def refuse_fields(table: Columns, first: int, graph: GraphSchema, refusals: Refusals) -> None:
    """Refuse rows with values that their operation never takes, in the words of JSON.

    Args:
        first: number of the table's first event.
    """
    edges, nodes = graph.edge_types.values(), graph.node_types.values()
    names = {
        "attr": {name for each in edges for name in (*each.attr_names, *named(each.columns))},
        "features": {name for each in nodes for name in (*each.feature_names, *named(each.columns))},
    }
    for at, op in enumerate(wire.OPS):
        fields = wire.FIELDS[op]
        taken = {"op", *fields}.union(*(names[vector] for vector in names if vector in fields))
        others = [name for name in table.names if name not in taken]
        wrong = {name: ("malformed", wire.foreign_field(op, name)) for name in others}
        _refuse(table, np.flatnonzero(table.ops == at), first, wrong, refusals)


def named(columns: Sequence[ColumnSchema]) -> list[str]:
    """Names of columns, and of the lists among them."""
    names = [column.name for column in columns]
    return [*names, *lists_of(names)]


def refuse_vectors(
    table: Columns,
    named: Sequence[str],
    rows: IdArray,
    first: int,
    vector: str,
    names: tuple[str, ...],
    dim: int,
    what: str,
    refusals: Refusals,
) -> None:
    """Refuse rows of one type with values by the name of another type's vector, or with a vector twice.

    Args:
        named: of the table's columns, those that the type may only have in its vector.
        rows: that take the vector. vector: `attr` or `features`.
    """
    others = {name: in_order({name: 0.0}, dim, names, what) for name in named if name not in names}
    wrong = {name: reason for name, reason in others.items() if isinstance(reason, tuple)}
    _refuse(table, rows, first, wrong, refusals)
    lists = table.given(vector)
    if lists is not None and lists[rows].any():  # lists are read, so columns by name would be ignored
        twice = "bad_shape", f"{what} as a list and by name; send all events of a message in one form"
        _refuse(table, rows, first, {name: twice for name in named if name in names}, refusals)


def _refuse(
    table: Columns, rows: IdArray, first: int, reasons: Mapping[str, tuple[str, str]], refusals: Refusals
) -> None:
    """Refuse rows with a value in some columns."""
    if not len(rows):
        return
    for name, reason in reasons.items():
        given = table.given(name)
        if given is not None:
            refusals.add_all(rows[given[rows]] + first, *reason)
