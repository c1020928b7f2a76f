"""`hopline rollout`: move requests to another version in steps, watch it, roll back."""

from __future__ import annotations

import math
import time
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hopline.client.admin import Admin
from hopline.commands.connection import ApiKey, Token, Url, open_admin
from hopline.commands.options import pair
from hopline.commands.screen import Screen
from hopline.errors import BadRequest

app = typer.Typer(no_args_is_help=True, help="Canary, blue/green, shadow and A/B rollouts of versions.")

Model = Annotated[str, typer.Argument(help="Model name.")]
Reason = Annotated[str, typer.Option(help="Reason to record with the change.")]

_COLOURS = {
    "running": "cyan",
    "paused": "yellow",
    "promoted": "green",
    "rolled_back": "red",
    "ended": "dim",
}
_PAUSE_S = 0.5


@app.command()
def start(
    model: Model,
    version: Annotated[
        str | None,
        typer.Argument(
            help="The candidate: a version of the repository. Default, with --graph: the one that serves."
        ),
    ] = None,
    kind: Annotated[str, typer.Option(help="Kind: canary, blue_green, shadow or ab.")] = "canary",
    steps: Annotated[
        str | None, typer.Option(help="Percent of requests for each step, such as 5,25,50,100.")
    ] = None,
    min_step_s: Annotated[float, typer.Option(help="Shortest duration of each step, in seconds.")] = 60.0,
    share: Annotated[float, typer.Option(help="Percent of requests that are copied to a shadow.")] = 100.0,
    graph: Annotated[
        str, typer.Option(help="Graph snapshot of the candidate: a folder on the server, or an address.")
    ] = "",
    gate: Annotated[
        list[str] | None, typer.Option(help="Gate, such as max_p99_ratio=1.2; repeatable.")
    ] = None,
    preflight: Annotated[
        int,
        typer.Option(help="Copies of requests that the candidate must answer before it serves any caller."),
    ] = 100,
    max_wait_s: Annotated[
        float, typer.Option(help="Seconds after which a step that still lacks requests is rolled back.")
    ] = 86_400.0,
    auto: Annotated[
        bool, typer.Option(help="Advance automatically; gates always roll back automatically.")
    ] = True,
    watch: Annotated[bool, typer.Option(help="Show progress until the rollout ends.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
    token: Token = None,
) -> None:
    """Start a rollout."""
    options: dict[str, Any] = {
        "min_step_s": min_step_s,
        "share": share,
        "auto": auto,
        "preflight": preflight,
        "max_wait_s": max_wait_s,
    }
    if graph:
        options["graph"] = graph
    if steps is not None:
        options["steps"] = [_number(part, "--steps") for part in steps.split(",")]
    if gate:
        options["gates"] = dict(_gate(item) for item in gate)
    if version is None and not graph:
        raise BadRequest("name the version to roll out, or a snapshot of the graph with --graph")
    with open_admin(url, api_key, token) as admin:
        admin.begin_rollout(model, version or _serving(admin, model), kind, **options)
        if watch:
            raise typer.Exit(_watch(admin, model))
        Screen().print(_panel(admin.rollout(model)))


@app.command()
def status(
    model: Annotated[str | None, typer.Argument(help="Model name. Default: all.")] = None,
    watch: Annotated[bool, typer.Option(help="Show progress until the rollout ends.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
    token: Token = None,
) -> None:
    """Show versions, the current rollout and the measurements of both versions."""
    with open_admin(url, api_key, token) as admin:
        if watch:
            if model is None:
                raise BadRequest("--watch needs the name of a model")
            raise typer.Exit(_watch(admin, model))
        for found in admin.rollouts() if model is None else [admin.rollout(model)]:
            Screen().print(_panel(found))


def _add_decision(verb: str, text: str) -> None:
    @app.command(verb, help=text)
    def decide(
        model: Model, reason: Reason = "", url: Url = None, api_key: ApiKey = None, token: Token = None
    ) -> None:
        with open_admin(url, api_key, token) as admin:
            before = admin.rollout(model)
            found = admin.decide(model, verb, reason)
            if before["rollout"] is None and found["serving"] != before["serving"]:
                # A load was rolled back: the results of earlier rollouts are not the result of this.
                Screen().print(f"  rolled back from {before['serving']} to {found['serving']}")
                found = {**found, "past": []}
            Screen().print(_panel(found))


for _verb, _text in {
    "promote": "Make the candidate the serving version.",
    "rollback": "Return to the version that served before; it is still loaded.",
    "pause": "Pause at this step; gates still roll back.",
    "resume": "Resume from this step.",
    "advance": "Advance to the next step now.",
    "end": "End a shadow or an A/B test; the serving version does not change.",
}.items():
    _add_decision(_verb, _text)


def _serving(admin: Admin, model: str) -> str:
    """The version of the unit that serves, without its snapshot's mark."""
    found = admin.rollout(model)
    versions = [unit["version"] for unit in found["units"] if unit["id"] == found["serving"]]
    if not versions:
        raise BadRequest(f"{model} serves no version; name the one to roll out")
    return str(versions[0])


def _watch(admin: Admin, model: str) -> int:
    """Show a rollout until it ends; return the exit code, 0 unless it was rolled back."""
    with Live(console=Console(), refresh_per_second=4) as live:
        while True:
            found = admin.rollout(model)
            live.update(_panel(found))
            if found["rollout"] is None:
                break
            time.sleep(_PAUSE_S)
    return 1 if found["past"] and found["past"][0]["status"] == "rolled_back" else 0


def _panel(found: dict[str, Any]) -> Group:
    """Lines to show of one model."""
    units = ", ".join(unit["id"] for unit in found["units"]) or "nothing"
    parts: list[Any] = [
        Text.from_markup(
            f"[bold]{found['model']}[/bold]  serves {found['serving'] or '–'}; loaded: {units}"
        )
    ]
    store = found.get("store")
    if store is not None and not store["up"]:
        parts.append(
            Text(
                f"  the fleet's state is not confirmed for {store['silent_s']:.0f} s: no answer of "
                f"{store['address']} ({store['why']})",
                style="red",
            )
        )
    for unit, what in (store or {}).get("differing", {}).items():
        if unit.startswith(f"{found['model']}/"):
            parts.append(Text(f"  {unit} is not the same in all workers: {what}", style="red"))
    rollout = found["rollout"]
    if rollout is not None:
        parts += _running(rollout)
    for past in found["past"][:3]:
        colour = _COLOURS[past["status"]]
        parts.append(
            Text.assemble(
                f"  {_time(past['started'])}  {past['kind']} of {past['candidate']}: ",
                (past["status"].replace("_", " "), colour),
                f"  {past['reason']}",
            )
        )
    return Group(*parts)


def _running(rollout: dict[str, Any]) -> list[Any]:
    colour = _COLOURS[rollout["status"]]
    head = Text.assemble(
        "  ",
        (rollout["status"], colour),
        f": {rollout['kind']} of {rollout['candidate']} against {rollout['current']}, "
        f"{rollout['percent']:g} % of requests",
    )
    parts: list[Any] = [head, ProgressBar(total=100, completed=rollout["percent"], width=50)]
    if "seen" in rollout:
        table = Table(box=None, padding=(0, 2))
        for name in ("", "requests", "errors", "p99 ms", "compared", "refused", "differ", "rows"):
            table.add_column(name, justify="right" if name else "left", no_wrap=not name)
        for side in ("current", "candidate"):
            seen = rollout["seen"][side]
            p99 = "–" if seen["p99_ms"] is None else f"{seen['p99_ms']:.2f}"
            names = ("requests", "errors", "compared", "refused", "differing", "rows")
            counts = [f"{seen[name]:,}" for name in names]
            table.add_row(f"{side} {rollout[side]}", *counts[:2], p99, *counts[2:])
        until = rollout["waits_until"]
        ends = "" if until is None else f"; rolled back at {_time(until)} without them"
        parts += [table, Text(f"  {rollout['verdict']}: {rollout['why']}{ends}")]
    parts += [Text(f"  {_time(event['time'])}  {event['text']}") for event in rollout["events"][-5:]]
    return parts


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _gate(item: str) -> tuple[str, float | int]:
    name, value = pair(item, "--gate", "NAME=NUMBER, such as max_p99_ratio=1.2")
    number = _number(value, f"--gate {name}")
    return name, int(number) if number.is_integer() else number


def _number(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadRequest(f"{what}: {text!r} is not a number")
    return number
