"""The store of a fleet of several hosts: a Redis or Valkey.

The state is one string, which a script compares and sets. Messages and entries are fields of hashes. A
member that sends no new message for a while does not live; times are the server's, since clocks of hosts
differ. An exchange is one round trip.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hopline.config.redis_policy import QUESTIONS, check_keeps, policy_in
from hopline.errors import ConfigError, HoplineError, StoreUnavailable
from hopline.rollout.state import CHECKSUM_BYTES
from hopline.rollout.store.base import LEASE_S, MAX_AGE_S, Beat, Put, StateStore, Stored
from hopline_stores.redis.url import RedisUrl

_SETTING = "models.state"
#: Seconds without a new message, after which a member does not live.
_LIFETIME_S = 2.0
#: Seconds for one round trip.
_REPLY_S = 0.5

#: KEYS: state. ARGV: checksum line of the state that is expected, new state, latest time in ms.
#: Returns "done", "other" for another state, "late" where the command waited longer than its sender did.
_SWAP = f"""
local t = redis.call('TIME')
if t[1] * 1000 + math.floor(t[2] / 1000) > tonumber(ARGV[3]) then return 'late' end
if redis.call('GETRANGE', KEYS[1], 0, {CHECKSUM_BYTES - 1}) ~= ARGV[1] then return 'other' end
redis.call('SET', KEYS[1], ARGV[2])
return 'done'
"""

ResultT = TypeVar("ResultT")


class RedisStateStore(StateStore):
    """See `StateStore`.

    Args:
        url: as in docs/guides/rollouts.md; the option `prefix` is the fleet's name.
    """

    has_others = spans_hosts = True
    beat_s = 0.1

    def __init__(self, url: str) -> None:
        parsed = RedisUrl.parse(url, _SETTING)
        if len(parsed.addresses) > 1 or parsed.is_cluster:
            raise ConfigError(f"{_SETTING}: a fleet's state is in one Redis or Valkey, not in a cluster")
        if parsed.ttl_s is not None:
            raise ConfigError(f"{_SETTING}: ttl_s is for rows of features; remove it")
        host, port = parsed.addresses[0]
        self.address = self.where = f"{parsed.kind}://{host}:{port} (prefix {parsed.prefix!r})"
        self.member = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._prefix = f"{parsed.prefix}{{fleet}}:"  # all keys in one slot of a cluster
        self._state, self._members = self._prefix + "state", self._prefix + "messages"
        self._leader = self._prefix + "leader"
        self.remedy = (
            f"remove the key {self._state!r}: hosts that run write the state that they follow again"
        )
        self._client, self._failures, self._refusals = _connect(parsed)
        self._has_lease = False
        self._offset_s = 0.0
        #: When the last exchange began; since when there was no gap between two of them.
        self._began = self._since = float("-inf")
        #: Member -> its newest message, and when that was first seen.
        self._seen: dict[bytes, tuple[bytes, float]] = {}

    def open(self) -> None:
        """As `StateStore.open`."""
        self._answer(self._client.ping)  # an unknown client gets no clear answer to a long command
        check_keeps(self._answer(self._policy), self.address, _SETTING, expiring=True)

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

    def close(self) -> None:
        """As `StateStore.close`; a member that leads does so until its lease is over."""
        with contextlib.suppress(*self._failures):  # the others will notice its silence
            self._client.hdel(self._members, self.member)
        self._client.close()

    def read(self) -> Stored:
        """As `StateStore.read`."""
        content = self._answer(lambda: self._client.get(self._state)) or b""
        return Stored(content[:CHECKSUM_BYTES], content)

    def swap(self, stored: Stored, content: bytes) -> Stored | None:
        """As `StateStore.swap`."""
        latest_ms = int((self.now() + _REPLY_S) * 1e3)
        wanted = Stored(content[:CHECKSUM_BYTES], content)
        try:
            done = self._client.eval(_SWAP, 1, self._state, stored.identity, content, latest_ms)
        except self._failures as error:
            try:  # it may have been made, and the answer lost
                now = self.read()
            except HoplineError:
                now = Stored()
            if now != wanted:
                raise StoreUnavailable(
                    f"{self.address} did not confirm the change ({_words(error)}); look whether it was "
                    "made before you repeat it"
                ) from None
            return wanted
        if done == b"late":
            raise StoreUnavailable(f"{self.address} took the change too late; nothing was changed")
        return wanted if done == b"done" else None

    def exchange(
        self, message: bytes | None, puts: Sequence[Put], groups: Sequence[str], *, leads: bool
    ) -> Beat:
        """As `StateStore.exchange`."""
        began, renews = 0.0, leads and self._has_lease

        def beat() -> list[Any]:
            nonlocal began
            began = time.monotonic()
            pipe = self._client.pipeline(transaction=False)
            if message is not None:
                pipe.hset(self._members, self.member, message)
                pipe.expire(self._members, MAX_AGE_S)
            for put in puts:
                self._put(pipe, put)
            if leads:
                lease_ms = int(LEASE_S * 1e3)
                if renews:
                    pipe.pexpire(self._leader, lease_ms)
                pipe.set(self._leader, self.member, px=lease_ms, nx=True)
            pipe.get(self._leader)
            pipe.time()
            pipe.getrange(self._state, 0, CHECKSUM_BYTES - 1)
            for group in groups:
                pipe.hgetall(self._key(group))
            replies: list[Any] = pipe.execute()
            return replies[-3 - len(groups) :]

        leader, (seconds, microseconds), identity, *listed = self._answer(beat)
        ended = time.monotonic()
        if began - self._began > _LIFETIME_S / 2:
            self._since = ended  # the server was away, not the members: they get a lifetime to report
        self._began = began
        self._offset_s = seconds + microseconds / 1e6 - (began + ended) / 2
        self._has_lease = leader == self.member.encode()
        if self._has_lease and not renews:
            leader = b""  # the lease may be about to end: it counts once an exchange has renewed it
        return Beat(identity, _text(leader or b""), [_named(entries) for entries in listed])

    def _put(self, pipe: Any, put: Put) -> None:
        key = self._key(put.group)
        if not put.name:
            pipe.unlink(key)
        elif put.value is None:
            pipe.hdel(key, put.name)
        else:
            (pipe.hsetnx if put.first else pipe.hset)(key, put.name, put.value)
            pipe.expire(key, MAX_AGE_S)

    def _key(self, group: str) -> str:
        return f"{self._prefix}counts:{group}"

    def members(self) -> Mapping[str, bytes]:
        """As `StateStore.members`; silence is noticed a lifetime after a message was first seen."""
        found = self._answer(lambda: self._client.hgetall(self._members))
        now = time.monotonic()
        seen = {}
        for name, message in found.items():
            before = self._seen.get(name)
            seen[name] = before if before is not None and before[0] == message else (message, now)
        self._seen = seen
        silent = {name for name, (_, at) in seen.items() if now - max(at, self._since) > _LIFETIME_S}
        if silent:
            self._answer(lambda: self._client.hdel(self._members, *silent))
        return _named({name: message for name, message in found.items() if name not in silent})

    def now(self) -> float:
        """The server's clock, as of the last exchange."""
        return time.monotonic() + self._offset_s

    def _answer(self, call: Callable[[], ResultT]) -> ResultT:
        """An answer, at the second try at the latest: an idle connection may have been cut.

        Raises:
            StoreUnavailable: there is none.
            ConfigError: the server refuses this client, or has keys that this Hopline did not write.
        """
        for last in (False, True):
            try:
                return call()
            except self._refusals as error:
                raise ConfigError(f"{_SETTING}: {self.address} refuses this client: {error}") from None
            except self._failures as error:
                if "WRONGTYPE" in str(error):
                    raise ConfigError(
                        f"{_SETTING}: {self.address} has keys of another program, or of another release of "
                        f"Hopline ({error}); {self.remedy}"
                    ) from None
                if last:
                    raise StoreUnavailable(f"{self.address} does not answer: {_words(error)}") from None
        raise AssertionError


_Errors = tuple[type[Exception], ...]


def _connect(url: RedisUrl) -> tuple[Any, _Errors, _Errors]:
    """A client, its errors by which the server cannot be asked now, and those by which it never can."""
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


def _named(entries: Mapping[bytes, bytes]) -> dict[str, bytes]:
    return {_text(name): value for name, value in entries.items()}


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
