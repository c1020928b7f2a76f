"""Answers a batch of requests to one model: looks up ids, computes shared states once, splits the results.

Every request gets its own outcome, a result or an error. A bad request only costs its own look-up.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate, chain, pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.engine.edits import overlays_of
from hopline.engine.fallbacks import STALE_ROW, in_order
from hopline.engine.final_rows import FinalRows
from hopline.engine.interner import Interner
from hopline.engine.model import Model
from hopline.engine.overlay import ADDED, REQUEST, Overlay
from hopline.engine.precomputed import FOUND, no_counts
from hopline.engine.request_ids import all_at_once, all_known, ids_then, not_found, sides_of
from hopline.engine.scored_edges import NamedEdges, described_ends, edge_rows, named_edges
from hopline.engine.source import Absent, FetchedInputs, FetchedRows, RowsAbsent
from hopline.engine.stand_in import LEAST_SHARE, by_student, spread, stands_in
from hopline.errors import BadRequest, FeatureStoreUnavailable, HoplineError, SchemaMismatch
from hopline.graph import IdIndex
from hopline.graph.live.view import LiveView
from hopline.graph.store_columns import FetchedEdges
from hopline.sampling.keyed import NO_CUT
from hopline.types import AnyArray, ExternalIds, FloatArray, IdArray, ScoreRequest, ScoreResult

Outcome = ScoreResult | HoplineError
_NO_IDS: IdArray = np.empty(0, np.int64)


class Answerer:
    """Answers batches with one model.

    Attributes:
        rows: node type -> final rows that need not be computed; may be replaced between batches.
        row_counts: requested rows by outcome, counted while `rows` is not empty.
    """

    def __init__(
        self, model: Model, default_outputs: tuple[str, ...], max_inline_neighbors: int, version: str = ""
    ) -> None:
        self.model = model
        self._version = version or model.spec.version
        self._reads_times = model.spec.reads_times
        self.default_outputs = default_outputs
        self.max_inline_neighbors = max_inline_neighbors
        self._interner = Interner()
        self._live = model.graph if isinstance(model.graph, LiveView) else None
        self.rows: Mapping[str, FinalRows] = {}
        self.row_counts = no_counts()
        #: `rows` of the current batch.
        self._rows: Mapping[str, FinalRows] = {}
        #: Of a model with heads of several node types: node type -> answers with its head.
        self._parts: dict[str, Answerer] = {}
        for name, own in model.by_type.items() if len(model.by_type) > 1 else ():
            self._parts[name] = part = copy.copy(self)
            part.model, part._parts = own, {}
            part.default_outputs = tuple(key for key, output in own.offers.items() if output.is_default)

    def answer(self, requests: Sequence[ScoreRequest]) -> list[Outcome]:
        """Return one outcome for each request, in order.

        Raises: HoplineError: the batch failed as a whole.
        """
        if self._parts:
            return self._by_type(requests, Answerer.answer)
        if self._live is None:
            return self._answer_all(requests)
        with self._live:  # one version for the whole batch, even if other callers pin it too
            try:
                return self._answer_all(requests)
            except SchemaMismatch as error:  # a row of an event that the preprocessing does not accept
                if len(requests) == 1:
                    return [error]
                return [outcome for request in requests for outcome in self.answer([request])]

    def _by_type(
        self, requests: Sequence[ScoreRequest], answer: Callable[..., Any], *supplies: Sequence[Any]
    ) -> list[Any]:
        """Have the requests about each node type answered together, on one version of a live graph."""
        groups: dict[str, list[int]] = {}
        for place, request in enumerate(requests):
            groups.setdefault(request.node_type, []).append(place)
        outcomes: list[Any] = [None] * len(requests)
        with self._live or contextlib.nullcontext():
            for node_type, places in groups.items():
                given = ([each[place] for place in places] for each in (requests, *supplies))
                for place, outcome in zip(places, answer(self._parts[node_type], *given), strict=True):
                    outcomes[place] = outcome
        return outcomes

    def _answer_all(self, requests: Sequence[ScoreRequest]) -> list[Outcome]:
        rows = self._rows = self.rows
        if rows and any(each.is_stale for each in rows.values()):
            # one request at a time: its answer reports whether it used such rows
            return [self._answer_stale(request, rows) for request in requests]
        return self._answer(requests)

    def _answer_stale(self, request: ScoreRequest, rows: Mapping[str, FinalRows]) -> Outcome:
        """Answer with rows of another snapshot and report that; compute if the request refuses them."""
        self._rows = {} if request.degraded == "refuse" else rows
        before = self.row_counts[FOUND]
        (outcome,) = self._answer([request])
        if isinstance(outcome, ScoreResult) and self.row_counts[FOUND] > before:
            return msgspec.structs.replace(outcome, degraded=(STALE_ROW,))
        return outcome

    def _answer(self, requests: Sequence[ScoreRequest]) -> list[Outcome]:
        plain = self._answer_plain(requests)
        if plain is not None:
            return plain
        outcomes: list[Outcome | None] = [None] * len(requests)
        for (as_of, _), members in _groups(requests):
            self._answer_group(requests, members, as_of, outcomes)
        return [outcome for outcome in outcomes if outcome is not None]

    def answer_supplied(
        self, requests: Sequence[ScoreRequest], supplies: Sequence[FetchedInputs]
    ) -> list[Outcome | Absent]:
        """Answer requests to a model with sources; a request whose rows are missing gets `Absent`.

        Requests whose rows are all available are answered together, at full quality. Requests with
        missing rows are answered separately, so that the other answers do not change.

        Raises: HoplineError: the batch failed as a whole.
        """
        if self._parts:
            return self._by_type(requests, Answerer.answer_supplied, supplies)
        outcomes: list[Outcome | Absent | None] = [None] * len(requests)
        together = list(range(len(requests)))
        try:
            self._together(requests, supplies, together, outcomes)
        except RowsAbsent as found:
            if len(requests) == 1:
                outcomes[0] = self._answer_without(requests[0], supplies[0], found)
            else:
                full = [m for m in together if not self._misses_rows(requests[m], supplies[m])]
                for m in together:
                    if m not in full:
                        outcomes[m] = self.answer_supplied([requests[m]], [supplies[m]])[0]
                try:
                    if full:
                        self._together(requests, supplies, full, outcomes)
                except RowsAbsent:  # another process has evicted a row in the meantime
                    for m in full:
                        outcomes[m] = self.answer_supplied([requests[m]], [supplies[m]])[0]
        return [outcome for outcome in outcomes if outcome is not None]

    def _together(
        self,
        requests: Sequence[ScoreRequest],
        supplies: Sequence[FetchedInputs],
        members: list[int],
        outcomes: list[Outcome | Absent | None],
    ) -> None:
        fetched_rows: dict[str, list[FetchedRows]] = {}
        fetched_edges: dict[str, list[FetchedEdges]] = {}
        for m in members:
            for node_type, rows in supplies[m].fetched_rows.items():
                fetched_rows.setdefault(node_type, []).extend(rows)
            for key, edges in supplies[m].fetched_edges.items():
                fetched_edges.setdefault(key, []).extend(edges)
        self.model.supply(fetched_rows, fetched_edges=fetched_edges)
        found = self.answer([requests[m] for m in members])
        for m, outcome in zip(members, found, strict=True):
            outcomes[m] = outcome

    def _misses_rows(self, request: ScoreRequest, supply: FetchedInputs) -> bool:
        """True if rows that a request reads are missing."""
        if _has_overlay(request) or request.names_edges:
            return True  # only answering it alone shows that
        wanted: dict[str, IdArray] = {}
        for node_type, external in sides_of(self.model.spec, request):
            try:
                ids = self.model.graph.nodes[node_type].ids.lookup(external)
            except BadRequest:
                return False
            known = ids[ids >= 0]
            rows = self.rows.get(node_type)
            if rows is not None and request.as_of is None:
                known = known[~rows.good(known)]
            wanted[node_type] = np.unique(np.concatenate([wanted.get(node_type, _NO_IDS), known]))
        self.model.supply(supply.fetched_rows, fetched_edges=supply.fetched_edges)
        try:
            return bool(self.model.absent(wanted, cut_of(request)))
        except RowsAbsent:
            return True

    def _answer_without(
        self, request: ScoreRequest, supply: FetchedInputs, found: RowsAbsent
    ) -> Outcome | Absent:
        """The outcome of a request whose rows are not all available."""
        if found.edges:
            return supply.edges_failed or Absent(found.absent, found.edges)
        if not supply.is_last:
            return Absent(found.absent)
        if request.degraded == "refuse":
            count = sum(ids.shape[0] for ids in found.absent.values())
            return FeatureStoreUnavailable(
                f"{count} feature rows could not be read ({supply.why or 'absent'}), and the request "
                'refuses a degraded answer; retry, or send "degraded": "allow"'
            )
        used: set[str] = set()
        names = request.outputs or self.default_outputs
        least_share = LEAST_SHARE if stands_in(self.model, request, names) else 0.0
        edges = supply.fetched_edges
        self.model.supply(supply.fetched_rows, used, least_share, edges)
        try:
            try:
                (outcome,) = self.answer([request])
            except RowsAbsent as again:
                if again.edges:  # other workers have evicted a state in the meantime
                    return self._answer_without(request, supply, again)
                used.clear()
                taken = by_student(self.model, request, names, supply.fetched_rows, used)
                if taken is not None:
                    outcome = self._result(*taken)
                else:
                    self.model.supply(supply.fetched_rows, used, fetched_edges=edges)
                    (outcome,) = self.answer([request])
        finally:
            self.model.supply({})
        if isinstance(outcome, ScoreResult):
            return msgspec.structs.replace(outcome, degraded=in_order(used | {*outcome.degraded}))
        return outcome

    def _answer_plain(self, requests: Sequence[ScoreRequest]) -> list[Outcome] | None:
        """Answer the usual batch: known nodes, present graph, default outputs. None for other batches."""
        head = self.model.spec.head
        for request in requests:
            if request.outputs or not request.reads_present:
                return None
        if head.kind == "link":
            return None
        flat = all_at_once(self.model.graph.nodes[head.node_type].ids, [r.nodes for r in requests])
        if flat is None or not all_known(flat):
            return None
        found = self._outputs(self.default_outputs, head.node_type, flat, NO_CUT)
        whole = self._result(found, None)
        if len(requests) == 1:
            return [whole]
        results: list[Outcome] = []
        pairs = list(found.items())
        at = 0
        for request in requests:
            end = at + len(request.nodes)
            own = {name: values[at:end] for name, values in pairs}
            results.append(msgspec.structs.replace(whole, outputs=own))
            at = end
        return results

    def _answer_group(
        self, requests: Sequence[ScoreRequest], members: list[int], as_of: int, outcomes: list[Any]
    ) -> None:
        """Answer requests with one time cut, about nodes or about pairs; all with an overlay, or none."""
        graph, good = self.model.graph, members
        overlays: dict[int, list[tuple[int, Overlay]]] = {}
        named: dict[int, NamedEdges | None] = {}
        head, has_overlays = self.model.spec.head, _has_overlay(requests[members[0]])
        for m in members if has_overlays or head.edge_type else ():
            try:
                own_edges = named[m] = named_edges(self.model, requests[m], as_of)
                if has_overlays:
                    most = self.max_inline_neighbors
                    overlays[m] = overlays_of(self.model, requests[m], most, as_of, own_edges)
            except HoplineError as error:
                outcomes[m] = error
        types = [head.node_type]
        if head.kind == "link":
            types.append(head.dst_node_type or head.node_type)
        sides: list[dict[int, IdArray]] = []
        for side, node_type in enumerate(types):
            good = [m for m in good if outcomes[m] is None]
            wanted: list[Any] = [sides_of(self.model.spec, requests[m])[side][1] for m in good]
            described = {}
            for at, m in enumerate(good if head.edge_type else ()):
                if has_overlays or named[m] is not None:
                    by_id = None if (each := named[m]) is None else each.sides[side]
                    described[m], wanted[at] = described_ends(
                        requests[m], wanted[at], node_type, types[0], by_id
                    )
            sides.append(self._look_up(graph.nodes[node_type].ids, requests, good, wanted, outcomes))
            for m, own in described.items():
                own[own == -1] = sides[side].pop(m, own[:0]) if outcomes[m] is None else -1
                sides[side][m] = own
        good = [m for m in good if outcomes[m] is None]
        for m in good if as_of != NO_CUT and self.model.past else ():
            try:
                for name, side_ids in zip(types, sides, strict=True):
                    side_ids[m] = ids_then(self.model, name, side_ids[m], as_of, requests[m].on_missing)
                for _, overlay in overlays.get(m, ()):
                    for key, lists in overlay.lists.items():
                        ids_then(self.model, graph.edges[key].src, lists.neighbors, as_of, "error")
            except HoplineError as error:
                outcomes[m] = error
        rows: dict[int, FloatArray] = {}
        for m in good if head.edge_type else ():
            try:
                edits = [each for _, each in overlays.get(m, ()) if each.edits_known]
                edited = edits[-1].lists.get(head.edge_type) if requests[m].edits else None
                both = [own[m] for own in sides]
                rows[m] = edge_rows(self.model, requests[m], both, as_of, edited, named[m])
            except HoplineError as error:
                outcomes[m] = error
        good = [m for m in good if outcomes[m] is None]
        if not good:
            return
        parts, first = list[tuple[int, Overlay]](), 0
        for m in good if overlays else ():
            tags: Any = first
            num_pairs = len(sides[0][m]) if requests[m].excludes else 0
            if num_pairs:  # a graph for each pair; one for those that lack the edge
                differ = np.array([k for k, _ in overlays[m] if k < num_pairs], np.int64)
                tags = np.full(num_pairs, first + num_pairs)
                tags[differ] = first + differ
            parts += [(first + k, each) for k, each in overlays[m]]
            added = ADDED | np.arange(len(requests[m].inline))
            for side_ids in sides:  # -1 stays -1
                side_ids[m] = np.concatenate([side_ids[m], added]) | (tags << REQUEST)
            first += num_pairs + 1
        flat = [np.concatenate([side_ids[m] for m in good]) for side_ids in sides]
        ok = np.logical_and.reduce([ids >= 0 for ids in flat])
        everything = bool(ok.all())
        ids = flat if everything else [own[ok] for own in flat]
        of_edges = [np.concatenate([rows[m] for m in good])[ok]] if rows else []
        names = self._wanted(requests, good)
        if overlays:
            states = self.model.overlaid_states(Overlay.joined(parts), types, ids, as_of)
            found = self.model.outputs(names, *states, *of_edges)
        elif len(types) == 1:
            found = self._outputs(names, types[0], ids[0], as_of)
        else:
            found = self.model.outputs(names, *self._pair_states(types, ids, as_of), *of_edges)
        if not everything:
            found = {name: spread(values, ok) for name, values in found.items()}
        at = 0
        for m in good:
            end = at + sides[0][m].shape[0]
            missing = None if everything or ok[at:end].all() else ~ok[at:end]
            mine = requests[m].outputs or self.default_outputs
            outcomes[m] = self._result({name: found[name][at:end] for name in mine}, missing, as_of)
            at = end

    def _pair_states(self, types: list[str], ids: list[IdArray], as_of: int) -> list[FloatArray]:
        """Final states of both ends of pairs, looked up where that is valid."""
        if types[0] != types[1]:
            states, rows = self._states(dict(zip(types, ids, strict=True)), as_of)
            return [states[t] if (own := rows[t]) is None else states[t][own] for t in types]
        states, rows = self._states({types[0]: np.concatenate(ids)}, as_of)
        both, n = rows[types[0]], ids[0].shape[0]
        ends = (slice(0, n), slice(n, 2 * n)) if both is None else (both[:n], both[n:])
        return [states[types[0]][end] for end in ends]

    def _look_up(
        self,
        index: IdIndex,
        requests: Sequence[ScoreRequest],
        members: list[int],
        wanted: list[ExternalIds],
        outcomes: list[Any],
    ) -> dict[int, IdArray]:
        """Global ids of each good request. Bad requests get their outcome here."""
        flat = all_at_once(index, wanted) if members else None
        if flat is not None and all_known(flat):
            ends = pairwise(accumulate(map(len, wanted), initial=0))
            return {m: flat[at:end] for m, (at, end) in zip(members, ends, strict=True)}
        found = {}
        for m, external in zip(members, wanted, strict=True):
            try:
                ids = index.lookup(external) if len(external) else _NO_IDS
                if requests[m].on_missing == "error" and not all_known(ids):
                    raise not_found(self.model.graph.version, external, ids)
                found[m] = ids
            except HoplineError as error:
                outcomes[m] = error
        return found

    def _outputs(
        self, names: Sequence[str], node_type: str, ids: IdArray, as_of: int
    ) -> dict[str, AnyArray]:
        """Outputs of nodes, one row for each id: looked up where valid, else computed."""
        rows = self._rows.get(node_type)
        if rows is None or as_of != NO_CUT or not ids.shape[0]:
            return self._computed(names, node_type, ids, as_of)
        good = rows.good(ids, self.row_counts)
        if good.all():
            return rows.outputs(names, ids)
        if not good.any():
            return self._computed(names, node_type, ids, as_of)
        found = rows.outputs(names, ids[good])
        computed = self._computed(names, node_type, ids[~good], as_of)
        merged = {name: spread(values, good) for name, values in found.items()}
        for name, values in computed.items():
            merged[name][~good] = values
        return merged

    def _computed(
        self, names: Sequence[str], node_type: str, ids: IdArray, as_of: int
    ) -> dict[str, AnyArray]:
        states, numbers = self._distinct_states({node_type: ids}, as_of)
        found = self.model.outputs(names, states[node_type])
        numbered = numbers[node_type]
        return found if numbered is None else {name: values[numbered] for name, values in found.items()}

    def _states(
        self, wanted: dict[str, IdArray], as_of: int
    ) -> tuple[dict[str, FloatArray], dict[str, IdArray | None]]:
        """Like `_distinct_states`, but looks up the rows that need not be computed."""
        if not self._rows or as_of != NO_CUT:
            return self._distinct_states(wanted, as_of)
        good = {t: self._rows[t].good(ids, self.row_counts) for t, ids in wanted.items() if t in self._rows}
        left = {t: ids[~good[t]] if t in good else ids for t, ids in wanted.items()}
        left = {t: ids for t, ids in left.items() if ids.shape[0]}
        states: dict[str, FloatArray] = {}
        numbers: dict[str, IdArray | None] = {}
        if left:
            states, numbers = self._distinct_states(left, as_of)
        for t, held in good.items():
            rows = self._rows[t]
            own = np.empty((held.shape[0], rows.state_dim), np.float32)
            own[held] = rows.states(wanted[t][held])
            if t in left:
                numbered = numbers[t]
                own[~held] = states[t] if numbered is None else states[t][numbered]
            states[t], numbers[t] = own, None
        return states, numbers

    def _distinct_states(
        self, wanted: dict[str, IdArray], as_of: int
    ) -> tuple[dict[str, FloatArray], dict[str, IdArray | None]]:
        """Final states of distinct ids, and the row of each requested id (None: in the order requested)."""
        distinct: dict[str, IdArray] = {}
        rows: dict[str, IdArray | None] = {}
        for node_type, ids in wanted.items():
            distinct[node_type], rows[node_type] = ids, None
            if ids.shape[0] > 1:
                self._interner.start(ids.shape[0])
                numbers = self._interner.add(ids)
                if self._interner.distinct.shape[0] < ids.shape[0]:
                    distinct[node_type] = self._interner.distinct.copy()
                    rows[node_type] = numbers.copy()
        return self.model.final_states(distinct, as_of), rows

    def _wanted(self, requests: Sequence[ScoreRequest], members: list[int]) -> tuple[str, ...]:
        """Every output that some member requests."""
        if not any(requests[m].outputs for m in members):
            return self.default_outputs
        requested = [requests[m].outputs or self.default_outputs for m in members]
        return tuple(dict.fromkeys(chain.from_iterable(requested)))

    def _result(
        self, outputs: dict[str, AnyArray], missing: NDArray[np.bool_] | None, as_of: int = NO_CUT
    ) -> ScoreResult:
        model, ages = self.model, self.model.ages
        return ScoreResult(
            model.spec.name,
            self._version,
            model.graph.version,
            outputs,
            missing,
            graph_through_ms=0 if self._live is None else self._live.through_ms,
            features_age_ms=ages.oldest_ms,
            features_until=ages.until,
            as_of=model.time_of(as_of) if self._reads_times else None,
        )


def cut_of(request: ScoreRequest) -> int:
    """The time cut of a request whose `as_of` is already in the graph's unit."""
    as_of = request.as_of
    assert not isinstance(as_of, datetime)
    return NO_CUT if as_of is None else as_of


def _has_overlay(request: ScoreRequest) -> bool:
    return bool(request.inline or request.context or request.edits or request.excludes)


def _groups(requests: Sequence[ScoreRequest]) -> list[tuple[tuple[int, bool], list[int]]]:
    """Group requests by time cut, since a plan has one, and by whether they have overlays."""
    groups: dict[tuple[int, bool], list[int]] = {}
    for m, request in enumerate(requests):
        groups.setdefault((cut_of(request), _has_overlay(request)), []).append(m)
    return list(groups.items())
