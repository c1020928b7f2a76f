"""The board: the present state of the watch, for all outputs.

Lives in one process on one event loop. The watch publishes each verdict; alerts, gRPC, metrics and the page
read it. Knows no transport.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from hopline_mesh.changes import Change, Context, KubernetesTrouble
from hopline_mesh.errors import IncidentNotFound, StateDamaged
from hopline_mesh.incident import Verdict
from hopline_mesh.out.between import Between
from hopline_mesh.out.metrics import MeshMetrics
from hopline_mesh.out.record import Mark, MarkKind, Record, seen_in
from hopline_mesh.snapshot import FloatArray, Snapshot

#: Maximum number of stored incidents, and how long they are stored after their end, in seconds.
MAX_INCIDENTS = 100
KEEP_S = 6 * 3600.0
#: Maximum number of stored incidents if all are open; more would help no user.
_MAX_OPEN_INCIDENTS = 2 * MAX_INCIDENTS
#: Maximum number of stored planned changes.
_MAX_CHANGES = 500
#: Intervals before an incident that its charts show, and the maximum size of their features in bytes.
_LEAD = 40
_LEAD_BYTES = 32 * 2**20
#: Maximum number of verdicts that wait for a slow reader.
_DEPTH = 16
#: Without a verdict, also a blind one, for this many seconds and intervals, the watch hangs.
_HANGS_S, _HANGS_INTERVALS = 300.0, 4


class Subscription:
    """A bounded queue of verdicts that drops the oldest one when it is full; see `Board.subscribe`.

    Args:
        readers: all subscriptions; this one is among them until it is closed.
    """

    def __init__(self, readers: set[Subscription]) -> None:
        self._waiting: asyncio.Queue[Verdict] = asyncio.Queue(_DEPTH)
        self._dropped = 0
        self._readers = readers
        readers.add(self)

    def put(self, verdict: Verdict) -> None:
        """Add a verdict; never waits."""
        if self._waiting.full():
            self._waiting.get_nowait()
            self._dropped += 1
        self._waiting.put_nowait(verdict)

    async def get(self) -> tuple[Verdict, int]:
        """Return the oldest waiting verdict, and the number that was dropped since the last call."""
        verdict = await self._waiting.get()
        dropped, self._dropped = self._dropped, 0
        return verdict, dropped

    def close(self) -> None:
        """End the subscription."""
        self._readers.discard(self)


class _Saved(msgspec.Struct):
    """The state for a restart, and when it was saved, Unix seconds."""

    records: list[Record]
    changes: list[Change] = []
    saved_s: float = 0.0


class Board:
    """The newest verdict and snapshot, and the incidents of the last hours.

    Args:
        interval_s: seconds from one verdict to the next.
        metrics: counts each verdict; None creates separate metrics.
        clock: Unix seconds.
        monotonic: a clock that never jumps, seconds.

    Attributes:
        verdict: the newest; None before the first.
        shown: the newest collected snapshot (None before the first), and float32 [n], the anomaly scores
            of its `nodes`: 1.0 is the threshold, NaN is none. It is one tuple, so that another thread reads
            both of the same interval.
        published_s: when the newest verdict was published, Unix seconds.
        ready: whether a snapshot was collected or state restored.
        live: deviations between intervals; None if events are not supported.
        links: templates of links to other tools.
    """

    def __init__(
        self,
        *,
        interval_s: float = 15.0,
        metrics: MeshMetrics | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_s = interval_s
        self.metrics = metrics or MeshMetrics()
        self.verdict: Verdict | None = None
        self.shown: tuple[Snapshot | None, FloatArray] = (None, np.zeros(0, np.float32))
        self.published_s = 0.0
        self.ready = False
        self.live: Between | None = None
        self.links: tuple[str, ...] = ()
        self._clock = clock
        self._monotonic = monotonic
        self._heard_at = monotonic()
        self._records: dict[str, Record] = {}
        self._restored_s = 0.0
        self._past: deque[Snapshot] = deque(maxlen=_LEAD)
        self._readers: set[Subscription] = set()
        self._changes: dict[tuple[str, str, float], Change | KubernetesTrouble] = {}

    def publish(
        self,
        verdict: Verdict,
        snapshot: Snapshot | None = None,
        scores: FloatArray | None = None,
        context: Context | None = None,
    ) -> None:
        """Publish the verdict on one interval. Call it on the event loop; it makes no copy.

        Args:
            verdict: of the interval, also if nothing could be collected ("blind").
            snapshot: the interval. If it is None, or has gaps and no services, nothing was collected, and
                the previous snapshot stays.
            scores: float32 [n], anomaly scores of its `nodes`; None: it has none.
            context: planned changes and troubles at that time.
        """
        if context is not None:
            self._changes |= _by_identity((*context.changes, *context.troubles))
        self.verdict, self.published_s = verdict, self._clock()
        self._heard_at = self._monotonic()
        if snapshot is not None and not len(snapshot.nodes) and (snapshot.gaps or verdict.gaps):
            snapshot = None
        if snapshot is not None:
            none = np.full(len(snapshot.nodes), np.nan, np.float32)
            self.shown = snapshot, none if scores is None else scores
            self.ready = True
        self._record(verdict, snapshot)
        self.metrics.saw(verdict, snapshot, len(self.open_incidents()))
        for reader in self._readers:
            reader.put(verdict)

    @property
    def silent_s(self) -> float:
        """Seconds since the newest verdict, or since the start."""
        return self._monotonic() - self._heard_at

    @property
    def alive(self) -> bool:
        """True if verdicts come; False if an interval hangs, which only a restart ends."""
        return self.silent_s <= max(_HANGS_S, _HANGS_INTERVALS * self.interval_s)

    @property
    def now_s(self) -> float:
        """The time by the board's clock, Unix seconds."""
        return self._clock()

    def incidents(self) -> list[Record]:
        """Return all stored incidents, the newest first."""
        return sorted(self._records.values(), key=lambda each: each.incident.start_s, reverse=True)

    def open_incidents(self) -> list[Record]:
        """Return the open incidents, the newest first."""
        return [each for each in self.incidents() if each.is_open]

    def incident(self, id: str) -> Record:
        """Return one incident.

        Raises:
            IncidentNotFound: it is not stored.
        """
        record = self._records.get(id)
        if record is None:
            raise IncidentNotFound(f"no incident {id[:100]!r} is stored: it may have ended hours ago")
        return record

    def changes(self) -> list[Change | KubernetesTrouble]:
        """Return planned changes and troubles of the last hours, the newest first."""
        return sorted(self._changes.values(), key=lambda each: each.start_s, reverse=True)

    def mark(self, id: str, kind: MarkKind | None, by: str = "") -> Record:
        """Set or remove the mark of an incident.

        Raises:
            IncidentNotFound: it is not stored.
        """
        record = self.incident(id)
        record.mark = None if kind is None else Mark(kind, by, self._clock())
        return record

    def marks(self) -> tuple[float, dict[str, Mark]]:
        """Return the time and the marks by incident for a restart, JSON-compatible."""
        return self._clock(), {id: each.mark for id, each in self._records.items() if each.mark is not None}

    def restore_marks(self, saved: Any) -> None:
        """Restore `marks` if they are newer than what `restore` got; ignores what is something else."""
        with contextlib.suppress(msgspec.ValidationError):
            saved_s, marks = msgspec.convert(saved, tuple[float, dict[str, Mark]])
            if saved_s >= self._restored_s:
                for id, record in self._records.items():
                    record.mark = marks.get(id)

    def is_muted(self, id: str) -> bool:
        """True if an incident raises no alert, because of its mark."""
        return self._mark_of(id) in ("muted", "not_an_incident")

    def is_real(self, id: str) -> bool:
        """True if an incident is one: trainings leave its time out."""
        return self._mark_of(id) != "not_an_incident"

    def _mark_of(self, id: str) -> MarkKind | None:
        record = self._records.get(id)
        return None if record is None or record.mark is None else record.mark.kind

    def subscribe(self) -> Subscription:
        """Subscribe to all verdicts from now on; call `close` of the subscription at the end."""
        return Subscription(self._readers)

    def export(self) -> dict[str, Any]:
        """Return the state for a restart, JSON-compatible; see `restore`."""
        changes = [each for each in self.changes() if isinstance(each, Change)]
        saved = _Saved(self.incidents(), changes, self._clock())
        return msgspec.to_builtins(saved)  # type: ignore[no-any-return]

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state of `export`.

        Raises:
            StateDamaged: the state has another form.
        """
        try:
            saved = msgspec.convert(state, _Saved)
        except msgspec.ValidationError as error:
            raise StateDamaged(f"the saved incidents cannot be read: {error}") from None
        self._records = {each.incident.id: each for each in saved.records}
        self._changes |= _by_identity(saved.changes)
        self._restored_s = saved.saved_s
        self.ready = True

    def _record(self, verdict: Verdict, snapshot: Snapshot | None) -> None:
        named = {incident.id for incident in verdict.incidents}
        new = []
        for incident in verdict.incidents[:_MAX_OPEN_INCIDENTS]:
            known = self._records.get(incident.id)
            if known is None:
                known = self._records[incident.id] = Record(incident)
                new.append(known)
            known.take(incident)
        self.metrics.incidents.inc(len(new))
        for past in self._past if new else ():
            _follow(past, new)
        if verdict.state not in ("blind", "learning"):
            # An incident that the verdict does not name has ended, even if a restart lost it.
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
        size = max(1, snapshot.node_features.nbytes + snapshot.edge_features.nbytes)
        while len(self._past) > max(1, _LEAD_BYTES // size):
            self._past.popleft()

    def _forget(self, now_s: float) -> None:
        records = self.incidents()
        for place, each in enumerate(records):
            end_s = each.incident.end_s
            if end_s is not None and (now_s - end_s > KEEP_S or place >= MAX_INCIDENTS):
                del self._records[each.incident.id]
        for each in records[_MAX_OPEN_INCIDENTS:]:
            self._records.pop(each.incident.id, None)
        recent = [each for each in self.changes() if now_s - (each.end_s or now_s) <= KEEP_S]
        self._changes = _by_identity(recent[:_MAX_CHANGES])


def _follow(snapshot: Snapshot, records: Sequence[Record]) -> None:
    """Add the values of an interval to records, with one lookup for all of them."""
    seen = seen_in(snapshot, {series.key for each in records for series in each.series}) if records else {}
    for each in records:
        each.follow(snapshot, seen)


def _by_identity(
    items: Iterable[Change | KubernetesTrouble],
) -> dict[tuple[str, str, float], Change | KubernetesTrouble]:
    return {(each.kind, each.service, each.start_s): each for each in items}
