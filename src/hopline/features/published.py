"""Results of batch runs in a feature store: written as a new generation, then pointed to.

    group "<run>.<group>"   rows of one generation, as any group's
    note "published"        the `Catalog`: of each table, which generation is current; all there are
    note "<run>.ids.<k>"    ids whose rows are being written: what to delete one day

The catalog is one value that is swapped whole, so that readers see all groups of a run or none of them.
This file knows what is stored and how it is read; `jobs/batch/store_sink.py` writes it.
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
from hopline.features.rows import not_found
from hopline.types import UNREADABLE, ExternalIds

NOTE = "published"
#: How old the catalog may be that a reader goes by.
_FOLLOW_S = 1.0


class PublishingStore(FeatureStore):
    """A store that keeps notes next to its rows, and deletes rows.

    A note is a few bytes under a name; names are not those of groups.
    """

    @abstractmethod
    async def note(self, name: str) -> bytes | None:
        """A note's content; None where there is none."""

    @abstractmethod
    async def swap_note(self, name: str, expected: bytes | None, content: bytes | None) -> bool:
        """Write a note (None: remove it) if it is still as expected; whether it was."""

    @abstractmethod
    async def remove(self, group: FeatureGroup, ids: ExternalIds) -> None:
        """Delete rows; those that are absent are no error."""

    @abstractmethod
    async def forget(self, group: str) -> None:
        """Delete a group's schema and name; its rows are gone already."""

    @abstractmethod
    async def incarnation(self) -> str:
        """Another text whenever rows that were taken may have been lost since: after a restart, say."""


class Generation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one run has written.

    Attributes:
        table: whose generation it is; "" where there is but one.
        groups: by the names that readers use.
        about: model, version, graph version …
        num_rows: rows that exist.
        num_notes: notes of ids that there are at least.
        incarnation: of the store, when they were written.
    """

    table: str
    groups: tuple[FeatureGroup, ...]
    about: dict[str, str] = {}
    num_rows: int = 0
    num_notes: int = 0
    incarnation: str = ""


class Catalog(msgspec.Struct, frozen=True):
    """The generations of a store, and which of them is current.

    Attributes:
        current: table -> run.
        generations: run -> what it wrote, current or not.
    """

    current: dict[str, str] = {}
    generations: dict[str, Generation] = {}

    def find(self, group: str) -> tuple[str, FeatureGroup] | None:
        """The run that is current for a group, and the group; None where there is none."""
        for run in self.current.values():
            for found in self.generations[run].groups:
                if found.name == group:
                    return run, found
        return None

    def names(self) -> list[str]:
        """Groups that are published."""
        return [group.name for run in self.current.values() for group in self.generations[run].groups]


def stored(run: str, group: FeatureGroup) -> FeatureGroup:
    """The group as the store knows it."""
    return msgspec.structs.replace(group, name=f"{run}.{group.name}")


def read_catalog(content: bytes | None, kind: str) -> Catalog:
    """The catalog of a note. Raises: FeatureStoreError: it is damaged."""
    if content is None:
        return Catalog()
    try:
        return msgspec.json.decode(content, type=Catalog)
    except UNREADABLE as error:
        raise FeatureStoreError(
            f"{kind}: the note {NOTE!r} of published tables is damaged: {error}"
        ) from None


def ids_note(run: str, number: int) -> str:
    """The name of a note of ids."""
    return f"{run}.ids.{number}"


def packed_ids(ids: ExternalIds) -> bytes:
    """Ids as a note's content."""
    listed = ids.tolist() if isinstance(ids, np.ndarray) else ids
    return zlib.compress(json.dumps(listed).encode(), 1)  # unlike others it takes halves of surrogate pairs


def unpacked_ids(content: bytes) -> ExternalIds:
    """Ids of a note. Raises: FeatureStoreError: it is damaged."""
    try:
        found: list[str] = json.loads(zlib.decompress(content))
    except (zlib.error, ValueError) as error:
        raise FeatureStoreError(f"a note of published ids is damaged: {error}") from None
    return found


class PublishedStore(FeatureStore):
    """What was last published in a store, as groups; a new generation is seen within a second.

    All rows of one fetch are of one generation.

    Args:
        url: `published+` and the URL of the store.
        setting: where the URL was written, for errors.
        clock: seconds, monotonic.

    Raises:
        ConfigError: the URL, or the store cannot publish.
    """

    kind = "published"

    def __init__(
        self, url: str, setting: str = "features.store", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        from hopline.features.registry import PUBLISHED, open_store

        store = open_store(url[len(PUBLISHED) :], setting)
        if not isinstance(store, PublishingStore):
            raise ConfigError(f"{setting}: {PUBLISHED} is not for a {store.kind} store")
        self._store = store
        self._clock = clock
        self._catalog = Catalog()
        self._read_at = -np.inf
        self._reading = asyncio.Lock()

    async def open(self) -> None:
        """As `FeatureStore.open`."""
        await self._store.open()

    async def close(self) -> None:
        """As `FeatureStore.close`."""
        await self._store.close()

    async def describe(self, group: str) -> FeatureGroup:
        """As `FeatureStore.describe`."""
        catalog = await self._read(0.0)
        found = catalog.find(group)
        if found is None:
            raise FeatureGroupNotFound(
                not_found(f"published in {self._store.kind}", group, catalog.names())
            )
        return found[1]

    async def fetch(self, group: FeatureGroup, ids: ExternalIds) -> FetchedRows:
        """As `FeatureStore.fetch`."""
        asked_at = self._clock()
        found = (await self._read(_FOLLOW_S)).find(group.name)
        rows = await self._fetch(found, group, ids)
        if not rows.found.all() and self._read_at < asked_at:
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
        """The catalog, at most so old; those who wait for it meanwhile share one reading."""
        asked_at = self._clock()
        if asked_at - self._read_at < age_s:
            return self._catalog
        async with self._reading:
            if asked_at - age_s >= self._read_at:
                content = await self._store.note(NOTE)
                self._catalog = read_catalog(content, self._store.kind)
                self._read_at = asked_at
        return self._catalog
