"""`hopline features`: copy features of a graph or a file into a store; compare a store with a graph."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.progress import TextColumn

from hopline.commands.progress import RowRate, progress_bars
from hopline.errors import BadRequest, FeatureGroupNotFound
from hopline.features.base import DTYPES, FeatureGroup, FeatureStore
from hopline.features.parquet import read_file
from hopline.features.registry import open_store
from hopline.features.rows import refuse_not_finite
from hopline.features.skew import differences
from hopline.graph import Graph
from hopline.types import AnyArray, ExternalIds, FloatArray

app = typer.Typer(help="Copy features into a store, and compare the two.", no_args_is_help=True)

_MAX_SHOWN = 5


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
        sources = [_of_file(parquet, id_column, group, batch)]
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
    """Rows to copy: ids and values, in batches."""

    group: FeatureGroup
    num_rows: int
    batches: Iterator[tuple[ExternalIds, AnyArray]]


def _types(graph: Path, name: str | None) -> list[str]:
    """The node types of a command; all with features if `name` is None."""
    known = {key: node.feature_dim for key, node in Graph.open(graph).schema.node_types.items()}
    featured = [key for key, dim in known.items() if dim]
    if name is None and featured:
        return featured
    if name in featured:
        return [name]
    what = "no node type has" if name is None else f"there is no node type {name!r} with"
    raise BadRequest(f"{graph}: {what} features; those with features: {', '.join(featured) or 'none'}")


def _group_of(graph: Graph, name: str) -> FeatureGroup:
    node = graph.schema.node_types[name]
    # A dtype that stores do not support is decoded to float32 for them.
    dtype = node.feature_dtype if node.feature_dtype in DTYPES else "float32"
    return FeatureGroup(name, node.feature_dim, dtype, node.feature_names)


def _of_graph(graph: Graph, name: str, batch: int) -> _Source:
    nodes = graph.nodes[name]

    def batches() -> Iterator[tuple[ExternalIds, AnyArray]]:
        for first in range(0, nodes.num_nodes, batch):
            rows = np.arange(first, min(first + batch, nodes.num_nodes))
            yield nodes.ids.external(rows), nodes.features[first : first + batch]

    return _Source(_group_of(graph, name), nodes.num_nodes, batches())


def _of_file(path: Path, id_column: str, name: str | None, batch: int) -> _Source:
    header, num_rows, parts = read_file(path, id_column)
    group = FeatureGroup(name or header.name, header.dim, header.dtype, header.feature_names)

    def batches() -> Iterator[tuple[ExternalIds, AnyArray]]:
        for ids, values in parts:
            for first in range(0, len(values), batch):
                yield ids[first : first + batch], values[first : first + batch]

    return _Source(group, num_rows, batches())


async def _load(url: str, sources: list[_Source]) -> None:
    counts = TextColumn("{task.completed:,} / {task.total:,}")
    async with _opened(url) as store:
        with progress_bars(counts, RowRate()) as advance:
            for source in sources:
                await store.create(source.group)
                done = 0
                for ids, values in source.batches:
                    rows = np.asarray(values, np.float32)
                    refuse_not_finite(source.group, ids, rows)
                    await store.write(source.group, ids, rows)
                    done += len(values)
                    advance(source.group.name, done, source.num_rows)
    for source in sources:
        typer.echo(f"{source.group.name}: {source.num_rows:,} rows of {source.group.row_bytes:,} bytes")


async def _check(url: str, graph: Graph, names: list[str], sample: int, seed: int) -> bool:
    same = True
    async with _opened(url) as store:
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
        stored = await store.describe(name)
    except FeatureGroupNotFound as error:
        yield str(error)
        return
    for line in differences(expected, stored):
        yield f"schema: {line}"
    if stored.dim != expected.dim or not nodes.num_nodes:
        return
    num = min(sample, nodes.num_nodes)
    rows = np.sort(np.random.default_rng(seed).choice(nodes.num_nodes, num, replace=False))
    ids = nodes.ids.external(rows)
    fetched = await store.fetch(stored, ids)
    # Rounded like the store's rows, so that a narrower dtype is not reported for every row.
    with np.errstate(over="ignore"):
        ours = nodes.features[rows].astype(stored.dtype).astype(np.float32)
    missing = ~fetched.found
    if missing.any():
        yield f"{int(missing.sum()):,} of {num:,} rows are missing: {_shown(ids, missing)}"
    if fetched.num_invalid:
        yield f"{fetched.num_invalid:,} of them are invalid: {'; '.join(fetched.problems)}"
    unequal = (ours != fetched.values) & ~(np.isnan(ours) & np.isnan(fetched.values))
    other = unequal.any(axis=1) & fetched.found
    if other.any():
        yield f"{int(other.sum()):,} of {num:,} rows are different: {_shown(ids, other)}"
        row = int(np.flatnonzero(other)[0])
        yield f"the first: {_first_difference(expected, ids[row], ours[row], fetched.values[row])}"


def _first_difference(group: FeatureGroup, id: Any, ours: FloatArray, theirs: FloatArray) -> str:
    at = int(np.flatnonzero((ours != theirs) & ~(np.isnan(ours) & np.isnan(theirs)))[0])
    called = f" ({group.feature_names[at]!r})" if group.feature_names else ""
    return (
        f"number {at}{called} of {_plain(id)!r} is {theirs[at]:g} in the store, {ours[at]:g} in the graph"
    )


def _shown(ids: ExternalIds, which: AnyArray) -> str:
    rows = np.flatnonzero(which)
    shown = ", ".join(repr(_plain(ids[row])) for row in rows[:_MAX_SHOWN].tolist())
    return f"{shown} …" if len(rows) > _MAX_SHOWN else shown


def _plain(id: Any) -> int | str:
    return id if isinstance(id, str) else int(id)


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[FeatureStore]:
    store = open_store(url, "--store")
    try:
        await store.open()
        yield store
    finally:
        await store.close()
