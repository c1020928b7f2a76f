"""Reads labels, planned changes and troubles of a folder."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeVar, get_args

import msgspec
import numpy as np

from hopline_mesh.changes import Change, ChangeKind, Context, KubernetesTrouble, TroubleKind
from hopline_mesh.evaluate.recording import Event
from hopline_mesh.evaluate.table import Problems, Table, find, has_columns, read

#: How long ended changes and troubles are listed, as in the watch.
KEPT_S = 600.0

_LABEL_COLUMNS = ("start", "end", "service", "source", "destination", "kind")
_ITEM_COLUMNS = ("start", "end", "service", "kind", "detail")
_CHANGE_COLUMNS = (*_ITEM_COLUMNS, "before", "after")
_Item = TypeVar("_Item", Change, KubernetesTrouble)


def read_events(folder: Path, services: Collection[str], problems: Problems) -> list[Event]:
    """Read `labels.csv`, ordered by start; `services` are those of the nodes."""
    path = find(
        folder,
        "labels",
        problems,
        needed=True,
        of="it has the events that went wrong (a header alone: none)",
    )
    table = None if path is None else read(path, problems)
    if table is None or not has_columns(table, ("start", "end", "kind"), problems):
        return []
    _only(table, _LABEL_COLUMNS, problems)
    start, end = table.times("start", problems), table.times("end", problems)
    events = []
    for row in range(len(table)):
        service, source, destination = (
            table.columns[column][row] if column in table.columns else "" for column in _LABEL_COLUMNS[2:5]
        )
        if end[row] <= start[row]:
            problems.add(table.where(row, "end"), "is not after the start")
        if bool(source) != bool(destination):
            missing = "destination" if source else "source"
            problems.add(
                table.where(row, missing), "is empty; a call path needs a source and a destination"
            )
        elif not (service or destination):
            problems.add(table.where(row, "service"), "is empty; a label needs a service, or a call path")
        if service and source and destination and service not in (source, destination):
            problems.add(
                table.where(row, "service"),
                f"is {service!r}; for a call path it must be the root cause, {source!r} or "
                f"{destination!r}; empty means the destination",
            )
        for column, name in (("service", service), ("source", source), ("destination", destination)):
            if name and name not in services:
                problems.add(
                    table.where(row, column),
                    f"{name!r} is not a service of the nodes{_near(name, services)}",
                )
        events.append(
            Event(
                start_s=float(start[row]),
                end_s=float(end[row]),
                service=service or destination,
                caller=source or None,
                kind=table.columns["kind"][row],
                callee=destination if service and service != destination and source else None,
            )
        )
    return sorted(events, key=lambda event: event.start_s)


def read_changes(folder: Path, problems: Problems) -> list[Change]:
    """Read `changes.csv`; its services may be unmeasured ones."""
    return _items(folder, "changes", Change, get_args(ChangeKind), problems)


def read_troubles(folder: Path, problems: Problems) -> list[KubernetesTrouble]:
    """Read `troubles.csv`; its services may be unmeasured ones."""
    return _items(folder, "troubles", KubernetesTrouble, get_args(TroubleKind), problems)


def contexts_at(
    times: Sequence[float], changes: Sequence[Change], troubles: Sequence[KubernetesTrouble]
) -> list[Context]:
    """Return changes and troubles at each time: those that had begun, without an end in the future.

    Those that ended more than `KEPT_S` before are left out.
    """
    by_change, by_trouble = _at(times, changes), _at(times, troubles)
    return [
        Context(tuple(some), tuple(others)) if some or others else Context()
        for some, others in zip(by_change, by_trouble, strict=True)
    ]


def _at(times: Sequence[float], items: Sequence[_Item]) -> list[list[_Item]]:
    found: list[list[_Item]] = [[] for _ in times]
    grid = np.asarray(times, dtype=np.float64)
    for item in sorted(items, key=lambda item: item.start_s):
        first = int(np.searchsorted(grid, item.start_s))
        last = len(grid) if item.end_s is None else int(np.searchsorted(grid, item.end_s + KEPT_S, "right"))
        going = msgspec.structs.replace(item, end_s=None)
        for at in range(first, last):
            found[at].append(item if item.end_s is None or grid[at] >= item.end_s else going)
    return found


def _items(
    folder: Path, stem: str, of: type[_Item], kinds: Sequence[str], problems: Problems
) -> list[_Item]:
    path = find(folder, stem, problems, needed=False, of="")
    table = None if path is None else read(path, problems)
    if table is None:
        return []
    if "start" not in table.columns and "time" in table.columns:
        table.columns["start"] = table.columns.pop("time")
    if not has_columns(table, ("start", "service", "kind"), problems):
        return []
    _only(table, _CHANGE_COLUMNS if of is Change else _ITEM_COLUMNS, problems)
    starts = table.times("start", problems)
    services = table.names("service", problems)
    blank = [""] * len(table)
    ends = table.columns.get("end", blank)
    details = table.columns.get("detail", blank)
    closed = [row for row in range(len(table)) if ends[row]]
    ended = Table(table.name, {"end": [ends[row] for row in closed]}, [table.lines[row] for row in closed])
    end_of = dict(zip(closed, ended.times("end", problems).tolist(), strict=True))
    counts = [_counts(table, column, problems) for column in _CHANGE_COLUMNS[len(_ITEM_COLUMNS) :]]
    items = []
    for row, kind in enumerate(table.columns["kind"]):
        if kind not in kinds:
            problems.add(table.where(row, "kind"), f"{kind!r} is not one of {', '.join(kinds)}")
        if row in end_of and end_of[row] < starts[row]:
            problems.add(table.where(row, "end"), "is before the start")
        pods = [count[row] for count in counts] if of is Change else []
        items.append(of(kind, services[row], float(starts[row]), end_of.get(row), details[row], *pods))  # type: ignore[arg-type]
    return items


def _counts(table: Table, column: str, problems: Problems) -> list[int | None]:
    """Return a column of numbers of pods; None if a cell is empty, or the column is missing."""
    counts: list[int | None] = []
    for row, text in enumerate(table.columns.get(column, [""] * len(table))):
        if text and not text.isdecimal():
            problems.add(
                table.where(row, column),
                f"{text!r} is not a number of pods; leave the cell empty if it is unknown",
            )
        counts.append(int(text) if text.isdecimal() else None)
    return counts


def _only(table: Table, known: Sequence[str], problems: Problems) -> None:
    for column in table.columns:
        if column not in known:
            problems.add(f"{table.name}, {column}", f"unknown column; allowed are {', '.join(known)}")


def _near(name: str, services: Collection[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, services, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
