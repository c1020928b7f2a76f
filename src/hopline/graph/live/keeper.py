"""A durable live graph: batches are checked, made durable, and only then visible.

    batches ─► seen before? ─► LiveWriter.prepare ─► Log.append … sync ─► LiveWriter.publish ─► outcomes
                               not visible yet       one sync for all     one step for all

A batch whose record could not be made durable is dropped and has no effect: its events may be sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest, HoplineError, LogDamaged, LogFull
from hopline.graph.live.changes import Applied, Changes, Ids, Rejected
from hopline.graph.live.codec import StoredBatch, encode_entry
from hopline.graph.live.history import fill, read_record, write_record
from hopline.graph.live.home import LiveHome
from hopline.graph.live.manifest import Positions, SnapshotEntry, read_positions, write_positions
from hopline.graph.live.seen import CAPACITY, SeenWindow, hashed
from hopline.graph.live.state import State
from hopline.graph.live.version import (
    APPLIED,
    DUPLICATE,
    MESSAGES,
    OFFSET,
    REJECTED,
    StreamOffset,
    advanced,
)
from hopline.graph.live.view import LiveView
from hopline.graph.live.writer import LiveWriter, Prepared

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotDraft:
    """A snapshot in progress.

    Attributes:
        view: pins the version until it is written.
        state: other state of the snapshot.
        num_bytes: of the log's records that it replaces.
    """

    view: LiveView
    state: State
    num_bytes: int


class GraphKeeper:
    """Applies batches durably and takes snapshots.

    Used by one thread; `write_snapshot` may run in another one.

    Attributes:
        follows: see the argument.
        positions: source -> the position that follows its last event in the graph.
        sequence: of the newest durable version.
    """

    def __init__(
        self,
        home: LiveHome,
        writer: LiveWriter,
        view: Callable[[], LiveView],
        now_ms: Callable[[], int],
        capacity: int = CAPACITY,
        *,
        follows: bool = False,
    ) -> None:
        self.home = home
        self.follows = follows
        self.writer = writer
        self._view = view
        self._now_ms = now_ms
        self._seen = SeenWindow(capacity)
        self._reader: LiveView | None = None
        self.positions: dict[str, Any] = {}
        self._snapshot_sequence = home.start.state.sequence
        self._snapshot_bytes = 0

    @property
    def sequence(self) -> int:
        """Sequence of the newest durable version."""
        return self.home.log.synced

    @property
    def snapshot_sequence(self) -> int:
        """Sequence of the newest snapshot; 0 for the original graph."""
        return max((entry.sequence for entry in self.home.snapshots), default=0)

    @property
    def filled(self) -> float:
        """Share of the memory that is in use, 0 to 1."""
        return self.writer.filled

    @property
    def bytes_since_snapshot(self) -> int:
        """Bytes of the log's records that a restart would have to replay."""
        return self._snapshot_bytes

    def recover(self) -> int:
        """Load the snapshot and replay the log; must be called first.

        Returns: number of changes of the log that were applied.
        Raises:
            LogDamaged: the log is damaged, or does not fit the snapshot.
            GraphError: the memory has no room for all changes.
        """
        start, writer = self.home.start, self.writer
        if writer.memory.is_filled:
            writer.attach()
        else:
            fill(writer, start)
        self._seen.add(start.state.seen)
        self.positions = dict(start.state.positions)
        alone = read_positions(self.home.folder)
        if alone is not None and start.state.sequence <= alone.sequence <= self.home.log.last:
            later = alone
        else:  # from before the snapshot, or of lost changes
            later = Positions(-1, {})
        if later.sequence == start.state.sequence:
            self.positions |= later.positions
        count = 0
        for sequence, payload in self.home.log.replay(start.state.sequence + 1):
            entry = read_record(self.home.folder, sequence, payload)
            self._remember(entry.changes, entry.skip, _keys([entry.changes])[0])
            if sequence == later.sequence:
                self.positions |= later.positions
            self._snapshot_bytes += len(payload)
            if sequence <= writer.sequence:  # the memory has it already
                continue
            write_record(writer, self.home.folder, sequence, entry)
            count += 1
        if writer.sequence != self.home.log.last:
            raise LogDamaged(
                f"{self.home.folder}: the log ends with sequence {self.home.log.last}, the memory has "
                f"{writer.sequence}: restart the server, which rebuilds its memory"
            )
        return count

    def apply(self, batches: Sequence[Changes]) -> list[Applied]:
        """Apply batches in order, durable and visible together when this returns.

        If nothing of a batch can be applied, or it has no events, its positions are durable as well.

        Raises: LogFull, LogFailed: nothing was kept of the batch at which it happened, nor of later ones.
            Earlier ones were not kept either, unless one of them did not fit into the memory.
        """
        outcomes = self._commit(batches)
        if outcomes is None:
            outcomes = [outcome for each in batches for outcome in self._commit([each]) or ()]
        return outcomes

    def _commit(self, batches: Sequence[Changes]) -> list[Applied] | None:
        """Apply all batches in one step. Returns None if one of several does not fit into the memory: then
        the caller applies each alone, since dropping that batch drops those prepared before it.
        """
        keys = _keys(batches)
        new = self._seen.which_are_new(np.concatenate(keys)) if keys else np.empty(0, np.bool_)
        through_ms = _through(batches, self._now_ms())
        prepared: list[Prepared] = []
        size, begin = 0, 0
        offset = self.writer.offset
        try:
            for changes, own in zip(batches, keys, strict=True):
                skip = np.zeros(changes.num_events, np.bool_)
                if len(own):
                    skip = ~new[begin : begin + len(own)]
                    begin += len(own)
                messages = changes.positions.get(MESSAGES)
                one = self.writer.prepare(changes, skip, moves=bool(messages))
                if any(each.code == "full" for each in one.applied.rejected):
                    if len(batches) > 1:
                        self._undo()
                        return None
                    if messages is not None:  # applied wholly or not at all: its place names the version
                        raise LogFull(_full(one))
                offset = self._advanced(offset, one, messages)
                if messages is not None:
                    positions = {name: at for name, at in changes.positions.items() if name != MESSAGES}
                    one.changes = replace(changes, positions={**positions, OFFSET: str(offset)})
                prepared.append(one)
                if one.is_version:
                    payload = encode_entry(StoredBatch(one.changes, one.skip, through_ms))
                    self.home.log.append(one.applied.sequence, payload)
                    size += len(payload)
            self.home.log.sync()
        except HoplineError:
            self._undo()
            raise
        self._snapshot_bytes += size
        self.writer.publish(prepared, through_ms, offset)
        before = dict(self.positions)
        for one, own in zip(prepared, keys, strict=True):
            self._remember(one.changes, one.skip, own)
        self._keep_positions(prepared, before)
        return _without_repeated_refusals(prepared, keys)

    def affected(self, since: int) -> tuple[int, dict[str, Ids]]:
        """Nodes whose answers may have changed after a version: the present version, and their ids by type.

        Args:
            since: a version; one from before the last start returns changes since the original graph.
        """
        if self._reader is None:
            self._reader = self._view()
        with self._reader as view:
            found: dict[str, Ids] = {}
            for name, nodes in view.nodes.items():
                changed = np.flatnonzero(nodes.changed_at[-1, : nodes.num_nodes] > since)
                changed = np.setdiff1d(changed, nodes.ids.removed, assume_unique=True)
                if len(changed):
                    found[name] = nodes.ids.external(changed)
            return view.clock.version, found

    def caught_up(self) -> None:
        """Record that the graph has everything that its stream has."""
        self.writer.memory.set_caught_up()

    def confirm(self) -> None:
        """Record that the present version contains everything that happened until now."""
        self.writer.publish([], self._now_ms())

    def begin_snapshot(self) -> SnapshotDraft | None:
        """Pin the present version; None if it has a snapshot already."""
        if self.sequence == self._snapshot_sequence:
            return None
        view = self._view()
        view.__enter__()
        changed_at = {
            name: nodes.changed_at[:, : nodes.num_nodes].copy() for name, nodes in view.nodes.items()
        }
        state = State(
            self.home.lineage,
            view.clock.version,
            view.through_ms,
            dict(self.positions),
            self._seen.to_array(),
            changed_at,
        )
        draft = SnapshotDraft(view, state, self._snapshot_bytes)
        self._snapshot_sequence, self._snapshot_bytes = state.sequence, 0
        return draft

    def write_snapshot(self, draft: SnapshotDraft) -> SnapshotEntry:
        """Write the version of `begin_snapshot`, and shorten the log. May run in a thread.

        Raises: GraphError: it cannot be written; older snapshots and the log are kept.
        """
        try:
            return self.home.publish(draft.view.snapshot(), draft.state)
        except BaseException:
            self._snapshot_sequence = -1
            self._snapshot_bytes += draft.num_bytes
            raise
        finally:
            draft.view.__exit__()
            draft.view.close()

    def close(self) -> None:
        """Release the folder. Raises: LogFailed: as `Log.sync`."""
        self.home.close()

    def _keep_positions(self, prepared: Sequence[Prepared], before: Mapping[str, Any]) -> None:
        """Make positions durable that no log record contains, since nothing was applied with them."""
        moved = [
            source
            for one in prepared
            if not one.is_version
            for source, at in one.changes.positions.items()
            if before.get(source) != at
        ]
        if not moved:
            return
        try:
            write_positions(self.home.folder, Positions(self.sequence, self.positions))
        except OSError as error:
            what = f"{self.home.folder}: {error.strerror}: the positions of sources could not be written"
            if any(one.is_version for one in prepared):
                log.warning("%s; after a crash %s will repeat some events", what, ", ".join(moved))
                return
            self.positions = dict(before)
            raise LogFull(f"{what}; make room on the disk") from error

    def _advanced(
        self, offset: StreamOffset, prepared: Prepared, messages: Sequence[Any] | None
    ) -> StreamOffset:
        """The place in the stream after a batch.

        Raises: BadRequest: the batch does not continue the graph; nothing may be kept of it.
        """
        applied = prepared.applied
        if messages is None:
            if applied.num_applied and (self.follows or offset.is_named):
                raise BadRequest(
                    "only the stream that this graph follows changes it: send the event to the stream"
                )
            return offset
        if not offset.is_named and self.home.log.last:
            raise BadRequest(
                f"{self.home.folder} has changes that no stream names; follow the stream with an empty "
                "live folder, or with one that followed it before"
            )
        outcomes = np.full(prepared.changes.num_events, APPLIED, np.uint8)
        outcomes[[each.order for each in applied.rejected]] = REJECTED
        outcomes[list(applied.duplicates)] = DUPLICATE
        return advanced(self.home.lineage, offset, messages, outcomes.tobytes())

    def _undo(self) -> None:
        """Return to the published version."""
        self.home.log.drop_unsynced()
        self.writer.drop()

    def _remember(self, changes: Changes, skip: NDArray[np.bool_], keys: NDArray[np.uint64]) -> None:
        """Remember which events are in the graph, and the positions of their sources.

        A rejected event may be sent again with its id, once what it lacked exists.
        """
        if len(keys):
            self._seen.add(keys[~skip])
        self.positions |= changes.positions


def _full(prepared: Prepared) -> str:
    reason = next(each.reason for each in prepared.applied.rejected if each.code == "full")
    return f"a batch of the stream does not fit: {reason}"


def _keys(batches: Sequence[Changes]) -> list[NDArray[np.uint64]]:
    """Hashes of event ids, empty for a batch without ids."""
    return [hashed(changes.event_ids) for changes in batches]


def _without_repeated_refusals(
    prepared: Sequence[Prepared], keys: Sequence[NDArray[np.uint64]]
) -> list[Applied]:
    """Outcomes of the batches: an event that repeats the id of a refused one is not a duplicate.

    The earlier event is not in the graph, so the sender must know that this one is not either.
    """
    refused: dict[bytes, str] = {}
    outcomes = []
    for one, own in zip(prepared, keys, strict=True):
        applied = one.applied
        if len(own):
            refused |= {
                own[each.order].tobytes(): each.code for each in applied.rejected if own[each.order].any()
            }
        again = [at for at in applied.duplicates if own[at].tobytes() in refused] if refused else []
        if again:
            rejected = [
                Rejected(
                    at,
                    refused[own[at].tobytes()],
                    "an earlier event with this id was refused; send it again",
                )
                for at in again
            ]
            applied = replace(
                applied,
                duplicates=[at for at in applied.duplicates if at not in set(again)],
                rejected=sorted([*applied.rejected, *rejected], key=lambda each: each.order),
            )
        outcomes.append(applied)
    return outcomes


def _through(batches: Sequence[Changes], now_ms: int) -> int:
    """Time until which the batches contain everything: now, or the latest time that sources reported."""
    times = [
        changes.event_time_ms
        for changes in batches
        if changes.event_time_ms is not None and len(changes.event_time_ms)
    ]
    if not times:
        return now_ms
    return min(now_ms, max(int(each.max()) for each in times))
