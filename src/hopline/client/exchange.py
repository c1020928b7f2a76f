"""One call and its attempts, without a connection: what to retry, how long to wait, when to stop."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Any

import httpx2

from hopline.client.wire import encode, read_error
from hopline.errors import DeadlineExceeded, Overloaded, Unavailable

#: Seconds before the second attempt if the server sends no time; doubled each time.
_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 5.0


class Exchange:
    """A request that may be sent more than once.

    Scoring changes nothing on the server, so a broken attempt may be repeated. Repeated are Overloaded,
    Unavailable (after the server's time) and failed or broken connections. Other errors are not repeated,
    and nothing is repeated after the timeout.

    Args:
        method, path, body: the request.
        timeout_s: for all attempts together; None means no limit.
        retries: attempts after the first one.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout_s: float | None,
        retries: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.method = method
        self.path = path
        self._body = body
        self._clock = clock
        self._timeout_s = timeout_s
        self._end = None if timeout_s is None else clock() + timeout_s
        self._left = retries
        self._wait_s = _FIRST_WAIT_S

    def arguments(self) -> dict[str, Any]:
        """Return arguments for httpx2's `request`, including the remaining time."""
        left = self._remaining()
        headers = {}
        if left is not None and math.isfinite(left):
            # The server cancels a request whose time is over.
            headers["timeout-ms"] = f"{left * 1000:.3f}"
        content = None
        if self._body is not None:
            headers["content-type"] = "application/json"
            content = encode(self._body)
        return {"headers": headers, "content": content, "timeout": left}

    def broken(self, error: httpx2.TransportError, server: httpx2.URL) -> float:
        """Handle a failed attempt at `server`; return the seconds to wait before the next one.

        Raises:
            DeadlineExceeded: the time is up.
            Unavailable: no attempt is left.
        """
        if isinstance(error, httpx2.TimeoutException) and not isinstance(error, httpx2.ConnectTimeout):
            raise DeadlineExceeded(f"no answer within {self._timeout_s} s") from error
        return self._next_wait(
            Unavailable(f"the server at {_origin(server)} cannot be reached: {error}"), None
        )

    def answered(self, response: httpx2.Response) -> float | None:
        """Handle a response: return None if it is good, else the seconds to wait before the next attempt.

        Raises: HoplineError: the server's error, if it must not be repeated or no attempt is left.
        """
        if response.is_success:
            return None
        code = response.headers.get("hopline-error", "")
        error = read_error(response.status_code, response.content, code)
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


def _origin(url: httpx2.URL) -> str:
    """Return the URL as given, without user and password."""
    return f"{url.scheme}://{url.netloc.decode()}"
