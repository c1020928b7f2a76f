"""Interface of the store for what the members of a fleet share: the state, and entries.

A member is one worker process. The members of a folder are the workers of one host; those of a Redis are
the workers of all hosts. A store knows contents, not what they mean: `fleet.py` is above every store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

#: Seconds without the store, after which a member sends no callers to a candidate: see `SharedState`.
LEASE_S = 1.0
#: Seconds after which a store drops entries that no member removed.
MAX_AGE_S = 86_400


class Stored(NamedTuple):
    """A content of the state.

    Attributes:
        identity: tells it from every other content; b"" where there is none yet.
        content: as it was written.
    """

    identity: bytes = b""
    content: bytes = b""


class Put(NamedTuple):
    """An entry to write.

    Attributes:
        group: of entries.
        name: of the entry; "" for all entries of the group, which are removed.
        value: None removes the entry.
        first: an entry that exists stays.
    """

    group: str
    name: str = ""
    value: bytes | None = None
    first: bool = False


class Beat(NamedTuple):
    """Report of a store at each exchange.

    Attributes:
        identity: of the newest state.
        leader: the member that leads, as far as this one knows; "" for none.
        groups: the entries of each group that was listed.
    """

    identity: bytes
    leader: str
    groups: Sequence[dict[str, bytes]]


class StateStore(ABC):
    """The state, the members' messages, and groups of entries. Every method may block.

    Methods raise StoreUnavailable or another OSError if the store cannot be used now, and ConfigError if it
    holds what Hopline did not write.

    Attributes:
        address: for messages; without a password.
        where: the state is, and `remedy`: what to do if it is damaged, for messages.
        member: the name of this process among the members; no other process ever has it.
        has_others: True if there may be other members.
        spans_hosts: True if members are on several hosts: they miss each other when they are silent.
        beat_s: seconds between exchanges.
    """

    address: str
    where: str
    remedy: str
    member: str
    has_others: bool
    spans_hosts: bool
    beat_s: float

    @abstractmethod
    def open(self) -> None:
        """Connect. Raises: ConfigError: the address cannot be used."""

    @abstractmethod
    def close(self) -> None:
        """Leave: this member's message is not read any more."""

    @abstractmethod
    def read(self) -> Stored:
        """The newest state."""

    @abstractmethod
    def swap(self, stored: Stored, content: bytes) -> Stored | None:
        """Replace the state, if it is the one that was read before; None if it is another one.

        Raises: StoreUnavailable, OSError: the message says what became of the change.
        """

    @abstractmethod
    def exchange(
        self, message: bytes | None, puts: Sequence[Put], groups: Sequence[str], *, leads: bool
    ) -> Beat:
        """Write a message and entries, then read.

        Args:
            message: of this member; None leaves the one before.
            groups: to list.
            leads: try to lead, or to keep the lead, for `LEASE_S`. No two members ever lead.
        """

    @abstractmethod
    def members(self) -> Mapping[str, bytes]:
        """The newest messages of all members that live. A member that is silent does not."""

    @abstractmethod
    def now(self) -> float:
        """Seconds since the epoch, by the clock that all members share; never blocks."""

    def once(self, make: Callable[[], bytes]) -> bytes:
        """Content that one worker of this server made, and that all others get."""
        return make()
