"""`hopline serve`: run the server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopline.commands.options import AnySetting, ConfigFile, Models, Repository
from hopline.commands.serve_flags import resolve_config


def serve(
    graph: Annotated[str | None, typer.Option(help="Graph folder, or the address of snapshots.")] = None,
    repository: Repository = None,
    model: Models = None,
    precomputed: Annotated[
        list[Path] | None,
        typer.Option(
            help="Precomputed answers: a file of `hopline batch`; repeatable, one for each model."
        ),
    ] = None,
    live: Annotated[
        bool | None, typer.Option("--live", help="Accept changes to the graph while serving.")
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(help="Message broker with score requests, such as kafka://host:9092/score?group=g."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="HTTP port; 0 picks a free one.")] = None,
    grpc_port: Annotated[
        int | None, typer.Option(help="gRPC port; 0 picks a free one, -1 turns gRPC off.")
    ] = None,
    workers: Annotated[
        str | None, typer.Option(help="Worker processes, which share the ports; auto: one for each CPU.")
    ] = None,
    config: ConfigFile = None,
    settings: AnySetting = None,
) -> None:
    """Serve the models of a repository on a graph, over HTTP and gRPC."""
    from hopline.serve import run

    overrides = {
        "graph.path": graph,
        "models.repository": repository,
        "models.names": tuple(model) if model else None,
        "precomputed.file": tuple(map(str, precomputed)) if precomputed else None,
        "live.enabled": live,
        "queues.requests": queue,
        "server.host": host,
        "server.http_port": port,
        "server.grpc_port": grpc_port,
        "server.workers": workers,
    }
    raise typer.Exit(run(resolve_config(config, overrides, settings or [])))
