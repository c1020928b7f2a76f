"""Ids of edges: a column of distinct texts, with a hash table over them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from hopline.errors import BadRequest, GraphError
from hopline.graph.columns import read_only
from hopline.graph.ids import StringIds
from hopline.graph.stored_columns import StoredColumns
from hopline.types import AnyArray, ContextId, IdArray


class EdgeIds:
    """The ids of the edges of one type, by their positions.

    Args:
        columns: of the type. name: the column of ids. what: whose they are, for error messages.
        slots: int32, as of `StringIds`; None makes the table.
    Raises: GraphError: an id is missing or repeated.
    """

    def __init__(
        self, columns: StoredColumns, name: str, slots: AnyArray | None = None, what: str = "edges"
    ) -> None:
        self._columns, self._name, self._what = columns, name, what
        self.slots: Any = slots
        if slots is None:
            self.slots = self._index.arrays()["slots"]

    @cached_property
    def _index(self) -> StringIds:
        """Made when it is first read: a graph whose columns no caller reads needs no Arrow."""
        column = self._columns.table.column(self._name).combine_chunks()
        # a text is stored once, in the order in which texts come first
        wrong = np.flatnonzero(column.indices.fill_null(-1).to_numpy() != np.arange(len(column)))
        if len(wrong):
            text = column[int(wrong[0])].as_py()
            why = "one is missing" if text is None else f"{text!r} is repeated"
            raise GraphError(f"ids of {self._what}, in column {self._name!r}: {why}")
        texts = column.dictionary
        _, ends, data = texts.buffers()
        blob = read_only(np.frombuffer(data or b"", np.uint8))
        offsets = read_only(np.frombuffer(ends or bytes(4), np.int32)[: len(texts) + 1].astype(np.int64))
        if self.slots is None:
            return StringIds.of_arrays(blob, offsets)
        return StringIds(blob, offsets, self.slots)

    def lookup(self, ids: Sequence[ContextId]) -> IdArray:
        """Positions of edges, int64 [n], -1 for unknown ids; integers are their digits."""
        return self._index.lookup([str(each) for each in ids])

    def external(self, positions: IdArray) -> list[str]:
        """Ids of edges."""
        return self._index.external(positions)


def no_edge_ids(key: str) -> BadRequest:
    """The error of a request that names edges which have no ids."""
    how = "or build the graph with a column of ids (--id, EdgeTable.id)"
    return BadRequest(f"edges of {key!r} have no ids: name them by `from` and `to`, {how}")
