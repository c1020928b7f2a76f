"""Turns of the processes that share the tests: a test that looks at short times runs while the others wait.

Two files of the checkout are locked. A quiet test has the room for itself, and all others share it. Each
test passes the door, which is held while one waits for the room. So a quiet test waits for one other of
each process, and not for more.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_DOOR = Path(__file__)
_ROOM = Path(__file__).with_name("__init__.py")


class Turns:
    """One process's place among those that run tests.

    Args:
        door, room: existing files, the same two in every process. They are locked, and not written.
    """

    def __init__(self, door: Path = _DOOR, room: Path = _ROOM) -> None:
        self._door, self._room = os.open(door, os.O_RDONLY), os.open(room, os.O_RDONLY)
        self._quiet: bool | None = None

    def begin(self, *, quiet: bool) -> None:
        """Wait for a turn; a turn of the same kind that was not ended goes on."""
        if self._quiet == quiet:
            return
        self.end()
        fcntl.flock(self._door, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._room, fcntl.LOCK_EX if quiet else fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._door, fcntl.LOCK_UN)
        self._quiet = quiet

    def end(self) -> None:
        """Let others have their turns."""
        if self._quiet is not None:
            # Not by closing: a child that was forked has the file open too.
            fcntl.flock(self._room, fcntl.LOCK_UN)
            self._quiet = None

    def close(self) -> None:
        """Leave, as a process does that ends."""
        os.close(self._door)
        os.close(self._room)
