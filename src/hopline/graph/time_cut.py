"""Checks a time cut against a graph's times: converts dates to their unit, refuses numbers of another unit.

A number in another unit is a valid integer with a wrong answer and no error: seconds sent to a graph in
milliseconds lie before its first edge, so no edge counts. So a number that is far from all edge times is
refused: 0 < as_of < first / 100, or as_of > 100 * last, since units differ by a factor of 1000. Zero,
negative numbers and closer numbers are accepted, even if no edge is as early.

A few edge times that are far off, such as zeros for unknown times, would defeat that check. So if the
graph's unit is set, a number outside the edge times is also refused if it is a time between 1973 and 2286
in another unit, and not in this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest
from hopline.graph.edge_times import UNITS, iso, likely_unit
from hopline.types import IdArray

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_FAR = 100
_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
#: Lists that are sampled if the range is not stored: enough to distinguish units.
_SAMPLE = 4096


class TimedEdges(Protocol):
    """Edges with times: `Adjacency` and `LiveAdjacency`."""

    @property
    def time(self) -> Any:
        """int64, or None."""

    def starts(self, global_ids: IdArray) -> IdArray:
        """Begin of the lists."""

    def degree(self, global_ids: IdArray) -> IdArray:
        """Length of the lists."""


def rough_range(edges: Mapping[str, TimedEdges], num_nodes: Mapping[str, int]) -> tuple[int, int] | None:
    """The first and the last edge time: the stored range, or an estimate from some lists of the graph.

    Args:
        edges: edge type key -> edges. num_nodes: the same key -> number of destinations.
    Returns: None where there are no times.
    """
    found: list[int] = []
    for key, part in edges.items():
        if part.time is None:
            continue
        stored = getattr(part, "stored_time_range", None)
        if stored is not None:
            found += stored
            continue
        nodes = np.unique(np.linspace(0, num_nodes[key] - 1, _SAMPLE).astype(np.int64))
        starts, degrees = part.starts(nodes), part.degree(nodes)
        starts, degrees = starts[degrees > 0], degrees[degrees > 0]
        if len(starts):  # lists are sorted by time
            ends: NDArray[np.int64] = part.time[starts + degrees - 1]
            found += [int(part.time[starts].min()), int(ends.max())]
    return (min(found), max(found)) if found else None


def time_cut(as_of: int | datetime, unit: str, times: tuple[int, int] | None) -> int:
    """Convert a cut to the unit of the graph's edge times.

    Args:
        as_of: an integer in that unit; or a date and time, UTC if it names no time zone.
        unit: of the edge times; "" if unknown: then `likely_unit` estimates it.
        times: the first and the last of them.

    Raises: BadRequest: a number that looks like another unit; a date although no unit is known.
    """
    likely = unit or ("" if times is None else likely_unit(np.array(times)))
    if isinstance(as_of, datetime):
        return _of_moment(as_of, likely, times)
    if times is None:
        return as_of
    first, last = times
    is_far = (first > 0 and 0 < as_of < first / _FAR) or (last > 0 and as_of > last * _FAR)
    if unit and not 0 < first <= as_of <= last:
        is_far = is_far or likely_unit(np.array([as_of])) not in ("", unit)
    if is_far:
        raise BadRequest(
            f"as_of {as_of} is far from the graph's edge times, which are {_shown(times, likely)}; "
            f"{_advice(as_of, likely, times)}"
        )
    return as_of


def _of_moment(as_of: datetime, unit: str, times: tuple[int, int] | None) -> int:
    if not unit:
        known = "has no edges with times yet" if times is None else f"has times {times[0]} to {times[1]}"
        raise BadRequest(
            f"as_of is a date, and the unit of the graph's edge times is unknown: the graph {known}; send "
            "a number in their unit, or build the graph with one (--time-unit, time_unit=, or datetimes as "
            "edge times)"
        )
    aware = as_of if as_of.tzinfo is not None else as_of.replace(tzinfo=UTC)
    micros = (aware - _EPOCH) // _US
    power = UNITS.index(unit) - UNITS.index("us")
    cut: int = micros * 1000**power if power >= 0 else micros // 1000**-power
    if not -(2**63) <= cut < 2**63:
        raise BadRequest(f"as_of {as_of.isoformat()} does not fit into 64 bits in {unit}, the graph's unit")
    return cut


def _shown(times: tuple[int, int], unit: str) -> str:
    text = f"about {times[0]} to {times[1]}"
    if not unit:
        return f"{text} in an unknown unit"
    return f"{text} {unit} ({iso(times[0], unit)} to {iso(times[1], unit)})"


def _advice(as_of: int, unit: str, times: tuple[int, int]) -> str:
    """Advice on what to send instead."""
    first, last = times
    others = [likely_unit(np.array([as_of])), *(UNITS if first > 0 else ())]
    for other in others:
        if unit and other not in ("", unit):
            power = UNITS.index(unit) - UNITS.index(other)
            cut = as_of * 1000**power if power >= 0 else as_of // 1000**-power
            if first / _FAR <= cut <= last * _FAR:
                return f"it looks like {_NAMES[other]}; send {cut}, which is {iso(cut, unit)}, or that text"
    right = "send a number in their unit, or omit as_of to include all edges"
    return right if not unit else f"{right}; text such as {iso(last, unit)!r} is accepted too"
