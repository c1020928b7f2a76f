"""`hopline mesh train`: learn the baseline before the first watch."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from hopline.errors import BadRequest
from hopline_mesh.commands.flags import (
    AnySetting,
    MeshKind,
    PrometheusUrl,
    QueryFile,
    SettingsFile,
    bars,
    count_of,
    few,
    numbers_table,
    read_period,
    resolve_settings,
    say,
)

if TYPE_CHECKING:
    from hopline_mesh.settings import MeshSettings
    from hopline_mesh.state import Seen
    from hopline_mesh.watch.learned import Learned

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")
#: Maximum number of names that a message lists.
_NAMED = 5


def train(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="Learn from the training period of this recording."),
    ] = None,
    from_prometheus: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Learn from the last TIME of Prometheus, such as 24h or 7d."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--except",
            metavar="A..B",
            help="Leave out the time from A to B: Unix seconds or ISO-8601; repeatable.",
        ),
    ] = None,
    prometheus: PrometheusUrl = None,
    mesh: MeshKind = None,
    query_file: QueryFile = None,
    interval: Annotated[
        float | None, typer.Option(help="Seconds between snapshots, equal to those of the watch.")
    ] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Folder of the watch's saved state.")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Delete the state in the state folder first.")
    ] = False,
    config: SettingsFile = None,
    settings: AnySetting = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Learn the baseline of a mesh, so that the next watch judges from its first snapshot."""
    if (folder is None) == (from_prometheus is None):
        raise BadRequest("give either a folder or --from-prometheus with a time, such as 24h")
    flags = {
        "prometheus_url": prometheus,
        "mesh": mesh,
        "query_file": query_file,
        "interval_s": interval,
        "state_dir": state_dir,
    }
    resolved = resolve_settings(config, flags, settings)
    span_s = None if from_prometheus is None else _seconds(from_prometheus)
    excepted = [read_period(each, "--except") for each in without or []]
    from hopline_mesh.watch.learn import learn, target_folder

    with target_folder(resolved, replace=replace) as target, bars(quiet=as_json) as advance:
        if folder is not None:
            source, seen, notes = _recorded(folder, resolved)
        else:
            assert span_s is not None
            source, seen, notes = _of_prometheus(resolved, span_s, advance)
        advance("Learning", 0, None)
        learned = learn(seen, resolved, target, source=source, without=excepted, notes=notes)
    if as_json:
        typer.echo(msgspec.json.encode(learned))
    else:
        show(learned, Console())


def show(learned: Learned, console: Console) -> None:
    """Print the result of a training: one line for each column."""
    from hopline_mesh.evaluate.times import clock

    say(console, f"{learned.source}: {clock(learned.since_s)} to {clock(learned.until_s)} UTC")
    intervals = f"{count_of(learned.intervals, 'interval')} of {learned.interval_s:g} s"
    services, paths = count_of(learned.services, "service"), count_of(learned.call_paths, "call path")
    say(console, ", ".join((intervals, services, paths)))
    table = numbers_table("column", "learned", "left out", "threshold", "false alarms a day")
    for each in learned.columns:
        alarms = f"{each.false_alarms_per_day:.2f}" if each.series else "–"
        table.add_row(
            Text(each.name), str(each.series), str(each.left_out), f"{each.threshold:.1f}", alarms
        )
    console.print(table)
    hours = learned.intervals * learned.interval_s / 3600
    if learned.false_alarms_per_day >= 0.01:
        alarms = f"about {learned.false_alarms_per_day:.2g} false alarms a day are expected"
    else:
        alarms = "almost no deviation came near a threshold"
    say(console, f"from {hours:.1f} hours: {alarms}; the limit is {learned.calibrated_to:g} a day")
    warnings = []
    if learned.not_measured:
        warnings.append(f"{count_of(learned.not_measured, 'interval')} left out: without any measurement")
    if learned.excepted:
        warnings.append(f"{count_of(learned.excepted, 'interval')} left out: by --except")
    warnings += [f"left out as abnormal: {out.text()}" for out in learned.abnormal[:_NAMED]]
    if more := len(learned.abnormal[_NAMED:]):
        warnings.append(f"and {more} more abnormal times")
    if rare := learned.rare_services:
        warnings.append(f"too few measurements to learn from: {few(rare)}")
    for warning in (*warnings, *learned.notes):
        say(console, warning, "yellow")
    say(console, f"saved in {learned.state_dir}: the next watch with the same settings starts with it")


def _recorded(folder: Path, settings: MeshSettings) -> tuple[str, list[Seen], list[str]]:
    from hopline_mesh.evaluate.folder import read_folder
    from hopline_mesh.watch.learn_from import of_recording
    from hopline_mesh.watch.parts import queries_of

    recording = read_folder(folder)
    seen = of_recording(recording, settings, queries_of(settings).schema(), time.time())
    moved_s = recording.training()[0][0].time_s - seen[0].snapshot.time_s
    notes = [f"its times are in the future: moved back by {moved_s / 86_400:.0f} days"] if moved_s else []
    return str(folder), seen, notes


def _of_prometheus(
    settings: MeshSettings, span_s: float, advance: Callable[[str, float, float | None], None]
) -> tuple[str, list[Seen], list[str]]:
    from hopline_mesh.watch.learn_from import of_prometheus

    now_s = time.time()
    seen, notes = asyncio.run(
        of_prometheus(
            settings, now_s - span_s, now_s, lambda done, total: advance("Querying Prometheus", done, total)
        )
    )
    return f"Prometheus at {settings.source.prometheus_url}", seen, notes


def _seconds(text: str) -> float:
    found = _SPAN.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= 366 * 86_400:
        raise BadRequest(f"--from-prometheus {text}: must be a time such as 90m, 24h or 7d, at most a year")
    return seconds
