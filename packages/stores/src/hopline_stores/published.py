"""Batch results in a feature store: written as a separate generation, then published.

    group "<run>.<group>"   rows of one generation, like the rows of any group
    note "published"        the `Catalog`: all generations, and the current one of each table
    note "<run>.ids.<k>"    ids whose rows are being written, to delete them later

The catalog is one value that is replaced as a whole, so that readers see all groups of a run or none of
them. This file defines what is stored and how it is read; `sink.py` writes it.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from abc import abstractmethod
from collections.abc import Callable

import msgspec
import numpy as np

from hopline.errors import ConfigError, FeatureGroupNotFound, FeatureStoreError
from hopline.features.base import FeatureGroup, FeatureStore, FetchedRows
from hopline.features.ids import listed
from hopline.features.registry import open_store
from hopline.features.rows import not_found
from hopline.types import UNREADABLE, ExternalIds

NOTE = "published"
#: Maximum age of a reader's catalog, seconds.
_FOLLOW_S = 1.0


class PublishingStore(FeatureStore):
    """A store that also has notes.

    A note is a few bytes under a name, which is not a group name.
    """

    @abstractmethod
    async def note(self, name: str) -> bytes | None:
        """Return a note's content; None if it does not exist."""

    @abstractmethod
    async def swap_note(self, name: str, expected: bytes | None, content: bytes | None) -> bool:
        """Replace a note (None: remove it) if it has the expected content; return True if it had."""

    @abstractmethod
    async def forget(self, group: str) -> None:
        """Delete a group's schema and name; its rows are already deleted."""

    @abstractmethod
    async def incarnation(self) -> str:
        """Return a text that changes when accepted rows may have been lost, for example after a restart."""


class Generation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The results of one run.

    Attributes:
        table: table of the generation; "" if there is only one.
        groups: with the names that readers use.
        about: model, version, graph version …
        num_rows: number of rows.
        num_notes: at least this many notes of ids exist.
        incarnation: incarnation of the store when they were written.
    """

    table: str
    groups: tuple[FeatureGroup, ...]
    about: dict[str, str] = {}
    num_rows: int = 0
    num_notes: int = 0
    incarnation: str = ""


class Catalog(msgspec.Struct, frozen=True):
    """All generations.

    Attributes:
        current: table -> run.
        generations: run -> its results, current or not.
    """

    current: dict[str, str] = {}
    generations: dict[str, Generation] = {}

    def find(self, group: str) -> tuple[str, FeatureGroup] | None:
        """Return the current run of a group, and the group; None if there is none."""
        for run in self.current.values():
            for found in self.generations[run].groups:
                if found.name == group:
                    return run, found
        return None

    def names(self) -> list[str]:
        """Return the names of the published groups."""
        return [group.name for run in self.current.values() for group in self.generations[run].groups]


def stored(run: str, group: FeatureGroup) -> FeatureGroup:
    """Return the group with its name in the store."""
    return msgspec.structs.replace(group, name=f"{run}.{group.name}")


def read_catalog(content: bytes | None, kind: str) -> Catalog:
    """Decode the catalog from a note. Raises: FeatureStoreError: it is damaged."""
    if content is None:
        return Catalog()
    try:
        return msgspec.json.decode(content, type=Catalog)
    except UNREADABLE as error:
        raise FeatureStoreError(
            f"{kind}: the note {NOTE!r} of published tables is damaged: {error}"
        ) from None


def ids_note(run: str, number: int) -> str:
    """Return the name of a note of ids."""
    return f"{run}.ids.{number}"


def packed_ids(ids: ExternalIds) -> bytes:
    """Encode ids as a note's content."""
    return zlib.compress(json.dumps(listed(ids)).encode(), 1)  # json accepts halves of surrogate pairs


def unpacked_ids(content: bytes) -> ExternalIds:
    """Decode the ids of a note. Raises: FeatureStoreError: it is damaged."""
    try:
        found: list[str] = json.loads(zlib.decompress(content))
    except (zlib.error, ValueError) as error:
        raise FeatureStoreError(f"a note of published ids is damaged: {error}") from None
    return found


class PublishedStore(FeatureStore):
    """The published groups of a store; a new generation is visible within a second.

    All rows of one fetch belong to one generation.

    Args:
        url: `published+` and the URL of the store.
        setting: setting of the URL, for errors.

    Raises:
        ConfigError: the URL is invalid, or the store cannot publish.
    """

    kind = "published"

    def __init__(self, url: str, setting: str = "features.store") -> None:
        store = open_store(url.partition("+")[2], setting)
        if not isinstance(store, PublishingStore):
            raise ConfigError(f"{setting}: published+ is not supported for {store.kind} stores")
        self._store = store
        self._clock: Callable[[], float] = time.monotonic
        self._catalog = Catalog()
        self._read_at = -np.inf
        self._reading = asyncio.Lock()

    async def open(self) -> None:
        """See `FeatureStore.open`."""
        await self._store.open()

    async def close(self) -> None:
        """See `FeatureStore.close`."""
        await self._store.close()

    async def describe(self, group: str) -> FeatureGroup:
        """See `FeatureStore.describe`."""
        catalog = await self._read(0.0)
        found = catalog.find(group)
        if found is None:
            raise FeatureGroupNotFound(
                not_found(f"published in {self._store.kind}", group, catalog.names())
            )
        return found[1]

    async def fetch(self, group: FeatureGroup, ids: ExternalIds) -> FetchedRows:
        """See `FeatureStore.fetch`."""
        requested_at = self._clock()
        found = (await self._read(_FOLLOW_S)).find(group.name)
        age_s = max(0.0, requested_at - self._read_at)
        rows = await self._fetch(found, group, ids)
        rows.age_s = age_s  # another generation may have been published since
        if not rows.found.all() and self._read_at < requested_at:
            # The generation may have been removed meanwhile.
            now = (await self._read(0.0)).find(group.name)
            if (now and now[0]) != (found and found[0]):
                return await self._fetch(now, group, ids)
        return rows

    async def _fetch(
        self, found: tuple[str, FeatureGroup] | None, group: FeatureGroup, ids: ExternalIds
    ) -> FetchedRows:
        if found is None:
            return FetchedRows(np.zeros((len(ids), group.dim), np.float32), np.zeros(len(ids), bool))
        return await self._store.fetch(stored(found[0], group), ids)

    async def _read(self, age_s: float) -> Catalog:
        """Return the catalog with this maximum age; concurrent callers share one read."""

        requested_at = self._clock()
        if requested_at - self._read_at < age_s:
            return self._catalog
        async with self._reading:
            if requested_at - age_s >= self._read_at:
                content = await self._store.note(NOTE)
                self._catalog = read_catalog(content, self._store.kind)
                self._read_at = requested_at
        return self._catalog
