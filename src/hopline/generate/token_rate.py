"""How many tokens one client may use in a minute, over all generative models.

A budget fills evenly, up to one minute's worth. What a text uses is known only as it is generated, so a
request is admitted while the budget is above 0, and its tokens are charged as they come: the budget may
become negative, and the client waits until it has filled again.
"""

from __future__ import annotations

from collections import OrderedDict

from hopline.errors import RateLimited

#: Clients that are remembered; those that were active longest ago are forgotten.
_MOST_CLIENTS = 65_536


class TokenRate:
    """See the module; the budgets of one worker.

    Args:
        per_minute: tokens of prompts and answers; 0 is any number.
        num_workers: each has an equal share.
    """

    def __init__(self, per_minute: int, num_workers: int = 1) -> None:
        self.per_minute = per_minute
        self._most = per_minute / num_workers
        self._per_s = self._most / 60
        #: client -> (tokens left, when)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, client: str, now: float) -> None:
        """Refuse a request of a client that has used its tokens.

        Raises: RateLimited: with the time until it has some again.
        """
        if not self.per_minute:
            return
        left = self._now_left(client, now)
        if left <= 0:
            wait_s = max(0.001, -left / self._per_s)
            who = f"client {client!r}" if client else "clients without a name together"
            raise RateLimited(
                f"{who} may use {self.per_minute} tokens a minute (generate.tokens_per_minute); the next "
                f"in {wait_s:.1f} s",
                wait_s,
            )

    def charge(self, client: str, tokens: int, now: float) -> None:
        """Count tokens that a client has used."""
        if not self.per_minute or not tokens:
            return
        self._left[client] = (self._now_left(client, now) - tokens, now)
        self._left.move_to_end(client)
        while len(self._left) > _MOST_CLIENTS:
            self._left.popitem(last=False)

    def _now_left(self, client: str, now: float) -> float:
        left, when = self._left.get(client, (self._most, now))
        return min(self._most, left + (now - when) * self._per_s)
