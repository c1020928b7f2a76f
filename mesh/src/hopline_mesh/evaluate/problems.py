"""All that is wrong with a folder, told at once: file, line, column, and what would be right."""

from __future__ import annotations

from hopline_mesh.errors import SnapshotInvalid

#: More than this are counted, not told.
_TOLD = 20


class Problems:
    """Collects what is wrong; nothing is raised until `check`."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, where: str, what: str) -> None:
        """Note one: `where` is such as "nodes.csv, line 3, p99_ms"."""
        self._found.append(f"{where}: {what}")

    def check(self) -> None:
        """Go on only if there is none.

        Raises:
            SnapshotInvalid: there are; the message has the first twenty, one a line.
        """
        if not self._found:
            return
        told = self._found[:_TOLD]
        if len(self._found) > _TOLD:
            told.append(f"and {len(self._found) - _TOLD} more")
        raise SnapshotInvalid("\n".join(told))
