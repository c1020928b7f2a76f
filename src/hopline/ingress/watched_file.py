"""A file that may be replaced while the server runs."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

_Stamp: TypeAlias = tuple[int, int, int, int] | None


class Watched:
    """Detects whether a file has changed since the last check.

    Args:
        path: links are followed, so that a mounted secret has changed when its link changes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = self._look()

    def changed(self) -> bool:
        """Return True if the file was written, replaced or removed since the last call."""
        stamp = self._look()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        return True

    def _look(self) -> _Stamp:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino
