"""`hopline mesh queries`: print the queries to Prometheus, and test them."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hopline_mesh.collect import QuerySet
from hopline_mesh.collect.probe import Findings, probe
from hopline_mesh.commands.flags import (
    AnySetting,
    MeshKind,
    QueryFile,
    SettingsFile,
    count_of,
    few,
    resolve_settings,
    say,
)
from hopline_mesh.scope import Scope
from hopline_mesh.settings import MeshSettings
from hopline_mesh.watch.parts import collector_of, prometheus_of, queries_of

_COLOURS = {"ok": "green", "empty": "yellow"}


def queries(
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Send each query once to this Prometheus.")
    ] = None,
    mesh: MeshKind = None,
    query_file: QueryFile = None,
    config: SettingsFile = None,
    settings: AnySetting = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the queries; with --url run them and explain empty results.

    Exits with 1 if a query fails or no service is found.
    """
    if query_file is not None and mesh is None:
        mesh = "file"
    flags = {"prometheus_url": url, "mesh": mesh, "query_file": query_file}
    resolved = resolve_settings(config, flags, settings)
    asked = queries_of(resolved)
    Scope(resolved.source.namespaces, resolved.source.exclude_namespaces)  # also without --url
    if url is None:
        _print_queries(asked, as_json)
        return
    found = asyncio.run(_ask(resolved, asked))
    if as_json:
        typer.echo(json.dumps(_described(asked, found, resolved), indent=1))
    else:
        _show(asked, found, resolved)
    if found.report.failed or not len(found.snapshot.nodes):
        raise typer.Exit(1)


async def _ask(settings: MeshSettings, asked: QuerySet) -> Findings:
    from hopline_mesh.roster import Roster

    async with prometheus_of(settings) as client:
        collector = collector_of(settings, client, asked, Roster())
        return await probe(client, collector, asked, time.time(), settings.source.rate_window_s)


def _print_queries(asked: QuerySet, as_json: bool) -> None:
    if as_json:
        rows = [{"name": query.name, "promql": query.promql} for query in asked.queries]
        typer.echo(json.dumps({"queries": rows}, indent=1))
        return
    for query in asked.queries:
        typer.echo(f"# {query.name}\n{query.promql}\n")


def _described(asked: QuerySet, found: Findings, settings: MeshSettings) -> dict[str, Any]:
    rows = []
    for query, each in zip(asked.queries, found.report.queries, strict=True):
        hint = found.hints.get(query.name, "")
        rows.append({**asdict(each), "promql": query.promql, "hint": hint})
    snapshot = found.snapshot
    return {
        "queries": rows,
        "services": _names(found),
        "edges": len(snapshot.edge_src),
        "scrape_s": found.scrape_s,
        "window_s": settings.source.rate_window_s,
        "ahead_s": found.report.ahead_s,
        "gaps": [asdict(gap) for gap in snapshot.gaps],
        "notes": list(found.notes),
    }


def _show(asked: QuerySet, found: Findings, settings: MeshSettings) -> None:
    console, snapshot, report = Console(), found.snapshot, found.report
    table = Table("column", "series", "of the mesh", "ms", "", box=None)
    for query, each in zip(asked.queries, report.queries, strict=True):
        note = found.hints.get(query.name) or each.reason
        if each.outcome == "empty" and query.ceiling_of and not each.reason:
            note = "no latency is above the last bucket"
        name = Text(query.name, _COLOURS.get(each.outcome, "red"))
        numbers = (str(each.series), str(each.matched), f"{1000 * each.duration_s:.0f}")
        table.add_row(name, *numbers, Text(note))
    console.print(table)
    names = _names(found)
    paths = count_of(len(snapshot.edge_src), "call path")
    say(console, f"\n{count_of(len(names), 'service')} ({few(names)}), {paths}")
    if found.scrape_s is not None:
        window = settings.source.rate_window_s
        say(console, f"scraped every {found.scrape_s:.3g} s; window of rates {window:g} s")
    known = {query.name for query in asked.queries}
    for note in (*found.notes, *(gap.reason for gap in snapshot.gaps if gap.what not in known)):
        say(console, note, "yellow")


def _names(found: Findings) -> list[str]:
    return [found.snapshot.roster.name(slot) for slot in found.snapshot.nodes.tolist()]
