"""Calls per request: the number of calls on a call path for each request that the caller gets.

Rates follow the load. This ratio does not depend on the load, so its spread is small: it shows a caller
that repeats every call at any time of day.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline.kernels.jit import njit
from hopline_mesh.roster import SlotArray
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Snapshot
from hopline_mesh.tagae.roles import load_column

COLUMN = "calls_per_request"
#: Minimum requests per second of a caller for a meaningful ratio.
_FEWEST = np.float32(0.1)
#: Columns of call paths in the default schema.
_USUAL_WIDTH = 4


class Pending(NamedTuple):
    """The remaining work of `CallsPerRequest.of`: `add_rows`, once for each row.

    Attributes:
        out: float32 [e, Fe + 1], to fill.
        measured: float32 [e, Fe], the call paths' numbers; callers: int32 [e].
        sent: column of the calls per second in `measured`.
    """

    out: NDArray[np.float32]
    measured: NDArray[np.float32]
    callers: SlotArray
    sent: int


class CallsPerRequest:
    """An additional column of call paths, if both tables have a column of requests per second.

    Args:
        schema: the measured columns.

    Attributes:
        columns: its name; () if it cannot be computed, or is measured already.
        width: number of columns of call paths, including this one.
    """

    def __init__(self, schema: Schema) -> None:
        self._received, self._sent = load_column(schema.node_features), load_column(schema.edge_features)
        can_tell = self._received >= 0 and self._sent >= 0 and COLUMN not in schema.edge_features
        self.columns: tuple[str, ...] = (COLUMN,) if can_tell else ()
        self.width = len(schema.edge_features) + len(self.columns)
        # Reused, because the first access to new memory is slow.
        self._room = np.empty((0, self.width), np.float32)

    def of(self, snapshot: Snapshot) -> NDArray[np.float32]:
        """Return the call paths' columns, with calls per request.

        Returns: float32 [e, width], valid until the next call; only the measured ones if it cannot be
            computed.
        """
        if not self.columns:
            return snapshot.edge_features
        out, measured, callers, sent = self.begin(snapshot)
        every_row = np.arange(len(out), dtype=np.int32)
        row_of = np.full(len(snapshot.roster), -1, np.int32)
        row_of[snapshot.nodes] = np.arange(len(snapshot.nodes), dtype=np.int32)
        values = np.ascontiguousarray(snapshot.node_features, np.float32)
        add_rows(
            0, len(every_row), every_row, out, measured, callers, sent, row_of, values, self._received
        )  # fmt: skip
        return out

    def begin(self, snapshot: Snapshot) -> Pending:
        """Return the work of `of`, for a caller that fills the rows itself; needs `columns`."""
        e = len(snapshot.edge_features)
        if len(self._room) < e:
            self._room = np.empty((e + e // 4, self.width), np.float32)
        measured = np.ascontiguousarray(snapshot.edge_features, np.float32)
        callers = np.ascontiguousarray(snapshot.edge_src, np.int32)
        return Pending(self._room[:e], measured, callers, self._sent)


@njit(nogil=True, cache=True, inline="always")
def rate_of(service, row_of, node_values, received):  # type: ignore[no-untyped-def]
    """Return requests per second of a service; NaN if they are too few or it is absent."""
    row = np.int64(row_of[service])
    rate = node_values[row if row >= 0 else 0, received]
    return rate if row >= 0 and rate >= _FEWEST else np.float32(math.nan)


@njit(nogil=True, cache=True, error_model="numpy")
def add_rows(  # type: ignore[no-untyped-def]
    begin, end, rows, out, measured, callers, sent, row_of, node_values, received
):
    """Fill rows `rows[begin]` to `rows[end - 1]` of `out`, except those below 0; see `Pending`.

    Args:
        row_of: int32 [slots], a service's row in `node_values`, float32 [n, F], -1 if it is absent;
            `node_values` has at least one row.
        received: column of the requests per second that a service gets.
    """
    width = measured.shape[1]
    if width == _USUAL_WIDTH:  # unrolled, a row is one load and one store: a third of the loop's time
        for i in range(begin, end):
            row = np.int64(rows[i])
            if row >= 0:
                out[row, 0], out[row, 1] = measured[row, 0], measured[row, 1]
                out[row, 2], out[row, 3] = measured[row, 2], measured[row, 3]
                rate = rate_of(callers[row], row_of, node_values, received)
                out[row, _USUAL_WIDTH] = measured[row, sent] / rate
    else:
        for i in range(begin, end):
            row = np.int64(rows[i])
            if row >= 0:
                for column in range(width):
                    out[row, column] = measured[row, column]
                rate = rate_of(callers[row], row_of, node_values, received)
                out[row, width] = measured[row, sent] / rate
