"""Reads responses of Prometheus' query APIs: labels as they were sent, and values as numbers.

Labels are not parsed here. As bytes they are the key of a cache of services: 200,000 series take 0.4 s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline_mesh.collect.names import safe_text
from hopline_mesh.errors import QueryFailed

# float() also accepts texts that Prometheus never writes, such as "1_000" or " 12 "; these are not numbers.
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|[Ii]nf|NaN)")


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """An instant vector.

    Attributes:
        labels: JSON object of each series' labels, as it was sent.
        values: float64 [n]; NaN and infinite ones unchanged.
        times: float64 [n], Unix seconds of each value.
        unreadable: number of series that were left out because they are invalid.
        warnings: of Prometheus, such as that a part of the response is missing.
    """

    labels: list[bytes]
    values: NDArray[np.float64]
    times: NDArray[np.float64]
    unreadable: int = 0
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)


class _Vector(msgspec.Struct):
    resultType: str = ""
    result: msgspec.Raw = msgspec.Raw(b"null")


class _Body(msgspec.Struct):
    status: Any = None
    data: _Vector | None = None
    error: Any = None
    errorType: Any = None
    warnings: Any = None
    isPartial: Any = None  # of VictoriaMetrics


class _Series(msgspec.Struct):
    metric: msgspec.Raw
    value: tuple[float, str | float | int]


class _Range(msgspec.Struct, gc=False, frozen=True):
    metric: msgspec.Raw
    values: list[tuple[float, str]]


#: Errors of decoders, including invalid UTF-8 and very deep nesting.
UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)

_body = msgspec.json.Decoder(_Body)
_list = msgspec.json.Decoder(list[msgspec.Raw])
_series = msgspec.json.Decoder(_Series)
_range = msgspec.json.Decoder(_Range)


def read_answer(body: bytes) -> Answer:
    """Read the body of a response of `/api/v1/query`; invalid series are counted, and do not affect others.

    Raises:
        QueryFailed: Prometheus reports a failure, the result is not an instant vector, or the body is not a
            response of Prometheus.
    """
    series, warnings = read_result(body, "vector")
    labels, values, times = [], [], []
    for part in series:
        try:
            one = _series.decode(part)
        except UNREADABLE:
            continue
        time_s, value = one.value
        if isinstance(value, str) and not _NUMBER.fullmatch(value):
            continue
        labels.append(bytes(one.metric))
        values.append(float(value))
        times.append(time_s)
    return Answer(
        labels,
        np.array(values, np.float64),
        np.array(times, np.float64),
        len(series) - len(labels),
        warnings,
    )


def read_matrix(body: bytes, times: NDArray[np.float64]) -> list[Answer]:
    """Read the body of a response of `/api/v1/query_range`.

    Args:
        times: float64 [times], evenly spaced: those of the query.

    Returns: what `/api/v1/query` would have responded at each of the times.

    Raises:
        QueryFailed: Prometheus reports a failure, or the body is not a response of Prometheus.
    """
    parts, warnings = read_result(body, "matrix")
    shape = (len(parts), len(times))
    values, present = np.zeros(shape), np.zeros(shape, bool)
    step_s = float(times[1] - times[0]) if len(times) > 1 else 1.0
    labels = []
    try:
        for row, part in enumerate(parts):
            each = _range.decode(part)
            at = np.fromiter((pair[0] for pair in each.values), np.float64, len(each.values))
            columns = np.rint((at - times[0]) / step_s).astype(np.int64)
            if columns.min(initial=0) < 0:
                raise IndexError("a value is older than the range")
            values[row, columns] = [float(pair[1]) for pair in each.values]
            present[row, columns] = True
            labels.append(bytes(each.metric))
    except (*UNREADABLE, IndexError) as error:
        raise QueryFailed(f"a series of the response is invalid: {safe_text(error)}") from None
    answers = []
    for number, time_s in enumerate(times.tolist()):
        rows = np.flatnonzero(present[:, number])
        own, moments = [labels[row] for row in rows.tolist()], np.full(len(rows), time_s)
        answers.append(Answer(own, values[rows, number], moments, warnings=warnings))
    return answers


def read_result(
    body: bytes, kind: Literal["vector", "matrix"]
) -> tuple[list[msgspec.Raw], tuple[str, ...]]:
    """Return the series of a response, each as JSON, and its warnings.

    Raises:
        QueryFailed: see `read_answer`.
    """
    try:
        answer = _body.decode(body)
    except UNREADABLE as error:
        start = safe_text(body[:60].decode("utf-8", "replace"), 60)
        raise QueryFailed(f"not a response of Prometheus ({error}): {start!r}") from None
    if answer.status != "success":
        of = safe_text(answer.errorType or "error", 40)
        raise QueryFailed(f"{of}: {safe_text(answer.error or 'no reason given')}")
    if answer.data is None:
        raise QueryFailed("the response has no data")
    if answer.data.resultType != kind:
        needed = "an instant vector is needed: one number for each series, not a range"
        if kind == "matrix":
            needed = "a range of values is needed"
        found = safe_text(answer.data.resultType or "nothing", 40)
        raise QueryFailed(f"the result is of type {found}; {needed}")
    try:
        series = _list.decode(answer.data.result)
    except UNREADABLE:
        raise QueryFailed("the result is not a list of series") from None
    return series, _warnings(answer.warnings, answer.isPartial)


def _warnings(found: Any, partial: Any) -> tuple[str, ...]:
    warnings = found if isinstance(found, list) else [found] if found else []
    if partial is True:
        warnings = ["a part of the response is missing", *warnings]
    return tuple(safe_text(each) for each in warnings[:5])
