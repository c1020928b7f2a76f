"""The gatekeeper: finds the client of credentials.

It handles keys, tokens, certificates and the clients file, and does not depend on transports. Identified
credentials are cached until they expire, so that a request costs one lookup.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from hopline.config.schema import Config
from hopline.doors import Door
from hopline.errors import ConfigError, Unauthenticated
from hopline.ingress import keys
from hopline.ingress.client import Client
from hopline.ingress.clients_file import (
    CERTIFICATE_PREFIX,
    NEVER,
    TOKEN_PREFIX,
    ClientEntry,
    Grant,
    TokenClaims,
    read_clients,
)
from hopline.ingress.watched_file import Watched
from hopline.scheduling.admission import open_limits
from hopline.scheduling.limiter import Rate
from turnserve.peers import Peer, normalized

if TYPE_CHECKING:
    from hopline.scheduling.shared_limiter import Limits
    from hopline.scheduling.token_rate import TokenRates

logger = logging.getLogger(__name__)

#: "jwt": a class that is called with the settings `auth` and seconds since the epoch.
VERIFIERS = Door("hopline.token_verifiers", packages={"jwt": "'hopline[auth]'"})

#: Limit of cached credentials. Only valid ones are cached, so that strangers cannot fill the cache.
_MAX_REMEMBERED = 8192


class TokenVerifier(Protocol):
    """Checks tokens; a package has it."""

    def tick(self) -> bool:
        """Read changed keys. Returns: True if there are new ones."""
        ...

    def verify(self, token: str) -> TokenClaims:
        """Verify a token. Raises: Unauthenticated, IssuerUnavailable."""
        ...


class _Identified(NamedTuple):
    client: Client
    #: Seconds since the epoch; `NEVER` if it does not expire, which avoids reading the clock.
    until: float


class _Key(NamedTuple):
    client: str
    until: float


class Gatekeeper:
    """Authenticates clients.

    Args:
        config: its clients must authenticate (see `Config.authenticates`).
        limits: the buckets of all clients; None creates them for the number of workers.
        now: seconds since the epoch, for the expiry of keys and tokens.
        clock: nanoseconds, monotonic, for rates.

    Raises: ConfigError: a file that cannot be used, with the reason.
    """

    def __init__(
        self,
        config: Config,
        limits: Limits | None = None,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._now = now
        self._clock = clock
        self._limits = limits or open_limits(config)
        settings = config.auth
        self._default_rate = Rate.of(settings.rate_per_s, settings.burst or None)
        self._file = None if settings.clients_file is None else Watched(settings.clients_file)
        self._tokens: TokenVerifier | None = None
        if settings.tokens:
            self._tokens = _verifier(config, now)
        self._clients: dict[str, Client] = {}
        #: digest -> client and expiry
        self._keys: dict[str, _Key] = {}
        #: `sub` -> client of the file
        self._subjects: dict[str, str] = {}
        #: Name in a certificate -> client of the file
        self._certificates: dict[str, str] = {}
        #: Credentials -> client, one cache for each header.
        self._by_authorization: dict[str | bytes, _Identified] = {}
        self._by_api_key: dict[str | bytes, _Identified] = {}
        self._by_peer: dict[Peer, _Identified] = {}
        self._takes_certificates = config.tls.client_ca_file is not None
        self._token_rates: TokenRates | None = None
        self._entries: dict[str, ClientEntry] = {}
        if self._file is not None:
            self._take(read_clients(self._file.path))

    def identify(
        self, authorization: str | bytes | None, api_key: str | bytes | None, peer: Peer | None = None
    ) -> Client:
        """Return the client of these credentials.

        Args:
            authorization: `Bearer` and a token or key.
            api_key: a key.
            peer: holder of the connection's client certificate; counts if a request has neither of the
                others.

        Raises:
            Unauthenticated: with what is missing or wrong.
            IssuerUnavailable: the keys for a token are not known yet.
        """
        if authorization is None:
            if api_key is None:
                if peer is not None:
                    return self._of_peer(peer)
                certificate = ", or use a client certificate" if self._takes_certificates else ""
                raise Unauthenticated(
                    "authentication required: send an API key as x-api-key, or a key or token as "
                    f"authorization: Bearer …{certificate}"
                )
            known, presented = self._by_api_key, api_key
        elif api_key is None:
            known, presented = self._by_authorization, authorization
        else:
            raise Unauthenticated("send x-api-key or authorization, not both")
        found = known.get(presented)
        if found is None or (found.until is not NEVER and self._now() >= found.until):
            known.pop(presented, None)
            found = self._recognise(presented, scheme=authorization is not None)
            if len(known) >= _MAX_REMEMBERED:
                known.clear()
            known[presented] = found
        return found.client

    def limit_tokens(self, rates: TokenRates) -> None:
        """Have the clients' own rates of tokens hold in generative models, from now on."""
        self._token_rates = rates
        for name, entry in self._entries.items():
            rates.set(name, entry.tokens_per_minute)

    def tick(self) -> None:
        """Read changed files again, once a second. An invalid file changes nothing."""
        renewed = self._tokens is not None and self._tokens.tick()
        if self._file is not None and self._file.changed():
            try:
                clients = read_clients(self._file.path)
            except ConfigError as error:
                logger.error("the clients file is invalid and was not loaded: %s", error)
            else:
                self._take(clients)
                renewed = True
                logger.info("%d clients reloaded from %s", len(clients), self._file.path)
        if renewed:
            self._by_authorization.clear()
            self._by_api_key.clear()
            self._by_peer.clear()

    def _take(self, entries: dict[str, ClientEntry]) -> None:
        """Replace all clients by those of a valid file."""
        self._entries = entries
        self._clients = {name: self._client(name, f"key {name}", entry) for name, entry in entries.items()}
        self._keys = {
            key.sha256: _Key(name, key.until) for name, entry in entries.items() for key in entry.keys
        }
        self._subjects = {entry.subject: name for name, entry in entries.items() if entry.subject}
        self._certificates = {
            normalized(entry.certificate): name for name, entry in entries.items() if entry.certificate
        }

    def _client(self, name: str, bucket: str, grant: Grant) -> Client:
        if self._token_rates is not None:
            self._token_rates.set(name, grant.tokens_per_minute)
        rate = grant.rate or self._default_rate
        return Client(
            name,
            grant.permissions,
            grant.priority,
            None if rate is None else self._limits.bucket(bucket, rate, self._clock()),
            self._clock,
        )

    def _recognise(self, presented: str | bytes, *, scheme: bool) -> _Identified:
        text = presented if isinstance(presented, str) else presented.decode("latin-1")
        if scheme:
            kind, _, text = text.strip().partition(" ")
            if kind.lower() != "bearer":
                raise Unauthenticated("authorization must be Bearer followed by a key or token")
        text = text.strip()
        if not scheme or text.startswith(keys.PREFIX) or self._tokens is None:
            return self._of_key(text)
        claims = self._tokens.verify(text)
        name = self._subjects.get(claims.subject)
        if name is not None:
            return _Identified(self._clients[name], claims.until)
        # Separate from keys: a subject with the name of a client of the file is another client.
        subject = f"{TOKEN_PREFIX}{claims.subject}"
        client = self._client(subject, subject, claims.grant or Grant())
        return _Identified(client, claims.until)

    def _of_peer(self, peer: Peer) -> Client:
        """Return the client of a certificate: that of the file with one of its names, or its own."""
        if self._now() >= peer.until:
            raise Unauthenticated("the client certificate has expired; connect again with a new one")
        found = self._by_peer.get(peer)
        if found is None:
            known = next(filter(None, map(self._certificates.get, peer.names)), None)
            own = f"{CERTIFICATE_PREFIX}{peer.names[0]}"
            client = self._client(own, own, Grant()) if known is None else self._clients[known]
            if len(self._by_peer) >= _MAX_REMEMBERED:
                self._by_peer.clear()
            found = self._by_peer[peer] = _Identified(client, peer.until)
        return found.client

    def _of_key(self, text: str) -> _Identified:
        known = self._keys.get(keys.digest(text))
        if known is None:
            raise Unauthenticated("unknown API key; it may have been revoked")
        if self._now() >= known.until:
            raise Unauthenticated("the API key has expired")
        return _Identified(self._clients[known.client], known.until)


def _verifier(config: Config, now: Callable[[], float]) -> TokenVerifier:
    try:
        verifier = VERIFIERS.require("jwt")
    except ModuleNotFoundError as error:
        raise ConfigError(f"auth.jwt_*: {error}") from error
    return cast(TokenVerifier, verifier(config.auth, now))
