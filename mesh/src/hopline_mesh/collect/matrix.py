"""Reads a response of Prometheus' range API: for each time of a grid the response as of then."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline_mesh.collect.answer import UNREADABLE, Answer
from hopline_mesh.collect.names import safe_text
from hopline_mesh.errors import QueryFailed


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Series over a grid of times.

    Attributes:
        labels: JSON object of each series' labels, as it was sent.
        values: float64 [series, times]; NaN and infinite ones unchanged.
        present: bool [series, times], whether there is a value.
        times: float64 [times], Unix seconds.
        warnings: of Prometheus.
    """

    labels: list[bytes]
    values: NDArray[np.float64]
    present: NDArray[np.bool_]
    times: NDArray[np.float64]
    warnings: tuple[str, ...] = ()

    def at(self, number: int) -> Answer:
        """Return the response for one time."""
        rows = np.flatnonzero(self.present[:, number])
        labels = self.labels if len(rows) == len(self.labels) else [self.labels[i] for i in rows.tolist()]
        times = np.full(len(rows), self.times[number])
        return Answer(labels, self.values[rows, number], times, warnings=self.warnings)


class _Series(msgspec.Struct, gc=False, frozen=True):
    metric: msgspec.Raw
    values: list[tuple[float, str]]


class _Result(msgspec.Struct):
    resultType: str
    result: list[_Series]


class _Body(msgspec.Struct):
    status: str
    data: _Result | None = None
    error: str = ""
    warnings: list[str] | None = None


_body = msgspec.json.Decoder(_Body)


def read_matrix(body: bytes, times: NDArray[np.float64]) -> Matrix:
    """Read the body of a response of `/api/v1/query_range`.

    Args:
        times: float64 [times], evenly spaced: those of the query.

    Raises:
        QueryFailed: Prometheus reports a failure, or the body is not a response of Prometheus.
    """
    try:
        answer = _body.decode(body)
        if answer.status != "success" or answer.data is None or answer.data.resultType != "matrix":
            raise QueryFailed(safe_text(answer.error) or "the response is not a range of values")
        series = answer.data.result
        shape = (len(series), len(times))
        values, present = np.full(shape, np.nan), np.zeros(shape, bool)
        step_s = float(times[1] - times[0]) if len(times) > 1 else 1.0
        for row, each in enumerate(series):
            at = np.fromiter((pair[0] for pair in each.values), np.float64, len(each.values))
            columns = np.rint((at - times[0]) / step_s).astype(np.int64)
            values[row, columns] = [float(pair[1]) for pair in each.values]
            present[row, columns] = True
    except (*UNREADABLE, IndexError) as error:
        start = safe_text(body[:60].decode("utf-8", "replace"), 60)
        raise QueryFailed(f"not a response of Prometheus ({error}): {start!r}") from None
    labels = [bytes(each.metric) for each in series]
    return Matrix(
        labels, values, present, times, tuple(safe_text(text) for text in answer.warnings or ())[:5]
    )
