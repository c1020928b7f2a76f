"""One writer for a live folder: a lock that the kernel releases when its holder dies."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import msgspec

from hopline.errors import Conflict, GraphError
from hopline.files import lock
from hopline.types import UNREADABLE


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """The process that holds a lock, as recorded in its file.

    Attributes:
        pid, host: of the process; 0 and "" if the file does not say.
        run_by: the command that started it, and its process.
        socket: where it accepts requests.
        yields: True if it releases the lock on request.
    """

    pid: int = 0
    host: str = ""
    run_by: str = ""
    socket: str = ""
    yields: bool = False

    def __str__(self) -> str:
        if not self.pid:
            return "another process"
        return f"process {self.pid} on {self.host}" + (f", run by {self.run_by}" if self.run_by else "")


def this_process(run_by: str = "", socket_path: str = "", yields: bool = False) -> Owner:
    """This process, as an owner."""
    return Owner(os.getpid(), socket.gethostname(), run_by, socket_path, yields)


def read_owner(path: Path) -> Owner:
    """Read the present, or last, owner of a lock from its file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Owner)
    except (OSError, *UNREADABLE):
        return Owner()


class WriterLock:
    """The lock of a live folder.

    Args:
        path: of the lock's file, which stays after the release.
        owner: is written into the file; by default this process.
    """

    def __init__(self, path: Path, owner: Owner | None = None) -> None:
        self._path = path
        self._owner = owner or this_process()
        self._fd = -1

    def take(self) -> None:
        """Acquire the lock.

        Raises:
            Conflict: another process holds it; the error names it.
            GraphError: the file cannot be created.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise GraphError(f"{self._path} cannot be created: {error.strerror}") from error
        try:
            is_mine = lock(fd, wait=False)
        except OSError as error:
            os.close(fd)
            raise GraphError(
                f"{self._path}: its file system does not support locks ({error.strerror}); put the live "
                "folder on another one"
            ) from error
        if not is_mine:
            os.close(fd)
            owner = read_owner(self._path)
            raise Conflict(f"{self._path.parent} has a writer: {owner}; a live graph allows one at a time")
        with contextlib.suppress(OSError):  # on a full disk the lock is held all the same
            os.ftruncate(fd, 0)
            os.pwrite(fd, msgspec.json.encode(self._owner), 0)
        self._fd = fd

    def release(self) -> None:
        """Release the lock."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
