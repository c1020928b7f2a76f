"""`hopline mesh evaluate`: evaluate detectors on a recorded mesh."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from hopline.errors import BadRequest, HoplineError
from hopline_mesh.commands.flags import bars, count_of, numbers_table, read_period, say

if TYPE_CHECKING:
    from hopline_mesh.evaluate import Recording
    from hopline_mesh.evaluate.report import Report
    from hopline_mesh.evaluate.scores import Counts
    from hopline_mesh.incident import Verdict

logger = logging.getLogger("hopline_mesh")

#: A recording with a shorter interval is averaged to `_AVERAGED_S`, the interval of the watch: the detector
#: counts its window and how long a deviation lasts in intervals.
_FINE_S, _AVERAGED_S = 10.0, 15.0
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
        ),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            metavar="A..B", help="Training period; all other time is the test. Unix seconds or ISO-8601."
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(help="Seconds after an event's end in which an incident still counts as detection."),
    ] = 120.0,
    min_duration: Annotated[
        float, typer.Option(help="Seconds that a deviation must last, for every detector.", min=0.0)
    ] = 80.0,
    interval: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Average to this interval. Default: 15 if the recording's own is below 10, else its own.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write the report and plots of the anomaly scores to this folder."
        ),
    ] = None,
) -> None:
    """Train detectors on a recorded mesh, and compare their incidents with its labelled events."""
    from hopline_mesh.evaluate.folder import read_folder
    from hopline_mesh.evaluate.recording import within
    from hopline_mesh.evaluate.report import (
        ABLATION,
        DETECTORS,
        Failed,
        Judged,
        NotCounted,
        Report,
        write_report,
    )
    from hopline_mesh.evaluate.report import detector as detector_of
    from hopline_mesh.evaluate.run import judge

    groups = {"all": DETECTORS, "ablation": ABLATION}
    names = [each for name in detector.split(",") if name for each in groups.get(name, (name,))]
    names = list(dict.fromkeys(names))
    if not names or set(names) - set(DETECTORS):
        unknown = ", ".join(sorted(set(names) - set(DETECTORS))) or repr(detector)
        choices = ", ".join((*DETECTORS, *groups))
        raise BadRequest(f"--detector {unknown}: unknown; choose from {choices}")
    if learn_from is not None and train is not None:
        raise BadRequest("--learn-from and --train exclude each other: both name the training")
    if not 0 <= grace < math.inf:
        raise BadRequest(f"--grace {grace:g}: must be a number of seconds, at least 0")
    if report is not None and report.exists() and not report.is_dir():
        raise BadRequest(f"--report {report}: is a file; give a folder")
    recording = read_folder(folder)
    recorded_interval_s = recording.interval_s
    if interval is None:
        interval = _AVERAGED_S if 0 < recorded_interval_s < _FINE_S else recorded_interval_s
    if not 0.95 * recorded_interval_s <= interval < math.inf:
        raise BadRequest(
            f"--interval {interval:g}: {folder} was recorded every {recorded_interval_s:g} s; "
            "give that or more"
        )
    recording = _averaged(recording, interval)
    _check_min_duration(min_duration, interval)
    if train is not None:
        recording = _trained_on(recording, train)
    if learn_from is not None:
        from hopline_mesh.evaluate.elsewhere import learned_elsewhere

        if learn_from.resolve() == folder.resolve():
            raise BadRequest(f"--learn-from {learn_from}: is the judged recording; give another one")
        learned = read_folder(learn_from)
        if learned.interval_s < interval:
            learned = learned.averaged(interval)
        recording = learned_elsewhere(learned, recording)
    recording.check_measured()
    if report is not None:
        with _errors_name(report):  # before the judgement, which may take hours
            report.mkdir(parents=True, exist_ok=True)
    outside = [
        NotCounted(**msgspec.structs.asdict(event), reason=reason)
        for event in recording.events
        if (reason := recording.why_not_counted(event))
    ]
    recording = recording.in_playing_order()
    verdicts: dict[str, list[Verdict]] = {}
    found, failed = [], []
    with bars(quiet=as_json) as advance:
        for name in names:
            advance(name, 0.0, None)  # the time of the training is unknown
            try:
                made = detector_of(name, recording, min_duration)
                done = judge(made, recording, progress=functools.partial(advance, name))
                scores = done.score(recording, grace_s=grace)
            except Exception as error:  # the results of the other detectors must not be lost
                logger.debug("%s failed", name, exc_info=True)
                failed.append(Failed(name, _reason(error)))
                continue
            verdicts[name] = done.verdicts
            unjudged = sum(verdict.state in ("learning", "blind") for verdict in done.verdicts)
            found.append(Judged(name, scores, round(done.fit_s, 3), round(done.step_ms, 4), unjudged))
    result = Report(
        name=recording.name,
        train=recording.train,
        test=recording.test,
        snapshots=(len(recording.training()[0]), len(recording.testing()[0])),
        events_in_training=sum(within(event.start_s, recording.train) for event in recording.events),
        events_outside=tuple(outside),
        interval_s=recording.interval_s,
        recorded_interval_s=recorded_interval_s,
        notes=recording.notes,
        grace_s=grace,
        min_duration_s=min_duration,
        detectors=tuple(found),
        failed=tuple(failed),
    )
    if as_json:
        typer.echo(msgspec.json.encode(result))
    else:
        show(result, Console())
    if report is not None:
        with _errors_name(report):
            write_report(result, recording, verdicts, report)
    if failed:
        raise typer.Exit(1)


@contextlib.contextmanager
def _errors_name(folder: Path) -> Iterator[None]:
    """Report errors of the disk as errors of the option."""
    try:
        yield
    except OSError as error:
        raise BadRequest(f"--report {folder} cannot be written: {error}") from error


def show(report: Report, console: Console) -> None:
    """Print a report: one line for each detector, then each one's kinds of events."""
    from hopline_mesh.evaluate.times import clock, plain

    judged = f"{count_of(report.snapshots[0], 'snapshot')} to learn from, {report.snapshots[1]:,} to judge"
    each_s = f"{report.interval_s:g} s each"
    if not math.isclose(report.interval_s, report.recorded_interval_s, rel_tol=1e-6):
        each_s += f" (averages; it was recorded every {report.recorded_interval_s:g} s)"
    say(console, f"{plain(report.name)}: {judged}, {each_s}")
    warnings = [plain(note) for note in report.notes]
    if number := report.events_in_training:
        warnings.append(f"{count_of(number, 'event')} in the training: detectors may learn them as normal")
    for event in report.events_outside[:_NAMED]:
        where = plain(event.service if event.path is None else " → ".join(event.path))
        what = f"{plain(event.kind)} {where} at {clock(event.start_s)}"
        warnings.append(f"{event.reason}, not counted: {what}")
    if more := len(report.events_outside[_NAMED:]):
        warnings.append(f"and {count_of(more, 'more label')}, not counted")
    for text in warnings:
        say(console, text, "yellow")
    table = numbers_table(
        "detector", "found", "false", "an hour", "minutes", "cause first", "in three", "fit s", "step ms"
    )
    table.collapse_padding = table.columns[0].no_wrap = True
    for one in report.detectors:
        scores = one.scores
        found, *shares = _cells(scores)
        false = str(scores.false_episodes), _number(scores.false_per_hour, ".2f")
        table.add_row(one.detector, found, *false, *shares, f"{one.fit_s:.1f}", f"{one.step_ms:.2f}")
    if report.detectors:
        console.print(table)
    for each in report.failed:
        say(console, f"{each.detector} failed: {plain(each.reason)}", "red")
    by_name = {one.detector: one.scores for one in report.detectors}
    if "watch" in by_name and "none" in by_name:
        both, none = by_name["watch"], by_name["none"]
        more_found = f"found {both.found - none.found:+d} of {none.events}"
        more_false = f"false {both.false_episodes - none.false_episodes:+d}"
        say(console, f"the regression on neighbours changes: {more_found}, {more_false}")
    for one in report.detectors:
        if one.unjudged:
            unjudged, reason = count_of(one.unjudged, "interval"), "learning, or too few measurements"
            say(
                console,
                f"{one.detector} did not judge {unjudged}: {reason}",
                "yellow",
            )
    for one in report.detectors:
        if one.scores.by_kind:
            kinds = numbers_table(f"{one.detector}: kind", "found", "minutes", "cause first", "in three")
            for kind in one.scores.by_kind:
                kinds.add_row(Text(plain(kind.kind) or "–"), *_cells(kind))
            console.print()
            console.print(kinds)


def _cells(counts: Counts) -> list[str]:
    return [
        f"{counts.found}/{counts.events}",
        _number(counts.minutes_to_detect, ".1f"),
        _number(counts.root_cause_top1, ".0%"),
        _number(counts.root_cause_top3, ".0%"),
    ]


def _reason(error: Exception) -> str:
    known = isinstance(error, HoplineError)
    return str(error) if known else f"{type(error).__name__}: {error}"


def _averaged(recording: Recording, interval: float) -> Recording:
    """Return the averages of a recording; refuse an interval that leaves nothing of it."""
    span_s = recording.snapshots[-1].time_s - recording.snapshots[0].time_s + recording.interval_s
    averaged = recording.averaged(interval) if interval <= span_s else replace(recording, train=(), test=())
    for what, before, after in (
        ("training", recording.train and recording.training()[0], averaged.training()[0]),
        ("test", recording.test and recording.testing()[0], averaged.testing()[0]),
    ):
        if interval > span_s or (before and not after):
            raise BadRequest(
                f"--interval {interval:g}: no interval of this length ends within the {what}; the "
                f"recording has {span_s:g} s, give a shorter interval"
            )
    return averaged


def _check_min_duration(min_duration: float, interval: float) -> None:
    """Refuse a duration of more intervals than the watch counts; other detectors would wait longer."""
    from hopline_mesh.settings import HOLD

    if interval and not 0 <= min_duration <= HOLD * interval:
        raise BadRequest(
            f"--min-duration {min_duration:g}: must be at most {HOLD * interval:g}, {HOLD} intervals of "
            f"{interval:g} s; or give a longer --interval"
        )


def _trained_on(recording: Recording, text: str) -> Recording:
    """Return the recording with this training period, and all other time as its test period."""
    from hopline_mesh.evaluate.recording import without
    from hopline_mesh.evaluate.times import clock

    train, whole = read_period(text, "--train"), recording.period()
    recording = replace(recording, train=(train,), test=without(whole, [train]))
    for what, (snapshots, _) in (
        ("no snapshot is in this period", recording.training()),
        ("no snapshot is left for the test", recording.testing()),
    ):
        if not snapshots:
            last = recording.snapshots[-1].time_s
            raise BadRequest(
                f"--train {text}: {what}; the recording is from {clock(whole.start_s)} to {clock(last)}"
            )
    return recording


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
