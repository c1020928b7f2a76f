"""`hopline replay`: repeat the requests of a prediction log, and compare the answers."""

from __future__ import annotations

import asyncio
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from hopline.commands.connection import ApiKey, Token, UrlOrNone, credentials
from hopline.commands.options import AnySetting, AsJson, ConfigFile, GraphVersion
from hopline.commands.progress import progress_bars
from hopline.commands.screen import Screen, whole
from hopline.commands.serve_flags import resolve_config
from hopline.config.folders import live_folder, needed_folder
from hopline.errors import BadRequest

if TYPE_CHECKING:
    from hopline.config.schema import Config
    from hopline_drift.replay import ReplayReport
    from hopline_drift.targets import Target


#: Requests on other graphs that are shown.
_SHOWN = 10


def replay(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="Folder of the log, or one of its files.")],
    graph: GraphVersion = None,
    repository: Annotated[Path | None, typer.Option(help="Folder of <model>/<version> artifacts.")] = None,
    model: Annotated[str | None, typer.Option(help="Only requests to this model.")] = None,
    version: Annotated[
        str | None, typer.Option(help="Version that answers. Default: the one that answered each request.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Most requests to compare.", min=1)] = None,
    concurrency: Annotated[int, typer.Option(help="Requests in flight.", min=1)] = 32,
    require_identical: Annotated[
        bool, typer.Option("--require-identical", help="Exit with 1 unless all answers are identical.")
    ] = False,
    any_graph: Annotated[
        bool,
        typer.Option("--any-graph", help="Compare also answers on another graph than that of the log."),
    ] = False,
    as_json: AsJson = False,
    url: UrlOrNone = None,
    api_key: ApiKey = None,
    token: Token = None,
    config: ConfigFile = None,
    settings: AnySetting = None,
) -> None:
    """Repeat the requests of a prediction log, and compare the answers bit for bit.

    On a live folder, each answer is repeated on the version of the graph that it was given on.
    Exits with 1 if an answer could not be compared although it should be.
    """
    from hopline.jobs.targets import ServerTarget
    from hopline_drift.log_reader import LogReader

    if url is not None and (graph is not None or repository is not None):
        raise BadRequest("pass --url, or --repository and --graph: a running server has its own models")
    if url is None and not (graph or repository or config or settings):
        url = os.environ.get("HOPLINE_URL") or None
    reader = LogReader(log)
    target: Target
    if url is not None:
        typer.echo(f"replaying on the server at {url}", err=True)
        target = ServerTarget(url, *credentials(api_key, token))
    else:
        overrides = {"graph.path": graph, "models.repository": repository}
        resolved = resolve_config(config, overrides, settings or [])
        needed_folder(resolved, "models.repository")
        target = target_of(resolved)

    async def run() -> ReplayReport:
        from hopline_drift.replay import replay as replayed

        async with target:
            with progress_bars(quiet=as_json) as advance:
                return await replayed(
                    reader,
                    target,
                    model=model,
                    version=version,
                    limit=limit,
                    concurrency=concurrency,
                    any_graph=any_graph,
                    progress=lambda done: advance("replaying", done),
                )

    report = asyncio.run(run())
    if as_json:
        typer.echo(msgspec.json.encode(report))
    else:
        show(report, Screen())
    if not report.is_complete:
        typer.echo(f"error: {incomplete(report)}", err=True)
    if not report.is_complete or (require_identical and not report.all_identical):
        raise typer.Exit(1)


def target_of(config: Config) -> Target:
    """The target for the graph of the settings: all versions of a live folder, one of them, or a graph."""
    from hopline.graph.live.history import is_versions, parse_at
    from hopline_drift.targets import LiveTarget, ServiceTarget

    path = config.graph.path
    if isinstance(path, Path) and is_versions(path):
        return LiveTarget(config, *parse_at(path))
    return LiveTarget(config, live_folder(config)) if config.live.enabled else ServiceTarget(config)


def show(report: ReplayReport, console: Console) -> None:
    """Print a report: comparisons, differences, and skipped requests."""
    table = Table("", "", box=None, show_header=False, pad_edge=False)
    table.columns[1].justify = "right"
    for name, value in _figures(report):
        table.add_row(name, value)
    console.print(table)
    for pair, count in sorted(report.answered_by.items()):
        console.print(f"{pair}: {count:,} requests", style="dim", highlight=False)
    if report.compared > report.identical:
        console.print(_histogram(report))
        worst = Table("request", "model", "difference", title="Most different", title_justify="left")
        for item in report.worst:
            worst.add_row(item.request_id, f"{item.model}/{item.version}", f"{item.largest:.3g}")
        console.print(whole(worst, "request", "model"))
    elif report.is_complete:
        console.print(f"All {report.compared:,} answers are identical, bit for bit.", style="bold green")
    if report.inexact:
        other = Table(
            "request", "model", "graph of the log", "here", title="Not compared", title_justify="left"
        )
        for each in report.inexact[:_SHOWN]:
            other.add_row(
                each.request_id,
                f"{each.model}/{each.version}",
                each.graph_version,
                each.reason or each.replay_graph_version or "none",
            )
        console.print(whole(other, "request", "model"))
        console.print(
            "A live graph has a new version after each batch of events. With --graph FOLDER.live a replay "
            "goes through them. --any-graph compares such answers nevertheless; --json lists all.",
            style="dim",
        )
    for code, example in sorted(report.examples.items()):
        console.print(f"{code}, for example {example}", style="dim", highlight=False, markup=False)


def incomplete(report: ReplayReport) -> str:
    """Message about answers that were not compared although they should be."""
    missing = sum(report.not_compared.values())
    counts = report.not_compared or report.skipped
    reasons = ", ".join(f"{count:,} {why}" for why, count in sorted(counts.items()))
    if missing:
        return (
            f"{missing:,} of {missing + report.compared:,} answers were not compared, so they may differ: "
            f"{reasons}"
        )
    return f"nothing was compared: {reasons or 'the log has no entries'}"


def _figures(report: ReplayReport) -> list[tuple[str, str]]:
    return [
        ("entries read", f"{report.read:,}"),
        ("compared", f"{report.compared:,}"),
        ("identical, bit for bit", f"{report.identical:,}"),
        ("largest difference", f"{report.max_abs_difference:.3g}"),
        *((f"  of {name}", f"{apart:.3g}") for name, apart in sorted(report.by_output.items())),
        ("rows with a different label", f"{report.label_flips:,} of {report.rows:,}"),
        ("rows missing in only one of two", f"{report.missing_changed:,}"),
        *((f"failed: {code}", f"{count:,}") for code, count in sorted(report.errors.items())),
        *((f"skipped: {why}", f"{count:,}") for why, count in sorted(report.skipped.items())),
        *(
            (f"not compared: {why}", f"{count:,}")
            for why, count in sorted(report.not_compared.items())
            if why not in report.errors
        ),
        ("incomplete last lines, invalid lines", f"{report.torn}, {report.bad}"),
        ("seconds", f"{report.seconds:.1f}"),
    ]


def _histogram(report: ReplayReport) -> Table:
    from hopline_drift.replay import BOUNDS

    names = ["same values", *(f"≤ {bound:.0e}" for bound in BOUNDS[1:]), f"> {BOUNDS[-1]:.0e}"]
    table = Table("largest difference", "requests", "", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    most = max(report.histogram)
    for name, count in zip(names, report.histogram, strict=True):
        # by orders of magnitude: one bin usually has nearly all
        length = math.log1p(count) / math.log1p(most)
        table.add_row(name, f"{count:,}", Bar(1.0, 0.0, length, width=40))
    return table
