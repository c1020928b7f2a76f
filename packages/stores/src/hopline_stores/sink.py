"""A sink that writes to Redis or DynamoDB; `published+redis://…` serves the results as features.

Rows are written as a separate generation (`published.py`), a group for each output, in the
store's own layout; then one note is swapped, and readers see it. The earlier generation is deleted later.
Calls are repeated while the store is unavailable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import ParamSpec, TypeVar
from urllib.parse import parse_qsl, urlencode

import msgspec
import numpy as np

from hopline.config.setting import read_number
from hopline.errors import ConfigError, FeatureStoreError, FeatureStoreUnavailable, SinkError
from hopline.features.base import FeatureGroup
from hopline.features.registry import open_store
from hopline.graph.schema import quoted
from hopline.jobs.batch.sink import ID_COLUMN, Column, TableSchema
from hopline.types import AnyArray, ExternalIds
from hopline_stores.published import (
    NOTE,
    Catalog,
    Generation,
    PublishingStore,
    ids_note,
    packed_ids,
    read_catalog,
    stored,
    unpacked_ids,
)

#: Pauses before an unavailable store is called again.
_PAUSES_S = (0.2, 1.0, 3.0)
#: Attempts to swap a note that others may change first.
_SWAPS = 20

_T = TypeVar("_T")
_P = ParamSpec("_P")


class _Publisher:
    """Publishes tables in a store."""

    def __init__(self, store: PublishingStore) -> None:
        self.store = store

    async def call(self, call: Callable[_P, Awaitable[_T]], *args: _P.args, **options: _P.kwargs) -> _T:
        """Call one of the store's methods and return its result.

        Raises:
            SinkError: the store refuses, or is unavailable after all retries.
        """
        for pause_s in (*_PAUSES_S, None):
            try:
                return await call(*args, **options)
            except FeatureStoreUnavailable as error:
                if pause_s is None:
                    raise SinkError(
                        f"{error}; computed states are kept: fix this and start the same command again"
                    ) from error
                await asyncio.sleep(pause_s)
            except (FeatureStoreError, ConfigError) as error:
                raise SinkError(str(error)) from error
        raise AssertionError

    async def catalog(self) -> Catalog:
        """The published tables, and those that were begun. Raises: SinkError."""
        return self._decoded(await self.call(self.store.note, NOTE))

    async def change(self, change: Callable[[Catalog], Catalog]) -> None:
        """Change the catalog, also if others change it at the same time; `change` may be called again.

        Raises:
            SinkError: as `call`; or others change it without end.
        """
        problem = "the catalog of published tables is changed by others without end; start again"
        await self._swap(NOTE, lambda old: msgspec.json.encode(change(self._decoded(old))), problem)

    async def put_note(self, name: str, content: bytes) -> None:
        """Write a note that no other run may write. Raises: SinkError: another run writes it."""
        problem = "another run writes the same rows at the same time; start again when it is done"
        await self._swap(name, lambda _: content, problem)

    async def _swap(self, name: str, wanted: Callable[[bytes | None], bytes], problem: str) -> None:
        for attempt in range(_SWAPS):
            old = await self.call(self.store.note, name)
            new = wanted(old)
            if new == old or await self.call(self.store.swap_note, name, old, new):
                return
            await asyncio.sleep(0.02 * attempt)
        raise SinkError(problem)

    async def remove_others(self, table: str, run: str) -> None:
        """Delete generations of a table that are neither current nor of this run.

        Raises:
            SinkError: as `call`; the next call deletes the rest.
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
        while await self.call(self.store.note, ids_note(run, end)) is not None:
            end += 1
        # From the last one backwards: after an interruption the others are still found by number.
        for number in reversed(range(end)):
            name = ids_note(run, number)
            content = await self.call(self.store.note, name)
            if content is None:
                continue
            for group in generation.groups:
                await self.call(self.store.remove, stored(run, group), unpacked_ids(content))
            await self.call(self.store.swap_note, name, content, None)
        for group in generation.groups:
            await self.call(self.store.forget, stored(run, group).name)

    def _decoded(self, content: bytes | None) -> Catalog:
        try:
            return read_catalog(content, self.store.kind)
        except FeatureStoreError as error:
            raise SinkError(str(error)) from None


log = logging.getLogger("hopline.stores")

#: Options of the address, in addition to the store's own.
_OPTIONS = {"keep_s": "5", "name": ""}
#: Seconds of writing that a kill can cost.
_SAVE_S = 5.0
#: Ids of one note: an item of DynamoDB has at most 400 KB.
_NOTE_IDS, _NOTE_BYTES = 4096, 300_000


class StoreSink:
    """A sink that publishes a table in a feature store.

    Args:
        url: of the store.
        name: of the table, if several are published in one store; their groups are `<name>.<output>`.
        keep_s: seconds for which the earlier generation is kept, for readers that still use it.

    Raises:
        SinkError: the URL is not that of a store that can publish.
    """

    def __init__(self, url: str, name: str = "", keep_s: float = 5.0) -> None:
        try:
            store = open_store(url, "--to")
        except ConfigError as error:
            raise SinkError(str(error)) from None
        if not isinstance(store, PublishingStore):
            raise SinkError(f"--to: results cannot be published in a {store.kind} store")
        self._store = store
        self._publisher = _Publisher(store)
        self._name = name
        self._keep_s = keep_s
        self._runner: asyncio.Runner | None = None
        self._run = ""
        self._generation: Generation
        self._groups: list[tuple[Column, FeatureGroup]] = []
        self._saved_at = 0.0

    def open(self, schema: TableSchema) -> int:
        """Begin a generation, or resume one of an earlier attempt at the same run."""
        self._run = schema.run_id
        table = ".".join(part for part in (self._name, quoted(schema.part)) if part)
        self._groups = [(column, _group(column, table)) for column in schema.columns]
        self._runner = asyncio.Runner()
        try:
            return self._runner.run(self._open(schema, table))
        except BaseException:
            self._close()
            raise

    def write(self, begin: int, columns: Mapping[str, AnyArray | list[str]]) -> None:
        """See `Sink`; returns when the store has the rows."""
        assert self._runner is not None
        self._runner.run(self._write(begin, columns))

    def commit(self) -> None:
        """See `Sink`. The earlier generation is deleted `keep_s` later, in this call."""
        assert self._runner is not None
        try:
            self._runner.run(self._commit())
        finally:
            self._close()

    def abort(self) -> None:
        """Keep the written rows for a later attempt; readers do not see them."""
        if self._runner is None:
            return
        try:
            self._runner.run(self._save())
        except SinkError as error:  # the next attempt begins at the last saved row
            log.info("the progress of the results could not be saved: %s", error)
        finally:
            self._close()

    async def _open(self, schema: TableSchema, table: str) -> int:
        call = self._publisher.call
        await call(self._store.open)
        named = ("model", "version", "model_hash", "graph_version", "node_type", "num_rows")
        about = {name: str(getattr(schema, name)) for name in named}
        about["exact"] = "true" if schema.exact else "false"
        about["classes"] = msgspec.json.encode(schema.classes).decode()
        groups = tuple(group for _, group in self._groups)
        incarnation = await call(self._store.incarnation)
        fresh = Generation(table, groups, about, incarnation=incarnation)
        await self._publisher.remove_others(table, self._run)
        for group in groups:
            await call(self._store.create, stored(self._run, group))

        def begin(catalog: Catalog) -> Catalog:
            found = catalog.generations.get(self._run)
            known = found is not None and found.groups == groups and found.incarnation == incarnation
            # A current generation is written again: the user repeated the run, and its rows are the same.
            if found is None or not known or self._run in catalog.current.values():
                found = (
                    fresh if found is None else msgspec.structs.replace(fresh, num_notes=found.num_notes)
                )
            self._generation = found
            return _with(catalog, self._run, found)

        await self._publisher.change(begin)
        self._saved_at = time.monotonic()
        return self._generation.num_rows

    async def _write(self, begin: int, columns: Mapping[str, AnyArray | list[str]]) -> None:
        ids: ExternalIds = columns[ID_COLUMN]
        number = self._generation.num_notes
        for part in _parts(ids):
            await self._publisher.put_note(ids_note(self._run, number), packed_ids(part))
            number += 1
        for column, group in self._groups:
            values = np.asarray(columns[column.name]).reshape(len(ids), group.dim)
            rows = stored(self._run, group)
            await self._publisher.call(self._store.write, rows, ids, values)
        self._generation = msgspec.structs.replace(
            self._generation, num_rows=begin + len(ids), num_notes=number
        )
        if time.monotonic() - self._saved_at >= _SAVE_S:
            await self._save()

    async def _commit(self) -> None:
        await self._save()

        def switch(catalog: Catalog) -> Catalog:
            self._check(catalog)
            return Catalog({**catalog.current, self._generation.table: self._run}, catalog.generations)

        await self._publisher.change(switch)
        try:
            if len((await self._publisher.catalog()).generations) > 1:
                await asyncio.sleep(self._keep_s)
                await self._publisher.remove_others(self._generation.table, self._run)
        except SinkError as error:  # the table is published anyway; the next run deletes them
            log.warning("rows of an earlier run could not be deleted: %s", error)

    async def _save(self) -> None:
        """Save the progress, if all written rows still exist."""
        incarnation = await self._publisher.call(self._store.incarnation)
        if incarnation != self._generation.incarnation:
            raise SinkError(
                f"the {self._store.kind} server has restarted, and may have lost rows that it had "
                "accepted; start the same command again: computed states are kept"
            )

        def save(catalog: Catalog) -> Catalog:
            self._check(catalog)
            return _with(catalog, self._run, self._generation)

        await self._publisher.change(save)
        self._saved_at = time.monotonic()

    def _check(self, catalog: Catalog) -> None:
        if self._run not in catalog.generations:
            raise SinkError(
                "another run has begun to write to the same place and has deleted the rows of this one; "
                "computed states are kept: start the same command again when the other run is done"
            )

    def _close(self) -> None:
        if self._runner is not None:
            try:
                self._runner.run(self._store.close())
            finally:
                self._runner.close()
                self._runner = None


def _group(column: Column, table: str) -> FeatureGroup:
    """A column as a group: float32, and integers (labels) as float64, which holds them exactly."""
    name = f"{table}.{column.name}" if table else column.name
    return FeatureGroup(name, max(1, column.width), "float32" if column.dtype == "float32" else "float64")


def _with(catalog: Catalog, run: str, generation: Generation) -> Catalog:
    return Catalog(catalog.current, {**catalog.generations, run: generation})


def _parts(ids: ExternalIds) -> list[ExternalIds]:
    """Ids, split for notes."""
    size = _NOTE_IDS
    if not isinstance(ids, np.ndarray):
        longest = max((len(str(text)) for text in ids), default=0)
        size = max(1, min(size, _NOTE_BYTES // (4 * longest + 4)))
    return [ids[at : at + size] for at in range(0, len(ids), size)]


def from_address(address: str) -> StoreSink:
    """The sink of `redis://…` and `dynamodb://…`, as in `features.store`, with `keep_s=` and `name=`.

    Raises:
        SinkError: the URL is not that of a store.
    """
    base, mark, query = address.partition("?")
    given = parse_qsl(query, keep_blank_values=True)
    options = _OPTIONS | {name: value for name, value in given if name in _OPTIONS}
    others = [(name, value) for name, value in given if name not in _OPTIONS]
    keep_s = read_number(options["keep_s"])
    if keep_s is None or not 0 <= keep_s < 1e6:
        raise SinkError(f"--to: keep_s must be seconds, 0 or more; got {options['keep_s']!r}")
    if any(sign in options["name"] for sign in ":#/\0"):
        raise SinkError(f"--to: name={options['name']} must not contain ':', '#' or '/'")
    return StoreSink(base + mark + urlencode(others), options["name"], keep_s)
