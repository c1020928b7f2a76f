"""Interface of the store for the state that the members of a fleet share.

A member is one worker process. The members of a folder are the workers of one host; those of a Redis are
the workers of all hosts. Decisions are changes of the newest state (`update`): one that was overtaken is
made again, or dropped. So two members that both decide never leave two states.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from hopline.rollout.state import FirstState, LifecycleState

#: Tells one content of the state from another; None where there is none yet.
Identity = tuple[int | str, ...] | None
#: Seconds without the store, after which a member sends no callers to a candidate: see `SharedState`.
LEASE_S = 1.0


class Heard(NamedTuple):
    """State that a member knows without waiting.

    Attributes:
        identity: of the newest content that this member has heard of.
        at: `time.monotonic()` at which that was the newest; infinite where the store cannot be lost.
    """

    identity: Identity
    at: float = math.inf


class Ack(msgspec.Struct, frozen=True):
    """Progress of a member towards the state.

    Attributes:
        switched: generation of the state by which requests are answered.
        loaded: generation of which all that is wanted was loaded, or could not be.
        failed: "model/unit" -> why it could not be loaded, of the generation that is `loaded`.
        contents: "model/unit" -> its graph and artifact: hosts may have others under one name.
    """

    switched: int
    loaded: int
    failed: dict[str, str]
    contents: dict[str, str] = {}


class StateStore(ABC):
    """The state, the members and their counts.

    The first group of methods may block and is called on a thread. The second group never blocks.
    A step is the name of one step of a rollout: "<rollout id>-<number>".

    Attributes:
        address: for messages; without a password.
        member: the name of this process among the members.
        has_others: whether there may be other members.
        wants_lead: whether this member also leads while no rollout is judged, if no other one does.
    """

    address: str
    member: str
    has_others: bool
    wants_lead: bool = False

    # May block

    @abstractmethod
    def open(self) -> None:
        """Connect.

        Raises:
            ConfigError: the address cannot be used.
            StoreUnavailable: the store did not answer for a while.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave: others do not wait for this member, and may decide."""

    @abstractmethod
    def read(self) -> tuple[LifecycleState, Identity]:
        """The newest content, an empty state where there is none, and which content that is.

        Raises:
            ConfigError: a content that this Hopline did not write.
            StoreUnavailable: no answer.
        """

    @abstractmethod
    def update(
        self, change: Callable[[LifecycleState], LifecycleState], *, adds: bool = False
    ) -> LifecycleState:
        """Replace the newest content.

        Args:
            change: gets the newest content, and may raise to leave it. May be called several times.
            adds: whether the change adds something, which is refused where the state has grown too large.

        Raises:
            Conflict: the state would be too large; nothing changed.
            OSError: it could not be written; nothing changed.
            StoreUnavailable: no answer; the message says what became of the change.
        """

    @abstractmethod
    def take_up(
        self, saved: LifecycleState, found: Callable[[], FirstState]
    ) -> tuple[LifecycleState, FirstState]:
        """First state for a member that starts: the first member decides, the others follow.

        Args:
            saved: the newest content.
            found: asks the repository.
        """

    @abstractmethod
    def acknowledgements(self) -> Mapping[str, Ack]:
        """The acknowledgements of the other members that live, by member.

        Raises: StoreUnavailable: also where one of them cannot be read.
        """

    @abstractmethod
    def flush(self) -> None:
        """Wait until the other members can read what this one acknowledged. Raises: StoreUnavailable."""

    @abstractmethod
    def gone(self, members: Collection[str]) -> set[str]:
        """Those of `members` that do not live any more."""

    # Never block

    @abstractmethod
    def heard(self) -> Heard:
        """The newest state that this member has heard of."""

    @abstractmethod
    def check_up(self) -> None:
        """Check that a change can be made now. Raises: StoreUnavailable."""

    @abstractmethod
    def now(self) -> float:
        """Seconds since the epoch, by the clock that all members share."""

    @abstractmethod
    def acknowledge(self, ack: Ack) -> None:
        """Report how far this member is; the first call makes it a member that others wait for."""

    @abstractmethod
    def leads(self) -> bool:
        """True if this member judges rollouts; it takes the lead if no other member has it."""

    @abstractmethod
    def publish_counts(self, step: str, counts: bytes) -> None:
        """Replace what this member counted of a step. A member that died leaves its counts."""

    @abstractmethod
    def withdraw_counts(self, step: str) -> None:
        """Remove this member's counts of a step."""

    @abstractmethod
    def counts(self, step: str) -> Sequence[bytes]:
        """The newest counts of the other members, as far as this member has heard of them."""

    @abstractmethod
    def doubt(self, step: str, latency: bytes) -> None:
        """Note the latency counts at which the candidate was slow for the first time; the first note
        stays."""

    @abstractmethod
    def doubted(self, step: str) -> bytes | None:
        """Entries of `doubt`, by any member."""

    @abstractmethod
    def forget_counts(self, steps: Collection[str]) -> None:
        """Remove everything of these steps: their rollout is over."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """The condition of a store of several hosts, for people; empty for a folder."""
