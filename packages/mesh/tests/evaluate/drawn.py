"""Verdicts and small recordings, drawn by hand."""

from __future__ import annotations

import numpy as np

from hopline_mesh.changes import Context
from hopline_mesh.evaluate import Event, Period, Recording
from hopline_mesh.incident import Incident, Suspect, Verdict
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Snapshot

START = 1_700_000_000.0


def verdicts(
    drawing: str, *, interval_s: float = 60.0, suspects: dict[str, str] | None = None
) -> list[Verdict]:
    """One verdict for each character: "." is quiet, a letter is the incident of that name.

    `suspects` has services of an incident, one letter each or `a>b` for a call path, separated by spaces;
    after a `|` those from its second verdict on. An incident ends in the verdict after its last letter.
    """
    found = []
    before = "."
    for number, letter in enumerate(drawing):
        time_s = START + number * interval_s
        incidents = []
        if before not in (".", letter):
            incidents.append(_incident(before, suspects, time_s, later=True))
        if letter != ".":
            incidents.append(_incident(letter, suspects, None, later=letter == before))
        state = "normal" if letter == "." else "anomalous"
        found.append(Verdict(time_s, state, float(letter != ".") * 2, tuple(incidents)))
        before = letter
    return found


def _incident(name: str, suspects: dict[str, str] | None, end_s: float | None, *, later: bool) -> Incident:
    first, _, then = (suspects or {}).get(name, "").partition("|")
    named = []
    for word in ((then or first) if later else first).split():
        caller, arrow, callee = word.partition(">")
        named.append(Suspect(callee if arrow else word, 1.0, caller if arrow else None, ()))
    return Incident(name, START, end_s, 2.0, tuple(named))


def event(minute: float, minutes: float = 4.0, service: str = "a", **more: str) -> Event:
    """An event so many minutes after the start."""
    return Event(START + 60 * minute, START + 60 * (minute + minutes), service, **more)


def recording(
    columns: dict[str, list[float]],
    *,
    train: int,
    edge: list[float] | None = None,
    interval_s: float = 60.0,
    events: tuple[Event, ...] = (),
    cpu_limits: dict[str, float] | None = None,
) -> Recording:
    """Services "a" and "b", and the call path from "a" to "b".

    Args:
        columns: feature -> values of "a" over time; those of "b" are those of "a" at their first time.
        train: so many snapshots are the training, the others are the test.
        edge: client latency of the call path over time; default: 5 throughout.
    """
    schema = Schema(tuple(columns), ("client_ms",))
    roster = Roster(["a", "b"])
    count = len(next(iter(columns.values())))
    both = np.array([0, 1], dtype=np.int32)
    snapshots = []
    for at in range(count):
        own = [values[at] for values in columns.values()]
        other = [values[0] for values in columns.values()]
        snapshots.append(
            Snapshot(
                START + interval_s * at,
                schema,
                roster,
                both,
                np.array([own, other], dtype=np.float32),
                both[:1],
                both[1:],
                np.array([[5.0 if edge is None else edge[at]]], dtype=np.float32),
            )
        )
    cut = START + interval_s * train
    return Recording(
        snapshots,
        [Context()] * count,
        events,
        (Period(START, cut),),
        (Period(cut, START + interval_s * count),),
        interval_s,
        cpu_limits or {},
    )
