"""Training before the first watch, from a recording or from the past of Prometheus.

Writes the state that a watch restores at its start: a checkpoint of a trained detector with its roster, and
the newest part of the history, for later trainings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.detect import MeshDetector
from hopline_mesh.errors import MeshError
from hopline_mesh.evaluate.recording import Period
from hopline_mesh.out.board import Board
from hopline_mesh.roster import Roster
from hopline_mesh.settings import MeshSettings
from hopline_mesh.state import Seen, StateFolder
from hopline_mesh.state.folder import only_writer
from hopline_mesh.watch import learned, parts
from hopline_mesh.watch.learned import Learned


@contextmanager
def target_folder(settings: MeshSettings, *, replace: bool) -> Iterator[StateFolder]:
    """Yield the state folder for the result of a training; locked against other processes.

    Args:
        replace: allow to replace the state that a watch has saved there.

    Raises:
        MeshError: a running watch uses the folder, it has state and `replace` is not set, or it cannot be
            written.
    """
    state_dir = settings.state.state_dir
    with ExitStack() as stack:
        try:
            stack.enter_context(only_writer(state_dir))
            folder = parts.state_folder(settings, state_dir)
        except BlockingIOError:
            raise MeshError(
                f"state_dir: {state_dir} is in use by a running watch; stop it first, or choose another "
                "folder with --state-dir"
            ) from None
        except OSError as error:
            raise MeshError(f"state_dir: {state_dir}: {error.strerror}") from None
        if folder.size and not replace:
            raise MeshError(
                f"state_dir: {state_dir} has the state of a watch; --replace deletes it, with its "
                "incidents and history"
            )
        yield folder


def _write(
    target: StateFolder,
    settings: MeshSettings,
    meta: dict[str, Any],
    arrays: dict[str, NDArray[Any]],
    history: Sequence[Seen],
) -> None:
    """Replace the content of the folder by a detector's exported state and its history.

    Raises:
        MeshError: no space, or a failed write.
    """
    last = history[-1].snapshot
    since_s = last.time_s - 3600 * settings.detector.fine_tune_hours
    try:
        target.clear()
        target.save(
            {"detector": meta, "shown": Board().export(), "trained": True},
            arrays,
            time_s=last.time_s,
            names=list(last.roster.names),
            shape=parts.shape_of(settings, last.schema),
        )
        for seen in history:
            if seen.snapshot.time_s >= since_s:
                target.append(seen.snapshot, seen.context)
        target.close()
    except OSError as error:
        raise MeshError(
            f"state_dir: {target.folder}: {error.strerror or error}; the result was not saved"
        ) from None


def learn(
    seen: Sequence[Seen],
    settings: MeshSettings,
    target: StateFolder,
    *,
    source: str,
    without: Sequence[Period] = (),
    notes: Sequence[str] = (),
) -> Learned:
    """Learn from intervals, and save the result for the watch.

    Args:
        seen: oldest first, one schema and roster.
        target: see `target_folder`.
        source: of the intervals, for people.
        without: times to leave out.

    Raises:
        MeshError: no service at all, too few usable intervals, or the result cannot be written.
    """
    measured = [each for each in seen if each.snapshot.is_measured]
    if not any(len(each.snapshot.nodes) for each in seen):
        raise MeshError(
            f"{source}: no service was found; run `hopline mesh queries` with the same settings to see the "
            "reason"
        )
    kept = [each for each in measured if not any(each.snapshot.time_s in period for period in without)]
    fewest = fewest_of(settings)
    interval_s = settings.source.interval_s
    if len(kept) < fewest:
        raise MeshError(
            f"{source}: {len(kept)} of {len(seen)} intervals are usable "
            f"({len(seen) - len(measured)} without any measurement, {len(measured) - len(kept)} by "
            f"--except); at least {fewest} are needed, {fewest * interval_s / 60:.0f} minutes"
        )
    asked = settings.detector
    kept = _with_present_services(kept)
    snapshots = [each.snapshot for each in kept]
    detector = MeshDetector(asked)
    detector.fit(snapshots, [each.context for each in kept])
    roster = snapshots[0].roster
    snapshots = [each for each in snapshots if not any(each.time_s in out for out in detector.left_out)]
    meta, arrays = detector.export()
    days = len(snapshots) * interval_s / 86_400
    columns = learned.columns_of(detector, arrays, days, asked.anomaly_percentile)
    _write(target, settings, meta, arrays, kept)
    return Learned(
        source=source,
        state_dir=str(settings.state.state_dir),
        intervals=len(snapshots),
        not_measured=len(seen) - len(measured),
        excepted=len(measured) - len(kept),
        abnormal=learned.abnormal_of(detector, roster),
        interval_s=interval_s,
        since_s=kept[0].snapshot.time_s,
        until_s=kept[-1].snapshot.time_s,
        services=len(np.unique(np.concatenate([each.nodes for each in snapshots]))),
        call_paths=len(arrays["pairs.src"]),
        columns=columns,
        false_alarms_per_day=round(sum(each.false_alarms_per_day for each in columns), 3),
        calibrated_to=asked.false_alarms_per_day,
        rare_services=learned.rare_of(arrays, roster),
        notes=tuple(notes),
    )


def fewest_of(settings: MeshSettings) -> int:
    """Return the minimum number of intervals: those that a watch would wait for, at most its window."""
    detector = settings.detector
    return max(20, detector.warm_up + 10, min(detector.window_size, detector.train_at))


def _with_present_services(seen: Sequence[Seen]) -> list[Seen]:
    """Return the intervals with a roster that has only their services.

    The test period of a recording, or a time that was left out, may have other names.
    """
    before = seen[0].snapshot.roster
    used = np.unique(np.concatenate([each.snapshot.nodes for each in seen]))
    roster = Roster(before.name(slot) for slot in used.tolist())
    slots = np.full(len(before), -1, np.int32)
    slots[used] = np.arange(len(used), dtype=np.int32)
    return [Seen(each.snapshot.with_slots(roster, slots), each.context) for each in seen]
