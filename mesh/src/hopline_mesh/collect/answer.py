"""Reads a response of Prometheus' query API: labels as they were sent, and values as numbers.

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
        return len(self.labels)


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


#: Errors of decoders, including invalid UTF-8 and very deep nesting.
UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)

_body = msgspec.json.Decoder(_Body)
_list = msgspec.json.Decoder(list[msgspec.Raw])
_series = msgspec.json.Decoder(_Series)


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
