"""The lifecycle's state on disk: one small file, whole or not at all, the same for all workers of a host.

Each change is made under a lock, from the newest content, and replaces the file by rename; a change is
noticed by the file's identity. A reader never sees half of one, and a process that dies while writing
leaves the old file. Nothing here knows what a worker has followed already: a change that is refused has
read the newest state, and this worker must still follow it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from hopline.answering.unit import Unit
from hopline.errors import ConfigError, Conflict
from hopline.files import lock, locked, write_atomically
from hopline.rollout.rollout import Rollout
from hopline.types import UNREADABLE

FORMAT = 1
#: Ended rollouts of a model that are kept.
MAX_PAST = 20
#: Bytes of the file, beyond which nothing is added: every worker reads all of it at each change.
MAX_BYTES = 1 << 20

#: Tells one content of the file from another: inode, time and size; None where there is no file.
Identity = tuple[int, int, int] | None


class Trial(msgspec.Struct, frozen=True):
    """A unit that every worker loads, to find out whether it can be; it takes no requests.

    Attributes:
        id: of the change that asks for it.
        unit: that is tried.
        member: of the fleet, that makes the change; what a member that died has tried is forgotten.
    """

    id: str
    unit: Unit
    member: str = ""


class ModelState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model's, once something was asked of it.

    Attributes:
        units: that are loaded and take requests.
        serving: unit id that gets requests which name no version.
        previous: unit id that a rollback returns to; "" where there is none.
        rollout: under way.
        past: ended ones, oldest first.
        trials: under way.
        tries: how often a unit was asked for: each time, workers try again what they could not load.
    """

    units: tuple[Unit, ...] = ()
    serving: str = ""
    previous: str = ""
    rollout: Rollout | None = None
    past: tuple[Rollout, ...] = ()
    trials: tuple[Trial, ...] = ()
    tries: int = 0

    @property
    def wanted(self) -> dict[str, Unit]:
        """Units by id that every worker has, or loads."""
        return {unit.id: unit for unit in (*self.units, *(trial.unit for trial in self.trials))}

    def unit(self, unit_id: str) -> Unit | None:
        """The unit of that id, if it is loaded."""
        return next((unit for unit in self.units if unit.id == unit_id), None)


class LifecycleState(msgspec.Struct, frozen=True):
    """The whole file.

    Attributes:
        generation: grows with each change.
        models: those that differ from what the repository alone gives.
    """

    generation: int = 0
    models: dict[str, ModelState] = {}
    format: int = FORMAT


class FirstState(msgspec.Struct, frozen=True):
    """Versions that the first worker of a server found at its start; later workers use them.

    Attributes:
        models: of the repository, as the settings name them.
        left_out: that the file had, and that are not among them: they stay out until they change.
    """

    models: dict[str, ModelState]
    left_out: dict[str, ModelState] = {}


def encode_state(state: LifecycleState) -> bytes:
    """The state as it is stored; people can read it."""
    return msgspec.json.format(msgspec.json.encode(state), indent=1)


def decode_state(body: bytes, where: str, remedy: str = "") -> LifecycleState:
    """The state that was stored in `where`.

    Args:
        remedy: what to do where it is damaged, for the message.

    Raises: ConfigError: this Hopline did not write it.
    """
    try:
        state = msgspec.json.decode(body, type=LifecycleState)
    except UNREADABLE as error:
        raise ConfigError(f"models.state: {where} is not a lifecycle file: {error}{remedy}") from None
    if state.format > FORMAT:
        raise ConfigError(f"models.state: {where} was written by a newer Hopline; upgrade hopline")
    return state


def check_size(body: bytes, where: str) -> None:
    """Check the size of a state that is to be stored in `where`. Raises: Conflict: it is too large."""
    if len(body) > MAX_BYTES:
        raise Conflict(
            f"what is loaded and rolled out would take {len(body)} bytes in {where}, more "
            f"than {MAX_BYTES}; unload versions that are not needed"
        )


class StateFile:
    """The file that holds the lifecycle's state.

    Args:
        folder: is made if need be; `lifecycle.json` lies in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "lifecycle.json"
        self._lock = folder / "lifecycle.lock"

    def open(self) -> None:
        """Make the folder.

        Raises: ConfigError: it cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self._lock):
                pass
        except OSError as error:
            raise ConfigError(f"models.state: cannot write in {self.folder}: {error.strerror}") from None

    def read(self) -> LifecycleState:
        """The present content; an empty state where there is no file.

        Raises: ConfigError: a file that this Hopline did not write.
        """
        return self.read_identified()[0]

    def read_identified(self) -> tuple[LifecycleState, Identity]:
        """The same, and which content that was."""
        try:
            with self._file.open("rb") as file:
                identity = _identity(os.fstat(file.fileno()))
                data = file.read()
        except FileNotFoundError:
            return LifecycleState(), None
        digest, _, body = data.partition(b"\n")
        if digest != _digest(body):
            raise ConfigError(
                f"models.state: {self._file} is damaged (its checksum differs); move it away to start from "
                "what the repository holds"
            )
        return decode_state(body, str(self._file)), identity

    def identity(self) -> Identity:
        """Identity of the file's present content; one system call."""
        try:
            return _identity(os.stat(self._file))
        except FileNotFoundError:
            return None

    def update(
        self, change: Callable[[LifecycleState], LifecycleState], *, known: int = 0, adds: bool = False
    ) -> LifecycleState:
        """Replace the content; blocks while another worker does.

        Args:
            change: gets the newest content, and may raise to leave it.
            known: generation that this worker follows: the next one is above it, also where the file was
                removed.
            adds: whether the change adds something, which is refused where the file has grown too large.

        Raises:
            Conflict: the file would be larger than `MAX_BYTES`; nothing changed.
            OSError: it could not be written; nothing changed.
        """
        with locked(self._lock):
            before = self.read()
            after = change(before)
            if after is before:
                return before
            after = msgspec.structs.replace(after, generation=max(before.generation, known) + 1)
            body = encode_state(after)
            if adds:
                check_size(body, str(self._file))
            write_atomically(self._file, _digest(body) + b"\n" + body, durable=True)
            return after


class Leadership:
    """Leader among the workers: the one that holds a file's lock, until it ends.

    Args:
        folder: of the state.
    """

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "leader.lock").open("wb")
        self._mine = False

    def is_mine(self) -> bool:
        """True if this process decides; takes the lock if it is free."""
        if not self._mine:
            with contextlib.suppress(OSError):
                self._mine = lock(self._file.fileno(), wait=False)
        return self._mine

    def close(self) -> None:
        """Let another one decide."""
        self._file.close()
        self._mine = False


def _identity(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _digest(body: bytes) -> bytes:
    return b'{"sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"}'
