"""One attention input of a stage, loaded: its parameters as arrays, and the call of the kernel."""

from __future__ import annotations

import numpy as np

from hopline.artifact import Attention
from hopline.engine.attention_kernels import FILLS, KINDS, attend, scratch_size
from hopline.engine.kernels import gather
from hopline.engine.narrow_kernels import Matrix
from hopline.engine.view import EdgeView
from hopline.sampling.keyed import frozen
from hopline.types import FloatArray, IdArray

_NO_ATTR: FloatArray = np.empty((0, 0), np.float32)
_NO_FLAGS = np.empty(0, np.bool_)
_NO_QUERY: FloatArray = np.empty((1, 0), np.float32)


class AttentionInput:
    """The arrays and numbers that `attend` takes for one input.

    Args:
        column, width: of the sources' rows.

    Attributes:
        form: the numbers and parameters, in the kernel's order.
        scratch: the kernel's.
    """

    def __init__(self, attention: Attention, column: int, width: int) -> None:
        self.attention = attention
        self.column = column
        self.width = width
        num_attr = attention.num_attr
        edge = np.frombuffer(attention.edge, "<f4")
        own = np.frombuffer(attention.own_vector, "<f4")
        self.form = (
            KINDS[attention.kind],
            attention.shared,
            attention.heads,
            attention.channels,
            np.float32(attention.slope),
            attention.loops,
            FILLS[attention.fill],
            frozen(np.frombuffer(attention.vector, "<f4")),
            frozen(own.reshape(attention.heads, -1) if own.size else _NO_ATTR),
            frozen(edge.reshape(num_attr, -1) if edge.size else _NO_ATTR),
            frozen(np.frombuffer(attention.fill_row, "<f4")),
        )
        self.scratch = np.empty(scratch_size(attention.heads, attention.channels, num_attr), np.float32)
        first, last = attention.query or (0, 0)
        self._query = first, last - first

    def run(
        self,
        view: EdgeView,
        a: int,
        b: int,
        own: Matrix,
        own_rows: IdArray,
        query: FloatArray,
        query_rows: IdArray,
        out: FloatArray,
        place: int,
    ) -> None:
        """Fill out[: b - a, place:] for destinations [a, b) of a view.

        Args:
            own, own_rows: the destinations' own states one level below, and their rows in it [b - a].
            query, query_rows: of the stage's query file; ignored where the query is the own state.
        """
        query_column, query_width = self._query
        if self.attention.query is None:
            query = _NO_QUERY
            query_rows = np.zeros(b - a, np.int64)
        elif not self.attention.is_query_state:
            pass
        elif isinstance(own, np.ndarray):
            query, query_rows = own, own_rows
        else:
            query, query_rows = _floats(own, own_rows, query_column, query_width)
            query_column = 0
        attr = _NO_ATTR
        if self.attention.num_attr:
            assert view.attr is not None
            attr = view.attr
        is_self = view.is_self if view.is_self is not None and self.attention.loops else _NO_FLAGS
        base, rows, offsets, column = view.base, view.rows, view.offsets[a : b + 1], self.column
        if not isinstance(base, np.ndarray):
            edges = slice(offsets[0], offsets[-1])
            if self.attention.loops:
                is_self = (
                    is_self[edges] if len(is_self) else rows[edges] == own_rows.repeat(np.diff(offsets))
                )
                own, own_rows = _floats(own, own_rows, column, self.width)
            base, rows = _floats(base, rows[edges], column, self.width)
            attr = attr[edges] if len(attr) else attr
            offsets, column = offsets - offsets[0], 0
        if not isinstance(own, np.ndarray):
            own = _NO_QUERY  # without loops, it is not read
        attend(
            *self.form, base, rows, offsets, column, own, own_rows,
            query, query_rows, query_column, query_width, is_self, attr, self.scratch, out, place,
        )  # fmt: skip


def _floats(base: Matrix, rows: IdArray, column: int, width: int) -> tuple[FloatArray, IdArray]:
    """The columns of narrow rows as float32, and the rows' places in it."""
    found = np.empty((rows.shape[0], width), np.float32)
    gather(base, rows, column, width, found, 0)
    return found, np.arange(rows.shape[0])
