"""The keys of a token issuer at a URL: fetched at start, from time to time, and for a new key id.

        tick, once a second ──▸ due? ──▸ thread: discovery document? ──▸ key set ──▸ the next look takes it
        unknown key id ──────────┘

The event loop never waits for the issuer: a fetch is a thread, and there is one at a time. The last good
set stays in effect while the issuer does not answer. A token with an unknown key id starts a fetch, but not
more often than every `MIN_INTERVAL_S`, since anyone can invent key ids.

Discovery follows OpenID Connect Discovery 1.0, section 4: the document is below the issuer, and must name
the same issuer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from hopline.config.schema import AuthConfig
from hopline.errors import ConfigError, IssuerUnavailable
from hopline.ingress.exposure import is_loopback
from hopline_tokens.token_keys import TokenKey, read_set

logger = logging.getLogger("hopline.tokens")

#: Least time between the starts of two fetches, seconds.
MIN_INTERVAL_S = 5.0
#: How long the start of a server waits for the first keys, seconds.
_START_S = 5.0
#: Time limit of one answer of the issuer, seconds.
_ANSWER_S = 5.0
#: Largest answer; sets of large issuers have some 10 KiB.
_MAX_BYTES = 2**20
_WELL_KNOWN = "/.well-known/openid-configuration"

#: Returns the content at a URL, or raises OSError.
Fetch: TypeAlias = Callable[[str], bytes]
#: Runs a function in the background.
Spawn: TypeAlias = Callable[[Callable[[], None]], object]


class IssuerKeys:
    """The keys of an issuer.

    Args:
        config: `auth.jwt_*`.
        fetch: reads URLs; None uses HTTP.
        spawn: starts a fetch; None uses a thread.
        clock: seconds, monotonic.

    Attributes:
        keys: by key id; empty until the issuer has answered.

    Raises: ConfigError: an address that is not safe.
    """

    def __init__(
        self,
        config: AuthConfig,
        fetch: Fetch | None = None,
        spawn: Spawn | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keys: Mapping[str, TokenKey] = {}
        self._config = config
        self._url = check_address(config)
        self._fetch = fetch or _http(config)
        self._spawn = spawn or _thread
        self._clock = clock
        self._started = -MIN_INTERVAL_S
        #: Set by the thread: new keys, or why there are none. Taken by the loop.
        self._fetched: Mapping[str, TokenKey] | None = None
        self._error = ""
        self._reported = ""
        self._is_fetching = False
        self._ended = threading.Event()
        self._start()
        if not self._ended.wait(_START_S):
            logger.warning("%s has not answered yet; its tokens are refused until then", self._url)
        self.tick()

    def tick(self) -> bool:
        """Take fetched keys, and fetch them again if that is due; return True if there are new ones."""
        changed = self._take()
        age_s = self._clock() - self._started
        wanted_s = MIN_INTERVAL_S if self._error or not self.keys else self._config.jwt_refresh_s
        if age_s >= wanted_s:
            self._start()
        return changed

    def missing(self, name: object) -> TokenKey | None:
        """Return the key of an id that is not in `keys`, if it has arrived; None if there is no such key.

        Raises: IssuerUnavailable: the issuer is being asked, or does not answer.
        """
        self._take()
        if isinstance(name, str) and name in self.keys:
            return self.keys[name]
        if not self._is_fetching and self._clock() - self._started >= MIN_INTERVAL_S:
            self._start()
        if self._is_fetching:
            raise IssuerUnavailable("the token's key is new; the server is fetching it")
        if not self.keys:
            raise IssuerUnavailable("the keys of the token's issuer cannot be fetched", MIN_INTERVAL_S)
        return None

    def _take(self) -> bool:
        found, self._fetched = self._fetched, None
        if self._error != self._reported:
            self._reported = self._error
            if self._error:
                kept = f"the last {len(self.keys)} keys stay in effect" if self.keys else "there are none"
                logger.error("the token keys could not be fetched: %s; %s", self._error, kept)
            else:
                logger.info("the token keys can be fetched again from %s", self._url)
        if found is None or found == self.keys:
            return False
        added, removed = sorted(found.keys() - self.keys), sorted(self.keys.keys() - found)
        logger.info("token keys of %s: added %s, removed %s", self._url, added, removed)
        self.keys = found
        return True

    def _start(self) -> None:
        if not self._is_fetching:
            self._started = self._clock()
            self._is_fetching = True
            self._spawn(self._run)

    def _run(self) -> None:
        """Fetch once. In a thread; the last statement lets the loop see the result."""
        try:
            self._fetched = self._load()
            self._error = ""
        except Exception as error:  # the boundary: any failure keeps the last keys
            self._error = str(error) or type(error).__name__
        finally:
            self._is_fetching = False
            self._ended.set()

    def _load(self) -> Mapping[str, TokenKey]:
        url = self._url
        if self._config.jwt_discovery:
            url = _key_set_url(self._fetch(url), url, self._config.jwt_issuer)
        return read_set(self._fetch(url), self._config, url, is_public=True)


def check_address(config: AuthConfig) -> str:
    """Return the URL that is asked first: of the key set, or of the discovery document.

    Raises: ConfigError: it is not https, or http on a loopback address.
    """
    if config.jwt_discovery:
        _check_url(config.jwt_issuer, "auth.jwt_issuer")
        return config.jwt_issuer.rstrip("/") + _WELL_KNOWN
    _check_url(config.jwt_jwks_url, "auth.jwt_jwks_url")
    return config.jwt_jwks_url


def _check_url(url: str, setting: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{setting}: {url!r} is not a URL: {error}") from None
    if not host or parts.scheme not in ("https", "http"):
        raise ConfigError(f"{setting}: {url!r} is not a URL such as https://login.example/keys")
    if parts.scheme == "http" and not is_loopback(host, setting):
        raise ConfigError(f"{setting}: {url!r} must be https: others could replace the keys on the way")


def _key_set_url(document: bytes, url: str, issuer: str) -> str:
    """Return the address of the key set in a discovery document.

    Raises: ConfigError: the document is not of this issuer, or has no usable address.
    """
    try:
        found: Any = json.loads(document)
        named, keys = found["issuer"], found["jwks_uri"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"{url}: not a discovery document with issuer and jwks_uri") from None
    if named != issuer:
        raise ConfigError(f"{url}: is of issuer {named!r}, but auth.jwt_issuer is {issuer!r}")
    if not isinstance(keys, str):
        raise ConfigError(f"{url}: jwks_uri is not text")
    _check_url(keys, f"{url}: jwks_uri")
    return keys


def _thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="token keys", daemon=True).start()


def _http(config: AuthConfig) -> Fetch:
    """Return a function that reads URLs over HTTP; redirects are not followed."""

    def trust() -> ssl.SSLContext | bool:
        """Of each fetch: authorities are replaced while a server runs."""
        if config.jwt_ca_file is None:
            return True
        try:
            return ssl.create_default_context(cafile=config.jwt_ca_file)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(f"auth.jwt_ca_file: {config.jwt_ca_file} cannot be used: {error}") from None

    trust()

    async def read(url: str) -> bytes:
        import httpx2

        content, verify = b"", trust()
        async with (
            # Of the whole answer: a time limit of httpx2 begins again with each byte.
            asyncio.timeout(_ANSWER_S),
            httpx2.AsyncClient(verify=verify, timeout=_ANSWER_S) as client,
            client.stream("GET", url) as answer,
        ):
            if answer.status_code != 200:
                raise OSError(f"{url}: answered {answer.status_code}")
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > _MAX_BYTES:
                    raise OSError(f"{url}: the answer is larger than {_MAX_BYTES} bytes")
        return content

    def fetch(url: str) -> bytes:
        import httpx2

        try:
            return asyncio.run(read(url))
        except (TimeoutError, httpx2.TimeoutException):
            raise OSError(f"{url}: the answer takes longer than {_ANSWER_S:g} s") from None
        except httpx2.HTTPError as error:
            raise OSError(f"{url}: {str(error) or type(error).__name__}") from None

    return fetch
