"""Reads a folder of snapshots as a `Recording`; mesh/docs/evaluate.md describes the format."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate import known, manifest
from hopline_mesh.evaluate.recording import Period, Recording, complete
from hopline_mesh.evaluate.table import Problems, Table, find, has_columns, read
from hopline_mesh.evaluate.times import clock
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Snapshot


def read_folder(folder: Path) -> Recording:
    """Read the recording in a folder.

    Missing training and test periods are chosen (`periods.complete`).

    Raises:
        SnapshotInvalid: the folder has errors; the message lists them, with file, line and column.
        ModuleNotFoundError: it has Parquet files, and pyarrow is not installed.
    """
    problems = Problems()
    if not folder.is_dir():
        raise SnapshotInvalid(f"{folder}: no such folder; it must have nodes.csv, edges.csv and labels.csv")
    declared = manifest.read(folder, problems)
    nodes = _table(
        folder, "nodes", ("time", "service"), "it has a row for each service and interval", problems
    )
    edges = _table(
        folder,
        "edges",
        ("time", "source", "destination"),
        "it has a row for each call path and interval (a header alone: no call paths)",
        problems,
    )
    names = nodes.columns["service"] if nodes is not None else []
    events = known.read_events(folder, set(names), problems) if nodes is not None else []
    changes, troubles = known.read_changes(folder, problems), known.read_troubles(folder, problems)
    if nodes is None or edges is None:
        problems.check()
        raise AssertionError("a missing table is a problem")
    snapshots = _snapshots(nodes, edges, problems)
    if not len(nodes):
        problems.add(nodes.name, "has no rows")
    problems.check()
    times = [snapshot.time_s for snapshot in snapshots]
    interval_s = declared.interval_s or (float(np.median(np.diff(times))) if len(times) > 1 else 0.0)
    whole = Period(times[0], times[-1] + max(interval_s, 1.0))
    train, test = complete(whole, events, declared.train, declared.test)
    _check_periods(train, test, times, problems)
    problems.check()
    return Recording(
        snapshots=snapshots,
        contexts=known.contexts_at(times, changes, troubles),
        events=events,
        train=train,
        test=test,
        interval_s=interval_s,
        cpu_limits=declared.cpu_limits,
        name=declared.name or folder.resolve().name,
    )


def _table(folder: Path, stem: str, needed: tuple[str, ...], of: str, problems: Problems) -> Table | None:
    path = find(folder, stem, problems, needed=True, of=of)
    table = None if path is None else read(path, problems)
    return table if table is not None and has_columns(table, needed, problems) else None


def _snapshots(nodes: Table, edges: Table, problems: Problems) -> list[Snapshot]:
    node_columns = tuple(column for column in nodes.columns if column not in ("time", "service"))
    edge_columns = tuple(
        column for column in edges.columns if column not in ("time", "source", "destination")
    )
    if not node_columns and not edge_columns:
        problems.add(
            nodes.name,
            "has no column of measurements, and neither has edges; add one such as request_rate or p99_ms",
        )
        return []
    schema = Schema(node_columns, edge_columns)
    roster = Roster()
    node_times, edge_times = nodes.times("time", problems), edges.times("time", problems)
    slots = np.array([roster.slot(name) for name in nodes.names("service", problems)], dtype=np.int32)
    source, destination = (_ends(edges, column, roster, problems) for column in ("source", "destination"))
    node_values, edge_values = (
        _values(nodes, node_columns, problems),
        _values(edges, edge_columns, problems),
    )
    in_order = _in_order(nodes, node_times, problems) and _in_order(edges, edge_times, problems)
    if len(problems) or not in_order:
        return []
    moments = np.unique(node_times)
    node_at, edge_at = np.searchsorted(moments, node_times), np.searchsorted(moments, edge_times)
    stray = moments[np.minimum(edge_at, len(moments) - 1)] != edge_times if len(moments) else edge_times > 0
    for row in np.flatnonzero(stray):
        problems.add(
            edges.where(int(row), "time"), f"{nodes.name} has no row of {clock(float(edge_times[row]))}"
        )
    if stray.any():
        return []
    size = max(1, len(roster))
    _once(nodes, node_at * size + slots, "service", problems)
    _once(edges, (edge_at * size + source) * size + destination, "destination", problems)
    present = np.zeros((len(moments), size), dtype=bool)
    present[node_at, slots] = True
    for column, ends in (("source", source), ("destination", destination)):
        for row in np.flatnonzero(~present[edge_at, ends]):
            problems.add(
                edges.where(int(row), column),
                f"{edges.columns[column][row]!r} has no row in {nodes.name} at that time",
            )
    if len(problems):
        return []
    return [
        Snapshot(
            time_s=float(moment),
            schema=schema,
            roster=roster,
            nodes=slots[a],
            node_features=node_values[a],
            edge_src=source[b],
            edge_dst=destination[b],
            edge_features=edge_values[b],
        )
        for moment, a, b in zip(
            moments, _runs(node_at, len(moments)), _runs(edge_at, len(moments)), strict=True
        )
    ]


def _ends(edges: Table, column: str, roster: Roster, problems: Problems) -> NDArray[np.int32]:
    found = np.zeros(len(edges), dtype=np.int32)
    for row, name in enumerate(edges.names(column, problems)):
        slot = roster.find(name)
        if slot is None:
            if name:
                problems.add(edges.where(row, column), f"{name!r} is not a service of the nodes")
        else:
            found[row] = slot
    return found


def _values(table: Table, columns: tuple[str, ...], problems: Problems) -> NDArray[np.float32]:
    if not columns:
        return np.empty((len(table), 0), dtype=np.float32)
    return np.stack([table.numbers(column, problems) for column in columns], axis=1)


def _in_order(table: Table, times: NDArray[np.float64], problems: Problems) -> bool:
    back = np.flatnonzero(np.diff(times) < 0) + 1
    for row in back.tolist():
        problems.add(
            table.where(row, "time"),
            f"{clock(float(times[row]))} comes after {clock(float(times[row - 1]))}; sort the rows by time",
        )
    return not len(back)


def _once(table: Table, keys: NDArray[Any], column: str, problems: Problems) -> None:
    """Add a problem for each duplicate row."""
    first: dict[int, int] = {}
    if len(np.unique(keys)) == len(keys):
        return
    for row, key in enumerate(keys.tolist()):
        if key in first:
            problems.add(
                table.where(row, column),
                f"{table.columns[column][row]!r} already has a row for that time, at "
                f"{table.where(first[key]).rsplit(', ', 1)[1]}",
            )
        else:
            first[key] = row


def _runs(at: NDArray[np.int64], count: int) -> Iterator[slice]:
    ends = np.searchsorted(at, np.arange(count + 1))
    return (slice(int(a), int(b)) for a, b in itertools.pairwise(ends))


def _check_periods(
    train: tuple[Period, ...], test: tuple[Period, ...], times: list[float], problems: Problems
) -> None:
    for key, periods in (("train", train), ("test", test)):
        if not any(moment in period for moment in times for period in periods):
            problems.add(
                f"{manifest.FILE}, {key}",
                "no snapshot is in this period; the recording is from "
                f"{clock(times[0])} to {clock(times[-1])}",
            )
    for one in train:
        for other in test:
            if one.start_s < other.end_s and other.start_s < one.end_s:
                problems.add(
                    f"{manifest.FILE}, train",
                    f"overlaps the test from {clock(other.start_s)} to {clock(other.end_s)}",
                )
