"""Where intervals to learn from come from: a recording, or what Prometheus has kept."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

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
#: Bytes of measurements that may be learned from: they are all in memory, some of them twice.
_MOST_BYTES = 4 * 2**30


def of_recording(recording: Recording, settings: MeshSettings, schema: Schema, now_s: float) -> list[Seen]:
    """What a watch with these settings would have seen in the training of a recording.

    Its columns are brought into the watch's order; one that is from the future is moved back by whole days.

    Raises:
        SnapshotInvalid: other columns, or another interval.
    """
    snapshots, contexts = recording.training()
    if not snapshots:
        raise SnapshotInvalid(f"{recording.name}: no snapshot is in its training")
    theirs = snapshots[0].schema
    for what, wanted, there in (
        ("nodes", schema.node_features, theirs.node_features),
        ("edges", schema.edge_features, theirs.edge_features),
    ):
        lacks, more = sorted({*wanted} - {*there}), sorted({*there} - {*wanted})
        if lacks or more:
            said = [f"lack {', '.join(lacks)}"] if lacks else []
            said += [f"have {', '.join(more)}, which the watch does not collect"] if more else []
            raise SnapshotInvalid(
                f"{recording.name}: its {what} {' and '.join(said)}; what is learned of other columns is "
                f"of no use for --mesh {settings.source.mesh}, which has {', '.join(wanted)}"
            )
    interval_s = settings.source.interval_s
    if not math.isclose(recording.interval_s, interval_s, rel_tol=0.05):
        raise SnapshotInvalid(
            f"{recording.name}: has a snapshot every {recording.interval_s:g} s, and the watch takes one "
            f"every {interval_s:g} s; set --interval {recording.interval_s:g} here and there"
        )
    nodes = [theirs.node_features.index(name) for name in schema.node_features]
    edges = [theirs.edge_features.index(name) for name in schema.edge_features]
    ahead = max(0.0, math.ceil((snapshots[-1].time_s - now_s) / _DAY_S) * _DAY_S)
    return [
        Seen(
            dataclasses.replace(
                snapshot,
                time_s=snapshot.time_s - ahead,
                schema=schema,
                node_features=np.ascontiguousarray(snapshot.node_features[:, nodes]),
                edge_features=np.ascontiguousarray(snapshot.edge_features[:, edges]),
            ),
            Context() if ahead else context,
        )
        for snapshot, context in zip(snapshots, contexts, strict=True)
    ]


async def of_prometheus(
    settings: MeshSettings, since_s: float, until_s: float, advance: Callable[[int, int], None]
) -> tuple[list[Seen], list[str]]:
    """What a watch with these settings would have seen between two times, as Prometheus kept it.

    Args:
        advance: is told how many snapshots there are, and how many there will be.

    Returns: intervals, oldest first, and what there is to say of them. What was planned then is not known.

    Raises:
        MeshError: Prometheus cannot be asked, has nothing of a mesh, keeps less than was asked for, or the
            mesh is too large for so long a time.
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
            if size > _MOST_BYTES:
                raise MeshError(
                    f"{source}: {len(seen)} of {total} snapshots are more than {_MOST_BYTES // 2**30} GiB: "
                    f"ask for {_span(len(seen) * settings.source.interval_s)} at most"
                )
            seen += [Seen(each, Context()) for each in some]
            advance(len(seen), total)
    return seen, [f"{name} was never answered: {reason}" for name, reason in past.refused.items()]


def _check_reach(begins_s: float | None, since_s: float, until_s: float, source: str) -> None:
    """Compare from when on there is data with what was asked for.

    Raises:
        MeshError: there is none, or less than was asked for; says from when on there is.
    """
    if begins_s is None:
        raise MeshError(
            f"{source}: no service was found in {_span(until_s - since_s)}; `hopline mesh queries` with "
            "the same settings says why"
        )
    if begins_s - since_s > max(120.0, 0.02 * (until_s - since_s)):
        raise MeshError(
            f"{source}: has data of this mesh from {clock(begins_s)} UTC on, {_span(until_s - begins_s)}, "
            f"and {_span(until_s - since_s)} were asked for: ask for less, such as --from-prometheus "
            f"{max(1, math.floor((until_s - begins_s) / 60))}m"
        )


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.0f} minutes"
