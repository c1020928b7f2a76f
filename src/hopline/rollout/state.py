"""The lifecycle's state on disk: one small file, whole or not at all, the same for all workers of a host.

Each change is made under a lock, from the newest content, and replaces the file by rename; a change is
noticed by the file's identity. A reader never sees half of one, and a process that dies while writing
leaves the old file. What the folder loses, a worker that has read it writes again.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from hopline.answering.unit import Unit
from hopline.errors import ConfigError, Conflict
from hopline.files import locked, write_atomically
from hopline.rollout.rollout import Rollout
from hopline.types import UNREADABLE

log = logging.getLogger(__name__)

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
        #: The newest that was read or written here.
        self._newest = LifecycleState()

    def open(self) -> None:
        """Make the folder.

        Raises: ConfigError: it cannot be written.
        """
        try:
            self.update(lambda whole: whole)
        except OSError as error:
            raise ConfigError(f"models.state: cannot write in {self.folder}: {error.strerror}") from None

    def read(self) -> tuple[LifecycleState, Identity]:
        """The present content and its identity; an empty state where there never was a file.

        Raises:
            ConfigError: a file that this Hopline did not write.
            OSError: it cannot be read, or what was lost not be written.
        """
        found = self._stored()
        if found[0].generation < self._newest.generation:
            self.update(lambda whole: whole)
            found = self._stored()
        self._newest = found[0]
        return found

    def _stored(self) -> tuple[LifecycleState, Identity]:
        try:
            with self._file.open("rb") as file:
                identity = _identity(os.fstat(file.fileno()))
                data = file.read()
        except FileNotFoundError:
            return LifecycleState(), None
        digest, _, body = data.partition(b"\n")
        if digest != _digest(body):
            raise ConfigError(
                f"models.state: {self._file} is damaged (its checksum differs); move it away: a server "
                "that runs writes it again, and one that starts serves what the repository holds"
            )
        return decode_state(body, str(self._file)), identity

    def identity(self) -> Identity:
        """Identity of the file's present content; one system call."""
        try:
            return _identity(os.stat(self._file))
        except FileNotFoundError:
            return None

    def update(
        self, change: Callable[[LifecycleState], LifecycleState], *, adds: bool = False
    ) -> LifecycleState:
        """Replace the content; blocks while another worker does.

        Args:
            change: gets the newest content, and may raise to leave it.
            adds: whether the change adds something, which is refused where the file has grown too large.

        Raises:
            Conflict: the file would be larger than `MAX_BYTES`; nothing changed.
            OSError: it could not be written; nothing changed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self._lock):
            before = stored = self._stored()[0]
            if stored.generation < self._newest.generation:
                before = self._newest
                log.warning(
                    "%s lost generation %d of the state; writing it again", self._file, before.generation
                )
            after = change(before)
            if after is not before:
                after = msgspec.structs.replace(after, generation=before.generation + 1)
            elif before is stored:
                return before
            body = encode_state(after)
            if adds:
                check_size(body, str(self._file))
            write_atomically(self._file, _digest(body) + b"\n" + body, durable=True)
            self._newest = after
            return after


def _identity(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _digest(body: bytes) -> bytes:
    return b'{"sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"}'
