"""Keeps the feed up to date for one resource: lists it once, then watches for changes.

After an interruption it resumes from the last version that it received. It lists again only if the server
no longer has that version (410 Gone).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from hopline.brokers.condition import Backoff
from hopline.errors import ConfigError
from hopline_mesh.errors import MeshError, QueryFailed
from hopline_mesh.kubernetes.api import Api, Refused
from hopline_mesh.kubernetes.feed import ChangeFeed
from hopline_mesh.kubernetes.resources import Resource
from hopline_mesh.scope import Scope

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """Intervals of requests, in seconds.

    Attributes:
        first, longest: waits after failures; each doubles up to the longest, minus a random part up to
            half.
        refused: wait after a request that is not permitted, or for objects that the server does not have.
        watch: duration of one watch; each is up to twice as long, so that they do not all end together.
        grace: shorter interruptions are not reported.
    """

    first: float = 0.5
    longest: float = 30.0
    refused: float = 60.0
    watch: float = 300.0
    grace: float = 10.0


@dataclass(slots=True)
class RequestCounts:
    """Numbers of requests and events of a reflector so far."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    failures: int = 0
    unread: int = 0


class Reflector:
    """Lists and watches one resource while `run` runs.

    Args:
        api: the server.
        resource: to watch.
        namespace: None is all.
        scope: namespaces whose objects are used.
        feed: gets the objects.
        pace: intervals of requests.
        clock: Unix seconds.
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
    ) -> None:
        self.resource = resource
        self.counts = RequestCounts()
        #: Set after the first list; `answered` also if listing is not permitted, or there are no such
        #: objects.
        self.synced = asyncio.Event()
        self.answered = asyncio.Event()
        self._api = api
        self._namespace = namespace
        self._feed = feed
        self._pace = pace
        self._clock = clock
        self._scope = scope
        outside = scope.selectors() if namespace is None else ()
        self._fields = ",".join((*resource.fields, *outside))
        self._version: str | None = None
        self._reason = "not listed yet"
        self._is_logged = False
        self._since_s = clock()
        self._garbled = 0
        self._backoff = Backoff(pace.first, pace.longest, random.random)

    @property
    def name(self) -> str:
        """The resource and its namespace, for people."""
        return self.resource.name if self._namespace is None else f"{self.resource.name}@{self._namespace}"

    def missing(self) -> str:
        """Return the reason why the resource is unavailable at present; "" if it is available."""
        if not self._reason or (self.synced.is_set() and self._clock() - self._since_s < self._pace.grace):
            return ""
        return self._reason

    async def run(self) -> None:
        """List and watch until the task is cancelled."""
        while True:
            wait_s = 0.0
            try:
                if self._version is None:
                    await self._list()
                if not await self._watch():
                    # Pause if the server ends every watch immediately.
                    wait_s = self._backoff.next()
            except (MeshError, ConfigError) as error:
                wait_s = self._failed(error)
            except Exception as error:  # an unexpected response must not stop the resource for ever
                log.exception("kubernetes %s: lists again", self.name)
                self._version = None
                self._note(f"{type(error).__name__}: {error}")
                wait_s = self._backoff.next()
            await asyncio.sleep(wait_s)

    async def _list(self) -> None:
        listing = self._feed.listing(self.resource, self._namespace)
        version = ""
        self.counts.lists += 1
        async with aclosing(self._api.pages(self.resource, self._namespace, self._fields)) as pages:
            async for page in pages:
                inside = [each for each in page.objects if each.metadata.namespace in self._scope]
                listing.page(inside, self._clock())
                version = page.version
                self._unread(page.unread)
        if not version:
            raise QueryFailed(
                f"{self.resource.name}: the list has no resourceVersion, so it cannot be watched"
            )
        listing.done(self._clock())
        self._version = version
        self._heard()

    async def _watch(self) -> bool:
        """Follow the stream to its end; returns whether it had events or lasted for a while."""
        assert self._version is not None
        self.counts.watches += 1
        for_s = max(1, int(self._pace.watch * (1 + random.random())))
        came = False
        started_s = self._clock()
        events = self._api.watch(self.resource, self._namespace, self._fields, self._version, for_s)
        async with aclosing(events):
            async for event in events:
                self._heard()
                if event.unread:
                    self._unread([event.unread])
                elif event.kind is not None and event.body is not None:
                    self.counts.events += 1
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
            if self._is_logged:
                log.info("kubernetes %s: works again", self.name)
            self._reason, self._is_logged = "", False
        self._feed.heard(self.resource, self._namespace, self._clock())
        self.synced.set()
        self.answered.set()

    def _failed(self, error: MeshError | ConfigError) -> float:
        """Note a failure; returns seconds to wait."""
        self.counts.failures += 1
        status = error.status if isinstance(error, Refused) else 0
        if status == 410:
            # Normal after a long interruption: list again.
            log.debug("kubernetes %s: version %s is gone, listing again", self.name, self._version)
            self._version = None
        else:
            self._note(str(error))
        wait_s = self._backoff.next()
        if status in (403, 404):
            self._version = None
            self.answered.set()
            wait_s = self._pace.refused * (0.5 + 0.5 * random.random())
        elif isinstance(error, Refused):
            wait_s = max(wait_s, min(error.retry_after_s, self._pace.refused))
        elif isinstance(error, QueryFailed):
            self._garbled += 1
            if self._garbled > 1:
                # Resuming from the same version would give the same line.
                self._version = None
                self._garbled = 0
        return wait_s

    def _note(self, reason: str) -> None:
        if not self._reason:
            self._since_s = self._clock()
        # A replaced API server cuts all watches together, and is back within seconds.
        lasting = not self.synced.is_set() or self._clock() - self._since_s >= self._pace.grace
        if lasting and not self._is_logged:
            log.warning("kubernetes %s: %s", self.name, reason)
            self._is_logged = True
        elif not self._reason:
            log.info("kubernetes %s: interrupted: %s", self.name, reason)
        self._reason = reason
        self._feed.lost(self.resource, self._namespace, self._clock())

    def _unread(self, reasons: list[str]) -> None:
        if reasons:
            self.counts.unread += len(reasons)
            log.warning(
                "kubernetes %s: %d objects cannot be read, the first: %s",
                self.name,
                len(reasons),
                reasons[0],
            )
