"""The store of one host: a folder that all its workers share. The embedded default.

A change of the state is made under a lock and replaces the file by rename, so no reader sees half of one.
Members that die are noticed by their process ids; the kernel frees the lock of one that led.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from hopline.errors import ConfigError
from hopline.files import lock, locked, write_atomically
from hopline.rollout.state import CHECKSUM_BYTES
from hopline.rollout.store.base import MAX_AGE_S, Beat, Put, StateStore, Stored


class FolderStore(StateStore):
    """See `StateStore`.

    Args:
        folder: of the state; made if need be. `lifecycle.json` lies in it.
        index, count: which worker this is, and of how many.
        server_folder: of one server, for what its workers exchange while it runs; the state's by default.
    """

    spans_hosts = False
    beat_s = 0.05
    remedy = (
        "move it away: a server that runs writes it again, and one that starts serves what the repository "
        "holds"
    )

    def __init__(
        self, folder: Path, *, index: int = 0, count: int = 1, server_folder: Path | None = None
    ) -> None:
        self.address = str(folder)
        self.member = f"{index}-{os.getpid()}"
        self.has_others = count > 1
        self._folder = folder
        self._server_folder = server_folder or folder
        self._file = folder / "lifecycle.json"
        self.where = str(self._file)
        self._lock = folder / "lifecycle.lock"
        self._leading: BinaryIO | None = None

    def open(self) -> None:
        """As `StateStore.open`."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with locked(self._lock):
                for file in self._files(""):
                    with contextlib.suppress(FileNotFoundError):  # of a member that leaves now
                        if time.time() - file.stat().st_mtime > MAX_AGE_S:
                            file.unlink()
        except OSError as error:
            raise ConfigError(f"models.state: cannot write in {self._folder}: {error.strerror}") from None

    def close(self) -> None:
        """As `StateStore.close`."""
        self._leads(False)
        self._message_file(self.member).unlink(missing_ok=True)

    def read(self) -> Stored:
        """As `StateStore.read`."""
        return self._read(-1)

    def _read(self, size: int) -> Stored:
        """The first bytes of the state, which suffice to tell it from another one."""
        try:
            with self._file.open("rb") as file:
                stat = os.fstat(file.fileno())
                content = file.read(size)
        except FileNotFoundError:
            return Stored()
        place = b"%d-%d-%d " % (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        return Stored(place + content[:CHECKSUM_BYTES], content)

    def swap(self, stored: Stored, content: bytes) -> Stored | None:
        """As `StateStore.swap`; blocks while another worker changes the state."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with locked(self._lock):
            if self._read(CHECKSUM_BYTES).identity != stored.identity:
                return None
            write_atomically(self._file, content, durable=True)
            return self.read()

    def exchange(
        self, message: bytes | None, puts: Sequence[Put], groups: Sequence[str], *, leads: bool
    ) -> Beat:
        """As `StateStore.exchange`."""
        if message is not None:
            _write(self._message_file(self.member), message)
        for put in puts:
            self._put(put)
        listed = [dict(self._entries(group)) for group in groups]
        leader = self.member if self._leads(leads) else ""
        return Beat(self._read(CHECKSUM_BYTES).identity, leader, listed)

    def _put(self, put: Put) -> None:
        if not put.name:
            for file in self._files(put.group):
                file.unlink(missing_ok=True)
            return
        file = self._folder / f"{put.group}.{put.name}.outcomes"
        if put.value is None:
            file.unlink(missing_ok=True)
        elif not (put.first and file.exists()):
            _write(file, put.value)

    def _entries(self, group: str) -> Iterator[tuple[str, bytes]]:
        for file in self._folder.glob(f"{group}.*.outcomes"):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                yield file.name.split(".")[1], file.read_bytes()

    def _files(self, group: str) -> list[Path]:
        """Entries of a group, or of all, and drafts of writers that were killed."""
        return [
            file
            for file in self._folder.iterdir()
            if ".outcomes" in file.name and file.name.removeprefix(".").startswith(group and f"{group}.")
        ]

    def _leads(self, wants: bool) -> bool:
        try:
            if wants:
                self._leading = self._leading or (self._folder / "leader.lock").open("wb")
                return lock(self._leading.fileno(), wait=False)
        except OSError:
            return False
        if self._leading is not None:
            self._leading.close()
            self._leading = None
        return False

    def members(self) -> Mapping[str, bytes]:
        """As `StateStore.members`."""
        found = {}
        for file in self._server_folder.glob("*.member"):
            if _lives(file.stem):
                with contextlib.suppress(FileNotFoundError):  # left meanwhile
                    found[file.stem] = file.read_bytes()
            else:
                file.unlink(missing_ok=True)
        return found

    def now(self) -> float:
        """As `StateStore.now`."""
        return time.time()

    def once(self, make: Callable[[], bytes]) -> bytes:
        """As `StateStore.once`: the first worker's."""
        if not self.has_others:
            return make()
        file = self._server_folder / "first.json"
        with locked(file.with_suffix(".lock")):
            if not file.exists():
                write_atomically(file, make(), durable=False)
            return file.read_bytes()

    def _message_file(self, member: str) -> Path:
        return self._server_folder / f"{member}.member"


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content, durable=False)


def _lives(member: str) -> bool:
    try:
        os.kill(int(member.rpartition("-")[2]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        return True
    return True
