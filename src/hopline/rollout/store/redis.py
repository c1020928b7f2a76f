"""The store of a fleet of several hosts: a Redis or Valkey.

A thread exchanges a *beat* with the server ten times a second, in one round trip: this member's
acknowledgement, which generation is the newest, who leads, what time it is. What never blocks (`heard`,
`leads`, `counts`) is what the last beats reported. The state is one hash; a change is a compare-and-set on
its generation and nonce. What a server loses that restarts without its data, its members give it back.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from hopline.config.redis_policy import QUESTIONS, check_keeps, policy_in
from hopline.errors import ConfigError, HoplineError, StoreUnavailable
from hopline.features.redis_url import RedisUrl
from hopline.rollout.state import FirstState, LifecycleState, check_size, decode_state, encode_state
from hopline.rollout.store.base import LEASE_S, Ack, Heard, Identity, StateStore
from hopline.rollout.store.redis_counts import RedisCounts
from hopline.rollout.store.redis_scripts import BEAT, LEAVE, REPLACE, RESTORE, Keys
from hopline.types import UNREADABLE

log = logging.getLogger(__name__)

SCHEMES = ("redis", "rediss", "valkey", "valkeys")
_SETTING = "models.state"
#: Seconds between beats, and without one until the others do not wait for a member.
_BEAT_S, _LIFETIME_S = 0.1, 2.0
#: Seconds for one round trip, and for a change that others overtake.
_REPLY_S, _UPDATE_S = 0.5, 3.0
#: Seconds that a start tries to reach the store, and between the log lines about that.
_START_S, _SAY_S = 30.0, 5.0
#: Seconds in which the members of a store that lost its data have given it back.
_RESTORE_S = 1.0

ResultT = TypeVar("ResultT")


class _Stored(NamedTuple):
    """The state as the server has it."""

    generation: int = 0
    nonce: str = ""
    body: bytes = b""

    @property
    def identity(self) -> Identity:
        return (self.generation, self.nonce) if self.generation else None


class RedisStore(StateStore):
    """See `StateStore`.

    Args:
        url: as in docs/guides/rollouts.md; the option `prefix` is the fleet's name.
        names: models that this server serves, where the settings name them; () for all.
    """

    def __init__(self, url: str, names: tuple[str, ...] = ()) -> None:
        parsed = RedisUrl.parse(url, _SETTING)
        if len(parsed.addresses) > 1 or "cluster" in parsed.kind:
            raise ConfigError(f"{_SETTING}: a fleet's state is in one Redis or Valkey, not in a cluster")
        if parsed.ttl_s is not None:
            raise ConfigError(f"{_SETTING}: ttl_s is for rows of features; remove it")
        host, port = parsed.addresses[0]
        self.address = f"{parsed.kind}://{host}:{port} (prefix {parsed.prefix!r})"
        self.member = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.has_others = True
        self._names = names
        self._client, self._failures, self._refusals = _connect(parsed)
        self._keys = keys = Keys(parsed.prefix)
        self._beat_script = self._client.register_script(BEAT)
        self._replace_script = self._client.register_script(REPLACE)
        self._restore_script = self._client.register_script(RESTORE)
        self._leave_script = self._client.register_script(LEAVE)
        self._counts = RedisCounts(keys, self.member)
        self._ack = b""
        self._newest = _Stored()
        self._decoded: tuple[str, LifecycleState] = ("", LifecycleState())
        self._lock = threading.Lock()  # of `_newest`
        self._beating = threading.Lock()
        self._heard = Heard(None, float("-inf"))
        self._offset_s = 0.0
        self._leader = ""
        self._num_members = 0
        self._why_down = ""
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="hopline-store", daemon=True)

    # May block

    def open(self) -> None:
        """As `StateStore.open`."""
        began = said = time.monotonic()
        while True:
            try:
                self._client.ping()  # an unknown client gets no clear answer to a long command
                check_keeps(self._policy(), self.address, _SETTING, expiring=True)
                self._beat()
                if self._newest_generation() == 0:
                    # An empty store may have been a full one a moment ago.
                    time.sleep(_RESTORE_S)
                    self._beat()
                break
            except self._refusals as error:
                raise ConfigError(f"{_SETTING}: {self.address} refuses this client: {error}") from None
            except self._failures as error:
                now = time.monotonic()
                if now - began > _START_S:
                    raise StoreUnavailable(
                        f"{_SETTING}: no answer of {self.address} for {_START_S:.0f} s ({_words(error)}); "
                        "a server that does not know what its fleet serves does not start"
                    ) from None
                if now - said >= _SAY_S or said == began:
                    log.warning("%s: %s does not answer (%s); trying again", _SETTING, self.address, error)
                    said = now
                time.sleep(_BEAT_S)
        self._thread.start()

    def close(self) -> None:
        """As `StateStore.close`."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            keys = self._keys
            self._leave_script([keys.members, keys.acks, keys.leader], [self.member])
        except self._failures as error:
            log.info("could not leave the fleet, which will notice (%s)", _words(error))
        self._client.close()

    def read(self) -> tuple[LifecycleState, Identity]:
        """As `StateStore.read`."""
        stored = self._load()
        return self._decode(stored), stored.identity

    def update(
        self, change: Callable[[LifecycleState], LifecycleState], *, adds: bool = False
    ) -> LifecycleState:
        """As `StateStore.update`."""
        end = time.monotonic() + _UPDATE_S
        while True:
            stored = self._load()
            before = self._decode(stored)
            after = change(before)
            if after is before:
                return before
            after = msgspec.structs.replace(after, generation=before.generation + 1)
            body = encode_state(after)
            if adds:
                check_size(body, self.address)
            if self._replace(stored, _Stored(after.generation, secrets.token_hex(8), body)):
                return after
            if time.monotonic() > end:
                raise StoreUnavailable(
                    f"other members change the state of {self.address} all the time; nothing was changed"
                )
            time.sleep(random.uniform(0.0, 0.01))

    def take_up(
        self, saved: LifecycleState, found: Callable[[], FirstState]
    ) -> tuple[LifecycleState, FirstState]:
        """State of the fleet; models that are new to it are added as this member found them."""
        first = found()

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
        """As `StateStore.acknowledgements`."""

        def ask() -> list[Any]:
            pipe = self._client.pipeline(transaction=True)
            pipe.zrange(self._keys.members, 0, -1)
            pipe.hgetall(self._keys.acks)
            result: list[Any] = pipe.execute()
            return result

        members, found = self._asked(ask)
        names = {member: member.decode() for member in members if member in found}
        return {
            name: self._ack_of(name, found[member]) for member, name in names.items() if name != self.member
        }

    def _ack_of(self, name: str, content: bytes) -> Ack:
        try:
            return msgspec.msgpack.decode(content, type=Ack)
        except UNREADABLE as error:
            raise StoreUnavailable(
                f"{self.address}: what member {name} acknowledges cannot be read ({error}); is it of "
                "another release of Hopline?"
            ) from None

    def flush(self) -> None:
        """As `StateStore.flush`."""
        self._asked(self._beat)

    def gone(self, members: Collection[str]) -> set[str]:
        """As `StateStore.gone`."""
        there = self._asked(lambda: self._client.zrange(self._keys.members, 0, -1))
        return set(members) - {member.decode() for member in there} - {self.member}

    # Never block

    def heard(self) -> Heard:
        """As `StateStore.heard`."""
        return self._heard

    def check_up(self) -> None:
        """As `StateStore.check_up`."""
        silent_s = time.monotonic() - self._heard.at
        if silent_s > LEASE_S:
            raise StoreUnavailable(
                f"the fleet's state cannot be changed: {self.address} has not answered for "
                f"{silent_s:.1f} s ({self._why_down}); requests are served meanwhile"
            )

    def now(self) -> float:
        """The server's clock, as of the last beat."""
        return time.monotonic() + self._offset_s

    def acknowledge(self, ack: Ack) -> None:
        """As `StateStore.acknowledge`."""
        self._ack = msgspec.msgpack.encode(ack)
        self._wake.set()

    def leads(self) -> bool:
        """As `StateStore.leads`."""
        return self._leader == self.member and time.monotonic() - self._heard.at < LEASE_S

    def publish_counts(self, step: str, counts: bytes) -> None:
        """As `StateStore.publish_counts`."""
        self._counts.publish(step, counts, time.monotonic())

    def withdraw_counts(self, step: str) -> None:
        """As `StateStore.withdraw_counts`."""
        self._counts.withdraw(step)

    def counts(self, step: str) -> Sequence[bytes]:
        """As `StateStore.counts`."""
        return self._counts.of_others(step)

    def doubt(self, step: str, latency: bytes) -> None:
        """As `StateStore.doubt`."""
        self._counts.doubt(step, latency, time.monotonic())

    def doubted(self, step: str) -> bytes | None:
        """As `StateStore.doubted`."""
        return self._counts.doubted(step)

    def forget_counts(self, steps: Collection[str]) -> None:
        """As `StateStore.forget_counts`."""
        self._counts.forget(steps)

    def status(self) -> dict[str, Any]:
        """As `StateStore.status`: address, whether it answers, since when not, members, the leader."""
        silent_s = time.monotonic() - self._heard.at
        up = silent_s <= LEASE_S
        return {
            "address": self.address,
            "up": up,
            "silent_s": round(silent_s, 3),
            "why": "" if up else self._why_down,
            "member": self.member,
            "members": self._num_members,
            "leader": self._leader,
        }

    def _policy(self) -> str:
        """The server's memory policy; "" if this client may not ask for it."""
        from redis.exceptions import ResponseError

        for words in QUESTIONS:
            try:
                policy = policy_in(self._client.execute_command(*words))
            except ResponseError:
                continue
            if policy:
                return policy
        return ""

    # The beat

    def _run(self) -> None:
        while not self._closing:
            try:
                self._beat()
            except self._failures as error:
                self._why_down = _words(error)
            except HoplineError as error:  # such as a state of a newer Hopline
                self._why_down = str(error)
            self._wake.wait(_BEAT_S)
            self._wake.clear()

    def _beat(self) -> None:
        """One exchange. Raises: RedisError, OSError."""
        with self._beating:
            self._exchange()

    def _exchange(self) -> None:
        keys, began, newest = self._keys, time.monotonic(), self._newest
        places = [keys.state, keys.members, keys.acks, keys.leader, keys.pulse]
        lead_ms = int(LEASE_S * 1e3) if self._counts.in_use or self.wants_lead else 0
        generation, nonce, now_ms, leader, num = self._beat_script(
            places, [self.member, self._ack, int(_LIFETIME_S * 1e3), lead_ms]
        )
        self._offset_s = int(now_ms) / 1e3 - (began + time.monotonic()) / 2
        stored = self._stored(generation, nonce)
        if stored.identity != newest.identity:
            stored = self._load()  # what cannot be read is not the newest state
        self._heard = Heard(stored.identity, began)
        self._leader, self._num_members = leader.decode(), int(num)
        self._counts.exchange(self._client, began, leads=self._leader == self.member)

    # The state

    def _newest_generation(self) -> int:
        identity = self._heard.identity
        return 0 if identity is None else int(identity[0])

    def _load(self) -> _Stored:
        """The newest content. Raises: StoreUnavailable; ConfigError: it cannot be read."""

        def load() -> _Stored:
            found = self._client.hmget(self._keys.state, "generation", "nonce", "body")
            return _Stored() if found[0] is None else self._stored(*found)

        newest = self._newest
        stored = self._asked(load)
        if stored.generation < newest.generation:
            log.warning(
                "%s lost the state of generation %d; giving it back", self.address, newest.generation
            )
            self._asked(lambda: self._restore_script([self._keys.state], list(newest)))
            stored = self._asked(load)
        if _is_older(stored, newest):
            # After such a loss two states may come to have one generation; what is stored is the newest.
            state = self._decode(stored)
            state = msgspec.structs.replace(state, generation=state.generation + 1)
            renumbered = _Stored(state.generation, secrets.token_hex(8), encode_state(state))
            stored = renumbered if self._replace(stored, renumbered) else self._asked(load)
        self._decode(stored)  # before it is remembered: what is remembered may be restored
        self._remember(stored)
        return stored

    def _stored(self, generation: bytes, nonce: bytes | None, body: bytes | None = b"") -> _Stored:
        """The fields of the state's hash. Raises: ConfigError: not as Hopline writes them."""
        try:
            return _Stored(int(generation), (nonce or b"").decode(), body or b"")
        except ValueError:
            raise ConfigError(
                f"{_SETTING}: {self.address} has a state that no Hopline wrote{self._remedy}"
            ) from None

    @property
    def _remedy(self) -> str:
        return (
            f"; remove the key {self._keys.state!r}: hosts that run write the state that they follow again"
        )

    def _replace(self, stored: _Stored, wanted: _Stored) -> bool:
        """Put `wanted` in the place of `stored`; whether that was the newest.

        Raises: StoreUnavailable: the server refused it, or did not confirm it.
        """
        latest_ms = int((self.now() + _REPLY_S) * 1e3)
        words = [stored.generation, stored.nonce, *wanted, latest_ms]
        try:
            nonce = self._replace_script([self._keys.state], words).decode()
        except self._failures as error:
            try:  # it may have been made, and the answer lost
                nonce = self._load().nonce
            except StoreUnavailable:
                nonce = ""
            if nonce != wanted.nonce:
                raise StoreUnavailable(
                    f"{self.address} did not confirm the change ({_words(error)}); look whether it was "
                    "made before you repeat it"
                ) from None
        if nonce == "late":
            raise StoreUnavailable(f"{self.address} took the change too late; nothing was changed")
        if nonce == wanted.nonce:
            self._remember(wanted)
            return True
        return False

    def _remember(self, stored: _Stored) -> None:
        with self._lock:
            if stored.generation >= self._newest.generation:
                self._newest = stored

    def _decode(self, stored: _Stored) -> LifecycleState:
        nonce, state = self._decoded
        if not stored.generation or nonce != stored.nonce:
            state = LifecycleState()
            if stored.generation:
                state = decode_state(stored.body, self.address, self._remedy)
            self._decoded = stored.nonce, state
        return state

    def _asked(self, ask: Callable[[], ResultT]) -> ResultT:
        """An answer, at the second try at the latest: an idle connection may have been cut.

        Raises: StoreUnavailable.
        """
        try:
            return ask()
        except self._failures:
            try:
                return ask()
            except self._failures as error:
                raise StoreUnavailable(
                    f"the fleet's state cannot be read: {self.address}: {_words(error)}"
                ) from None


def _is_older(stored: _Stored, newest: _Stored) -> bool:
    """True if a server has another state than one that it had before, and no newer one."""
    if stored.generation == newest.generation:
        return stored.nonce != newest.nonce
    return stored.generation < newest.generation


_Errors = tuple[type[Exception], ...]


def _connect(url: RedisUrl) -> tuple[Any, _Errors, _Errors]:
    """A client, its errors by which the server cannot be asked now, and those that another try repeats."""
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise ConfigError(f"{_SETTING}: needs redis-py: pip install 'hopline[fleet]'") from None
    tls: dict[str, Any] = {}
    if url.encrypted:
        url.tls()  # says what is wrong with the files
        tls = {
            "ssl": True,
            "ssl_cert_reqs": "required" if url.verify else "none",
            "ssl_check_hostname": url.verify,
            "ssl_ca_certs": url.ca_file and str(url.ca_file),
            "ssl_certfile": url.cert_file and str(url.cert_file),
            "ssl_keyfile": url.key_file and str(url.key_file),
        }
    host, port = url.addresses[0]
    client = redis.Redis(
        host=host,
        port=port,
        db=url.database,
        username=url.username,
        password=url.password,
        socket_timeout=_REPLY_S,
        socket_connect_timeout=_REPLY_S,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        **tls,
    )
    refusals = (redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError)
    return client, (redis.exceptions.RedisError, OSError), refusals


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
