"""`hopline features`: copy features of a graph or a file into a store; compare a store with a graph."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import typer
from rich.progress import TextColumn

from hopline.commands.progress import RowRate, progress_bars
from hopline.config.urls import find_by_scheme
from hopline.errors import BadRequest, FeatureGroupNotFound, FeatureSchemaMismatch, FeatureStoreError
from hopline.features.base import DTYPES, ColumnRow, FeatureGroup, FeatureStore, FetchedRows
from hopline.features.ids import listed
from hopline.features.registry import DOOR, open_store
from hopline.features.rows import not_finite
from hopline.features.skew import column_differences, differences
from hopline.graph import Graph
from hopline.graph.list_columns import lists_of
from hopline.graph.stored_columns import cell_of
from hopline.types import AnyArray, ExternalIds, FloatArray

#: Ids that a message lists.
_MAX_IDS = 5

app = typer.Typer(help="Copy features into a store, and compare the two.", no_args_is_help=True)


@app.command()
def load(
    store: Annotated[str, typer.Option(help="URL of the store: redis://host:6379, parquet:///folder …")],
    graph: Annotated[Path | None, typer.Option(help="Graph folder with the features to copy.")] = None,
    group: Annotated[
        str | None, typer.Option(help="Node type to copy. Default: all types with features.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(help="Parquet file to copy instead; --group names the group.")
    ] = None,
    columns: Annotated[
        bool, typer.Option("--columns", help="Copy its columns by name, for models with preprocessing.")
    ] = False,
    id_column: Annotated[str, typer.Option(help="Column of ids in the file.")] = "id",
    batch: Annotated[int, typer.Option(help="Rows per write.", min=1)] = 10_000,
) -> None:
    """Copy features into a store: the schema first, then the rows."""
    if (graph is None) == (parquet is None):
        raise BadRequest("pass one source: --graph or --parquet")
    if graph is not None:
        sources = [_of_graph(Graph.open(graph), name, batch) for name in _types(graph, group)]
    else:
        assert parquet is not None
        sources = [_of_file(parquet, id_column, group, batch, columns)]
    asyncio.run(_load(store, sources))


@app.command()
def check(
    store: Annotated[str, typer.Option(help="URL of the store.")],
    graph: Annotated[Path, typer.Option(help="Graph folder to compare with.")],
    group: Annotated[
        str | None, typer.Option(help="Node type to compare. Default: all types with features.")
    ] = None,
    sample: Annotated[int, typer.Option(help="Rows of each node type to compare.", min=1)] = 1_000,
    seed: Annotated[int, typer.Option(help="Seed of the sample.", min=0)] = 0,
) -> None:
    """Compare a store with a graph: the schema, and a sample of the rows. Exits with 1 if they differ."""
    same = asyncio.run(_check(store, Graph.open(graph), _types(graph, group), sample, seed))
    if not same:
        raise typer.Exit(1)


class _Source(NamedTuple):
    """Rows to copy in batches: ids, and an array or the values of each column."""

    group: FeatureGroup
    num_rows: int
    batches: Iterator[tuple[ExternalIds, Any]]


def _types(graph: Path, name: str | None) -> list[str]:
    """The node types of a command; all with features if `name` is None."""
    nodes = Graph.open(graph).schema.node_types
    featured = [key for key, node in nodes.items() if node.feature_dim or node.columns]
    if name is None and featured:
        return featured
    if name in featured:
        return [name]
    what = "no node type has" if name is None else f"there is no node type {name!r} with"
    raise BadRequest(f"{graph}: {what} features; those with features: {', '.join(featured) or 'none'}")


def _group_of(graph: Graph, name: str) -> FeatureGroup:
    node = graph.schema.node_types[name]
    if node.columns:
        return FeatureGroup.of_columns(name, {each.name: each.type for each in node.columns})
    # A dtype that stores do not support is decoded to float32 for them.
    dtype = node.feature_dtype if node.feature_dtype in DTYPES else "float32"
    return FeatureGroup(name, node.feature_dim, dtype, node.feature_names)


def _of_graph(graph: Graph, name: str, batch: int) -> _Source:
    nodes = graph.nodes[name]
    table = None if nodes.columns is None else nodes.columns.table

    def batches() -> Iterator[tuple[ExternalIds, Any]]:
        for first in range(0, nodes.ids.num_nodes, batch):
            rows = nodes.ids.nth(np.arange(first, min(first + batch, nodes.ids.num_nodes)))
            of_table = None if table is None else table.take(rows).to_pydict()
            yield nodes.ids.external(rows), of_table or nodes.features[rows]

    return _Source(_group_of(graph, name), nodes.ids.num_nodes, batches())


def _of_file(path: Path, id_column: str, name: str | None, batch: int, columns: bool) -> _Source:
    store = find_by_scheme(DOOR, "parquet:", "--parquet", "a file")
    if columns:
        group, ids, table = store.read_columns(path, id_column)
        parts = iter([(ids, table)])
        num_rows = len(table)
    else:
        group, num_rows, parts = store.read_file(path, id_column)

    def batches() -> Iterator[tuple[ExternalIds, Any]]:
        for ids, values in parts:
            for first in range(0, len(values), batch):
                part = values.slice(first, batch).to_pydict() if columns else values[first : first + batch]
                yield ids[first : first + batch], part

    return _Source(msgspec.structs.replace(group, name=name or group.name), num_rows, batches())


async def _load(url: str, sources: list[_Source]) -> None:
    counts = TextColumn("{task.completed:,} / {task.total:,}")
    async with _opened_store(url, "--store") as store:
        with progress_bars(counts, RowRate()) as advance:
            for source in sources:
                await store.create(source.group)
                done = 0
                for ids, values in source.batches:
                    await _write_rows(store, source.group, ids, values)
                    done += len(ids)
                    advance(source.group.name, done, source.num_rows)
    for source in sources:
        group = source.group
        of = f"{group.dim} columns" if group.types else f"{group.row_bytes:,} bytes"
        typer.echo(f"{group.name}: {source.num_rows:,} rows of {of}")


async def _check(url: str, graph: Graph, names: list[str], sample: int, seed: int) -> bool:
    same = True
    async with _opened_store(url, "--store") as store:
        for name in names:
            found = [line async for line in _compare(store, graph, name, sample, seed)]
            same &= not found
            typer.echo(f"{name}: {'different' if found else 'same'}")
            for line in found:
                typer.echo(f"  {line}")
    return same


async def _compare(
    store: FeatureStore, graph: Graph, name: str, sample: int, seed: int
) -> AsyncIterator[str]:
    """Differences of a store's group from the graph's."""
    expected, nodes = _group_of(graph, name), graph.nodes[name]
    try:
        stored = await (store.describe_columns if expected.types else store.describe)(name)
    except (FeatureGroupNotFound, FeatureSchemaMismatch) as error:
        yield str(error)
        return
    lines = differences(expected, stored)
    if expected.types:
        lines = column_differences(expected, stored, lists_of(expected.columns))
    for line in lines:
        yield f"schema: {line}"
    if (stored.dim != expected.dim and not expected.types) or not nodes.ids.num_nodes:
        return
    num = min(sample, nodes.ids.num_nodes)
    rows = nodes.ids.nth(
        np.sort(np.random.default_rng(seed).choice(nodes.ids.num_nodes, num, replace=False))
    )
    ids = nodes.ids.external(rows)
    if nodes.columns is not None:
        fetched = await store.fetch_columns(expected, ids)
        found = [
            _row_difference(expected, ours, theirs)
            for ours, theirs in zip(nodes.columns.table.take(rows).to_pylist(), fetched, strict=True)
        ]
        if any(found):
            which = np.array([bool(each) for each in found])
            yield f"{sum(which):,} of {num:,} rows are different: {_listed_ids(ids, which)}"
            yield f"the first: {next(filter(None, found))}"
        return
    # Rounded like the store's rows, so that a narrower dtype is not reported for every row.
    with np.errstate(over="ignore"):
        ours = nodes.features[rows].astype(stored.dtype).astype(np.float32)
    for line in _row_differences(expected, ids, ours, await store.fetch(stored, ids)):
        yield line


def _row_difference(group: FeatureGroup, ours: dict[str, Any], theirs: ColumnRow) -> str:
    """Difference of a row of columns in a store from the graph's; "" for none."""
    if theirs is None or isinstance(theirs, str):
        return theirs or "the row is missing"
    for name, kind in group.columns.items():
        if name not in theirs:
            return f"column {name!r} is missing"
        try:
            if cell_of(kind, theirs[name]) != cell_of(kind, ours[name]):  # type: ignore[arg-type]
                return f"column {name!r} is {theirs[name]!r} in the store, {ours[name]!r} in the graph"
        except ValueError as error:
            return f"column {name!r}: {error}"
    return ""


def _row_differences(
    group: FeatureGroup, ids: ExternalIds, ours: FloatArray, fetched: FetchedRows
) -> Iterator[str]:
    """Differences of rows in a store from a graph's, one sentence each.

    Args:
        ours: float32 [n, dim], rounded to the dtype of the store.
    """
    num, missing = len(ids), ~fetched.found
    if missing.any():
        yield f"{int(missing.sum()):,} of {num:,} rows are missing: {_listed_ids(ids, missing)}"
    if fetched.num_invalid:
        yield f"{fetched.num_invalid:,} of them are invalid: {'; '.join(fetched.problems)}"
    unequal = (ours != fetched.values) & ~(np.isnan(ours) & np.isnan(fetched.values))
    other = unequal.any(axis=1) & fetched.found
    if other.any():
        yield f"{int(other.sum()):,} of {num:,} rows are different: {_listed_ids(ids, other)}"
        row = int(np.flatnonzero(other)[0])
        at = int(np.flatnonzero(unequal[row])[0])
        called = f" ({group.feature_names[at]!r})" if group.feature_names else ""
        yield (
            f"the first: number {at}{called} of {listed(ids)[row]!r} is {fetched.values[row, at]:g} in the "
            f"store, {ours[row, at]:g} in the graph"
        )


def _listed_ids(ids: ExternalIds, which: AnyArray) -> str:
    """The first of the ids that `which`, bool [n], has, for a message."""
    rows, names = np.flatnonzero(which), listed(ids)
    shown = ", ".join(repr(names[row]) for row in rows[:_MAX_IDS].tolist())
    return f"{shown} …" if len(rows) > _MAX_IDS else shown


@asynccontextmanager
async def _opened_store(url: str, setting: str) -> AsyncIterator[FeatureStore]:
    """As `open_store`, opened; it is closed at the end."""
    store = open_store(url, setting)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


async def _write_rows(store: FeatureStore, group: FeatureGroup, ids: ExternalIds, values: Any) -> None:
    """Write columns by name, or an array of numbers, which must be finite; raises as the store."""
    if group.types:
        await store.write_columns(group, ids, values)
        return
    rows = np.asarray(values, np.float32)
    _refuse_not_finite(group, ids, rows)
    await store.write(group, ids, rows)


def _refuse_not_finite(group: FeatureGroup, ids: ExternalIds, values: FloatArray) -> None:
    """Refuse rows that a server would refuse.

    Raises:
        FeatureStoreError: with the first row and column that is NaN or infinite.
    """
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values).all(1))[0])
        raise FeatureStoreError(
            f"{not_finite(group, ids, values, row)}: servers use no such rows. Write a number for a "
            "missing value, as the model was trained with"
        )
