"""Writes a simulation to a folder, as a recording with labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hopline_mesh.evaluate.manifest import Manifest
from hopline_mesh.evaluate.record import Recorder
from hopline_mesh.evaluate.recording import Event, Period
from hopline_mesh.schema import Schema
from hopline_mesh.simulate.simulation import Simulation


def events(run: Simulation) -> list[Event]:
    """Return the labels of a simulation, oldest first; for a call path, `service` is the root cause."""
    return [
        Event(
            start_s=fault.start_s,
            end_s=fault.end_s,
            service=run.reported[fault.roots[0]],
            caller=run.reported[fault.caller] if fault.caller else None,
            kind=fault.kind,
            callee=run.reported[fault.service] if fault.caller else None,
        )
        for fault in run.faults
    ]


def periods(run: Simulation) -> tuple[Period, Period]:
    """Return the training and test periods, split ten minutes before the first fault.

    Without any fault, or with one in the first tenth of the time, a quarter is for training.
    """
    start_s = run.plan.start_s
    end_s = start_s + run.plan.hours * 3600.0 + run.plan.interval_s
    first_s = min((fault.start_s for fault in run.faults), default=start_s)
    parted_s = first_s - 600.0
    if parted_s < start_s + 0.1 * (end_s - start_s):
        parted_s = start_s + 0.25 * (end_s - start_s)
    return Period(start_s, parted_s), Period(parted_s, end_s)


def write(
    run: Simulation, folder: Path, name: str = "simulated", advance: Callable[[], None] | None = None
) -> None:
    """Run a simulation, and write it to a folder for `hopline mesh evaluate`.

    Args:
        folder: created if it is missing; must not have a recording.
        advance: called after each snapshot, for a progress bar.

    Raises:
        ConfigError: the folder has a recording.
    """
    recorder = Recorder(folder, Schema())
    for snapshot, context in run:
        recorder.add(snapshot, context)
        if advance is not None:
            advance()
    for event in events(run):
        recorder.label(event)
    train, test = periods(run)
    recorder.close(Manifest(name, run.plan.interval_s, (train,), (test,), {}))
