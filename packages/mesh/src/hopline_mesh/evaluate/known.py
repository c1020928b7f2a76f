"""Reads labels, planned changes and troubles of a folder."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, get_args, get_type_hints

import msgspec
import numpy as np

from hopline.config.setting import did_you_mean
from hopline_mesh.changes import Change, Context, KubernetesTrouble
from hopline_mesh.evaluate.recording import Event
from hopline_mesh.evaluate.table import Problems, Table, read

#: How long ended changes and troubles are listed, as in the watch.
KEPT_S = 600.0

_LABEL_COLUMNS = ("start", "end", "service", "source", "destination", "kind")
_ITEM_COLUMNS = ("start", "end", "service", "kind", "detail")
_PODS = ("before", "after")
#: A number of pods; no more digits than any mesh needs.
_COUNT = re.compile(r"[0-9]{1,9}")
_Item = TypeVar("_Item", Change, KubernetesTrouble)


def read_events(
    folder: Path, services: Collection[str], paths: Collection[tuple[str, str]], problems: Problems
) -> list[Event]:
    """Read `labels.csv`, ordered by start.

    Args:
        services: those of the nodes.
        paths: those of the edges; of a service without any, labels may name any call.
    """
    table = read(
        folder,
        "labels",
        problems,
        ("start", "end", "kind"),
        known=_LABEL_COLUMNS,
        missing="it has the events that went wrong (a header alone: none)",
    )
    if table is None:
        return []
    starts, ends = table.times("start"), table.times("end")
    named = {column: table.cells(column) for column in ("service", "source", "destination")}
    callers = {source for source, _ in paths}
    events = []
    for row, (service, source, destination) in enumerate(zip(*named.values(), strict=True)):
        if ends[row] <= starts[row]:
            table.wrong(row, "end", "is not after the start")
        if bool(source) != bool(destination):
            missing = "destination" if source else "source"
            table.wrong(row, missing, "is empty; a call path needs a source and a destination")
        elif not (service or destination):
            table.wrong(row, "service", "is empty; a label needs a service, or a call path")
        if service and source and destination and service not in (source, destination):
            table.wrong(
                row,
                "service",
                f"is {service!r}; for a call path it must be the root cause, {source!r} or "
                f"{destination!r}; empty means the destination",
            )
        for column, cells in named.items():
            if cells[row] and cells[row] not in services:
                hint = did_you_mean(cells[row], services)
                table.wrong(row, column, f"{cells[row]!r} is not a service of the nodes{hint}")
        # Without a proxy, none of a service's calls is measured; but the ends may be exchanged.
        may_be_wrong = source in callers or (destination, source) in paths
        if may_be_wrong and destination in services and (source, destination) not in paths:
            hint = did_you_mean(f"{source} → {destination}", [" → ".join(path) for path in paths])
            table.wrong(row, "source", f"no row of the edges is from {source!r} to {destination!r}{hint}")
        events.append(
            Event(
                start_s=float(starts[row]),
                end_s=float(ends[row]),
                service=service or destination,
                caller=source or None,
                kind=table.columns["kind"][row],
                callee=destination if service and service != destination and source else None,
            )
        )
    return sorted(events, key=lambda event: event.start_s)


def read_items(folder: Path, stem: str, of: type[_Item], problems: Problems) -> list[_Item]:
    """Read a table of planned changes or troubles; its services may be unmeasured ones."""
    pods: tuple[str, ...] = _PODS if of is Change else ()
    table = read(
        folder,
        stem,
        problems,
        ("start", "service", "kind"),
        known=(*_ITEM_COLUMNS, *pods),
        synonyms={"time": "start"},
    )
    if table is None:
        return []
    kinds = get_args(get_type_hints(of)["kind"])
    starts, services = table.times("start"), table.names("service")
    ends, details = table.times("end", optional=True), table.cells("detail")
    counts = [_counts(table, column) for column in pods]
    items = []
    for row, kind in enumerate(table.columns["kind"]):
        if kind not in kinds:
            table.wrong(row, "kind", f"{kind!r} is not one of {', '.join(kinds)}")
        if ends[row] < starts[row]:
            table.wrong(row, "end", "is before the start")
        end_s = None if np.isnan(ends[row]) else float(ends[row])
        more = [count[row] for count in counts]
        items.append(of(kind, services[row], float(starts[row]), end_s, details[row], *more))  # type: ignore[arg-type]
    return items


def _counts(table: Table, column: str) -> list[int | None]:
    """Return a column of numbers of pods; None if a cell is empty, or the column is missing."""
    cells = table.cells(column)
    counts = [int(text) if _COUNT.fullmatch(text) else None for text in cells]
    for row, (text, count) in enumerate(zip(cells, counts, strict=True)):
        if text and count is None:
            table.wrong(
                row, column, f"{text!r} is not a number of pods; leave the cell empty if it is unknown"
            )
    return counts


def unknown_services(services: Collection[str], named: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Return a note for each list of names that has some without a row in the nodes.

    Kubernetes also reports changes of services that send no metrics, so they are allowed.
    """
    notes = []
    for what, names in named.items():
        unknown = sorted({*names} - {*services})
        if unknown:
            hint = did_you_mean(unknown[0], services)
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            notes.append(f"{what}: no row of the nodes has {unknown[0]!r}{more}{hint}")
    return tuple(notes)


def contexts_at(
    times: Sequence[float], changes: Sequence[Change], troubles: Sequence[KubernetesTrouble]
) -> list[Context]:
    """Return changes and troubles at each time: those that had begun, without an end in the future.

    Those that ended more than `KEPT_S` before are left out.
    """
    return [
        Context(tuple(some), tuple(others))
        for some, others in zip(_at(times, changes), _at(times, troubles), strict=True)
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
