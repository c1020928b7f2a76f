"""`hopline mesh evaluate`: evaluate detectors on a recorded mesh."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hopline.errors import BadRequest
from hopline_mesh.commands.flags import bars, read_period

if TYPE_CHECKING:
    from hopline_mesh.evaluate import Recording
    from hopline_mesh.evaluate.report import Judged, Report
    from hopline_mesh.incident import Verdict


logger = logging.getLogger("hopline_mesh")

#: Maximum number of labels that are named.
_NAMED = 5


def evaluate(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder with the recording: nodes, edges and labels.")
    ],
    detector: Annotated[
        str,
        typer.Option(
            help="watch, none, static, percentile, sigma, maximum, robust, isolation_forest or pca; "
            "several separated by commas; ablation: the first two; or all."
        ),
    ] = "ablation",
    learn_from: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Learn from this folder, without its labelled events, and judge all of the other one.",
            show_default=False,
        ),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            metavar="A..B",
            help="Training period; all other time is the test. Unix seconds or ISO-8601.",
            show_default=False,
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(help="Seconds after an event's end in which an incident still counts as detection."),
    ] = 120.0,
    min_duration: Annotated[
        float, typer.Option(help="Seconds that a deviation must last, for every detector.", min=0.0)
    ] = 80.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write the report and plots of the anomaly scores to this folder.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train detectors on a recorded mesh, and compare their incidents with its labelled events."""
    from hopline_mesh.evaluate.folder import read_folder
    from hopline_mesh.evaluate.report import ABLATION, DETECTORS, Failed, Report, write_report

    groups = {"all": DETECTORS, "ablation": ABLATION}
    names = [each for name in detector.split(",") if name for each in groups.get(name, (name,))]
    names = list(dict.fromkeys(names))
    if not names or set(names) - set(DETECTORS):
        unknown = ", ".join(sorted(set(names) - set(DETECTORS))) or repr(detector)
        choices = ", ".join((*DETECTORS, *groups))
        raise BadRequest(f"--detector {unknown}: unknown; choose from {choices}")
    if learn_from is not None and train is not None:
        raise BadRequest("--learn-from and --train exclude each other: both name the training")
    if grace < 0:
        raise BadRequest(f"--grace {grace:g}: must be at least 0")
    if report is not None and report.exists() and not report.is_dir():
        raise BadRequest(f"--report {report}: is a file; give a folder")
    recording = read_folder(folder)
    if train is not None:
        recording = _trained_on(recording, train)
    if learn_from is not None:
        from hopline_mesh.evaluate.elsewhere import learned_elsewhere

        recording = learned_elsewhere(read_folder(learn_from), recording)
    judged_or_learned = (*recording.train, *recording.test)
    outside = [
        event for event in recording.events if not any(event.start_s in each for each in judged_or_learned)
    ]
    recording = recording.in_playing_order()
    verdicts: dict[str, list[Verdict]] = {}
    found, failed = [], []
    with bars(quiet=as_json) as advance:
        for name in names:
            try:
                verdicts[name], judged = _judge(name, recording, grace, min_duration, advance)
            except Exception as error:  # the results of the other detectors must not be lost
                logger.debug("%s failed", name, exc_info=True)
                failed.append(Failed(name, f"{type(error).__name__}: {error}"))
            else:
                found.append(judged)
    result = Report(
        name=recording.name,
        train=recording.train,
        test=recording.test,
        snapshots=(len(recording.training()[0]), len(recording.testing()[0])),
        events_in_training=sum(
            any(event.start_s in period for period in recording.train) for event in recording.events
        ),
        events_outside=tuple(outside),
        interval_s=recording.interval_s,
        grace_s=grace,
        min_duration_s=min_duration,
        detectors=tuple(found),
        failed=tuple(failed),
    )
    if report is not None:
        write_report(result, recording, verdicts, report)
    if as_json:
        typer.echo(msgspec.json.encode(result))
    else:
        show(result, Console())
    if failed:
        raise typer.Exit(1)


def show(report: Report, console: Console) -> None:
    """Print a report: one line for each detector, then each one's kinds of events."""
    from hopline_mesh.evaluate.times import clock, plain

    judged = f"{report.snapshots[0]:,} snapshots to learn from, {report.snapshots[1]:,} to judge"
    console.print(Text(f"{plain(report.name)}: {judged}, {report.interval_s:g} s each"))
    if report.events_in_training:
        console.print(
            f"{report.events_in_training} events begin in the training: detectors may learn them as normal",
            style="yellow",
            highlight=False,
        )
    for event in report.events_outside[:_NAMED]:
        where = plain(event.service if event.path is None else " → ".join(event.path))
        text = (
            f"outside of the recording, not counted: {plain(event.kind)} {where} at {clock(event.start_s)}"
        )
        console.print(Text(text, "yellow"), soft_wrap=True)
    if more := len(report.events_outside[_NAMED:]):
        console.print(f"and {more} more labels outside of the recording", style="yellow", highlight=False)
    table = Table(
        "detector",
        "found",
        "false",
        "an hour",
        "minutes",
        "cause first",
        "in three",
        "fit s",
        "step ms",
        box=None,
        collapse_padding=True,
    )
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for one in report.detectors:
        scores = one.scores
        table.add_row(
            one.detector,
            f"{scores.found}/{scores.events}",
            str(scores.false_episodes),
            _number(scores.false_per_hour, ".2f"),
            _number(scores.minutes_to_detect, ".1f"),
            _number(scores.root_cause_top1, ".0%"),
            _number(scores.root_cause_top3, ".0%"),
            f"{one.fit_s:.1f}",
            f"{one.step_ms:.2f}",
        )
    if report.detectors:
        console.print(table)
    for each in report.failed:
        console.print(Text(f"{each.detector} failed: {plain(each.reason)}", "red"), soft_wrap=True)
    if text := _ablation(report):
        console.print(Text(text), soft_wrap=True)
    for one in report.detectors:
        if one.unjudged:
            console.print(
                f"{one.detector} did not judge {one.unjudged} intervals: learning, or too few measurements",
                style="yellow",
                highlight=False,
            )
    for one in report.detectors:
        if not one.scores.by_kind:
            continue
        kinds = Table(f"{one.detector}: kind", "found", "minutes", "cause first", "in three", box=None)
        for column in kinds.columns[1:]:
            column.justify = "right"
        for kind in one.scores.by_kind:
            kinds.add_row(
                Text(plain(kind.kind) or "–"),
                f"{kind.found}/{kind.events}",
                _number(kind.minutes_to_detect, ".1f"),
                _number(kind.root_cause_top1, ".0%"),
                _number(kind.root_cause_top3, ".0%"),
            )
        console.print()
        console.print(kinds)


def _ablation(report: Report) -> str:
    """Return what the regression on neighbours adds, in words; "" if one of the two is missing."""
    scores = {one.detector: one.scores for one in report.detectors}
    if "none" not in scores or "watch" not in scores:
        return ""
    both, none = scores["watch"], scores["none"]
    return (
        f"the regression on neighbours changes: found {both.found - none.found:+d} of {none.events}, "
        f"false {both.false_episodes - none.false_episodes:+d}"
    )


def _judge(
    name: str,
    recording: Recording,
    grace: float,
    min_duration: float,
    advance: Callable[[str, float, float | None], None],
) -> tuple[list[Verdict], Judged]:
    from hopline_mesh.evaluate.report import Judged, detector
    from hopline_mesh.evaluate.run import judge

    advance(name, 0.0, None)  # the time of the training is unknown
    done = judge(
        detector(name, recording, min_duration),
        recording,
        progress=lambda share: advance(name, share, 1.0),
    )
    scores = done.score(recording, grace_s=grace)
    unjudged = sum(verdict.state in ("learning", "blind") for verdict in done.verdicts)
    return done.verdicts, Judged(name, scores, round(done.fit_s, 3), round(done.step_ms, 4), unjudged)


def _trained_on(recording: Recording, text: str) -> Recording:
    """Return the recording with this training period, and all other time as its test period."""
    from hopline_mesh.evaluate.recording import Period, without
    from hopline_mesh.evaluate.times import clock

    train = read_period(text, "--train")
    times = [snapshot.time_s for snapshot in recording.snapshots]
    whole = Period(times[0], times[-1] + max(recording.interval_s, 1.0))
    test = without(whole, [train])
    for what, inside in (
        ("no snapshot is in this period", any(moment in train for moment in times)),
        ("no snapshot is left for the test", any(moment in period for moment in times for period in test)),
    ):
        if not inside:
            raise BadRequest(
                f"--train {text}: {what}; the recording is from {clock(times[0])} to {clock(times[-1])}"
            )
    return replace(recording, train=(train,), test=test)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
