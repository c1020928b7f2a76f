"""Sources of intervals to learn from: a recording, or the past of Prometheus."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from hopline_mesh.changes import Context
from hopline_mesh.collect.past import Past
from hopline_mesh.errors import MeshError, SnapshotInvalid
from hopline_mesh.evaluate.recording import Recording
from hopline_mesh.evaluate.times import clock
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.settings import MeshSettings
from hopline_mesh.state import Seen
from hopline_mesh.watch import parts

_DAY_S = 86_400.0
#: Maximum bytes of measurements to learn from: all are in memory, some of them as two copies.
_MAX_BYTES = 4 * 2**30


def of_recording(recording: Recording, settings: MeshSettings, schema: Schema, now_s: float) -> list[Seen]:
    """Return what a watch with these settings would have seen in the training of a recording.

    Columns get the order of the watch; a recording from the future is moved back by whole days.

    Raises:
        SnapshotInvalid: other columns, or another interval.
    """
    snapshots, contexts = recording.training()
    if not snapshots:
        raise SnapshotInvalid(f"{recording.name}: its training period has no snapshot")
    theirs = snapshots[0].schema
    for what, wanted, present in (
        ("nodes", schema.node_features, theirs.node_features),
        ("edges", schema.edge_features, theirs.edge_features),
    ):
        lacks, more = sorted({*wanted} - {*present}), sorted({*present} - {*wanted})
        if lacks or more:
            differences = [f"lack {', '.join(lacks)}"] if lacks else []
            differences += [f"have {', '.join(more)}, which the watch does not collect"] if more else []
            raise SnapshotInvalid(
                f"{recording.name}: its {what} {' and '.join(differences)}; the columns must be those of "
                f"--mesh {settings.source.mesh}: {', '.join(wanted)}"
            )
    interval_s = settings.source.interval_s
    if not math.isclose(recording.interval_s, interval_s, rel_tol=0.05):
        raise SnapshotInvalid(
            f"{recording.name}: has a snapshot every {recording.interval_s:g} s, and the watch takes one "
            f"every {interval_s:g} s; set --interval {recording.interval_s:g} for both commands"
        )
    ahead = max(0.0, math.ceil((snapshots[-1].time_s - now_s) / _DAY_S) * _DAY_S)
    return [
        Seen(
            dataclasses.replace(snapshot.with_columns(schema), time_s=snapshot.time_s - ahead),
            Context() if ahead else context,
        )
        for snapshot, context in zip(snapshots, contexts, strict=True)
    ]


async def of_prometheus(
    settings: MeshSettings, since_s: float, until_s: float, advance: Callable[[int, int], None]
) -> tuple[list[Seen], list[str]]:
    """Return what a watch with these settings would have seen between two times, from Prometheus.

    Args:
        advance: called with the number of snapshots so far, and the total.

    Returns: intervals, oldest first, and notes for people. Past planned changes are unknown.

    Raises:
        MeshError: Prometheus is unavailable, has no data of a mesh, has less data than requested, or the
            mesh is too large for the time.
    """
    queries = parts.queries_of(settings)
    client = parts.prometheus_of(settings)
    source = f"Prometheus at {client.url}"
    seen: list[Seen] = []
    size = 0
    async with client:
        past = Past(
            client,
            queries,
            settings.source.interval_s,
            Roster(),
            parts.options_of(settings),
            matchers=settings.source.matchers,
        )
        total = past.moments(since_s, until_s)
        advance(0, total)
        _check_reach(await past.begins(since_s, until_s), since_s, until_s, source)
        async for some in past.snapshots(since_s, until_s):
            size += sum(each.node_features.nbytes + each.edge_features.nbytes for each in some)
            if size > _MAX_BYTES:
                raise MeshError(
                    f"{source}: {len(seen)} of {total} snapshots are more than {_MAX_BYTES // 2**30} GiB; "
                    f"request at most {_span(len(seen) * settings.source.interval_s)}"
                )
            seen += [Seen(each, Context()) for each in some]
            advance(len(seen), total)
    return seen, [f"the query {name} always failed: {reason}" for name, reason in past.refused.items()]


def _check_reach(begins_s: float | None, since_s: float, until_s: float, source: str) -> None:
    """Compare the start of the data with the requested time.

    Raises:
        MeshError: there is no data, or less than requested; the message says when the data begins.
    """
    if begins_s is None:
        raise MeshError(
            f"{source}: no service was found in {_span(until_s - since_s)}; run `hopline mesh queries` "
            "with the same settings to see the reason"
        )
    if begins_s - since_s > max(120.0, 0.02 * (until_s - since_s)):
        raise MeshError(
            f"{source}: has data of this mesh from {clock(begins_s)} UTC on, {_span(until_s - begins_s)}, "
            f"but {_span(until_s - since_s)} were requested; request less, such as --from-prometheus "
            f"{max(1, math.floor((until_s - begins_s) / 60))}m"
        )


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.0f} minutes"
