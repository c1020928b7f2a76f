"""Keeps the feed in step with one resource: lists it once, then watches what changes.

Goes on from the last version that was heard of after every interruption, and lists again only when the
server no longer knows that version (410 Gone).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from hopline.brokers.condition import Backoff
from hopline.errors import ConfigError
from hopline_mesh.errors import MeshError, QueryFailed
from hopline_mesh.kubernetes.api import Api, Refused
from hopline_mesh.kubernetes.feed import ChangeFeed
from hopline_mesh.kubernetes.resources import Resource
from hopline_mesh.kubernetes.scope import Scope

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """How often to ask, in seconds.

    Attributes:
        first, longest: of waits after failures, which double from one to the other, less up to a half.
        refused: between two tries where asking is not allowed, or the server knows no such objects.
        watch: of one watch; each is up to twice as long, so that not all end at once.
        grace: an interruption that is shorter than this is not worth telling.
    """

    first: float = 0.5
    longest: float = 30.0
    refused: float = 60.0
    watch: float = 300.0
    grace: float = 10.0


@dataclass(slots=True)
class Tally:
    """What a reflector did so far."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    failures: int = 0
    unread: int = 0


class Reflector:
    """Lists and watches one resource, for as long as `run` runs.

    Args:
        api: the server.
        resource: what.
        namespace: where; None is everywhere.
        scope: of that, which namespaces count.
        feed: is told.
        pace: see there.
        clock: Unix seconds.
        sleep: waits.
        rng: numbers in [0, 1).
    """

    def __init__(
        self,
        api: Api,
        resource: Resource,
        namespace: str | None,
        scope: Scope,
        feed: ChangeFeed,
        pace: Pace,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self.resource = resource
        self.tally = Tally()
        #: Set once it was listed; `answered` also where that is not allowed, or there are no such objects.
        self.synced = asyncio.Event()
        self.answered = asyncio.Event()
        self._api = api
        self._namespace = namespace
        self._feed = feed
        self._pace = pace
        self._clock = clock
        self._sleep = sleep
        self._rng = rng
        self._scope = scope
        outside = scope.selectors() if namespace is None else ()
        self._fields = ",".join((*resource.fields, *outside))
        self._version: str | None = None
        self._reason = "not listed yet"
        self._told = False
        self._since_s = clock()
        self._garbled = 0
        self._backoff = Backoff(pace.first, pace.longest, rng)

    @property
    def name(self) -> str:
        """For people: the resource, and its namespace."""
        return self.resource.name if self._namespace is None else f"{self.resource.name}@{self._namespace}"

    def missing(self) -> str:
        """Why nothing is heard at present, "" where something is."""
        if not self._reason or (self.synced.is_set() and self._clock() - self._since_s < self._pace.grace):
            return ""
        return self._reason

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            wait_s = 0.0
            try:
                if self._version is None:
                    await self._list()
                if not await self._watch():
                    # A server that ends every watch at once is not to be asked without pause.
                    wait_s = self._backoff.next()
            except (MeshError, ConfigError) as error:
                wait_s = self._failed(error)
            except Exception as error:  # what cannot be understood must not silence a resource for good
                log.exception("kubernetes %s: begins anew", self.name)
                self._version = None
                self._note(f"{type(error).__name__}: {error}")
                wait_s = self._backoff.next()
            await self._sleep(wait_s)

    async def _list(self) -> None:
        listing = self._feed.listing(self.resource, self._namespace)
        version = ""
        self.tally.lists += 1
        async with aclosing(self._api.pages(self.resource, self._namespace, self._fields)) as pages:
            async for page in pages:
                inside = [each for each in page.objects if each.metadata.namespace in self._scope]
                listing.page(inside, self._clock())
                version = page.version
                self._unread(page.unread)
        if not version:
            raise QueryFailed(
                f"{self.resource.name}: a list without resourceVersion cannot be watched from"
            )
        listing.done(self._clock())
        self._version = version
        self._heard()

    async def _watch(self) -> bool:
        """Follow the stream to its end; returns whether anything came."""
        assert self._version is not None
        self.tally.watches += 1
        for_s = max(1, int(self._pace.watch * (1 + self._rng())))
        came = False
        started_s = self._clock()
        events = self._api.watch(self.resource, self._namespace, self._fields, self._version, for_s)
        async with aclosing(events):
            async for event in events:
                self._heard()
                if event.unread:
                    self._unread([event.unread])
                elif event.kind is not None and event.body is not None:
                    self.tally.events += 1
                    if event.body.metadata.namespace in self._scope:
                        self._feed.changed(self.resource, event.kind, event.body, self._clock())
                if event.version and event.version != self._version:
                    self._version = event.version
                    came = True
                    self._garbled = 0
                    self._backoff.reset()
        return came or self._clock() - started_s >= self._pace.first

    def _heard(self) -> None:
        if self._reason:
            if self._told:
                log.info("kubernetes %s: is heard of", self.name)
            self._reason, self._told = "", False
        self._feed.heard(self.resource, self._namespace, self._clock())
        self.synced.set()
        self.answered.set()

    def _failed(self, error: MeshError | ConfigError) -> float:
        """Take note of a failure; returns seconds to wait."""
        self.tally.failures += 1
        status = error.status if isinstance(error, Refused) else 0
        if status == 410:
            # The ordinary end of a watch that was interrupted for long: list again.
            log.debug("kubernetes %s: version %s is gone, listing again", self.name, self._version)
            self._version = None
        else:
            self._note(str(error))
        wait_s = self._backoff.next()
        if status in (403, 404):
            self._version = None
            self.answered.set()
            wait_s = self._pace.refused * (0.5 + 0.5 * self._rng())
        elif isinstance(error, Refused):
            wait_s = max(wait_s, min(error.retry_after_s, self._pace.refused))
        elif isinstance(error, QueryFailed):
            self._garbled += 1
            if self._garbled > 1:
                # Going on from the same version gives the same line.
                self._version = None
                self._garbled = 0
        return wait_s

    def _note(self, reason: str) -> None:
        if not self._reason:
            self._since_s = self._clock()
        # An API server that is replaced cuts all watches at once, and is back within seconds.
        lasting = not self.synced.is_set() or self._clock() - self._since_s >= self._pace.grace
        if lasting and not self._told:
            log.warning("kubernetes %s: %s", self.name, reason)
            self._told = True
        elif not self._reason:
            log.info("kubernetes %s: interrupted: %s", self.name, reason)
        self._reason = reason
        self._feed.lost(self.resource, self._namespace, self._clock())

    def _unread(self, reasons: list[str]) -> None:
        if reasons:
            self.tally.unread += len(reasons)
            log.warning(
                "kubernetes %s: %d objects cannot be read, the first: %s",
                self.name,
                len(reasons),
                reasons[0],
            )
