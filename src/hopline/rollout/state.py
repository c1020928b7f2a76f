"""The state of versions and rollouts that the workers of a host or a fleet share, and how it is stored.

It is one small text, stored whole or not at all: a line with the checksum of the rest, then JSON.
"""

from __future__ import annotations

import hashlib

import msgspec

from hopline.answering.unit import Unit
from hopline.errors import ConfigError, Conflict
from hopline.rollout.rollout import Rollout
from hopline.types import UNREADABLE

FORMAT = 1
#: Ended rollouts of a model that are kept.
MAX_PAST = 20
#: Bytes of the state, beyond which nothing is added: every worker reads all of it at each change.
MAX_BYTES = 1 << 20
#: Bytes of the line with the checksum, which tells one state from another.
CHECKSUM_BYTES = 78


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
    """The whole state.

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
        left_out: that the state had, and that are not among them: they stay out until they change.
    """

    models: dict[str, ModelState]
    left_out: dict[str, ModelState] = {}


def encode_state(state: LifecycleState) -> bytes:
    """The state as it is stored; people can read it."""
    body = msgspec.json.format(msgspec.json.encode(state), indent=1)
    return _checksum(body) + b"\n" + body


def decode_state(content: bytes, where: str, remedy: str) -> LifecycleState:
    """The state that was stored.

    Args:
        where: it was stored, and `remedy`: what to do where it is damaged, for the message.

    Raises: ConfigError: this Hopline did not write it.
    """
    checksum, _, body = content.partition(b"\n")
    if checksum != _checksum(body):
        raise ConfigError(f"models.state: {where} is damaged (its checksum differs); {remedy}")
    try:
        state = msgspec.json.decode(body, type=LifecycleState)
    except UNREADABLE as error:
        raise ConfigError(f"models.state: {where} is no state of Hopline: {error}; {remedy}") from None
    if state.format != FORMAT:
        raise ConfigError(f"models.state: {where} was written by a newer Hopline; upgrade hopline")
    return state


def check_size(content: bytes, where: str) -> None:
    """Check the size of a state that is to be stored in `where`. Raises: Conflict: it is too large."""
    if len(content) > MAX_BYTES:
        raise Conflict(
            f"what is loaded and rolled out would take {len(content)} bytes in {where}, more "
            f"than {MAX_BYTES}; unload versions that are not needed"
        )


def _checksum(body: bytes) -> bytes:
    return b'{"sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"}'
