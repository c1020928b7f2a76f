"""A sink that writes to Redis or DynamoDB; `published+redis://…` serves the results as features.

Rows are written as a separate generation (`features/published.py`), a group for each output, in the
store's own layout; then one note is swapped, and readers see it. The earlier generation is deleted later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

import msgspec
import numpy as np

from hopline.errors import ConfigError, SinkError
from hopline.features.base import FeatureGroup
from hopline.features.published import Catalog, Generation, PublishingStore, ids_note, packed_ids, stored
from hopline.features.registry import open_store
from hopline.graph.schema import quoted
from hopline.jobs.batch.publisher import PAUSES_S, Publisher
from hopline.jobs.batch.sink import ID_COLUMN, Column, TableSchema
from hopline.types import AnyArray, ExternalIds

log = logging.getLogger(__name__)

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
        pauses_s: before each retry while the store is unavailable.

    Raises:
        SinkError: the URL is not that of a store that can publish.
    """

    def __init__(
        self, url: str, name: str = "", keep_s: float = 5.0, pauses_s: tuple[float, ...] = PAUSES_S
    ) -> None:
        try:
            store = open_store(url, "--to")
        except ConfigError as error:
            raise SinkError(str(error)) from None
        if not isinstance(store, PublishingStore):
            raise SinkError(f"--to: results cannot be published in a {store.kind} store")
        self._store = store
        self._publisher = Publisher(store, pauses_s)
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
        except (
            SinkError
        ) as error:  # the store is unavailable: the next attempt begins at the last saved row
            log.info("the progress of the results could not be saved: %s", error)
        finally:
            self._close()

    async def _open(self, schema: TableSchema, table: str) -> int:
        ask = self._publisher.ask
        await ask(self._store.open)
        about = {
            "model": schema.model,
            "version": schema.version,
            "model_hash": schema.model_hash,
            "graph_version": schema.graph_version,
            "node_type": schema.node_type,
            "num_rows": str(schema.num_rows),
            "exact": "true" if schema.exact else "false",
            "classes": msgspec.json.encode(schema.classes).decode(),
        }
        groups = tuple(group for _, group in self._groups)
        incarnation = await ask(self._store.incarnation)
        fresh = Generation(table, groups, about, incarnation=incarnation)
        await self._publisher.remove_others(table, self._run)
        for group in groups:
            await ask(self._store.create, stored(self._run, group))

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
            await self._publisher.ask(self._store.write, rows, ids, values)
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
        incarnation = await self._publisher.ask(self._store.incarnation)
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
    options = dict(_OPTIONS)
    others = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in options:
            options[name] = value
        else:
            others.append((name, value))
    try:
        keep_s = float(options["keep_s"])
    except ValueError:
        keep_s = -1.0
    if not 0 <= keep_s < 1e6:
        raise SinkError(f"--to: keep_s must be seconds, 0 or more; got {options['keep_s']!r}")
    if any(sign in options["name"] for sign in ":#/\0"):
        raise SinkError(f"--to: name={options['name']} must not contain ':', '#' or '/'")
    return StoreSink(base + mark + urlencode(others), options["name"], keep_s)
