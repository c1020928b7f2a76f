"""`hopline prefetch`: fetch feature rows for the workers of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopline.commands.serve import resolve_config
from hopline.config.folders import needed_folder


def prefetch(
    graph: Annotated[Path | None, typer.Option(help="Graph folder.", show_default=False)] = None,
    repository: Annotated[
        str | None,
        typer.Option(help="Folder of <model>/<version> artifacts, or a URL of one.", show_default=False),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Model to load; repeatable. Default: all.", show_default=False)
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes of the server.", show_default=False)
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings file. Default: hopline.toml, if it exists.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting: --set section.key=value; repeatable.", show_default=False),
    ] = None,
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
    from hopline.prefetch.process import run

    configure_logs(resolved.log)
    raise typer.Exit(run(resolved, graph_models(resolved)))
