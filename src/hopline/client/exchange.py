"""One call and its attempts: what to retry, how long to wait, when to stop. Connections of a process."""

from __future__ import annotations

import math
import os
import random
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any, Generic, TypeVar

import httpx2

from hopline.client.wire import credentials, encode, origin, read_error
from hopline.errors import BadRequest, DeadlineExceeded, Overloaded, Unavailable

#: Seconds before the second attempt if the server sends no time; doubled each time.
_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 5.0
#: Seconds between readiness probes, and timeout of one; a slower server is not ready.
POLL_S, PROBE_S = 0.1, 5.0
T = TypeVar("T")


def trust(url: str, verify: ssl.SSLContext | bool = True) -> ssl.SSLContext | bool:
    """TLS context of a client: those of the usual authorities share one, which takes 30 ms to make."""
    if verify is not True:
        return verify
    if url.startswith("http://"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without authorities: it refuses every server
    return _usual(*map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))


@cache
def _usual(*_environment: str | None) -> ssl.SSLContext:
    return httpx2.create_ssl_context()


class OnePerProcess(Generic[T]):
    """Connections that a fork does not share: two processes would read each other's answers.

    Args:
        make: opens them; called here, and by each forked process that needs them.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        #: Process id -> its connections; a child leaves its parent's open.
        self._by_process = {os.getpid(): make()}

    def get(self) -> T:
        """Return the connections of this process."""
        mine = self._by_process.get(os.getpid())
        return self._by_process.setdefault(os.getpid(), self._make()) if mine is None else mine


class Connected(Generic[T]):
    """Connections to one server.

    Args:
        url: "http://127.0.0.1:8700".
        timeout: seconds for one call including all its attempts; None means no limit.
        retries: further attempts after Overloaded, Unavailable and broken connections; see `send`.
        verify: TLS verification; see `ssl.create_default_context(cafile=...)`. True: the usual authorities,
            which the first client of a process reads for all.
        api_key: created with `hopline auth new-key`, if the server requires one.
        token: a JSON Web Token instead.
    """

    _connections: Callable[..., T]

    def __init__(
        self,
        url: str = "http://127.0.0.1:8700",
        *,
        timeout: float | None = 30.0,
        retries: int = 2,
        verify: ssl.SSLContext | bool = True,
        api_key: str | None = None,
        token: str | None = None,
    ) -> None:
        self._timeout = timeout
        self._retries = retries
        self._origin = origin(url)
        opened = partial(self._connections, base_url=url, headers=credentials(api_key, token))
        self._http = OnePerProcess(lambda: opened(verify=trust(url, verify)))

    def _begin(self, method: str, body: Any, timeout: float | None, retries: int | None) -> Exchange:
        """The exchange of a call; only GET is repeated, unless `retries` is given."""
        if retries is None:
            retries = self._retries if method == "GET" else 0
        return Exchange(body, self._timeout if timeout is None else timeout, retries)


class Exchange:
    """A request that may be sent more than once.

    Scoring changes nothing on the server, so a broken attempt may be repeated. Repeated are Overloaded,
    Unavailable (after the server's time) and failed or broken connections. Other errors are not repeated,
    and nothing is repeated after the timeout.

    Args:
        body: of the request, None without one.
        timeout_s: for all attempts together; None and infinity mean no limit.
        retries: attempts after the first one.
        clock: seconds, monotonic.
    Raises: BadRequest: the timeout is NaN.
    """

    def __init__(
        self, body: Any, timeout_s: float | None, retries: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if timeout_s is not None and math.isnan(timeout_s):
            raise BadRequest("the timeout is NaN; give seconds, or None for no limit")
        self._body = body
        self._clock = clock
        self._timeout_s = timeout_s
        self._end = None if timeout_s is None or timeout_s == math.inf else clock() + timeout_s
        self._left = retries
        self._wait_s = _FIRST_WAIT_S

    def arguments(self) -> dict[str, Any]:
        """Return arguments for httpx2's `request`, including the remaining time."""
        left = self._remaining()
        headers = {}
        if left is not None:
            # The server cancels a request whose time is over.
            headers["timeout-ms"] = f"{left * 1000:.3f}"
        content = None
        if self._body is not None:
            headers["content-type"] = "application/json"
            content = encode(self._body)
        return {"headers": headers, "content": content, "timeout": left}

    def in_time(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the parts of a response. Raises: DeadlineExceeded: they come too slowly."""
        for part in parts:
            self._remaining()
            yield part

    def broken(self, error: httpx2.TransportError | TimeoutError, server: str) -> float:
        """Handle a failed attempt at `server`; return the seconds to wait before the next one.

        Raises:
            DeadlineExceeded: the time is up.
            Unavailable: no attempt is left.
        """
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return self._next_wait(Unavailable(f"the server at {server} cannot be reached: {error}"), None)
        if isinstance(error, httpx2.TimeoutException | TimeoutError):
            raise DeadlineExceeded(f"no answer within {self._timeout_s} s") from error
        text = f"the connection to {server} broke, and what was sent may have been done or not: {error}"
        return self._next_wait(Unavailable(text), None)

    def answered(self, response: httpx2.Response, content: bytes) -> float | None:
        """Handle a response: return None if it is good, else the seconds to wait before the next attempt.

        Raises: HoplineError: the server's error, if it must not be repeated or no attempt is left.
        """
        if response.is_success:
            return None
        code = response.headers.get("hopline-error", "")
        error = read_error(response.status_code, content, code)
        if isinstance(error, Overloaded | Unavailable):
            return self._next_wait(error, error.retry_after_s)
        raise error

    def _next_wait(self, error: Overloaded | Unavailable, named_s: float | None) -> float:
        wait_s = self._wait_s if named_s is None else max(named_s, 0.0)
        # Jitter: clients that were refused together must not retry together.
        wait_s = min(wait_s, _LONGEST_WAIT_S) * random.uniform(1.0, 1.25)
        left = self._remaining()
        if self._left <= 0 or (left is not None and wait_s >= left):
            raise error
        self._left -= 1
        self._wait_s *= 2
        return wait_s

    def _remaining(self) -> float | None:
        if self._end is None:
            return None
        left = self._end - self._clock()
        if left <= 0:
            raise DeadlineExceeded(f"no answer within {self._timeout_s} s")
        return left
