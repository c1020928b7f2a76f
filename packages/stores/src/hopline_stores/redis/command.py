"""`hopline graph push`: copy a graph into a Redis Cluster, from which servers read its edges."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from hopline.commands.options import AsJson
from hopline.commands.progress import progress_bars
from hopline.graph import Graph
from hopline.graph_store.base import store_class


def push(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a graph.")],
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Redis or cluster, such as redis+cluster://host:6379.")
    ],
    features: Annotated[
        bool,
        typer.Option(
            "--features/--no-features",
            help="Copy features too. Without, servers read them from their feature store (features.store).",
        ),
    ] = True,
    current: Annotated[
        bool,
        typer.Option(
            "--current/--no-current", help="Servers that name no version read this graph from now on."
        ),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Copy a graph into a Redis Cluster, from which servers read its edges (graph.store).

    Can be stopped and run again: it continues. The graph is complete only after every chunk was read back
    and compared.
    """
    from rich.progress import TimeElapsedColumn

    store = store_class(url, "URL")
    with progress_bars(TimeElapsedColumn()) as progress:
        graph = Graph.open(folder)
        pushed = asyncio.run(
            store.push(graph, url, features=features, make_current=current, progress=progress)
        )
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(pushed)))
        return
    repaired = f", {pushed.num_repaired} of them repaired" if pushed.num_repaired else ""
    typer.echo(
        f"graph {pushed.version}: {pushed.num_chunks} chunks, {pushed.num_bytes / 1e6:,.1f} MB, verified; "
        f"{pushed.num_written} written now{repaired}"
    )
