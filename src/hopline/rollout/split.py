"""Two versions under one name, while a rollout is under way: who answers a request, and who gets a copy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from zlib import crc32

from hopline.answering.served import Version
from hopline.errors import HoplineError
from hopline.rollout.request_copies import Copies
from hopline.scheduling.work import Work
from hopline.types import ModelInfo

#: Steps of a share: a key's place is one of so many.
_PLACES = 1 << 32


class _Ahead:
    """Base of a `Scorer`: the current version, and a share of requests that are copied or passed on."""

    def __init__(
        self, current: Version, percent: float, copies: Copies | None, draw: Callable[[], float]
    ) -> None:
        self.name = current.name
        self.version = current.version
        self.graph_version = current.graph_version
        self.current = current
        self._share = percent / 100
        self._copies = copies
        self._draw = draw

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        """Description of the current version."""
        return self.current.info(versions)

    def withdraw(self) -> None:
        """Stop copying: the rollout is over."""
        if self._copies is not None:
            self._copies.close()


class Split(_Ahead):
    """A `Scorer` that passes each request to one of two versions.

    A request with a key always goes the same way while the share stays, and once it goes to the candidate
    it does so for every larger share. One without a key is drawn by chance.

    Args:
        current, candidate: the versions that answer.
        percent: of requests for the candidate.
        salt: of the rollout; another one sends other keys to the candidate first.
        copies: gets the candidate's answers, to compare with the current version; None compares
            nothing.
        draw: in [0, 1); for tests.
        is_confirmed: True while the share holds; without it, nothing goes to the candidate.
    """

    def __init__(
        self,
        current: Version,
        candidate: Version,
        percent: float,
        salt: str,
        copies: Copies | None = None,
        draw: Callable[[], float] = random.random,
        is_confirmed: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(current, percent, copies, draw)
        self.candidate = candidate
        self._is_confirmed = is_confirmed
        self._salt = crc32(salt.encode())

    def accept(self, work: Work) -> None:
        """Pass the work to the current version or to the candidate."""
        key = work.request.key
        place = crc32(key.encode(), self._salt) / _PLACES if key else self._draw()
        if place >= self._share or not self._is_confirmed():
            self.current.accept(work)
        else:
            _copied(self.candidate, work, self._copies)

    def reject_early(self) -> None:
        """Do nothing: only the key of a request decides which version gets it."""

    @property
    def queued_rows(self) -> int:
        """Predicted rows that wait, of both versions."""
        return self.current.queued_rows + self.candidate.queued_rows


class Mirror(_Ahead):
    """A `Scorer` with the current version's answers; copies a share of the requests to the candidate."""

    def __init__(
        self, current: Version, percent: float, copies: Copies, draw: Callable[[], float] = random.random
    ) -> None:
        super().__init__(current, percent, copies, draw)

    def accept(self, work: Work) -> None:
        """Pass the work to the current version."""
        copies = self._copies if self._share >= 1 or self._draw() < self._share else None
        _copied(self.current, work, copies)

    def reject_early(self) -> None:
        """Do nothing: refused requests are copied too."""

    @property
    def queued_rows(self) -> int:
        """Predicted rows that wait, of the current version."""
        return self.current.queued_rows


def _copied(served: Version, work: Work, copies: Copies | None) -> None:
    if copies is None:
        served.accept(work)
        return
    request, deliver = work.request, work.deliver

    def both(outcome: Any) -> None:
        deliver(outcome)
        copies.offer(request, outcome)

    work.deliver = both
    try:
        served.accept(work)
    except HoplineError as error:
        copies.offer(request, error)
        raise
