"""The named file of the L1 feature cache, for separate processes that share it.

    page 0: magic, length, {boot, layout} │ the arena's arrays

The first process sets the size of the file and writes its layout; the others compare. A file with a
different layout is created again if no process uses it, and refused otherwise. Each writer holds a lock on
its own byte while it lives, so two processes never write one partition. The kernel releases the lock
however the process ends.

The layout is settings and their values, as text.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import numpy as np

from hopline.config.schema import Config
from hopline.errors import ConfigError
from hopline.features.base import FeatureGroup
from hopline.features.l1 import CachePlan
from hopline.files import boot_id, locked
from hopline.memory.arena import Arena
from hopline.types import UNREADABLE

#: Bytes before the arrays: a page.
HEADER_BYTES = 4096
_MAGIC = b"HOPLINE L1 file\n"
_SETTING = "features.shared_file"
#: `struct flock` of the kernel: `l_type`, `l_whence`, `l_start`, `l_len`, `l_pid`; padded to its alignment.
_FLOCK = struct.Struct("@hhqqi0q")


#: What a prefetcher has of L1's slots, to one of all workers together: they write only when it is away.
_PREFETCHER_SHARE = 4.0


class _Header(msgspec.Struct, frozen=True):
    boot: str
    layout: dict[str, str]


class SharedFile:
    """The opened and checked file; see `join`.

    Attributes:
        fd: file descriptor, not inherited by child processes.
        identity: (device, inode), equal for processes that map the same memory.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        found = os.fstat(fd)
        self.identity = (found.st_dev, found.st_ino)

    @classmethod
    def join(cls, path: Path, layout: Mapping[str, str], num_bytes: int, writer: int) -> SharedFile:
        """Open or create the file, as one of its writers.

        Args:
            path: on a file system in memory, for example /dev/shm.
            layout: setting -> value in this process; all settings that determine the positions of the
                arrays and the meaning of their rows.
            num_bytes: size of the arrays.
            writer: number of this process among the writers.

        Raises:
            ConfigError: the file cannot be opened, is another kind of file, is in use with another layout
                or by another process with this number, or there is no space for it.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"{_SETTING}: {path} cannot be opened: {error.strerror}") from None
        try:
            with locked(path):
                _check(fd, path, _Header(boot_id(), dict(layout)), HEADER_BYTES + num_bytes)
                if not _lock(fd, writer):
                    raise ConfigError(
                        f"{_SETTING}: another process uses {path} as writer {writer}; every server needs "
                        "its own file"
                    )
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    def close(self) -> None:
        """Close the file; its rows stay for the next process that opens it."""
        os.close(self.fd)


def _check(fd: int, path: Path, wanted: _Header, num_bytes: int) -> None:
    """Create the file or check that it fits; raise an error if it cannot be used."""
    size = os.fstat(fd).st_size
    if size:
        found = _read(fd)
        if found is None:
            raise ConfigError(f"{_SETTING}: {path} is not a file of Hopline; choose another path")
        if found == wanted and size >= num_bytes:
            return
        if found.boot == wanted.boot and _is_used(fd):
            raise ConfigError(
                f"{_SETTING}: {path} is in use with another layout: {_differences(found, wanted)}"
            )
    try:
        os.ftruncate(fd, 0)
        # Memory that is promised but missing would kill a process in the middle of a write.
        os.posix_fallocate(fd, 0, num_bytes)
    except OSError as error:
        os.ftruncate(fd, 0)
        raise ConfigError(
            f"{_SETTING}: {path} cannot hold {num_bytes} bytes (features.memory_bytes): {error.strerror}"
        ) from None
    text = msgspec.msgpack.encode(wanted)
    # The magic is written last: a header is complete, or there is none.
    os.pwrite(fd, len(text).to_bytes(4, "little") + text, len(_MAGIC))
    os.pwrite(fd, _MAGIC, 0)


def _read(fd: int) -> _Header | None:
    page = os.pread(fd, HEADER_BYTES, 0)
    start = len(_MAGIC) + 4
    if page[: len(_MAGIC)] == bytes(len(_MAGIC)):
        return _Header("", {})  # its creator died before it was complete
    if page[: len(_MAGIC)] != _MAGIC:
        return None
    length = int.from_bytes(page[len(_MAGIC) : start], "little")
    try:
        return msgspec.msgpack.decode(page[start : start + length], type=_Header)
    except UNREADABLE:
        return None


def _differences(found: _Header, wanted: _Header) -> str:
    names = sorted({*found.layout, *wanted.layout})
    pairs = [(name, found.layout.get(name, "-"), wanted.layout.get(name, "-")) for name in names]
    return "; ".join(
        f"{name} is {there} in the file, {here} in this process"
        for name, there, here in pairs
        if there != here
    )


def _lock(fd: int, writer: int) -> bool:
    """Lock a writer's byte until `fd` is closed; return True if it was free."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, writer, 1, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def _is_used(fd: int) -> bool:
    """Return True if any writer is alive."""
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind: int = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, request))[0]
    return kind != fcntl.F_UNLCK


def planned(config: Config, rows: Mapping[str, tuple[int, int]]) -> dict[str, CachePlan]:
    """`features.memory_bytes` divided by the size of all rows.

    Args:
        rows: node type -> the number of its rows, and the numbers of a row.

    Raises: ConfigError: as `CachePlan.within`.
    """
    total = max(1, sum(count * dim for count, dim in rows.values()))
    memory, num_workers = config.features.memory_bytes, config.worker.count
    shares = (1.0,) * num_workers
    if config.features.prefetcher is not None:
        shares += (_PREFETCHER_SHARE * num_workers,)
    return {
        name: CachePlan.within(count, dim, memory * count * dim // total, len(shares), shares)
        for name, (count, dim) in rows.items()
    }


def join_file(
    config: Config, lineage: str, rows: Mapping[str, tuple[FeatureGroup, CachePlan]], suffix: str = ""
) -> tuple[SharedFile, Arena]:
    """Open or create `features.shared_file`, and map it.

    Args:
        lineage: of the graph. rows: node type -> its group and the layout of its cache.
        suffix: of the name of a further file, for rows that a preprocessing encodes.

    Raises: ConfigError: as `SharedFile.join`.
    """
    settings, path = config.features, config.features.shared_file
    assert path is not None
    plans = [plan for _, plan in rows.values()]
    url = urlsplit(settings.store)
    layout = {
        "graph.path": lineage,
        # Whose rows they are, without a password.
        "features.store": short(url._replace(netloc=url.netloc.rpartition("@")[2])),
        "features.groups": short({name: [group.name, group.hash] for name, (group, _) in rows.items()}),
        "features.memory_bytes": str(settings.memory_bytes),
        "features.prefetcher": "set" if settings.prefetcher is not None else "empty",
        "server.workers": str(config.worker.count),
        "layout": short([(plan.num_nodes, plan.dim, plan.slots) for plan in plans]),
    }
    num_bytes = sum(plan.num_bytes for plan in plans)
    path = path.with_name(f"{path.name}-{suffix}") if suffix else path
    shared = SharedFile.join(path, layout, num_bytes, config.worker.index)
    arena = Arena(HEADER_BYTES + num_bytes, shared.fd)
    arena.take((HEADER_BYTES,), np.uint8)
    return shared, arena


def short(value: object) -> str:
    """12 hex digits that tell values apart."""
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:12]
