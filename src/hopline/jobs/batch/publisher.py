"""Calls a store of published results: retries while it is unavailable, swaps its catalog, deletes rows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

import msgspec

from hopline.errors import ConfigError, FeatureStoreError, FeatureStoreUnavailable, SinkError
from hopline.features.published import (
    NOTE,
    Catalog,
    Generation,
    PublishingStore,
    ids_note,
    read_catalog,
    stored,
    unpacked_ids,
)

#: Pauses before an unavailable store is called again.
PAUSES_S = (0.2, 1.0, 3.0)
#: Attempts to swap a note that others may change first.
_SWAPS = 20

T = TypeVar("T")
P = ParamSpec("P")


class Publisher:
    """Publishes tables in a store.

    Args:
        store: of the tables.
        pauses_s: before each retry while the store is unavailable.
    """

    def __init__(self, store: PublishingStore, pauses_s: tuple[float, ...] = PAUSES_S) -> None:
        self.store = store
        self._pauses_s = pauses_s

    async def ask(self, call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """Call one of the store's methods and return its result.

        Raises:
            SinkError: the store refuses, or is unavailable after all retries.
        """
        for pause_s in self._pauses_s:
            try:
                return await call(*args, **options)
            except FeatureStoreUnavailable:
                await asyncio.sleep(pause_s)
            except (FeatureStoreError, ConfigError) as error:
                raise SinkError(str(error)) from error
        try:
            return await call(*args, **options)
        except FeatureStoreUnavailable as error:
            raise SinkError(
                f"{error}; computed states are kept: fix this and start the same command again"
            ) from error
        except (FeatureStoreError, ConfigError) as error:
            raise SinkError(str(error)) from error

    async def catalog(self) -> Catalog:
        """The published tables, and those that were begun. Raises: SinkError."""
        return (await self._read())[0]

    async def change(self, change: Callable[[Catalog], Catalog]) -> None:
        """Change the catalog, also if others change it at the same time; `change` may be called again.

        Raises:
            SinkError: as `ask`; or others change it without end.
        """
        for attempt in range(_SWAPS):
            catalog, content = await self._read()
            wanted = msgspec.json.encode(change(catalog))
            if wanted == content or await self.ask(self.store.swap_note, NOTE, content, wanted):
                return
            await asyncio.sleep(0.02 * attempt)
        raise SinkError("the catalog of published tables is changed by others without end; start again")

    async def put_note(self, name: str, content: bytes) -> None:
        """Write a note that no other run may write. Raises: SinkError: another run writes it."""
        for attempt in range(_SWAPS):
            old = await self.ask(self.store.note, name)
            if old == content or await self.ask(self.store.swap_note, name, old, content):
                return
            await asyncio.sleep(0.02 * attempt)
        raise SinkError("another run writes the same rows at the same time; start again when it is done")

    async def remove_others(self, table: str, run: str) -> None:
        """Delete generations of a table that are neither current nor of this run.

        Raises:
            SinkError: as `ask`; the next call deletes the rest.
        """
        catalog = await self.catalog()
        for other, generation in catalog.generations.items():
            if generation.table != table or other == run or other in catalog.current.values():
                continue
            await self._remove_rows(other, generation)

            def without(catalog: Catalog, other: str = other) -> Catalog:
                left = {name: each for name, each in catalog.generations.items() if name != other}
                return Catalog(catalog.current, left)

            await self.change(without)

    async def _remove_rows(self, run: str, generation: Generation) -> None:
        end = generation.num_notes
        # A killed attempt wrote more notes than it recorded.
        while await self.ask(self.store.note, ids_note(run, end)) is not None:
            end += 1
        # From the last one backwards: after an interruption the others are still found by number.
        for number in reversed(range(end)):
            name = ids_note(run, number)
            content = await self.ask(self.store.note, name)
            if content is None:
                continue
            for group in generation.groups:
                await self.ask(self.store.remove, stored(run, group), unpacked_ids(content))
            await self.ask(self.store.swap_note, name, content, None)
        for group in generation.groups:
            await self.ask(self.store.forget, stored(run, group).name)

    async def _read(self) -> tuple[Catalog, bytes | None]:
        content = await self.ask(self.store.note, NOTE)
        try:
            return read_catalog(content, self.store.kind), content
        except FeatureStoreError as error:
            raise SinkError(str(error)) from None
