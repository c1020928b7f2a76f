"""Collects the errors of a folder, to report them together: file, line, column, and what would be right."""

from __future__ import annotations

from hopline_mesh.errors import SnapshotInvalid

#: Maximum number of reported errors; further ones are only counted.
_REPORTED = 20


class Problems:
    """A list of errors; `check` raises them."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, where: str, what: str) -> None:
        """Add an error; `where` is such as "nodes.csv, line 3, p99_ms"."""
        self._found.append(f"{where}: {what}")

    def check(self) -> None:
        """Raise if there are errors.

        Raises:
            SnapshotInvalid: there are errors; the message has the first twenty, one per line.
        """
        if not self._found:
            return
        lines = self._found[:_REPORTED]
        if len(self._found) > _REPORTED:
            lines.append(f"and {len(self._found) - _REPORTED} more")
        raise SnapshotInvalid("\n".join(lines))
