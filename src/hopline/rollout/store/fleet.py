"""The state of a fleet, its members and their counts: the same over every store.

A thread exchanges a *beat* with the store many times a second: this member's acknowledgement and counts,
which state is the newest, who leads, what the others counted. What never blocks (`newest`, `leads`,
`counts`) is what the last beats reported. A change is a compare-and-set on the newest state, so two members
that both decide never leave two states. What a store loses, the members give it back.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hopline.config.schema import Config
from hopline.config.urls import find_by_scheme
from hopline.doors import Door
from hopline.errors import ConfigError, HoplineError, StoreUnavailable
from hopline.features.registry import REDIS
from hopline.files import temporary_root
from hopline.rollout.state import FirstState, LifecycleState, check_size, decode_state, encode_state
from hopline.rollout.store.base import LEASE_S, Put, StateStore, Stored
from hopline.rollout.store.folder import FolderStore
from hopline.types import UNREADABLE

log = logging.getLogger(__name__)

#: Scheme -> a `StateStore` that is called with its URL.
DOOR = Door("hopline.state_stores", packages=dict.fromkeys(REDIS, "'hopline[fleet]'"))

#: Seconds for a change that others overtake.
_UPDATE_S = 3.0
#: Seconds that a start tries to reach the store, between its tries, and between the log lines about that.
_START_S, _AGAIN_S, _SAY_S = 30.0, 0.1, 5.0
#: Seconds in which the members of a store that lost its data have given it back.
_RESTORE_S = 1.0
#: Seconds between reads of what other members counted: by the one that judges, and by the others.
_JUDGE_READ_S, _READ_S = 0.2, 1.0
#: Seconds without counts of this member, after which a step is over for it.
_IDLE_S = 5.0
#: Orders that wait for a store that is away; the oldest are dropped.
_MAX_ORDERS = 256
#: The entry of the latency counts at which a candidate was slow for the first time.
_SLOW = "slow"


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


class Newest(NamedTuple):
    """The newest state that this member knows.

    Attributes:
        at: `time.monotonic()` at which the store had no newer one; infinite while a folder can be used,
            which cannot be out of reach.
    """

    state: LifecycleState
    stored: Stored
    at: float


@dataclass(slots=True)
class _Step:
    """Known counts of one step.

    Attributes:
        unsent: this member's counts, not sent yet.
        others: counts of the other members, as last read.
        slow_latency: latency counts of the first slow verdict.
    """

    unsent: bytes | None = None
    others: Sequence[bytes] = ()
    slow_latency: bytes | None = None
    used_at: float = 0.0
    read_at: float = field(default=float("-inf"))


class Fleet:
    """Members that share a state over a store.

    The first group of methods may block and is called on a thread. The second group never blocks.
    A step is the name of one step of a rollout: "<rollout id>-<number>".

    Args:
        store: that all members share.
        names: models that this server serves, where the settings name them; () for all.

    Attributes:
        wants_lead: True if this member also leads while no rollout is judged, if no other one does.
    """

    def __init__(self, store: StateStore, names: tuple[str, ...] = ()) -> None:
        self.store = store
        self.wants_lead = False
        self._names = names
        self._ack = self._sent = b""
        self._num_beats = self._num_members = 0
        self._newest = LifecycleState(), Stored()
        self._beat_at = float("-inf")
        self._leader = ""
        self._steps: dict[str, _Step] = {}
        self._orders: deque[Put] = deque(maxlen=_MAX_ORDERS)
        self._why_down = ""
        self._lock = threading.Lock()  # of `_newest`
        self._beating = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="hopline-fleet", daemon=True)

    # May block

    def open(self) -> None:
        """Connect, and learn the newest state.

        Raises:
            ConfigError: the address cannot be used, or a state that Hopline did not write.
            StoreUnavailable: the store did not answer for a while.
        """
        began, said = time.monotonic(), float("-inf")
        while True:
            try:
                self.store.open()
                self._beat()
                if self.store.spans_hosts and not self._newest[0].generation:
                    # An empty store may have been a full one a moment ago.
                    time.sleep(_RESTORE_S)
                    self._beat()
                break
            except StoreUnavailable as error:
                now = time.monotonic()
                if now - began > _START_S:
                    raise StoreUnavailable(
                        f"models.state: no answer for {_START_S:.0f} s: {error}; a server that does not "
                        "know what its fleet serves does not start"
                    ) from None
                if now - said >= _SAY_S:
                    log.warning("models.state: %s; trying again", error)
                    said = now
                time.sleep(_AGAIN_S)
        self._thread.start()

    def close(self) -> None:
        """Leave: others do not wait for this member, and may decide."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(OSError, HoplineError):
            if self._orders:
                self._beat()
        self.store.close()

    def update(
        self, change: Callable[[LifecycleState], LifecycleState], *, adds: bool = False
    ) -> LifecycleState:
        """Replace the newest state.

        Args:
            change: gets the newest state, and may raise to leave it. May be called several times.
            adds: True if the change adds something, which is refused where the state has grown too large.

        Raises:
            Conflict: the state would be too large; nothing changed.
            OSError: it could not be written; nothing changed.
            StoreUnavailable: no answer; the message says what became of the change.
        """
        end = time.monotonic() + _UPDATE_S
        while True:
            before, stored = self._load()
            after = change(before)
            if after is before:
                return before
            after = msgspec.structs.replace(after, generation=before.generation + 1)
            content = encode_state(after)
            if adds:
                check_size(content, self.store.where)
            swapped = self.store.swap(stored, content)
            if swapped is not None:
                self._remember(after, swapped)
                return after
            if time.monotonic() > end:
                raise StoreUnavailable(
                    f"other members change the state of {self.store.address} all the time; nothing was "
                    "changed"
                )
            time.sleep(random.uniform(0.0, 0.01))

    def first_state(
        self, saved: LifecycleState, found: Callable[[], FirstState]
    ) -> tuple[LifecycleState, FirstState]:
        """First state for a member that starts: the first member decides, the others follow.

        On one host the state has no models that were never changed: later workers use those that the first
        worker of the server found. A fleet of several hosts has all of them in its state.
        """
        content = self.store.once(lambda: msgspec.json.encode(found()))
        first = msgspec.json.decode(content, type=FirstState)
        if not self.store.spans_hosts:
            return saved, first

        def with_missing(whole: LifecycleState) -> LifecycleState:
            missing = {name: model for name, model in first.models.items() if name not in whole.models}
            if not missing:
                return whole
            return msgspec.structs.replace(whole, models={**whole.models, **missing})

        state = self.update(with_missing)
        # Without `models.names`, a model that is missing in this host's repository is a failure to report.
        left_out = {
            name: model for name, model in state.models.items() if self._names and name not in self._names
        }
        return state, FirstState({}, left_out)

    def acknowledgements(self) -> Mapping[str, Ack]:
        """The acknowledgements of the other members that live, by member.

        Raises: StoreUnavailable: also where one of them cannot be read.
        """
        try:
            messages = self.store.members()
        except (OSError, ConfigError) as error:
            raise StoreUnavailable(f"the fleet's members cannot be read: {error}") from None
        self._num_members = len(messages)
        return {
            name: self._ack_of(name, message)
            for name, message in messages.items()
            if name != self.store.member
        }

    def _ack_of(self, name: str, message: bytes) -> Ack:
        try:
            return msgspec.msgpack.decode(message.partition(b" ")[2], type=Ack)
        except UNREADABLE as error:
            raise StoreUnavailable(
                f"{self.store.address}: what member {name} acknowledges cannot be read ({error}); is it of "
                "another release of Hopline?"
            ) from None

    def gone(self, members: Collection[str]) -> set[str]:
        """Those of `members` that do not live any more. Raises: as `acknowledgements`."""
        return set(members) - self.acknowledgements().keys() - {self.store.member}

    def flush(self) -> None:
        """Exchange all with the store now. Raises: StoreUnavailable."""
        try:
            self._beat(repeats=True)
        except (OSError, ConfigError) as error:
            raise StoreUnavailable(f"nothing was changed: {error}") from None

    def check_up(self) -> None:
        """Check that a change can be made, and that the others will see that this member follows it.

        Raises: StoreUnavailable.
        """
        silent_s = time.monotonic() - self._confirmed_at
        if silent_s > LEASE_S:
            raise StoreUnavailable(
                f"nothing was changed: {self.store.address} has failed for {silent_s:.1f} s "
                f"({self._why_down}); requests are served meanwhile"
            )
        self.flush()

    # Never block

    def newest(self) -> Newest:
        """The newest state that this member knows."""
        at = self._confirmed_at  # before the state: that is not older
        return Newest(*self._newest, at)

    @property
    def _confirmed_at(self) -> float:
        return self._beat_at if self.store.spans_hosts or self._why_down else math.inf

    def now(self) -> float:
        """Seconds since the epoch, by the clock that all members share."""
        return self.store.now()

    def acknowledge(self, ack: Ack) -> None:
        """Report how far this member is; the first call makes it a member that others wait for."""
        if self.store.has_others:
            self._ack = msgspec.msgpack.encode(ack)
            self._wake.set()

    def leads(self) -> bool:
        """True if this member judges rollouts; it takes the lead if no other member has it."""
        return self._leader == self.store.member and time.monotonic() - self._confirmed_at < LEASE_S

    def publish_counts(self, step: str, counts: bytes) -> None:
        """Replace what this member counted of a step. A member that died leaves its counts."""
        known = self._steps.setdefault(step, _Step())
        known.unsent, known.used_at = counts, time.monotonic()

    def withdraw_counts(self, step: str) -> None:
        """Remove this member's counts of a step."""
        self._steps.pop(step, None)
        self._orders.append(Put(step, self.store.member))

    def counts(self, step: str) -> Sequence[bytes]:
        """The newest counts of the other members, as far as this member knows them."""
        return self._steps.get(step, _Step()).others

    def mark_slow(self, step: str, latency: bytes) -> None:
        """Note the latency counts at which the candidate was first slow; the first note stays."""
        known = self._steps.setdefault(step, _Step(used_at=time.monotonic()))
        if known.slow_latency is None:
            known.slow_latency = latency
            self._orders.append(Put(step, _SLOW, latency, first=True))

    def slow_latency(self, step: str) -> bytes | None:
        """Entries of `mark_slow`, by any member."""
        return self._steps.get(step, _Step()).slow_latency

    def forget_counts(self, steps: Collection[str]) -> None:
        """Remove everything of these steps: their rollout is over."""
        for step in steps:
            self._steps.pop(step, None)
            self._orders.append(Put(step))

    def status(self) -> dict[str, Any]:
        """The condition of the store, for people."""
        silent_s = max(0.0, time.monotonic() - self._confirmed_at)
        up = silent_s <= LEASE_S
        return {
            "address": self.store.address,
            "up": up,
            "silent_s": round(silent_s, 3),
            "why": "" if up else self._why_down,
            "member": self.store.member,
            "members": self._num_members,
            "leader": self._leader,
        }

    # The state

    def _load(self) -> tuple[LifecycleState, Stored]:
        """The newest state; gives the store back what it lost."""
        while True:
            state, newest = self._newest  # before it is read: that is not older
            stored = self.store.read()
            if stored.content != newest.content or (stored.identity and not stored.content):
                known, state = state, LifecycleState()
                if stored.identity:
                    state = decode_state(stored.content, self.store.where, self.store.remedy)
                wanted = b""
                if state.generation < known.generation:
                    log.warning(
                        "%s lost the state of generation %d; writing it again",
                        self.store.where,
                        known.generation,
                    )
                    wanted = newest.content
                elif state.generation == known.generation:
                    # After such a loss two states may come to have one generation; the stored one is newer.
                    wanted = encode_state(msgspec.structs.replace(state, generation=state.generation + 1))
                if wanted:
                    self.store.swap(stored, wanted)
                    continue
            self._remember(state, stored)
            return state, stored

    def _remember(self, state: LifecycleState, stored: Stored) -> None:
        with self._lock:
            if state.generation >= self._newest[0].generation:
                self._newest = state, stored

    # The beat

    def _run(self) -> None:
        while not self._closing:
            try:
                self._beat()
            except Exception as error:  # the boundary: the lease runs out until a beat succeeds
                if not isinstance(error, OSError | HoplineError):
                    log.exception("the state of rollouts could not be exchanged")
                self._why_down = str(error) or type(error).__name__
            self._wake.wait(self.store.beat_s)
            self._wake.clear()

    def _beat(self, *, repeats: bool = False) -> None:
        """One exchange. Raises: OSError, ConfigError: what was not sent waits for the next one.

        Args:
            repeats: write the acknowledgement also where it was written before.
        """
        with self._beating:
            began = time.monotonic()
            ack, orders, steps = self._ack, list(self._orders), list(self._steps.items())
            self._num_beats += 1
            message = b"%d " % self._num_beats + ack
            if not ack or not (repeats or self.store.spans_hosts or ack is not self._sent):
                message = b""
            unsent = [(name, step, step.unsent) for name, step in steps if step.unsent is not None]
            read_s = _JUDGE_READ_S if self._leader == self.store.member else _READ_S
            due = [(name, step) for name, step in steps if began - step.read_at >= read_s]
            beat = self.store.exchange(
                message or None,
                [*orders, *(Put(name, self.store.member, counts) for name, _, counts in unsent)],
                [name for name, _ in due],
                leads=bool(steps) or self.wants_lead,
            )
            self._sent = ack
            for order in orders:
                if self._orders and self._orders[0] is order:
                    self._orders.popleft()
            for _, step, counts in unsent:
                if step.unsent is counts:
                    step.unsent = None
            for (_, step), entries in zip(due, beat.groups, strict=True):
                step.slow_latency = entries.pop(_SLOW, step.slow_latency)
                entries.pop(self.store.member, None)
                step.others, step.read_at = list(entries.values()), began
            for name, step in steps:
                if began - step.used_at > _IDLE_S:
                    self._steps.pop(name, None)
            if beat.identity != self._newest[1].identity:
                self._load()  # a state that cannot be read is not the newest one
            self._beat_at, self._leader, self._why_down = began, beat.leader, ""


def configured_fleet(config: Config) -> tuple[Fleet, Callable[[], object]]:
    """The fleet of the store that the settings name, not open yet, and what to call once it is closed.

    Raises: ConfigError: an address that names no store, or one whose package is missing.
    """
    address = config.models.state
    if isinstance(address, str) and "://" in address:
        made = find_by_scheme(DOOR, address, "models.state", "a folder or the URL of a fleet's store")
        return Fleet(made(address), config.models.names), lambda: None
    folder, clean_up = _folder(config)
    worker = config.worker
    server_folder = Path(worker.metrics_dir) if worker.metrics_dir else None
    store = FolderStore(folder, index=worker.index, count=worker.count, server_folder=server_folder)
    return Fleet(store), clean_up


def _folder(config: Config) -> tuple[Path, Callable[[], object]]:
    """Folder of the state: as configured, in the models' folder, or a temporary one."""
    models = config.models
    if models.state is not None:
        return Path(models.state), lambda: None
    local = Path(str(models.repository))
    if "://" not in str(models.repository) and os.access(local, os.W_OK):
        return local / ".hopline", lambda: None
    log.warning(
        "models.state is not set and %s cannot be written: rollouts will not survive a restart",
        models.repository,
    )
    if config.worker.metrics_dir:
        return Path(config.worker.metrics_dir) / "state", lambda: None
    own = tempfile.mkdtemp(prefix="hopline-state-", dir=temporary_root())
    return Path(own), lambda: shutil.rmtree(own, ignore_errors=True)
