"""Snapshots at addresses, as a server process sees them: what an address means now, and copies to open."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from hopline.answering.unit import Unit
from hopline.config.schema import Config
from hopline.config.urls import shown
from hopline.errors import ConfigError, HoplineError, SnapshotUnavailable, Unavailable
from hopline.files import expanded
from hopline.observe.metrics import Metrics
from hopline.remote_address import is_address
from hopline.snapshots.cache import SnapshotCache
from hopline.snapshots.held_snapshot import HeldSnapshot
from hopline.snapshots.manifest import Pointer, SnapshotAddress, SnapshotManifest
from hopline.snapshots.store import SnapshotStore

log = logging.getLogger(__name__)

#: Where copies are kept, unless `snapshots.cache` says otherwise.
DEFAULT_CACHE = Path("~/.cache/hopline/snapshots")


class HostSnapshots:
    """The snapshots that a server process may open. Methods block, and count their failures.

    Attributes:
        base: URL of the server's own snapshots (`graph.path`); "" where its graph is a folder.
    """

    def __init__(self, config: Config, metrics: Metrics) -> None:
        self._config = config
        self._stores: dict[str, SnapshotStore] = {}
        self._cache: SnapshotCache | None = None
        self._counted_bytes = 0
        own = config.graph.path
        self.base = SnapshotAddress.parse(str(own)).base if own is not None and is_address(own) else ""
        self._failures = metrics.counter(
            "hopline_snapshot_failures_total",
            "Snapshots and pointers at addresses that could not be used, by the code of the error.",
            ("reason",),
        )
        self._fetched = metrics.counter(
            "hopline_snapshot_fetched_bytes_total", "Bytes of snapshots that were copied to this host."
        )
        self._cache_bytes = metrics.gauge(
            "hopline_snapshot_cache_bytes", "Bytes of the copies of snapshots on this host.", merge="max"
        )

    @property
    def cache(self) -> SnapshotCache:
        """The copies on this host. Raises: ConfigError: no folder for them."""
        if self._cache is None:
            settings = self._config.snapshots
            folder = expanded(settings.cache or DEFAULT_CACHE, "snapshots.cache")
            self._cache = SnapshotCache(folder, settings.cache_bytes, settings.keep)
        return self._cache

    @functools.cached_property
    def own(self) -> tuple[str, tuple[str, ...]]:
        """The address and the groups of the snapshot that a server which starts now serves.

        Where the address is away, this is the snapshot that it named last, if this host has a copy. All
        models of a server that starts get the same one.

        Raises: HoplineError: no such snapshot, or its address is away and this host has no copy.
        """
        address = SnapshotAddress.parse(str(self._config.graph.path))
        try:
            return self.pinned(str(address))
        except SnapshotUnavailable as error:
            snapshot = address.id or self.cache.remembered(address.base)
            if snapshot is None or self.cache.remembered(address.base) != snapshot:
                raise
            log.warning("%s; serving its copy of snapshot %s", error, snapshot)
            pinned = address._replace(id=snapshot)
            with contextlib.closing(self.take(str(pinned))) as held:
                return str(pinned), self._groups(held.manifest)

    def pinned(self, text: str) -> tuple[str, tuple[str, ...]]:
        """The address of one snapshot, with its id, and the feature groups that are served with it.

        Args:
            text: address with or without an id.

        Raises: HoplineError: no such snapshot, or the address is away.
        """
        with self._counting():
            address = SnapshotAddress.parse(text)
            store = self._store(address.base)
            if not address.id:
                address = address._replace(id=store.pointer().snapshot)
            return str(address), self._groups(store.manifest(address.id))

    def pointer(self) -> Pointer:
        """Present content of the pointer at the server's own address. Raises: HoplineError."""
        with self._counting():
            return self._store(self.base).pointer()

    def manifest(self, snapshot: str) -> SnapshotManifest:
        """The manifest of a snapshot of the server's own address. Raises: HoplineError."""
        with self._counting():
            return self._store(self.base).manifest(snapshot)

    def take(self, text: str) -> HeldSnapshot:
        """A verified copy, fetched now if this host has none; to be released, then `tidy` is due.

        Raises: HoplineError: it cannot be had; the message says why.
        """
        with self._counting():
            address = SnapshotAddress.parse(text)
            held = self.cache.take(address, lambda: self._store(address.base), self._elsewhere(address))
            self.cache.remember(address.base, address.id)
            self._count()
            return held

    def _elsewhere(self, address: SnapshotAddress) -> Callable[[], int] | None:
        """Copies in a process that does not delay requests."""
        if address.base.startswith("memory://"):  # which only this process has
            return None

        def copy() -> int:
            from hopline.snapshots.fetch_process import fetch, orders_of

            setting = self._setting(address.base)
            orders = orders_of(str(address), setting, self.cache, self._config.log)
            return fetch(orders, self.cache.check_running)

        return copy

    def tidy(self) -> None:
        """Remove copies that are not needed any more; a failure is logged."""
        if self._cache is not None:
            try:
                self._cache.tidy()
                self._count()
            except Unavailable:
                pass
            except (HoplineError, OSError) as error:
                log.warning("old copies of snapshots could not be removed: %s", error)

    def stop(self) -> None:
        """End fetches that run on other threads."""
        if self._cache is not None:
            self._cache.stop()

    def check(self) -> None:
        """Check the settings of an address, before anything is opened.

        Raises: ConfigError: the address, or settings that do not go together.
        """
        settings = self._config.snapshots
        if not self.base:
            if settings.poll_s:
                raise ConfigError(
                    "snapshots.poll_s: graph.path is not an address, so it has no pointer to follow"
                )
            return
        if settings.poll_s and SnapshotAddress.parse(str(self._config.graph.path)).id:
            raise ConfigError("snapshots.poll_s: graph.path names one snapshot; leave out # and its id")
        self._store(self.base)
        if self._config.live.enabled:
            raise ConfigError(
                "live.enabled: a live graph begins with a local folder, and graph.path is "
                f"{shown(self.base)}; `hopline snapshot fetch` makes a copy and prints its path"
            )
        for name in ("prefetcher", "shared_file"):
            if getattr(self._config.features, name) is not None:
                raise ConfigError(
                    f"features.{name}: needs a graph in a local folder, and graph.path is "
                    f"{shown(self.base)}"
                )

    def _store(self, base: str) -> SnapshotStore:
        if base not in self._stores:
            self._stores[base] = SnapshotStore(base, self._setting(base))
        return self._stores[base]

    def _setting(self, base: str) -> str:
        return "graph.path" if base == self.base else "graph"

    def _groups(self, manifest: SnapshotManifest) -> tuple[str, ...]:
        return manifest.groups if self._config.features.store else ()

    def _count(self) -> None:
        assert self._cache is not None
        self._fetched().inc(self._cache.fetched_bytes - self._counted_bytes)
        self._counted_bytes = self._cache.fetched_bytes
        self._cache_bytes().set(self._cache.used_bytes())

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        try:
            yield
        except HoplineError as error:
            self.note_failure(error)
            raise

    def note_failure(self, error: HoplineError) -> None:
        """Count a snapshot that could not be used."""
        self._failures(error.code).inc()


def is_on(unit: Unit, base: str) -> bool:
    """True if a unit answers on a snapshot of an address."""
    return bool(base) and unit.graph.startswith(f"{base}#")
