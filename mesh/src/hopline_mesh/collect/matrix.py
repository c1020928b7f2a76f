"""Reads a response of Prometheus' range API: for each time of a grid the response as of then."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline_mesh.collect.answer import UNREADABLE, Answer, read_result
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


_decode = msgspec.json.Decoder(_Series).decode


def read_matrix(body: bytes, times: NDArray[np.float64]) -> Matrix:
    """Read the body of a response of `/api/v1/query_range`.

    Args:
        times: float64 [times], evenly spaced: those of the query.

    Raises:
        QueryFailed: Prometheus reports a failure, or the body is not a response of Prometheus.
    """
    parts, warnings = read_result(body, "matrix")
    shape = (len(parts), len(times))
    values, present = np.full(shape, np.nan), np.zeros(shape, bool)
    step_s = float(times[1] - times[0]) if len(times) > 1 else 1.0
    labels = []
    try:
        for row, part in enumerate(parts):
            each = _decode(part)
            at = np.fromiter((pair[0] for pair in each.values), np.float64, len(each.values))
            columns = np.rint((at - times[0]) / step_s).astype(np.int64)
            values[row, columns] = [float(pair[1]) for pair in each.values]
            present[row, columns] = True
            labels.append(bytes(each.metric))
    except (*UNREADABLE, IndexError) as error:
        raise QueryFailed(f"a series of the response is invalid: {safe_text(error)}") from None
    return Matrix(labels, values, present, times, warnings)
