"""`hopline prefetch`: fetch feature rows for all workers of this host."""

from __future__ import annotations

from typing import Annotated

import typer

from hopline.commands.options import AnySetting, ConfigFile, GraphFolder, Models, Repository
from hopline.commands.serve_flags import resolve_config
from hopline.config.folders import needed_folder


def prefetch(
    graph: GraphFolder = None,
    repository: Repository = None,
    model: Models = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes of the server.")] = None,
    config: ConfigFile = None,
    settings: AnySetting = None,
) -> None:
    """Fetch feature rows for the workers of a server. Start it with the settings of the server."""
    overrides = {
        "graph.path": graph,
        "models.repository": repository,
        "models.names": tuple(model) if model else None,
        "server.workers": workers,
    }
    resolved = resolve_config(config, overrides, settings or [])
    needed_folder(resolved, "graph.path")
    from hopline.models.repositories import graph_models
    from hopline.observe.logs import configure_logs
    from hopline_stores.prefetch.process import run

    configure_logs(resolved.log)
    raise typer.Exit(run(resolved, graph_models(resolved)))
