"""`hopline graph`: build a snapshot from files, say what one holds, and change a server's live graph."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from hopline.commands import graph_live
from hopline.errors import GraphError, HoplineError
from hopline.graph import EdgeFile, Graph, NodeFile
from hopline.graph.codec import is_compressed
from hopline.graph.progress import Progress
from hopline.graph.schema import EDGE_TYPE, NODE_TYPE

app = typer.Typer(help="Build and inspect graphs, and change live ones.", no_args_is_help=True)
app.command("events")(graph_live.events)
app.command("status")(graph_live.status)

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0)


@app.command()
def build(
    edges: Annotated[
        list[str],
        typer.Argument(
            help="Edge files (.npy, .npz, .csv, .parquet): one FILE, or SRC:RELATION:DST=FILE each."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write the graph to.")],
    features: Annotated[
        list[str] | None,
        typer.Option(help="Node files with ids and features: one FILE, or TYPE=FILE for each node type."),
    ] = None,
    id: Annotated[str | None, typer.Option(help="Column of the node files that holds the ids.")] = None,
    feature: Annotated[
        list[str] | None, typer.Option(help="Feature column, in order (repeat); default: all numeric ones.")
    ] = None,
    src: Annotated[str, typer.Option(help="Column of the edge files that holds the source.")] = "src",
    dst: Annotated[str, typer.Option(help="Column of the edge files that holds the destination.")] = "dst",
    attr: Annotated[list[str] | None, typer.Option(help="Edge attribute column (repeat).")] = None,
    time: Annotated[str | None, typer.Option(help="Column of the edge times.")] = None,
    weight: Annotated[str | None, typer.Option(help="Column of the edge weights.")] = None,
    undirected: Annotated[
        bool, typer.Option("--undirected", help="Add the reverse of every edge.")
    ] = False,
    dtype: Annotated[
        str,
        typer.Option(
            "--feature-dtype",
            "--dtype",
            help="Store features as float32, float16, bfloat16 or int8 (with a scale for each column).",
        ),
    ] = "float32",
    compress_edges: Annotated[
        bool, typer.Option("--compress-edges", help="Pack in-neighbours, and round edge weights to 8 bits.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the graph at --out.")] = False,
) -> None:
    """Build a graph from an edge table and node features."""
    with _errors(), _bars() as progress:
        node_files = {
            name: NodeFile(path, id, tuple(feature) if feature else None)
            for name, path in (_named(text, NODE_TYPE) for text in features or ())
        }
        edge_files = {
            _edge_type(name): EdgeFile(path, src, dst, tuple(attr or ()), time, weight, undirected)
            for name, path in (_named(text, ":".join(EDGE_TYPE)) for text in edges)
        }
        if len(node_files) < len(features or ()) or len(edge_files) < len(edges):
            raise GraphError(
                "a type is named twice; name each file's type: TYPE=FILE or SRC:RELATION:DST=FILE"
            )
        graph = Graph.from_parquet(node_files or None, edge_files, feature_dtype=dtype, progress=progress)
        if compress_edges:
            graph = graph.compressed(progress)
        graph = graph.save(out, overwrite=overwrite, progress=progress)
    _show(_described(graph))


@app.command()
def info(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a graph.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file and check its hash.")] = False,
) -> None:
    """Say what a graph holds: types, counts, degrees, bytes, version."""
    with _errors():
        described = _described(Graph.open(folder, verify=verify))
    if as_json:
        typer.echo(json.dumps(described, indent=1))
    else:
        _show(described)


def _named(text: str, default: str) -> tuple[str, Path]:
    """Split NAME=FILE; a file alone is of the default type."""
    name, equals, path = text.partition("=")
    return (name, Path(path)) if equals and not Path(text).exists() else (default, Path(text))


def _edge_type(name: str) -> tuple[str, str, str]:
    parts = name.split(":")
    if len(parts) != 3:
        raise GraphError(f"an edge type is SRC:RELATION:DST; got {name!r}")
    return parts[0], parts[1], parts[2]


def _described(graph: Graph) -> dict[str, Any]:
    nodes = {}
    for name, schema in graph.schema.node_types.items():
        part = graph.nodes[name]
        nodes[name] = {
            "num_nodes": part.num_nodes,
            "feature_dim": schema.feature_dim,
            "feature_dtype": schema.feature_dtype,
            "feature_bytes": part.features.nbytes,
            "feature_names": list(schema.feature_names),
            "id_kind": schema.id_kind,
        }
    edges = {}
    for key, edge in graph.schema.edge_types.items():
        adjacency = graph.edges[key]
        degrees = np.diff(adjacency.indptr)
        quantiles = np.quantile(degrees, _QUANTILES, method="lower").tolist() if len(degrees) else []
        edges[key] = {
            "num_edges": adjacency.num_edges,
            "compressed": is_compressed(adjacency),
            "attr_dim": edge.attr_dim,
            "attr_names": list(edge.attr_names),
            "has_time": edge.has_time,
            "has_weight": edge.has_weight,
            "has_self_loops": adjacency.has_self_loops,
            "in_degree": {f"{q:g}": d for q, d in zip(_QUANTILES, quantiles, strict=False)},
        }
    return {
        "path": str(graph.path),
        "version": graph.version,
        "schema_hash": graph.schema.hash,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "num_bytes": graph.num_bytes,
        "node_types": nodes,
        "edge_types": edges,
    }


def _show(described: dict[str, Any]) -> None:
    console = Console()
    console.print(
        f"[bold]{described['path']}[/bold]  version {described['version']}  "
        f"{described['num_nodes']:,} nodes  {described['num_edges']:,} edges  "
        f"{described['num_bytes'] / 1e6:,.1f} MB"
    )
    _print_rows(
        console,
        ("node type", "nodes", "features", "dtype", "MB", "ids"),
        [
            (
                name,
                f"{row['num_nodes']:,}",
                row["feature_dim"],
                row["feature_dtype"],
                f"{row['feature_bytes'] / 1e6:,.1f}",
                row["id_kind"],
            )
            for name, row in described["node_types"].items()
        ],
    )
    _print_rows(
        console,
        ("edge type", "edges", "attr", "time", "weight", "loops", "in: p50", "p99", "max"),
        [
            (
                name,
                f"{row['num_edges']:,}",
                row["attr_dim"],
                *("yes" if row[flag] else "no" for flag in ("has_time", "has_weight", "has_self_loops")),
                *(f"{row['in_degree'].get(q, 0):,}" for q in ("0.5", "0.99", "1")),
            )
            for name, row in described["edge_types"].items()
        ],
    )


def _print_rows(console: Console, header: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    table = Table(*header, box=None, pad_edge=False)
    table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.no_wrap = True
        column.justify = "right"
    for row in rows:
        table.add_row(*map(str, row))
    console.print(table)


@contextmanager
def _bars() -> Iterator[Progress]:
    """A bar for each stage, on stderr so that stdout stays the answer."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(stage: str, done: float) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=1.0)
            bars.update(tasks[stage], completed=done)

        yield progress


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except HoplineError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
