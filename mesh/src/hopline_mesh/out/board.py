"""The board: what the watch knows at present, for all who read it.

Lives in one process on one event loop. The watch publishes each verdict; alerts, gRPC, metrics and the page
read. Knows nothing of how it is sent.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline_mesh.errors import StateDamaged
from hopline_mesh.incident import ServiceScore, Verdict
from hopline_mesh.out.between import Between
from hopline_mesh.out.metrics import MeshMetrics
from hopline_mesh.out.record import Record, seen_in
from hopline_mesh.out.subscription import Subscription
from hopline_mesh.snapshot import FloatArray, Snapshot

#: Scores of one interval: float32 [n], one for each of the snapshot's `nodes` in their order (NaN = none),
#: or some services by name.
Scores: TypeAlias = NDArray[np.float32] | Sequence[ServiceScore]

#: Incidents that are kept, and for how long once they are over, in seconds.
MAX_INCIDENTS = 100
KEEP_S = 6 * 3600.0
#: Beyond so many at once they help nobody, even if all go on.
_MOST_INCIDENTS = 2 * MAX_INCIDENTS
#: Intervals before an incident that its charts show, and the bytes of them that are kept at most.
_LEAD = 40
_LEAD_BYTES = 32 * 2**20
#: Verdicts that wait for a slow reader.
_DEPTH = 16


class Board:
    """What is published last, and the incidents of the last hours.

    Args:
        interval_s: seconds from one verdict to the next.
        metrics: where each verdict is counted; None makes its own.
        clock: Unix seconds.

    Attributes:
        verdict: the newest; None before the first.
        shown: the newest snapshot that was collected (None before the first), and float32 [n], the scores
            of its `nodes`: 1.0 is the threshold, NaN is none. One value, so that another thread reads both
            of the same interval.
        published_s: when the newest verdict was published, Unix seconds.
        ready: whether a snapshot was collected or state restored.
        live: embeddings between intervals; None where nothing follows events.
    """

    def __init__(
        self,
        *,
        interval_s: float = 15.0,
        metrics: MeshMetrics | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.interval_s = interval_s
        self.metrics = metrics or MeshMetrics()
        self.verdict: Verdict | None = None
        self.shown: tuple[Snapshot | None, FloatArray] = (None, np.zeros(0, np.float32))
        self.published_s = 0.0
        self.ready = False
        self.live: Between | None = None
        self._clock = clock
        self._records: dict[str, Record] = {}
        self._past: deque[Snapshot] = deque(maxlen=_LEAD)
        self._readers: set[Subscription] = set()

    def publish(self, verdict: Verdict, snapshot: Snapshot | None = None, scores: Scores = ()) -> None:
        """Put up what the watch thinks of one interval. Called on the event loop; takes no copy.

        Args:
            verdict: of the interval, also where nothing could be collected ("blind").
            snapshot: the interval. Where it is None, or has gaps and no services, nothing was collected:
                the last one stays up.
            scores: of its services.
        """
        self.verdict, self.published_s = verdict, self._clock()
        if snapshot is not None and not len(snapshot.nodes) and (snapshot.gaps or verdict.gaps):
            snapshot = None
        if snapshot is not None:
            self.shown = snapshot, _aligned(snapshot, scores)
            self.ready = True
        self._record(verdict, snapshot)
        self.metrics.saw(verdict, snapshot, len(self.open_incidents()))
        for reader in self._readers:
            reader.put(verdict)

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest that was collected."""
        return self.shown[0]

    @property
    def now_s(self) -> float:
        """The time by the board's clock, Unix seconds."""
        return self._clock()

    def incidents(self) -> list[Record]:
        """All that are kept, the newest first."""
        return sorted(self._records.values(), key=lambda each: each.incident.start_s, reverse=True)

    def open_incidents(self) -> list[Record]:
        """Those that go on, the newest first."""
        return [each for each in self.incidents() if each.is_open]

    def incident(self, id: str) -> Record | None:
        """One incident, None where it is not kept."""
        return self._records.get(id)

    def subscribe(self) -> Subscription:
        """Every verdict from now on; call its `close` at the end."""
        reader = Subscription(_DEPTH, self._readers.discard)
        self._readers.add(reader)
        return reader

    def export(self) -> dict[str, Any]:
        """What a restart should take up again, fit for JSON; see `restore`."""
        return {"records": msgspec.to_builtins(self.incidents())}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `export` gave.

        Raises: StateDamaged: it is something else.
        """
        try:
            records = msgspec.convert(state["records"], list[Record])
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise StateDamaged(f"the kept incidents cannot be read: {error}") from None
        self._records = {each.incident.id: each for each in records}
        self.ready = True

    def _record(self, verdict: Verdict, snapshot: Snapshot | None) -> None:
        named = {incident.id for incident in verdict.incidents}
        new = []
        for incident in verdict.incidents[:_MOST_INCIDENTS]:
            known = self._records.get(incident.id)
            if known is None:
                known = self._records[incident.id] = Record(incident)
                new.append(known)
            known.take(incident)
        self.metrics.incidents.inc(len(new))
        for past in self._past if new else ():
            _follow(past, new)
        if verdict.state not in ("blind", "learning"):
            # What a verdict does not name any more is over, also where the watch forgot it in a restart.
            for each in self._records.values():
                if each.is_open and each.incident.id not in named:
                    each.incident = msgspec.structs.replace(each.incident, end_s=verdict.time_s)
        if snapshot is not None:
            self._follow(snapshot)
        self._forget(verdict.time_s)

    def _follow(self, snapshot: Snapshot) -> None:
        followed = [each for each in self._records.values() if each.is_open or each.tail > 0]
        _follow(snapshot, followed)
        for each in followed:
            each.tail -= not each.is_open
        self._past.append(snapshot)
        while len(self._past) > 1 and sum(map(_nbytes, self._past)) > _LEAD_BYTES:
            self._past.popleft()

    def _forget(self, now_s: float) -> None:
        records = self.incidents()
        for place, each in enumerate(records):
            end_s = each.incident.end_s
            if end_s is not None and (now_s - end_s > KEEP_S or place >= MAX_INCIDENTS):
                del self._records[each.incident.id]
        for each in records[_MOST_INCIDENTS:]:
            self._records.pop(each.incident.id, None)


def _follow(snapshot: Snapshot, records: Sequence[Record]) -> None:
    """Add what an interval shows to some records, looked up once for all of them."""
    seen = seen_in(snapshot, {series.key for each in records for series in each.series}) if records else {}
    for each in records:
        each.follow(snapshot, seen)


def _nbytes(snapshot: Snapshot) -> int:
    arrays = (
        snapshot.nodes,
        snapshot.node_features,
        snapshot.edge_src,
        snapshot.edge_dst,
        snapshot.edge_features,
    )
    return sum(array.nbytes for array in arrays)


def _aligned(snapshot: Snapshot, scores: Scores) -> FloatArray:
    """One score for each of the snapshot's nodes."""
    if isinstance(scores, np.ndarray):
        assert scores.shape == snapshot.nodes.shape, (
            f"{scores.shape} scores of {snapshot.nodes.shape} nodes"
        )
        return scores.astype(np.float32, copy=False)
    found = np.full(len(snapshot.nodes), np.nan, np.float32)
    if scores:
        by_slot = np.full(len(snapshot.roster), np.nan, np.float32)
        for each in scores:
            slot = snapshot.roster.find(each.service)
            if slot is not None:
                by_slot[slot] = each.score
        found = by_slot[snapshot.nodes]
    return found
