"""Reads a folder of prediction logs in order of time, from all writers and formats.

Each file is sorted by time and begins at the time in its name. A file is opened only when all earlier
entries were read: as many files are open as workers wrote at the same time.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from hopline.errors import BadRequest
from hopline.records.entry import Entry
from hopline.records.names import FORMS, LogFile, id_of, log_file, log_files
from hopline_drift.lines import Lines
from hopline_drift.parquet import ParquetRows


class LogReader:
    """The entries of a log.

    Args:
        path: a folder, or one of its files.

    Attributes:
        num_entries: number of entries read so far, of this reading.
        id: id of the log; see `names.py`.

    Raises: BadRequest: the path does not exist, or is not a log.
    """

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            self.files = _best_forms(log_files(path))
        elif path.is_file():
            self.files = [log_file(path) or LogFile(path, path.stem, "".join(path.suffixes), 0.0)]
        else:
            raise BadRequest(f"{path}: no such file or folder")
        if not self.files:
            raise BadRequest(f"{path} is not a prediction log: no file is named predictions-*")
        self.num_entries = 0
        self.id = id_of(path)
        self._sizes = [_size(file.path) for file in self.files]
        self._opened: list[Lines | ParquetRows] = []

    @property
    def num_torn(self) -> int:
        """Number of files with an incomplete last line: their writer was killed, or is writing now."""
        return sum(part.num_torn for part in self._opened)

    @property
    def num_bad(self) -> int:
        """Number of lines that are not entries."""
        return sum(part.num_bad for part in self._opened)

    @property
    def done(self) -> float:
        """Share of the bytes that were read, 0 to 1."""
        return sum(part.num_bytes for part in self._opened) / max(1, sum(self._sizes))

    def __iter__(self) -> Iterator[Entry]:
        """Read the entries, oldest first.

        Raises: OSError: a file cannot be read (a file that was deleted meanwhile is skipped).
        """
        self.num_entries, self._opened = 0, []
        waiting = deque(self.files)
        heads: list[tuple[float, int, Entry, Iterator[Entry]]] = []
        number = 0
        while waiting or heads:
            while waiting and (not heads or waiting[0].begins <= heads[0][0]):
                rows = self._open(waiting.popleft())
                for first in rows:
                    heapq.heappush(heads, (first.time, number, first, rows))
                    break
                number += 1
            if not heads:
                continue
            _, order, entry, rows = heads[0]
            self.num_entries += 1
            yield entry
            for following in rows:
                heapq.heapreplace(heads, (following.time, order, following, rows))
                break
            else:
                heapq.heappop(heads)

    def last(
        self,
        count: int,
        wanted: Callable[[Entry], bool] = lambda entry: True,
        since: float = 0.0,
        until: float = math.inf,
    ) -> list[Entry]:
        """The last wanted entries of a time, oldest first; reads only as many files as needed."""
        found: list[Entry] = []
        for file in sorted(self.files, key=lambda file: -_changed(file.path)):
            since = found[0].time if len(found) == count else since
            if _changed(file.path) < since:
                break  # all its entries are older
            rows = self._open(file) if file.begins < until else ()
            later = (entry for entry in rows if since <= entry.time < until and wanted(entry))
            found = sorted([*found, *deque(later, maxlen=count)], key=lambda entry: entry.time)[-count:]
        return found

    def _open(self, file: LogFile) -> Iterator[Entry]:
        rows: Lines | ParquetRows = (ParquetRows if file.form == ".parquet" else Lines)(file.path)
        self._opened.append(rows)
        return self._rows(file, rows)

    def _rows(self, file: LogFile, rows: Lines | ParquetRows) -> Iterator[Entry]:
        try:
            yield from rows
        except FileNotFoundError:  # finished or converted now, or deleted as too old
            for form in FORMS:
                path = file.path.with_name(file.stem + form)
                if form != file.form and path.is_file():
                    yield from self._open(replace(file, path=path, form=form))
                    return


def _best_forms(files: list[LogFile]) -> list[LogFile]:
    """One file per stem: a crash in a conversion may leave two."""
    best: dict[str, LogFile] = {}
    for file in files:
        other = best.get(file.stem)
        if other is None or FORMS.index(file.form) < FORMS.index(other.form):
            best[file.stem] = file
    return list(best.values())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
