"""Reports from the files of all workers: each quantity against its reference, and hourly scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hopline.errors import ArtifactCorrupted, ArtifactError
from hopline.observe.psi import Comparison, compare
from hopline_drift.alarms import LEVELS, Alarm, Level
from hopline_drift.bins import Sketch
from hopline_drift.files import read_sealed
from hopline_drift.hours import Hour, read_hours
from hopline_drift.observed import Quantity
from hopline_drift.reference import FILE, Reference, ReferenceEntry, read_reference
from hopline_drift.window import NUM_SLICES, WindowFile, merged, read_windows

ALARMS = "alarms.json"


class AlarmFile(msgspec.Struct):
    """The alarm states of a version.

    Attributes:
        reference: sha256 of the reference.
        judged: number of the last evaluated slice.
        alarms: "<kind> <name>" -> its state.
    """

    reference: str = ""
    judged: int = -1
    alarms: dict[str, Alarm] = {}

    def of(self, quantity: Quantity) -> Alarm:
        """The state of a quantity; created if missing."""
        return self.alarms.setdefault(" ".join(quantity), Alarm())


class Compared(NamedTuple):
    """One quantity of a window."""

    entry: ReferenceEntry
    current: Sketch
    comparison: Comparison


class View(NamedTuple):
    """The state of a model version, as read from its files.

    Attributes:
        reference, digest: None and "" while a reference is collected.
        windows: of all workers.
    """

    reference: Reference | None
    digest: str
    windows: list[WindowFile]

    def compared(self, numbers: range) -> tuple[int, list[Compared]]:
        """Number of examined requests in these slices, and each quantity with values."""
        if self.reference is None:
            return 0, []
        entries = self.reference.entries
        num_requests, sketches = merged(entries, self.digest, self.windows, numbers)
        return num_requests, [
            Compared(entry, sketch, compare(entry.sketch, sketch))
            for entry, sketch in zip(entries, sketches, strict=True)
            if sketch.num_values
        ]


def view(folder: Path) -> View:
    """Read the files of a version; a damaged reference is ignored."""
    try:
        reference, digest = read_reference(folder / FILE)
    except (FileNotFoundError, ArtifactError):
        return View(None, "", read_windows(folder))
    return View(reference, digest, read_windows(folder))


def read_alarms(folder: Path, reference: str) -> AlarmFile:
    """The alarms of a version, all "ok" if the file is for another reference."""
    try:
        found = read_sealed(folder / ALARMS, AlarmFile)[0]
    except (FileNotFoundError, ArtifactCorrupted):
        return AlarmFile(reference)
    return found if found.reference == reference else AlarmFile(reference)


def ending_with(number: int) -> range:
    """The slices of the window whose last one is `number`."""
    return range(number - NUM_SLICES + 1, number + 1)


def version_report(
    folder: Path, model: str, version: str, now: float, slice_s: float, rest: Callable[[], object]
) -> dict[str, Any]:
    """The details of a version, as JSON.

    The window ends now; alarms are of the last complete window. `rest` is called between pieces of work.
    """
    rest()
    found = view(folder)
    number = int(now // slice_s)
    num_requests, compared = found.compared(ending_with(number))
    rest()
    alarms = read_alarms(folder, found.digest)
    quantities = [_quantity_json(each, alarms) for each in compared]
    reference = found.reference
    collected = sum(window.num_collected for window in found.windows)
    return {
        "model": model,
        "version": version,
        "state": "watching" if reference is not None else "collecting",
        "level": worst([each["level"] for each in quantities]),
        "reference": None if reference is None else _reference_json(reference),
        "collected_rows": 0 if reference is not None and reference.is_complete else collected,
        "window": {"start": (number - NUM_SLICES + 1) * slice_s, "end": now, "requests": num_requests},
        "quantities": sorted(quantities, key=lambda each: (-LEVELS.index(each["level"]), -each["excess"])),
        "hours": [_hour_json(hour) for hour in read_hours(folder / "hours", rest)],
    }


def summary(full: dict[str, Any]) -> dict[str, Any]:
    """The summary of a version's report: its state, and the quantity with the largest drift."""
    kept = {name: full[name] for name in ("model", "version", "state", "level", "collected_rows", "window")}
    most = full["quantities"][:1]
    names = ("kind", "name", "psi", "excess", "level", "bin")
    return {**kept, "most": {name: most[0][name] for name in names} if most else None}


def worst(levels: list[Level]) -> Level:
    """The most severe of some levels; "ok" if there are none."""
    return max(levels, key=LEVELS.index, default="ok")


def _quantity_json(compared: Compared, alarms: AlarmFile) -> dict[str, Any]:
    comparison, alarm = compared.comparison, alarms.of(compared.entry.quantity)
    return {
        "kind": compared.entry.kind,
        "name": compared.entry.name,
        "level": alarm.level,
        "since": alarm.since,
        "psi": comparison.psi,
        "excess": comparison.excess,
        "noise": comparison.noise,
        "limit": comparison.limit,
        "reference_values": comparison.num_reference,
        "values": comparison.num_current,
        "bin": comparison.bin,
        "bins": list(compared.current.bins.names()),
        "reference_shares": compared.entry.sketch.shares(),
        "shares": compared.current.shares(),
    }


def _reference_json(reference: Reference) -> dict[str, Any]:
    return {
        "source": reference.source,
        "made": reference.made,
        "requests": reference.num_requests,
        "quantities": len(reference.entries),
        "is_complete": reference.is_complete,
    }


def _hour_json(hour: Hour) -> dict[str, Any]:
    count = hour.scores.num_values - hour.scores.counts[-1]
    return {
        "start": hour.start,
        "requests": hour.num_seen,
        "scores": hour.scores.num_values,
        "mean": hour.total / count if count else None,
        "bins": list(hour.scores.bins.names()),
        "shares": hour.scores.shares(),
    }
