"""Runs a command with bounded memory, page cache included: in a separate cgroup (version 2 or 1)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Bounded:
    """A cgroup.

    Attributes:
        folder: of it; None where this machine lets no cgroup be made: then only RLIMIT_DATA bounds memory.
    """

    folder: Path | None
    num_bytes: int

    def command(self, command: list[str]) -> list[str]:
        """The command, entering the cgroup first."""
        if self.folder is None:
            limit = f"ulimit -d {self.num_bytes // 1024}"
            return ["sh", "-c", f'{limit}; exec "$@"', "sh", *command]
        enter = f"echo $$ > {self.folder}/cgroup.procs"
        return ["sh", "-c", f'{enter}; exec "$@"', "sh", *command]

    @property
    def how(self) -> str:
        """Bound of the memory, for the report."""
        if self.folder is None:
            return "RLIMIT_DATA, without the page cache"
        return "cgroup v1" if (self.folder / "memory.limit_in_bytes").exists() else "cgroup v2"

    def peak(self) -> int:
        """Most bytes used so far, page cache included; 0 if it is not known."""
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            if self.folder is not None and (self.folder / name).exists():
                return int((self.folder / name).read_text())
        return 0


@contextlib.contextmanager
def bounded(num_bytes: int) -> Iterator[Bounded]:
    """A cgroup with so much memory and no swap, removed at the end."""
    name = f"hopline-large-{os.getpid()}"
    for base, limit in (
        (_ROOT / "memory", "memory.limit_in_bytes"),
        (_ROOT, "memory.max"),
        (_ROOT / "unified", "memory.max"),
    ):
        folder = base / name
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(num_bytes))
        except OSError:
            folder.rmdir()
            continue
        try:
            yield Bounded(folder, num_bytes)
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()
        return
    yield Bounded(None, num_bytes)


def evict(folder: Path) -> None:
    """Drop a folder's files from the page cache, so that the reader's cgroup is charged for them."""
    for path in folder.rglob("*.npy"):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
