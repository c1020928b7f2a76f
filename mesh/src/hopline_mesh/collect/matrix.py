"""Reads an answer of Prometheus' range API: at each moment of a grid what would have been answered then."""

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
    """Series over a grid of moments.

    Attributes:
        labels: JSON object of each series' labels, as it was sent.
        values: float64 [series, moments]; NaN and infinite ones as they came.
        there: bool [series, moments], whether there is a value at all.
        times: float64 [moments], Unix seconds.
        warnings: what Prometheus says about the answer.
    """

    labels: list[bytes]
    values: NDArray[np.float64]
    there: NDArray[np.bool_]
    times: NDArray[np.float64]
    warnings: tuple[str, ...] = ()

    def at(self, number: int) -> Answer:
        """The answer for one moment."""
        rows = np.flatnonzero(self.there[:, number])
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
    """Read the body of an answer to `/api/v1/query_range`.

    Args:
        times: float64 [moments], evenly spaced: those that were asked about.

    Raises:
        QueryFailed: Prometheus says that it failed, or it is not what Prometheus answers.
    """
    try:
        answer = _body.decode(body)
        if answer.status != "success" or answer.data is None or answer.data.resultType != "matrix":
            raise QueryFailed(safe_text(answer.error) or "the answer is not a range of values")
        series = answer.data.result
        shape = (len(series), len(times))
        values, there = np.full(shape, np.nan), np.zeros(shape, bool)
        step_s = float(times[1] - times[0]) if len(times) > 1 else 1.0
        for row, each in enumerate(series):
            at = np.fromiter((pair[0] for pair in each.values), np.float64, len(each.values))
            columns = np.rint((at - times[0]) / step_s).astype(np.int64)
            values[row, columns] = [float(pair[1]) for pair in each.values]
            there[row, columns] = True
    except (*UNREADABLE, IndexError) as error:
        start = safe_text(body[:60].decode("utf-8", "replace"), 60)
        raise QueryFailed(f"the answer is not that of a Prometheus ({error}): {start!r}") from None
    labels = [bytes(each.metric) for each in series]
    return Matrix(
        labels, values, there, times, tuple(safe_text(text) for text in answer.warnings or ())[:5]
    )
