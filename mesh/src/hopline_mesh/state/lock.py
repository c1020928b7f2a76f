"""Only one process at a time writes to a state folder. Gone with the process, however it ends."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Be the only one who writes to a folder, which is made where it is absent.

    A file system that knows no locks lets everybody in, as before.

    Raises:
        BlockingIOError: another process writes to it.
        OSError: the folder cannot be made or opened.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(errno.EAGAIN, "another process writes to it") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.EBADF):
                raise
        yield
    finally:
        os.close(handle)
