"""Recent counts: slices of a sliding window, and the file in which a worker writes them.

A slice is a fixed interval of the clock, so that all workers have the same boundaries and slices with the
same number can be added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from hopline.errors import ArtifactCorrupted
from hopline_drift.bins import Sketch
from hopline_drift.files import read_sealed, write_sealed
from hopline_drift.observed import Observed
from hopline_drift.reference import ReferenceEntry

#: Slices per window: how often the window moves within its length.
NUM_SLICES = 6


class Slice(msgspec.Struct, array_like=True):
    """The counts of one slice.

    Attributes:
        num_requests: examined requests.
        counts: by entry of the reference, then by bin.
    """

    num_requests: int
    counts: list[list[int]]


class WindowFile(msgspec.Struct):
    """The content of a worker's window file.

    Attributes:
        reference: sha256 of the reference whose bins these are; "" while a reference is collected.
        slice_s: length of a slice in seconds.
        slices: number of the slice (time // slice_s) -> counts.
        num_collected: rows collected for a reference.
    """

    reference: str
    slice_s: float
    slices: dict[int, Slice] = {}
    num_collected: int = 0


class Window:
    """The slices of one worker.

    Args:
        reference: sha256.
        entries: of the reference.
        slice_s: length of a slice in seconds.
    """

    def __init__(self, reference: str, entries: Sequence[ReferenceEntry], slice_s: float) -> None:
        self._entries = entries
        self.file = WindowFile(reference, slice_s)

    def resume(self, path: Path) -> None:
        """Resume from the file of this worker or its predecessor, if it fits."""
        found = read_window(path)
        if found is None or (found.reference, found.slice_s) != (self.file.reference, self.file.slice_s):
            return
        bins = [entry.sketch.bins.num_bins for entry in self._entries]
        if all([len(counts) for counts in each.counts] == bins for each in found.slices.values()):
            self.file = found

    def update(self, observed: Observed, now: float, rest: Callable[[], object]) -> None:
        """Count observed values until `now`; drop slices that have left the window.

        Args:
            rest: called between quantities.
        """
        number = slice_number(now, self.file.slice_s)
        slices = self.file.slices
        current = slices.get(number)
        if current is None:
            empty = [[0] * entry.sketch.bins.num_bins for entry in self._entries]
            current = slices[number] = Slice(0, empty)
            # One more than in a window: the current slice is not evaluated yet.
            for old in [each for each in slices if not number - NUM_SLICES <= each <= number]:
                del slices[old]
        current.num_requests += observed.num_requests
        for at, entry in enumerate(self._entries):
            rest()
            values = observed.values(entry.quantity)
            if len(values):
                new = entry.sketch.bins.count(values).tolist()
                current.counts[at] = [a + b for a, b in zip(current.counts[at], new, strict=True)]

    def write(self, path: Path) -> None:
        """Write the window for the other workers. Raises: OSError."""
        write_sealed(path, self.file)


def slice_number(now: float, slice_s: float) -> int:
    """The slice of a time."""
    return int(now // slice_s)


def window_path(folder: Path, worker: int) -> Path:
    """The window file of a worker."""
    return folder / f"window-{worker}.json"


def read_window(path: Path) -> WindowFile | None:
    """Read a worker's file; None if it cannot be read: the window fills again within its length."""
    try:
        return read_sealed(path, WindowFile)[0]
    except (FileNotFoundError, ArtifactCorrupted):
        return None


def read_windows(folder: Path) -> list[WindowFile]:
    """Read the files of all workers."""
    found = [read_window(path) for path in sorted(folder.glob("window-*.json"))]
    return [window for window in found if window is not None]


def merged(
    entries: Sequence[ReferenceEntry], reference: str, windows: Iterable[WindowFile], numbers: range
) -> tuple[int, list[Sketch]]:
    """Add up the slices of all workers.

    Args:
        reference: sha256; windows of another reference are skipped.
        numbers: of the slices to add.

    Returns: number of examined requests, and a sketch for each entry.
    """
    num_requests = 0
    totals = [entry.sketch.empty_copy() for entry in entries]
    for window in windows:
        if window.reference != reference:
            continue
        for number, each in window.slices.items():
            if number in numbers:
                num_requests += each.num_requests
                for total, counts in zip(totals, each.counts, strict=True):
                    total.add(Sketch(total.bins, counts))
    return num_requests, totals
