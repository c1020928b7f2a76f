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

from hopline.errors import ConfigError
from hopline.retry import Backoff
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

    Attributes:
        name: the resource and its namespace, for people.
        synced: set after the first list.
        answered: the same, and also if listing is not permitted, or there are no such objects.
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
        self.name = resource.name if namespace is None else f"{resource.name}@{namespace}"
        self.synced = asyncio.Event()
        self.answered = asyncio.Event()
        self._api = api
        self._resource = resource
        self._namespace = namespace
        self._scope = scope
        self._feed = feed
        self._pace = pace
        self._clock = clock
        outside = scope.selectors() if namespace is None else ()
        self._fields = ",".join((*resource.fields, *outside))
        self._version = ""
        self._reason = "not listed yet"
        self._is_logged = False
        self._is_garbled = False
        self._since_s = clock()
        self._backoff = Backoff(pace.first, pace.longest)

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
                if not self._version:
                    await self._list()
                version, start_s = self._version, self._clock()
                await self._watch()
                if self._version == version and self._clock() - start_s < self._pace.first:
                    # Pause if the server ends every watch immediately.
                    wait_s = self._backoff.next()
            except Exception as error:  # an unexpected response must not stop the resource for ever
                wait_s = self._failed(error)
            await asyncio.sleep(wait_s)

    async def _list(self) -> None:
        where, version = (self._resource, self._namespace), ""
        keys: set[tuple[str, str]] = set()
        async with aclosing(self._api.pages(*where, self._fields)) as pages:
            async for page in pages:
                version = page.version
                inside = [each for each in page.objects if each.metadata.namespace in self._scope]
                keys |= self._feed.page(*where, inside, self._clock())
        if not version:
            raise QueryFailed(f"{self.name}: the list has no resourceVersion, so it cannot be watched")
        self._feed.listed(*where, keys, self._clock())
        self._version = version
        self._heard()

    async def _watch(self) -> None:
        """Follow the stream to its end."""
        for_s = max(1, int(self._pace.watch * (1 + random.random())))
        where = self._resource, self._namespace
        events = self._api.watch(*where, self._fields, self._version, for_s)
        async with aclosing(events):
            async for version, kind, body in events:
                self._heard()
                if kind is not None and body is not None and body.metadata.namespace in self._scope:
                    self._feed.changed(self._resource, kind, body, self._clock())
                if version and version != self._version:
                    self._version = version
                    self._is_garbled = False
                    self._backoff.reset()

    def _heard(self) -> None:
        if self._is_logged:
            log.info("kubernetes %s: works again", self.name)
        self._reason, self._is_logged = "", False
        self._feed.heard(self._resource, self._namespace, self._clock())
        self.synced.set()
        self.answered.set()

    def _failed(self, error: Exception) -> float:
        """Note a failure; returns seconds to wait."""
        wait_s, reason = self._backoff.next(), str(error)
        status = error.status if isinstance(error, Refused) else 0
        if status == 410:
            # Normal after a long interruption: list again.
            log.debug("kubernetes %s: version %s is gone, listing again", self.name, self._version)
            self._version = ""
            return wait_s
        if status in (403, 404):
            self._version = ""
            self.answered.set()
            wait_s = self._pace.refused * (0.5 + 0.5 * random.random())
        elif isinstance(error, Refused):
            wait_s = max(wait_s, min(error.retry_after_s, self._pace.refused))
        elif isinstance(error, QueryFailed):
            if self._is_garbled:
                # Resuming from the same version gave the same line.
                self._version = ""
            self._is_garbled = not self._is_garbled
        elif not isinstance(error, (MeshError, ConfigError)):
            log.exception("kubernetes %s: lists again", self.name)
            self._version, reason = "", f"{type(error).__name__}: {error}"
        self._note(reason)
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
        self._feed.lost(self._resource, self._namespace, self._clock())
