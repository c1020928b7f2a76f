"""`hopline drift`: create references, and show the drift that a server reports."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hopline.artifact import read_spec
from hopline.client.wire import read_json
from hopline.commands.connection import ApiKey, Token, Url, open_client
from hopline.commands.screen import Screen, whole
from hopline.errors import BadRequest

_STYLES = {"ok": "green", "watch": "yellow", "alert": "bold red"}
_BLOCKS = " ▁▂▃▄▅▆▇█"
_BAR_WIDTH, _HOURS = 10, 24


def overview(report: Any) -> RenderableType:
    """A table with one line for each version."""
    table = Table(title="Drift", title_justify="left")
    for column in ("model", "version", "level", "requests", "largest drift", "psi", ""):
        table.add_column(column, justify="right" if column in ("requests", "psi") else "left")
    for version in report["versions"]:
        most = version["most"] or {"kind": "", "name": "", "excess": 0.0}
        state = version["level"] if version["state"] == "watching" else "collecting"
        table.add_row(
            Text(version["model"]),
            Text(version["version"]),
            Text(state, _STYLES.get(state, "dim")),
            f"{version['window']['requests']:,}"
            if state != "collecting"
            else f"{version['collected_rows']:,}",
            Text(f"{most['kind']} {most['name']}".strip()),
            f"{most['excess']:.3f}" if version["most"] else "",
            bar(most["excess"], report["thresholds"]) if version["most"] else "",
        )
    return whole(table, "model", "version")


def version_screen(version: Any, thresholds: Any, rows: int) -> RenderableType:
    """The details of one version."""
    parts: list[RenderableType] = [_quantities(version, thresholds, rows)]
    if version["hours"]:
        parts.append(_hours(version["hours"][-_HOURS:]))
    return Group(*parts)


def bar(excess: float, thresholds: Any) -> Text:
    """The index as a bar that is full at twice the alert threshold, coloured by level."""
    share = min(1.0, excess / (2 * thresholds["alert"])) if thresholds["alert"] else 1.0
    level = "alert" if excess > thresholds["alert"] else "watch" if excess > thresholds["watch"] else "ok"
    full = round(share * _BAR_WIDTH)
    return Text("█" * full, _STYLES[level]).append("·" * (_BAR_WIDTH - full), "dim")


def sparkline(shares: list[float]) -> str:
    """One block for each share; the largest one is a full block."""
    top = max(shares, default=0.0) or 1.0
    return "".join(_BLOCKS[max(share > 0, round(share / top * (len(_BLOCKS) - 1)))] for share in shares)


def _quantities(version: Any, thresholds: Any, rows: int) -> RenderableType:
    name = f"{version['model']}/{version['version']}"
    reference = version["reference"]
    if reference is None:
        return Text(f"{name}: collecting a reference, {version['collected_rows']:,} rows so far")
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(reference["made"]))
    title = (
        f"{name}: {version['level']}, {version['window']['requests']:,} requests against "
        f"{reference['requests']:,} of {reference['source']}, {made}"
    )
    table = Table(title=Text(title), title_justify="left")
    for column in ("kind", "name", "level", "psi", "", "largest change", "was", "is"):
        table.add_column(column, justify="right" if column in ("psi", "was", "is") else "left")
    for each in version["quantities"][:rows]:
        at = each["bins"].index(each["bin"]) if each["bin"] else None
        table.add_row(
            each["kind"],
            Text(each["name"]),
            Text(each["level"], _STYLES[each["level"]]),
            f"{each['excess']:.3f}",
            bar(each["excess"], thresholds),
            Text(each["bin"]),
            "" if at is None else f"{each['reference_shares'][at]:.1%}",
            "" if at is None else f"{each['shares'][at]:.1%}",
        )
    hidden = len(version["quantities"]) - rows
    if hidden > 0:
        table.caption = f"{hidden} more with less drift"
    return whole(table, "kind", "name")


def _hours(hours: list[Any]) -> RenderableType:
    table = Table(title="Scores by the hour", title_justify="left")
    for column in ("hour", "requests", "mean", "from low to high"):
        table.add_column(column, justify="right" if column in ("requests", "mean") else "left")
    for hour in hours:
        table.add_row(
            time.strftime("%a %H:00", time.localtime(hour["start"])),
            f"{hour['requests']:,}",
            "" if hour["mean"] is None else f"{hour['mean']:.3f}",
            sparkline(hour["shares"][:-1]),  # without the bin of missing values
        )
    return table


app = typer.Typer(help="Compare requests and answers with a reference.", no_args_is_help=True)


@app.command()
def reference(
    out: Annotated[
        Path,
        typer.Option(help="File to write; a server reads <drift.path>/<model>/<version>/reference.json."),
    ],
    log: Annotated[Path | None, typer.Option(help="Prediction log to read: folder or file.")] = None,
    table: Annotated[
        Path | None, typer.Option(help="Training rows to read: CSV with a header, or Parquet.")
    ] = None,
    graph: Annotated[
        Path | None,
        typer.Option(help="Graph folder to read: its nodes, or with --log the nodes of the log."),
    ] = None,
    artifact: Annotated[
        Path | None, typer.Option(help="<repository>/<model>/<version> of the model that reads --graph.")
    ] = None,
    model: Annotated[str, typer.Option(help="With --log: model whose answers are read.")] = "",
    version: Annotated[
        str, typer.Option(help="With --log: version whose answers are read. Default: the last one.")
    ] = "",
    score: Annotated[str | None, typer.Option(help="With --table: column with the model's scores.")] = None,
    label: Annotated[str | None, typer.Option(help="With --table: column with its labels.")] = None,
    rows: Annotated[int, typer.Option(help="Rows or requests to sample.", min=50)] = 20_000,
    max_columns: Annotated[int, typer.Option(help="As the setting drift.max_columns.", min=0)] = 32,
    column: Annotated[
        list[str] | None, typer.Option(help="As the setting drift.columns; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample.", min=0)] = 0,
) -> None:
    """Write the reference with which later traffic is compared."""
    from hopline.engine.encoders import encoder_of
    from hopline.engine.schema import fitted
    from hopline.graph import Graph
    from hopline_drift import training
    from hopline_drift.reference import write_reference
    from hopline_drift.structure import Packaged

    if (graph is None) != (artifact is None):
        raise BadRequest("--graph and --artifact go together: the model names what it reads of the graph")
    choice = training.Choice(rows, seed, max_columns, tuple(column or ()))
    around = None
    if graph is not None and artifact is not None:
        spec = read_spec(artifact, verify=False)
        encoders = {name: encoder_of(artifact, spec, name) for name in spec.encoders}
        around = Packaged(spec, fitted(artifact, spec, Graph.open(graph)), encoders)
    if log is not None and table is None:
        name = model or (around.spec.name if around is not None else "")
        if not name:
            raise BadRequest("--model: name the model whose answers are read from the log")
        made = training.from_log(log, name, version, choice, time.time(), around)
    elif table is not None and log is None and around is None:
        made = training.from_table(table, choice, time.time(), score, label)
    elif around is not None and table is None:
        made = training.from_graph(around, choice, time.time())
    else:
        raise BadRequest("pass one source: --log, --table, or --graph with --artifact")
    try:
        write_reference(out, made)
    except OSError as error:
        raise BadRequest(f"--out: {out} cannot be written: {error.strerror}") from None
    also = "" if made.is_complete else "; a server adds the answers later"
    Screen().print(
        f"{escape(str(out))}: {len(made.entries)} quantities of {made.num_requests} rows, "
        f"from {escape(made.source)}{also}"
    )


@app.command()
def show(
    model: Annotated[
        str | None, typer.Argument(help="Model to show in detail.", show_default="all, as a summary")
    ] = None,
    url: Url = None,
    rows: Annotated[int, typer.Option(help="Quantities to show, largest drift first.", min=1)] = 20,
    api_key: ApiKey = None,
    token: Token = None,
) -> None:
    """Show drift and hourly scores. Exits with 2 if a quantity is at alert."""
    path = "/v1/drift" if model is None else f"/v1/drift/{quote(model, safe='')}"
    with open_client(url, api_key, token) as client:
        report = read_json(client.send("GET", path))
    console = Screen()
    if model is None:
        console.print(overview(report))
    for version in report["versions"] if model is not None else ():
        console.print(version_screen(version, report["thresholds"], rows))
    if any(version["level"] == "alert" for version in report["versions"]):
        raise typer.Exit(2)
