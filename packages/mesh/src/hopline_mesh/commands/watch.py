"""`hopline mesh watch`: collect a snapshot of the mesh every interval, judge it, and send alerts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopline_mesh.commands.flags import (
    AnySetting,
    MeshKind,
    PrometheusUrl,
    QueryFile,
    SettingsFile,
    resolve_settings,
)


def watch(
    prometheus: PrometheusUrl = None,
    alertmanager: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="URL of an Alertmanager; repeatable. Default: none."),
    ] = None,
    mesh: MeshKind = None,
    query_file: QueryFile = None,
    interval: Annotated[float | None, typer.Option(help="Seconds between snapshots.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Folder for the saved state.")] = None,
    config: SettingsFile = None,
    settings: AnySetting = None,
) -> None:
    """Watch a mesh until SIGTERM: every interval a snapshot and a verdict, and alerts for incidents."""
    resolved = resolve_settings(
        config,
        {
            "prometheus_url": prometheus,
            "alertmanager_urls": tuple(alertmanager) if alertmanager else None,
            "mesh": mesh,
            "query_file": query_file,
            "interval_s": interval,
            "state_dir": state_dir,
        },
        settings or [],
    )
    from hopline_mesh.watch import run

    run(resolved, lambda started: typer.echo("\n".join(started.lines), err=True))
