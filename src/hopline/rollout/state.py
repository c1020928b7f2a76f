"""The lifecycle's state on disk: one small file, whole or not at all, the same for all workers of a host.

Each change is made under a lock, from the newest content, and replaces the file by rename; a change is
noticed by the file's identity. A reader never sees half of one, and a process that dies while writing
leaves the old file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from hopline.errors import ConfigError
from hopline.rollout.rollout import Rollout
from hopline.rollout.unit import Unit

FORMAT = 1
#: Ended rollouts of a model that are kept.
MAX_PAST = 20


class ModelState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model's, once something was asked of it.

    Attributes:
        units: that are loaded.
        serving: unit id that gets requests which name no version.
        previous: unit id that a rollback returns to; "" where there is none.
        rollout: under way.
        past: ended ones, oldest first.
        tries: how often a unit that is wanted already was asked for again.
    """

    units: tuple[Unit, ...] = ()
    serving: str = ""
    previous: str = ""
    rollout: Rollout | None = None
    past: tuple[Rollout, ...] = ()
    tries: int = 0

    def unit(self, unit_id: str) -> Unit | None:
        """The unit of that id, if it is loaded."""
        return next((unit for unit in self.units if unit.id == unit_id), None)


class LifecycleState(msgspec.Struct, frozen=True):
    """The whole file.

    Attributes:
        generation: grows with each change.
        models: those that differ from what the repository says by itself.
    """

    generation: int = 0
    models: dict[str, ModelState] = {}
    format: int = FORMAT


class StateFile:
    """Args:
    folder: is made if need be; `lifecycle.json` lies in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "lifecycle.json"
        self._seen: tuple[int, int, int] | None = None

    def open(self) -> None:
        """Make the folder.

        Raises: ConfigError: it cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked():
                pass
        except OSError as error:
            raise ConfigError(f"models.state: cannot write in {self.folder}: {error.strerror}") from None

    def read(self) -> LifecycleState:
        """The present content; an empty state where there is no file.

        Raises: ConfigError: a file that this Hopline did not write.
        """
        try:
            with self._file.open("rb") as file:
                self._seen = _identity(os.fstat(file.fileno()))
                data = file.read()
        except FileNotFoundError:
            self._seen = None
            return LifecycleState()
        digest, _, body = data.partition(b"\n")
        if digest != _digest(body):
            raise ConfigError(
                f"models.state: {self._file} is damaged (its checksum differs); move it away to start from "
                "what the repository holds"
            )
        try:
            state = msgspec.json.decode(body, type=LifecycleState)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"models.state: {self._file} is not a lifecycle file: {error}") from None
        if state.format > FORMAT:
            raise ConfigError(f"models.state: {self._file} was written by a newer Hopline; upgrade hopline")
        return state

    def changed(self) -> bool:
        """Whether the file is another one than was read last; one system call."""
        try:
            return _identity(os.stat(self._file)) != self._seen
        except FileNotFoundError:
            return self._seen is not None

    def update(self, change: Callable[[LifecycleState], LifecycleState]) -> LifecycleState:
        """Replace the content; `change` gets the newest, and may raise to leave it.

        Raises: OSError: it could not be written; nothing changed.
        """
        with self._locked():
            before = self.read()
            after = change(before)
            if after is before:
                return before
            after = msgspec.structs.replace(after, generation=before.generation + 1)
            body = msgspec.json.format(msgspec.json.encode(after), indent=1)
            draft = self._file.with_suffix(".draft")
            with draft.open("wb") as file:
                file.write(_digest(body) + b"\n" + body)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._file)
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self._seen = _identity(os.stat(self._file))
            return after

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lifecycle.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class Leadership:
    """Which of the workers decides: the one that holds a file's lock, until it ends.

    Args:
        folder: of the state.
    """

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "leader.lock").open("wb")
        self._mine = False

    def is_mine(self) -> bool:
        """Whether this process decides; takes the lock if it is free."""
        if not self._mine:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._mine = True
            except OSError:
                return False
        return True

    def close(self) -> None:
        """Let another one decide."""
        self._file.close()
        self._mine = False


def _identity(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _digest(body: bytes) -> bytes:
    return b'{"sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"}'
