"""One writer for a live folder: a lock that the kernel gives back when its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path

from hopline.errors import Conflict, GraphError


class WriterLock:
    """Args:
    path: of the lock's file; it stays when the lock is given back.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def take(self) -> None:
        """Take it.

        Raises:
            Conflict: another process has it; names that.
            GraphError: the file cannot be made.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise GraphError(f"{self._path} cannot be made: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(fd)
            raise Conflict(
                f"{self._path.parent} has a writer: {holder}; a live graph has one at a time"
            ) from None
        except OSError as error:
            os.close(fd)
            raise GraphError(
                f"{self._path}: its file system has no locks ({error.strerror}); put the live folder on "
                "another one"
            ) from error
        with contextlib.suppress(OSError):  # on a full disk the lock holds all the same
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._fd = fd

    def give_back(self) -> None:
        """Let another process have it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
