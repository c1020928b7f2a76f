"""Edge times: integers of one unit in the whole graph, and time cuts in that unit.

A request has one `as_of` for all edge types, so their times must have the same unit. Dates are converted to
it.

A number in another unit is a valid integer with a wrong answer and no error: seconds sent to a graph in
milliseconds lie before its first edge, so no edge counts. So a number that is far from all edge times is
refused: 0 < as_of < first / 100, or as_of > 100 * last, since units differ by a factor of 1000. Zero,
negative numbers and closer numbers are accepted, even if no edge is as early.

A few edge times that are far off, such as zeros for unknown times, would defeat that check. So if the
graph's unit is set, a number outside the edge times is also refused if it is a time between 1973 and 2286
in another unit, and not in this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest, GraphError
from hopline.graph.columns import read_only, vector
from hopline.graph.history import History
from hopline.graph.schema import GraphSchema
from hopline.types import AnyArray, IdArray

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_FAR = 100
_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
#: Lists that are sampled if the range is not stored: enough to distinguish units.
_SAMPLE = 4096


def rough_range(graph: Any, keys: Iterable[str]) -> tuple[int, int] | None:
    """The first and the last time of edges and histories, perhaps an estimate from some lists.

    Args:
        graph: `Graph` or `LiveView`.
        keys: of its edge types.
    Returns: None where there are no times.
    """
    found: list[int] = []
    parts = [(graph.edges[key], graph.nodes[graph.edges[key].dst].num_nodes) for key in keys]
    parts += [(each.history, each.num_nodes) for each in graph.nodes.values() if each.history is not None]
    for part, num_nodes in parts:
        stored = getattr(part, "time_range" if isinstance(part, History) else "stored_time_range", None)
        if stored is not None or getattr(part, "time", None) is None:
            found += stored or ()
            continue
        nodes = np.unique(np.linspace(0, num_nodes - 1, _SAMPLE).astype(np.int64))
        starts, degrees = part.starts(nodes), part.degree(nodes)
        starts, degrees = starts[degrees > 0], degrees[degrees > 0]
        if len(starts):  # lists are sorted by time
            ends: NDArray[np.int64] = part.time[starts + degrees - 1]
            found += [int(part.time[starts].min()), int(ends.max())]
    return (min(found), max(found)) if found else None


def with_likely_unit(graph: Any) -> GraphSchema:
    """The schema of a graph, with the unit that its edge times seem to have if none is set."""
    schema: GraphSchema = graph.schema
    times = None if schema.time_unit else rough_range(graph, graph.edges)
    unit = "" if times is None else likely_unit(np.array(times))
    if not unit:
        return schema
    edges = {
        key: msgspec.structs.replace(each, time_unit=unit if each.has_time else "")
        for key, each in schema.edge_types.items()
    }
    return msgspec.structs.replace(schema, edge_types=edges)


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


#: From coarse to fine; each is 1000 of the next one.
UNITS = ("s", "ms", "us", "ns")
_SET_UNIT = "set the unit: time_unit= (--time-unit of `hopline graph build`), one of s, ms, us and ns"
# Seconds between 1973 and 2286 are in this range since 1970, and numbers of no other unit are.
_SECONDS = (10**8, 10**10)
#: Seconds of the years 1 to 9999, since 1970.
_CALENDAR = (-62_135_596_800, 253_402_300_800)


@dataclass(frozen=True, slots=True)
class Times:
    """The times of one edge type: int64 [E], their unit ("" if unknown), and a name for messages."""

    values: IdArray
    unit: str
    what: str


def read_times(value: Any, what: str, rows: int, unit: str = "") -> Times:
    """Edge times as integers.

    Args:
        value: [E] integers, floats that are integers, or NumPy datetimes.
        what: for error messages. rows: E.
        unit: the unit of integers, and the one that datetimes are converted to; "" as in `EdgeTable`.
    Raises: GraphError: a number of rows other than `rows`, not integers, outside int64, finer than `unit`.
    """
    if unit not in ("", *UNITS):
        raise GraphError(f"{what}: the time unit must be one of {', '.join(UNITS)}; got {unit!r}")
    column = vector(value, what, rows)
    if column.dtype.kind == "M":
        return Times(*_of_datetimes(column, what, unit), what)
    if column.dtype.kind == "f":
        # From here on a float represents several integers: the time may have been rounded earlier.
        limit = 2 ** (np.finfo(column.dtype).nmant + 1)
        whole = np.isfinite(column) & (np.floor(column) == column) & (np.abs(column) < limit)
        if not whole.all():
            edge = int(np.flatnonzero(~whole)[0])
            raise GraphError(
                f"{what} must be integers in one unit (such as milliseconds); {np.count_nonzero(~whole)} "
                f"are not, or {column.dtype} may have rounded them (from {limit:,} on); the first is "
                f"{column[edge]} at edge {edge}. Use integers, or multiply and round before building"
            )
    elif column.dtype.kind not in "iu" and rows:
        raise GraphError(f"{what} must be integers or datetimes; got dtype {column.dtype}")
    if column.dtype == np.uint64 and rows and column.max() > np.iinfo(np.int64).max:
        raise GraphError(f"{what}: {column.max()} does not fit into a signed 64-bit integer")
    times = Times(np.ascontiguousarray(column, np.int64), unit, what)
    _check_one_unit(times)
    return times


def _check_one_unit(times: Times) -> None:
    """Refuse integers that are clearly of two units, or are not times of their unit.

    Numbers of two units are those of 1973 to 2286 in both, and no number lies between: a clock that counts
    from 0 has some there.
    """
    values, unit = times.values, times.unit
    if not len(values):
        return
    if int(values.max()) >= likely_range("ms")[0] and not likely_unit(values):
        of_unit = {each: _in_range(values, each) for each in UNITS}
        counts = {each: int(np.count_nonzero(inside)) for each, inside in of_unit.items()}
        mixed = [each for each in UNITS if counts[each]]
        lowest = likely_range(mixed[0])[0] if mixed else 0
        if len(mixed) > 1 and sum(counts.values()) == np.count_nonzero(values >= lowest):
            rare = min(mixed, key=counts.__getitem__)
            edge = int(of_unit[rare].argmax())
            other = next(each for each in mixed if each != rare)
            raise GraphError(
                f"{times.what}: times are not in one unit: {values[edge]} at edge {edge} looks like {rare} "
                f"since 1970, and others look like {other}; write all in one"
            )
    if not unit:
        return
    if likely_unit(values) != unit and _are_written_dates(values):
        raise GraphError(
            f"{times.what}: {values[0]} at edge 0 looks like a date (YYYYMMDD), as all others do, not like "
            f"{unit} since 1970; write dates as 2024-01-31, without a time unit"
        )
    low, high = _CALENDAR
    scale = 1000 ** UNITS.index(unit)
    if unit == "ns":  # none is beyond the calendar
        return
    outside = np.flatnonzero((values < low * scale) | (values >= high * scale))
    if len(outside):
        edge = int(outside[0])
        year = 1970 + int(values[edge]) // (scale * 31_556_952)
        raise GraphError(
            f"{times.what}: {values[edge]} {unit} at edge {edge} is in the year {year} ({len(outside)} "
            "times are beyond year 9999); write all times in one unit"
        )


def _in_range(values: IdArray, unit: str) -> AnyArray:
    first, end = likely_range(unit)
    inside: AnyArray = (values >= first) & (values <= min(end - 1, np.iinfo(np.int64).max))
    return inside


def _are_written_dates(values: IdArray) -> bool:
    """True if all numbers are the digits of dates of 1900 to 2099, or of dates and times."""
    digits = len(str(abs(int(values[0]))))
    if digits not in (8, 10, 12, 14):
        return False
    rest = values
    for _ in range((digits - 8) // 2):
        if (rest % 100 > 59).any():
            return False
        rest = rest // 100
    if digits > 8 and (values // 100 ** ((digits - 10) // 2) % 100 > 23).any():
        return False
    year, month, day = rest // 10_000, rest // 100 % 100, rest % 100
    in_year = (year >= 1900) & (year < 2100) & (month >= 1) & (month <= 12)
    return bool((in_year & (day >= 1) & (day <= 31)).all())


def common_times(times: Mapping[str, Times]) -> dict[str, tuple[IdArray, str]]:
    """Times of all edge types in one unit, the finest that any of them has.

    Args:
        times: edge type key -> times.
    Returns: key -> (int64 [E], read-only; the unit, "" where none is known).
    Raises: GraphError: the times of two edge types are clearly in different units, and the units are not
        set; times do not fit into int64 in the common unit.
    """
    known = [each.unit for each in times.values() if each.unit]
    unit = max(known, key=UNITS.index) if known else ""
    for mine, its in permutations(times.values(), 2):
        if not mine.unit and len(mine.values) and len(its.values):
            _check_same_unit(mine, its)
    return {
        key: (read_only(_scaled(each, each.unit or unit, unit) if unit else each.values), unit)
        for key, each in times.items()
    }


def _check_same_unit(mine: Times, its: Times) -> None:
    """Refuse times without a unit that are clearly in another unit than those of another edge type."""
    own, other = likely_unit(mine.values), its.unit or likely_unit(its.values)
    far_below = 0 < 100 * int(mine.values.max()) < int(its.values.min())
    if other and own != other and (own or its.unit or far_below):
        verb = "are" if its.unit else "look like"
        raise GraphError(
            f"{mine.what} ({_range(mine.values)}) and {its.what} ({_range(its.values)}) are not in one "
            f"unit: the first look like {own or 'no time since 1970'}, the second {verb} {other}, and one "
            f"as_of applies to both; {_SET_UNIT}"
        )


def likely_unit(values: AnyArray) -> str:
    """The unit in which all these are times between 1973 and 2286; "" if no unit fits."""
    if not len(values):
        return ""
    low, high = int(values.min()), int(values.max())
    for unit in UNITS:
        first, end = likely_range(unit)
        if first <= low and high < end:
            return unit
    return ""


def likely_range(unit: str) -> tuple[int, int]:
    """Range [first, end) of the numbers that are times of 1973 to 2286 in this unit and in no other."""
    scale = 1000 ** UNITS.index(unit)
    return _SECONDS[0] * scale, _SECONDS[1] * scale


def iso(value: int, unit: str) -> str:
    """A time as an ISO 8601 date and time in UTC; "" if it is outside the calendar."""
    try:
        return f"{np.array(value).astype(f'M8[{unit}]')}Z"
    except (ValueError, OverflowError):
        return ""


def _of_datetimes(column: AnyArray, what: str, unit: str) -> tuple[IdArray, str]:
    missing = np.isnat(column)
    if missing.any():
        raise GraphError(
            f"{what}: {np.count_nonzero(missing)} times are missing (NaT); the first is edge "
            f"{np.flatnonzero(missing)[0]}"
        )
    own = np.datetime_data(column.dtype)[0]
    target = unit or (
        own if own in UNITS else "s" if own in ("generic", "Y", "M", "W", "D", "h", "m") else "ns"
    )
    result = column.astype(f"M8[{target}]")
    changed = np.flatnonzero(result.astype(column.dtype) != column)
    if len(changed):
        raise GraphError(
            f"{what}: {len(changed)} times are not whole {target}, or too far from 1970 for it; the first "
            f"is {column[changed[0]]} at edge {changed[0]}; choose another time unit"
        )
    return np.ascontiguousarray(result.view(np.int64)), target


def _scaled(times: Times, unit: str, target: str) -> IdArray:
    factor = 1000 ** (UNITS.index(target) - UNITS.index(unit))
    if factor == 1 or not len(times.values):
        return times.values
    most = int(np.abs(times.values.astype(np.float64)).max())
    if most * factor >= 2**63:
        raise GraphError(
            f"{times.what} ({_range(times.values)} {unit}) do not fit into 64 bits in {target}, which "
            "other edge types use; convert all of them to one coarser unit"
        )
    scaled: IdArray = times.values * factor
    return scaled


def _range(values: AnyArray) -> str:
    return f"{values.min()} to {values.max()}"
