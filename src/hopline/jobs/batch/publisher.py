"""Talks to a store where results are published: waits while it is away, swaps its catalog, deletes rows."""

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

#: Pauses before a store that is away is asked again.
PAUSES_S = (0.2, 1.0, 3.0)
#: Swaps of a note that others may come before.
_SWAPS = 20

T = TypeVar("T")
P = ParamSpec("P")


class Publisher:
    """Args:
    store: where to.
    pauses_s: before it is asked again where it is away.
    """

    def __init__(self, store: PublishingStore, pauses_s: tuple[float, ...] = PAUSES_S) -> None:
        self.store = store
        self._pauses_s = pauses_s

    async def ask(self, call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """What one of the store's methods returns.

        Raises:
            SinkError: it refuses, or is still away after all pauses.
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
                f"{error}; what is computed is kept: start the same command again when that is mended"
            ) from error
        except (FeatureStoreError, ConfigError) as error:
            raise SinkError(str(error)) from error

    async def catalog(self) -> Catalog:
        """What is published, and what was begun. Raises: SinkError."""
        return (await self._read())[0]

    async def change(self, change: Callable[[Catalog], Catalog]) -> None:
        """Change the catalog, whoever else does at the same time; `change` may be called again.

        Raises:
            SinkError: as `ask`; or others never leave it alone.
        """
        for attempt in range(_SWAPS):
            catalog, content = await self._read()
            wanted = msgspec.json.encode(change(catalog))
            if wanted == content or await self.ask(self.store.swap_note, NOTE, content, wanted):
                return
            await asyncio.sleep(0.02 * attempt)
        raise SinkError("the catalog of published tables is changed by others all the time; start again")

    async def put_note(self, name: str, content: bytes) -> None:
        """Write a note that nobody else writes. Raises: SinkError: somebody does."""
        for attempt in range(_SWAPS):
            old = await self.ask(self.store.note, name)
            if old == content or await self.ask(self.store.swap_note, name, old, content):
                return
            await asyncio.sleep(0.02 * attempt)
        raise SinkError("another run writes the same rows at the same time; start again when it is done")

    async def remove_others(self, table: str, run: str) -> None:
        """Delete generations of a table that are neither current nor of this run.

        Raises:
            SinkError: as `ask`; what is left is deleted by another call.
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
        # An attempt that was killed had written some more than it could say.
        while await self.ask(self.store.note, ids_note(run, end)) is not None:
            end += 1
        # From the last on: after an end in the middle the others are still found by their numbers.
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
