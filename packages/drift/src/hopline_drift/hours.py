"""Hourly distributions of scores for one week: one small file per hour and worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from hopline.errors import ArtifactCorrupted
from hopline.observe.psi import as_numbers
from hopline_drift.bins import PROBABILITY_BINS, Bins, Sketch
from hopline_drift.files import read_sealed, write_sealed
from hopline_drift.observed import SCORE, VALUE, Observed, Quantity
from hopline_drift.reference import Reference

KEPT_HOURS = 7 * 24
_HOUR_S = 3600


class Hour(msgspec.Struct):
    """Scores of one hour.

    Attributes:
        start: start of the hour, time.time().
        scores: sketch of examined rows: probabilities in twenty equal bins, other values in the bins of
            the reference.
        total: sum of these scores.
        num_seen: requests of the hour, with those not examined.
    """

    start: int
    scores: Sketch
    total: float = 0.0
    num_seen: int = 0

    def add(self, other: Hour) -> None:
        """Add another worker's hour.

        Raises: ValueError: the bins differ.
        """
        self.scores.add(other.scores)
        self.total += other.total
        self.num_seen += other.num_seen


class Hours:
    """Counts the hourly scores of one worker.

    Args:
        folder: folder for the hours of a model version.
        worker: index of the worker.
    """

    def __init__(self, folder: Path, worker: int) -> None:
        self._folder = folder
        self._worker = worker
        self._hour: Hour | None = None
        self._is_written = True

    def update(self, observed: Observed, num_seen: int, reference: Reference | None, now: float) -> None:
        """Count the scores of sampled requests, out of `num_seen`."""
        quantity, bins = _scores(observed, reference)
        if bins is None:
            return
        start = int(now // _HOUR_S) * _HOUR_S
        if self._hour is None or self._hour.start != start or self._hour.scores.bins != bins:
            self.write()
            self._hour = self._resumed(start, bins)
        values = as_numbers(observed.values(quantity))
        self._hour.scores.update(values)
        self._hour.total += float(values[values == values].sum())
        self._hour.num_seen += num_seen
        self._is_written = False

    def write(self) -> None:
        """Write the hour for the other workers, and remove hours older than a week.

        Raises: OSError.
        """
        if self._hour is None or self._is_written:
            return
        path = self._path(self._hour.start)
        is_new = not path.exists()
        write_sealed(path, self._hour)
        self._is_written = True
        if is_new:
            oldest = _name(self._hour.start - (KEPT_HOURS - 1) * _HOUR_S)
            for old in self._folder.glob("*.json"):
                if old.name < oldest:
                    old.unlink(missing_ok=True)

    def _resumed(self, start: int, bins: Bins) -> Hour:
        """The counts that this worker wrote for the hour before a restart."""
        found = _read(self._path(start))
        return found if found is not None and found.scores.bins == bins else Hour(start, Sketch(bins))

    def _path(self, start: int) -> Path:
        return self._folder / f"{_name(start)}.{self._worker}.json"


def read_hours(folder: Path, rest: Callable[[], object]) -> list[Hour]:
    """Read all hours, oldest first, summed over workers; `rest` is called between files."""
    found: dict[int, Hour] = {}
    for path in sorted(folder.glob("*.json")):
        rest()
        hour = _read(path)
        if hour is None:
            continue
        known = found.setdefault(hour.start, hour)
        if known is not hour and known.scores.bins == hour.scores.bins:
            known.add(hour)
    return [found[start] for start in sorted(found)]


def _scores(observed: Observed, reference: Reference | None) -> tuple[Quantity, Bins | None]:
    """The quantity that is the score of these requests, and its bins; None if not known yet."""
    there = set(observed.quantities())
    if SCORE in there or VALUE not in there:
        return SCORE, PROBABILITY_BINS if SCORE in there else None
    return VALUE, None if reference is None else reference.bins(VALUE)


def _name(start: int) -> str:
    return time.strftime("%Y-%m-%dT%H", time.gmtime(start))


def _read(path: Path) -> Hour | None:
    try:
        return read_sealed(path, Hour)[0]
    except (FileNotFoundError, ArtifactCorrupted):
        return None
