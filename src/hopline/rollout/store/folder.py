"""The store of one host: a folder that all its workers share. The embedded default."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from hopline.errors import StoreUnavailable
from hopline.files import lock, locked, write_atomically
from hopline.rollout.state import FirstState, LifecycleState, StateFile
from hopline.rollout.store.base import Ack, Heard, Identity, StateStore

log = logging.getLogger(__name__)

#: Seconds until an acknowledgement that could not be written is tried again.
_AGAIN_S = 1.0


class _AckFile(msgspec.Struct):
    """A worker's acknowledgement, and the process that wrote it."""

    pid: int
    ack: Ack


class FolderStore(StateStore):
    """See `StateStore`.

    Args:
        folder: of the state; made if need be.
        index, count: which worker this is, and of how many.
        server_folder: of one server, for what its workers exchange while it runs; the state's by default.
        pid: of this process; for tests.
    """

    def __init__(
        self,
        folder: Path,
        *,
        index: int = 0,
        count: int = 1,
        server_folder: Path | None = None,
        pid: int | None = None,
    ) -> None:
        self.address = str(folder)
        self.member = str(index)
        self.has_others = count > 1
        self._folder = folder
        self._server_folder = server_folder or folder
        self._count = count
        self._pid = os.getpid() if pid is None else pid
        self._file = StateFile(folder)
        self._leader: BinaryIO | None = None
        #: Why the last write failed, "" if it did not; the newest acknowledgement, and one to repeat; when
        #: writes worked last, and when one was tried.
        self._why = ""
        self._newest: Ack | None = None
        self._unsent: Ack | None = None
        self._written_at = self._tried_at = time.monotonic()

    def open(self) -> None:
        """As `StateStore.open`."""
        self._file.open()

    def close(self) -> None:
        """As `StateStore.close`."""
        if self._leader is not None:
            self._leader.close()
            self._leader = None
        if self.has_others:
            self._ack_file(self.member).unlink(missing_ok=True)

    def read(self) -> tuple[LifecycleState, Identity]:
        """As `StateStore.read`."""
        return self._file.read()

    def update(
        self, change: Callable[[LifecycleState], LifecycleState], *, adds: bool = False
    ) -> LifecycleState:
        """As `StateStore.update`; blocks while another worker changes the state."""
        return self._file.update(change, adds=adds)

    def take_up(
        self, saved: LifecycleState, found: Callable[[], FirstState]
    ) -> tuple[LifecycleState, FirstState]:
        """Versions that the first worker found at the server's start; later workers use them."""
        if not self.has_others:
            return saved, found()
        file = self._server_folder / "first.json"
        with locked(file.with_suffix(".lock")):
            if not file.exists():
                write_atomically(file, msgspec.json.encode(found()), durable=False)
            return saved, msgspec.json.decode(file.read_bytes(), type=FirstState)

    def acknowledgements(self) -> Mapping[str, Ack]:
        """As `StateStore.acknowledgements`; a worker that died reads the newest state when it restarts."""
        found = {}
        for index in range(self._count):
            if str(index) == self.member:
                continue
            try:
                file = msgspec.json.decode(self._ack_file(str(index)).read_bytes(), type=_AckFile)
            except FileNotFoundError:
                continue
            if _lives(file.pid):
                found[str(index)] = file.ack
        return found

    def flush(self) -> None:
        """As `StateStore.flush`: a file can be read immediately."""

    def gone(self, members: Collection[str]) -> set[str]:
        """Workers that the server does not have any more."""
        return {name for name in members if not name.isdecimal() or int(name) >= self._count}

    def heard(self) -> Heard:
        """Identity of the file's present content; one system call.

        A worker that cannot write what it counts is not judged by it: it counts as cut off.
        """
        if self._unsent is not None and time.monotonic() - self._tried_at >= _AGAIN_S:
            self.acknowledge(self._unsent)
        return Heard(self._file.identity(), self._written_at if self._why else math.inf)

    def check_up(self) -> None:
        """As `StateStore.check_up`: the others wait until they see that this worker follows a change."""
        if self._newest is not None:
            self.acknowledge(self._newest)
        if self._unsent is not None:
            raise StoreUnavailable(f"nothing was changed: {self._why}")

    def now(self) -> float:
        """As `StateStore.now`."""
        return time.time()

    def acknowledge(self, ack: Ack) -> None:
        """As `StateStore.acknowledge`."""
        self._newest = ack
        if self.has_others:
            content = msgspec.json.encode(_AckFile(self._pid, ack))
            self._unsent = None if self._write(self._ack_file(self.member), content) else ack

    def leads(self) -> bool:
        """As `StateStore.leads`; the kernel frees the lock when a process ends."""
        try:
            self._leader = self._leader or (self._folder / "leader.lock").open("wb")
            return lock(self._leader.fileno(), wait=False)
        except OSError:
            return False

    def publish_counts(self, step: str, counts: bytes) -> None:
        """As `StateStore.publish_counts`."""
        self._write(self._counts_file(step), counts)

    def withdraw_counts(self, step: str) -> None:
        """As `StateStore.withdraw_counts`."""
        self._counts_file(step).unlink(missing_ok=True)

    def counts(self, step: str) -> Sequence[bytes]:
        """As `StateStore.counts`."""
        mine = self._counts_file(step).name
        return [file.read_bytes() for file in self._folder.glob(f"{step}-*.outcomes") if file.name != mine]

    def doubt(self, step: str, latency: bytes) -> None:
        """As `StateStore.doubt`."""
        if self.doubted(step) is None:
            self._write(self._doubt_file(step), latency)

    def doubted(self, step: str) -> bytes | None:
        """As `StateStore.doubted`."""
        try:
            return self._doubt_file(step).read_bytes()
        except FileNotFoundError:
            return None

    def forget_counts(self, steps: Collection[str]) -> None:
        """As `StateStore.forget_counts`; drafts of writers that were killed go too."""
        prefixes = tuple(f"{step}-" for step in steps)
        for file in self._folder.iterdir():
            if file.name.removeprefix(".").startswith(prefixes):
                file.unlink(missing_ok=True)

    def status(self) -> dict[str, Any]:
        """As `StateStore.status`."""
        return {}

    def _write(self, path: Path, content: bytes) -> bool:
        """Write what other workers read; returns whether it was written. A failure is logged once."""
        self._tried_at = time.monotonic()
        try:
            write_atomically(path, content, durable=False)
        except OSError as error:
            if not self._why:
                log.error(
                    "the state of rollouts cannot be written: %s; requests are served, nothing can be "
                    "changed, and no caller gets a rollout's candidate",
                    error,
                )
            self._why = str(error)
            return False
        if self._why:
            log.warning("the state of rollouts can be written again: %s", path)
        self._why, self._written_at = "", self._tried_at
        return True

    def _ack_file(self, member: str) -> Path:
        return self._server_folder / f"lifecycle-{member}.ack"

    def _counts_file(self, step: str) -> Path:
        # By process: what a worker that died has counted was counted all the same.
        return self._folder / f"{step}-{self.member}-{self._pid}.outcomes"

    def _doubt_file(self, step: str) -> Path:
        return self._folder / f"{step}-doubted.latency"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
