"""`hopline graph forget`: remove nodes, and erase what this host still holds of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from hopline.commands.options import AnySetting, AsJson, ConfigFile, GraphFolder
from hopline.commands.screen import Screen
from hopline.commands.serve_flags import resolve_config
from hopline.config.folders import live_folder, needed_folder
from hopline.config.schema import Config
from hopline.config.setting import named_values
from hopline.errors import BadRequest
from hopline.graph import Graph
from hopline.graph.id_values import integer_id
from hopline.types import ExternalId
from hopline_drift.forget.run import Places, Report, journal_of
from hopline_drift.forget.run import forget as forgotten


def forget(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Ids of nodes. None continues what was begun.")
    ] = None,
    node_type: Annotated[
        str, typer.Option("--type", help="Their node type, if the graph has several.")
    ] = "",
    log: Annotated[
        list[Path] | None, typer.Option(help="Further folder of a prediction log (repeatable).")
    ] = None,
    precomputed: Annotated[
        list[Path] | None, typer.Option(help="Further file of precomputed answers (repeatable).")
    ] = None,
    repository: Annotated[Path | None, typer.Option(help="Folder of <model>/<version> artifacts.")] = None,
    graph: GraphFolder = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    settings: AnySetting = None,
) -> None:
    """Remove nodes from a graph, and erase what this host still holds of them.

    A server may run meanwhile. After a kill, the same command continues. Exits with 1 if something is left.
    """
    resolved = resolve_config(
        config, {"graph.path": graph, "models.repository": repository}, settings or []
    )
    places = places_of(resolved, log or [], precomputed or [])
    report = forgotten(places, _parsed(places, ids or [], node_type), node_type)
    if as_json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        show(report, Screen())
    if not report.is_clean:
        typer.echo(f"error: something is left; {journal_of(places)} is kept: run this again", err=True)
        raise typer.Exit(1)


def places_of(config: Config, logs: list[Path], tables: list[Path]) -> Places:
    """The places where a server with these settings keeps data of nodes."""
    log, shared = config.prediction_log.path, config.features.shared_file
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    models, graph = config.models.repository, needed_folder(config, "graph.path")
    return Places(
        graph,
        live_folder(config),
        [*logs, *([log] if log else [])],
        [*tables, *map(Path, config.precomputed.file)],
        [
            *(cache / "hopline" / "encoded").glob("*.rows"),
            *(shared.parent.glob(f"{shared.name}*") if shared else []),
        ],
        models if isinstance(models, Path) else None,
        {
            f"features.{name}": url
            for name, url in (("store", config.features.store), ("cache", config.features.cache))
            if url
        },
        named_values(config.features.groups, "features.groups", [*Graph.open(graph).nodes]),
    )


def _parsed(places: Places, ids: list[str], node_type: str) -> list[ExternalId]:
    nodes = Graph.open(places.graph).nodes
    kinds = {name: each.ids.kind for name, each in nodes.items() if node_type in ("", name)}
    if "string" in kinds.values():
        return [*ids]
    try:
        return [integer_id(each) for each in ids]
    except ValueError as error:
        raise BadRequest(f"{error}; the graph has integers") from None


def show(report: Report, console: Screen) -> None:
    """Print a report as a table."""
    counts = ", ".join(f"{count} {name}" for name, count in report.counts.items() if count) or "nothing"
    console.print(f"{len(report.ids)} nodes of type {report.node_type}: erased {counts}")
    table = Table("place", "files before", "files now", box=None, pad_edge=False)
    for name, files in report.found.items():
        table.add_row(name, str(len(files)), str(len(report.left[name])))
    console.print(table)
    for name, files in report.models.items():
        own = f"has an id in {', '.join(files)}: package it again" if files else "has no id in its files"
        console.print(f"model {name} may have been trained with them; it {own}")
    for each in report.not_searched:
        console.print(f"not searched for, since files have such bytes by chance: {each}")
    for each in report.not_reached:
        console.print(f"not reached: {each}")
