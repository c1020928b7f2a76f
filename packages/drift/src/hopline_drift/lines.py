"""Reads entries of one JSON Lines file, and counts invalid lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hopline.records.entry import Entry, read_entry


class Lines:
    """The entries of a file, in the order of writing.

    Attributes:
        num_torn: 1 if the last line is incomplete: its writer was killed, or is writing now.
        num_bad: whole lines that are not entries.
        num_bytes: bytes of the file that were read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.num_torn = self.num_bad = self.num_bytes = 0

    def __iter__(self) -> Iterator[Entry]:
        """Read the entries. Raises: OSError: the file cannot be read."""
        with self._path.open("rb") as file:
            for line in file:
                self.num_bytes += len(line)
                if not line.endswith(b"\n"):
                    self.num_torn += 1
                    break
                try:
                    yield read_entry(line)
                except ValueError:
                    self.num_bad += 1
