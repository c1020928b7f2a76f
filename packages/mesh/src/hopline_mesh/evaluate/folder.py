"""Reads a folder of snapshots as a `Recording`; packages/mesh/docs/evaluate.md describes the format."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.changes import Change, KubernetesTrouble
from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate import known, manifest
from hopline_mesh.evaluate.recording import Period, Recording, complete, overlaps, recorded_period, within
from hopline_mesh.evaluate.table import Problems, Table, read
from hopline_mesh.evaluate.times import clock
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Snapshot

_NODE_KEYS = ("time", "service")
#: Tolerance of the interval of mesh.toml, as a share.
_JITTER = 0.1
#: Number of successive steps of another length that are another interval, and not missing snapshots.
_OTHER_STEPS = 10
#: Maximum share of steps of another length; missing snapshots make some.
_MOST_OTHER = 0.2
_EDGE_KEYS = ("time", "source", "destination")


def read_folder(folder: Path) -> Recording:
    """Read the recording in a folder.

    Missing training and test periods are chosen (`recording.complete`).

    Raises:
        SnapshotInvalid: the folder has errors; the message lists them, with file, line and column.
        ModuleNotFoundError: it has Parquet files, and pyarrow is not installed.
    """
    problems = Problems()
    if not folder.is_dir():
        raise SnapshotInvalid(f"{folder}: no such folder; it must have nodes.csv, edges.csv and labels.csv")
    declared = manifest.read(folder, problems)
    nodes = read(
        folder, "nodes", problems, _NODE_KEYS, missing="it has a row for each service and interval"
    )
    edges = read(
        folder,
        "edges",
        problems,
        _EDGE_KEYS,
        missing="it has a row for each call path and interval (a header alone: no call paths)",
    )
    services = set() if nodes is None else set(nodes.columns["service"])
    paths = (
        set()
        if edges is None
        else {*zip(edges.columns["source"], edges.columns["destination"], strict=True)}
    )
    events = [] if nodes is None else known.read_events(folder, services, paths, problems)
    changes = known.read_items(folder, "changes", Change, problems)
    troubles = known.read_items(folder, "troubles", KubernetesTrouble, problems)
    snapshots = [] if nodes is None or edges is None else _snapshots(nodes, edges, problems)
    problems.check()
    times = [snapshot.time_s for snapshot in snapshots]
    interval_s = declared.interval_s or (float(np.median(np.diff(times))) if len(times) > 1 else 0.0)
    train, test = complete(recorded_period(times, interval_s), events, declared.train, declared.test)
    _check_even(snapshots, declared.interval_s, problems)
    _check_periods(declared, train, test, times, problems)
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
        notes=known.unknown_services(
            services,
            {
                "changes": [each.service for each in changes],
                "troubles": [each.service for each in troubles],
                "cpu_limits": declared.cpu_limits,
            },
        ),
    )


def _snapshots(nodes: Table, edges: Table, problems: Problems) -> list[Snapshot]:
    """Return the snapshots; none if there are problems."""
    node_columns = tuple(column for column in nodes.columns if column not in _NODE_KEYS)
    edge_columns = tuple(column for column in edges.columns if column not in _EDGE_KEYS)
    if not node_columns and not edge_columns:
        problems.add(
            nodes.name,
            "has no column of measurements, and neither has edges; add one such as request_rate or p99_ms",
        )
        return []
    node_times, edge_times = nodes.times("time"), edges.times("time")
    roster = Roster(nodes.names("service"))
    slots = np.array([roster.slot(name) for name in nodes.columns["service"]], dtype=np.int32)
    source, destination = _ends(edges, "source", roster), _ends(edges, "destination", roster)
    node_values, edge_values = _values(nodes, node_columns), _values(edges, edge_columns)
    _check_order(nodes, node_times)
    _check_order(edges, edge_times)
    if not len(nodes):
        problems.add(nodes.name, "has no rows")
    if problems:
        return []
    moments = np.unique(node_times)
    node_at, edge_at = np.searchsorted(moments, node_times), np.searchsorted(moments, edge_times)
    for row in np.flatnonzero(~np.isin(edge_times, moments)).tolist():
        edges.wrong(row, "time", f"{nodes.name} has no row of {clock(edge_times[row])}")
    if problems:
        return []
    size = len(roster)
    _check_unique(nodes, node_at * size + slots, "service")
    _check_unique(edges, (edge_at * size + source) * size + destination, "destination")
    present = np.zeros((len(moments), size), dtype=bool)
    present[node_at, slots] = True
    for column, ends in (("source", source), ("destination", destination)):
        for row in np.flatnonzero(~present[edge_at, ends]).tolist():
            name = edges.columns[column][row]
            edges.wrong(row, column, f"{name!r} has no row in {nodes.name} at that time")
    if problems:
        return []
    node_starts, edge_starts = (
        np.searchsorted(at, np.arange(1, len(moments))) for at in (node_at, edge_at)
    )
    parts = zip(
        moments.tolist(),
        *(np.split(array, node_starts) for array in (slots, node_values)),
        *(np.split(array, edge_starts) for array in (source, destination, edge_values)),
        strict=True,
    )
    schema = Schema(node_columns, edge_columns)
    return [Snapshot(time_s, schema, roster, *arrays) for time_s, *arrays in parts]


def _ends(edges: Table, column: str, roster: Roster) -> NDArray[np.int32]:
    slots = []
    for row, name in enumerate(edges.names(column)):
        slot = roster.find(name)
        if slot is None and name:
            edges.wrong(row, column, f"{name!r} is not a service of the nodes")
        slots.append(slot or 0)
    return np.array(slots, dtype=np.int32)


def _values(table: Table, columns: Sequence[str]) -> NDArray[np.float32]:
    found = np.empty((len(table), len(columns)), dtype=np.float32)
    for place, column in enumerate(columns):
        found[:, place] = table.numbers(column)
    return found


def _check_order(table: Table, times: NDArray[np.float64]) -> None:
    for row in (np.flatnonzero(np.diff(times) < 0) + 1).tolist():
        table.wrong(
            row, "time", f"{clock(times[row])} comes after {clock(times[row - 1])}; sort the rows by time"
        )


def _check_unique(table: Table, keys: NDArray[Any], column: str) -> None:
    """Add a problem for each duplicate row."""
    _, firsts, places = np.unique(keys, return_index=True, return_inverse=True)
    first = firsts[places]
    for row in np.flatnonzero(first != np.arange(len(keys))).tolist():
        name = table.columns[column][row]
        table.wrong(row, column, f"{name!r} already has a row for that time, at {table.line(first[row])}")


def _check_even(snapshots: Sequence[Snapshot], declared_s: float | None, problems: Problems) -> None:
    """Add a problem if the interval is not the declared one, changes, or differs between services."""
    times = np.array([snapshot.time_s for snapshot in snapshots])
    if len(times) < 2:
        return
    steps = np.diff(times)
    usual = float(np.median(steps))
    if declared_s is not None and abs(declared_s / usual - 1) > _JITTER:
        problems.add(
            f"{manifest.FILE}, interval_s",
            f"is {declared_s:g}, but the snapshots are {usual:g} s apart; correct it, or leave it out",
        )
    if len(steps) < _OTHER_STEPS:
        return
    apart = sum(
        not np.intersect1d(one.nodes, other.nodes).size for one, other in itertools.pairwise(snapshots)
    )
    if apart > len(steps) / 2:
        problems.add(
            "nodes, time",
            f"the times are uneven: {apart} of {len(steps)} times have no service in common with the time "
            "before; all rows of one interval must have the same time",
        )
        return
    is_other = np.abs(steps / usual - 1) > 0.5
    runs = np.convolve(is_other, np.ones(_OTHER_STEPS), "valid") == _OTHER_STEPS
    if runs.any() or is_other.mean() > _MOST_OTHER:
        first = int(np.argmax(runs) if runs.any() else np.argmax(is_other))
        problems.add(
            "nodes, time",
            f"the times are uneven: {is_other.sum()} of {len(steps)} steps are not about {usual:g} s, "
            f"such as {steps[first]:g} s from {clock(times[first])}; record with one interval throughout, "
            "or evaluate the parts alone",
        )


def _check_periods(
    declared: manifest.Manifest,
    train: tuple[Period, ...],
    test: tuple[Period, ...],
    times: list[float],
    problems: Problems,
) -> None:
    whole = f"the recording is from {clock(times[0])} to {clock(times[-1])}"
    for key, what, periods, given in (
        ("train", "training", train, declared.train),
        ("test", "test", test, declared.test),
    ):
        if any(within(time_s, periods) for time_s in times):
            continue
        if given is not None:
            problems.add(f"{manifest.FILE}, {key}", f"no snapshot is in this period; {whole}")
        else:
            problems.add(
                "labels",
                f"no snapshot outside of the events is left for the {what}; {whole}; name the periods in "
                f"{manifest.FILE}",
            )
    for _, other in overlaps(train, test):
        problems.add(
            f"{manifest.FILE}, train",
            f"overlaps the test from {clock(other.start_s)} to {clock(other.end_s)}",
        )
