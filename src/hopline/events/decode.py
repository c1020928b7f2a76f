"""Decodes payloads into one batch of changes, and refusals of invalid events.

A bad event does not affect others: it is refused alone, with a code and a reason. Refusals are
those of `hopline.graph.live.changes.Rejected`, and

    malformed        not JSON, not Arrow, or not an event
    too_large        a payload with more events, or that would use more memory, than the limit
    schema_changed   features, attributes, times, weights or columns that are not this graph's

The received bytes bound time and memory: declared sizes are counted first.

Where features are in a feature store, events bring nodes and edges, and no features: they are decoded as if
node types had none. The graph still has a row for each node, which is zero for added nodes and which no
model reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, groupby
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest, RequestTooLarge
from hopline.events import arrow_rows, checks, json_rows, parts, wire
from hopline.events.arrow_fields import refuse_fields
from hopline.events.payloads import JsonEvents, read_json
from hopline.events.rows import Refusals, Refused
from hopline.graph.live.changes import Changes, EdgeChanges, NodeChanges
from hopline.graph.schema import GraphSchema
from hopline.json_faults import may_repeat, repeated_name
from hopline.types import IdArray, InlineNode, ScoreRequest


def _without_features(schema: GraphSchema) -> GraphSchema:
    """The schema to decode such events by."""
    types = {
        name: msgspec.structs.replace(node, feature_dim=0, feature_names=())
        for name, node in schema.node_types.items()
    }
    return GraphSchema(types, schema.edge_types)


def _with_zeros(changes: Changes, schema: GraphSchema) -> Changes:
    """The changes with rows as the graph has them."""
    nodes = {
        name: replace(part, features=np.zeros((len(part), schema.node_types[name].feature_dim), np.float32))
        for name, part in changes.nodes.items()
    }
    return replace(changes, nodes=nodes)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
#: The year 9999; a later time is in another unit.
_LATEST_MS = 253_402_300_799_999
#: Between these, a time in ms would be of early 1970; in seconds it would be of 1973 to 2286, so seconds
#: are meant.
_SECONDS = (10**8, 10**10)
#: Events that one call of compiled code converts to columns: meanwhile a thread holds the interpreter lock,
#: for about a millisecond.
_SLICE = 4_096
_NO_ID = "id is empty; leave it out or send one"
_BAD_AT = "is not a time in ms since 1970"
#: Fields of an inline node by edge type.
_OF_EDGES = ("neighbors", "edge_attr", "edge_weight")


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """The decoded events of payloads.

    Attributes:
        changes: all events that can be applied, in order. `event_time_ms` is 0 if unknown.
        payload: int64 [num_events], which payload each came from; index: int64 [num_events], which event
            of it.
        refused: all other events.
    """

    changes: Changes
    payload: IdArray
    index: IdArray
    refused: Sequence[Refused]


@dataclass(slots=True)
class _Segment:
    """Neighbouring payloads of one format.

    Attributes:
        ids, times: one for each event; payload, index: where it is from.
    """

    ids: list[str]
    times: IdArray
    payload: IdArray
    index: IdArray
    edges: dict[str, EdgeChanges]
    nodes: dict[str, NodeChanges]


class Decoder:
    """Reads events of one graph.

    Args:
        schema: the graph's.
        features_elsewhere: features are in a feature store; see the module.

    Attributes:
        schema: of events.
    """

    def __init__(self, schema: GraphSchema, *, features_elsewhere: bool = False) -> None:
        self._whole = schema if features_elsewhere else None
        self.schema = schema = _without_features(schema) if features_elsewhere else schema
        self._edge_types = tuple(schema.own_edge_types)
        self._node_types = tuple(schema.node_types)

    def decode(self, payloads: Sequence[bytes], sent_ms: Sequence[int] = ()) -> Decoded:
        """Read payloads, each one event, a list, one a line, or an Arrow IPC stream.

        Args:
            sent_ms: one for each payload: the time of its events without one; 0 if unknown. Times after
                9999 are unknown as well.
        """
        refusals, refused = Refusals(), list[Refused]()
        segments: list[_Segment] = []
        count = 0
        for is_arrow, group in groupby(
            enumerate(payloads), key=lambda each: each[1].startswith(arrow_rows.MAGIC)
        ):
            read = self._arrow if is_arrow else self._json
            for segment in read(list(group), count, refusals, refused):
                segments.append(segment)
                count += len(segment.ids)
        decoded = _joined(segments, count, refusals, refused, sent_ms)
        if self._whole is None or not decoded.changes.nodes:
            return decoded
        return replace(decoded, changes=_with_zeros(decoded.changes, self._whole))

    def check(self, events: list[Any]) -> Decoded:
        """As `decode`, of events that are read already; without a feature store."""
        refusals, count = Refusals(), len(events)
        read = JsonEvents(events, [0] * count, list(range(count)))
        segments = self._segments(read, np.arange(count, dtype=np.int64), refusals)
        return _joined(segments, count, refusals, [], ())

    def _json(
        self, payloads: list[tuple[int, bytes]], first: int, refusals: Refusals, refused: list[Refused]
    ) -> list[_Segment]:
        read = JsonEvents([], [], [])
        for at, payload in payloads:
            wrong = read_json(at, payload, read, refused)
            if wrong is not None:
                refused.append(wrong)
        numbers = np.arange(first, first + len(read.events), dtype=np.int64)
        text = payloads[0][1] if len(payloads) == 1 else b"".join(payload for _, payload in payloads)
        if may_repeat(text, wire.num_names(read.events)):
            _refuse_repeated(dict(payloads), read.origin, read.index, numbers, refusals)
        return self._segments(read, numbers, refusals)

    def _segments(self, read: JsonEvents, numbers: IdArray, refusals: Refusals) -> list[_Segment]:
        return [
            self._segment(read, slice(begin, begin + _SLICE), numbers, refusals)
            for begin in range(0, len(numbers), _SLICE)
        ]

    def _segment(self, read: JsonEvents, part: slice, numbers: IdArray, refusals: Refusals) -> _Segment:
        events, numbers = read.events[part], numbers[part]
        ids = [event.id for event in events]
        if "" in ids:
            refusals.add_all(numbers[[each == "" for each in ids]], "malformed", _NO_ID)
        edges, nodes = self._json_changes(events, numbers, refusals)
        return _Segment(
            ids if set(map(type, ids)) == {str} else ["" if each is None else str(each) for each in ids],
            _times([event.at for event in events], numbers, refusals),
            np.array(read.origin[part], np.int64),
            np.array(read.index[part], np.int64),
            edges,
            nodes,
        )

    def _json_changes(
        self, events: list[Any], numbers: IdArray, refusals: Refusals
    ) -> tuple[dict[str, EdgeChanges], dict[str, NodeChanges]]:
        schema, edges, nodes = self.schema, dict[str, EdgeChanges](), dict[str, NodeChanges]()
        groups: dict[tuple[type, str | None], list[int]] = {}
        for row, event in enumerate(events):
            of_node = wire.RemoveNode if type(event) is wire.RemoveNode else wire.NodeRow
            is_edge = isinstance(event, wire.Edge)
            group_of = (wire.Edge, event.edge_type) if is_edge else (of_node, event.node_type)
            groups.setdefault(group_of, []).append(row)
        for (base, name), rows in groups.items():
            group, places = [events[row] for row in rows], numbers[rows]
            if base is wire.Edge:
                if key := _type_of(name, self._edge_types, "edge type", places, refusals):
                    kind = schema.edge_types[key]
                    of_edges = json_rows.edge_rows(group, places, kind, refusals)
                    edges = _merged([edges, {key: checks.edge_changes(of_edges, kind, schema, refusals)}])
            elif key := _type_of(name, self._node_types, "node type", places, refusals):
                node = schema.node_types[key]
                if base is wire.RemoveNode:
                    changes = checks.node_removals([event.node for event in group], places, node, refusals)
                else:
                    of_nodes = json_rows.node_rows(group, places, key, node, refusals)
                    changes = checks.node_changes(of_nodes, key, node, schema.time_unit, refusals)
                nodes = _merged([nodes, {key: changes}])
        return edges, nodes

    def _arrow(
        self, payloads: list[tuple[int, bytes]], first: int, refusals: Refusals, refused: list[Refused]
    ) -> list[_Segment]:
        alike: list[tuple[int, Any]] = []  # small messages of one schema, to be read as one table
        segments: list[_Segment] = []

        def read_alike() -> None:
            nonlocal first
            if alike:
                segments.append(self._table(alike, first, refusals))
                first += len(segments[-1].ids)
                alike.clear()

        for at, payload in payloads:
            table = arrow_rows.read_table(payload, self.schema)
            if isinstance(table, tuple):
                refused.append(Refused(at, -1, *table))
                continue
            if alike and not table.schema.equals(alike[-1][1].schema):
                read_alike()
            alike.append((at, table))
        read_alike()
        return segments

    def _table(self, alike: list[tuple[int, Any]], first: int, refusals: Refusals) -> _Segment:
        schema = self.schema
        table = arrow_rows.Table([each for _, each in alike])
        lengths = [each.num_rows for _, each in alike]
        numbers = np.arange(first, first + len(table), dtype=np.int64)
        refusals.add_all(
            numbers[table.ops < 0],
            "malformed",
            f"op is missing or unknown; known are {', '.join(wire.OPS)}",
        )
        refuse_fields(table, first, schema, refusals)
        ids, named = table.strings("id"), table.given("id")
        if named is not None and "" in ids:
            refusals.add_all(numbers[named & [each == "" for each in ids]], "malformed", _NO_ID)
        edges: dict[str, EdgeChanges] = {}
        nodes: dict[str, NodeChanges] = {}
        for rows, key in _typed(
            table, (table.ops == 0) | (table.ops == 1), "edge_type", self._edge_types, numbers, refusals
        ):
            kind = schema.edge_types[key]
            part = table.edge_rows(rows, first, kind, refusals)
            edges[key] = checks.edge_changes(part, kind, schema, refusals)
        for rows, key in _typed(table, table.ops >= 2, "node_type", self._node_types, numbers, refusals):
            node, is_removal = schema.node_types[key], table.ops[rows] == wire.OPS.index("remove_node")
            found = list[NodeChanges]()
            if not is_removal.all():
                row = table.node_rows(rows[~is_removal], first, key, node, refusals)
                found.append(checks.node_changes(row, key, node, schema.time_unit, refusals))
            if is_removal.any():
                gone = rows[is_removal]
                found.append(checks.node_removals(table.ids("node", gone), gone + first, node, refusals))
            nodes[key] = parts.merge(found)
        times = np.full(len(table), -1, np.int64)
        given = table.times_ms()
        if given is not None:
            bad = ~given.absent() & _bad_times(given.values)
            refusals.add_all(numbers[bad], "malformed", f"at {_BAD_AT}")
            times = np.where(given.absent(), -1, given.values)
        return _Segment(
            ids,
            times,
            np.repeat(np.array([at for at, _ in alike], np.int64), lengths),
            np.concatenate([np.arange(length, dtype=np.int64) for length in lengths]),
            edges,
            nodes,
        )


def events_of(
    request: ScoreRequest, node_type: str, schema: GraphSchema, time: int | None
) -> tuple[list[Any], list[str]]:
    """Events that add the inline and context nodes of a request, then their edges; and the place of each.

    Args:
        node_type: of nodes that name none.
        time: of edges whose type has times, and nodes whose type has a history; None if the request names
            none.
    Raises: BadRequest: a node without an id; edges that do not fit their type. RequestTooLarge.
    """
    nodes = [(f"inline[{at}]", node, node_type) for at, node in enumerate(request.inline)]
    nodes += [(f"context[{at}]", node, node.type or node_type) for at, node in enumerate(request.context)]
    num_edges = sum(len(ids) for _, node, _ in nodes for ids in node.neighbors.values())
    if len(nodes) + num_edges > wire.MAX_EVENTS:
        raise RequestTooLarge(f"keep: {len(nodes)} nodes with {num_edges} edges; {wire.TooMany()}")
    events, edges = dict[str, Any](), dict[str, Any]()
    for place, node, kind in nodes:
        if node.id is None:
            raise BadRequest(f"{place}.id is missing: with keep, all nodes of the request join the graph")
        row = {"columns": node.columns} if node.columns is not None else {"features": _list(node.features)}
        has_past = getattr(schema.node_types.get(kind), "history", None) is not None
        if has_past and time is None:
            raise BadRequest(f"{place}: {kind!r} has a history; with keep, as_of is the time of new nodes")
        events[place] = wire.AddNode(node=node.id, node_type=kind, time=time if has_past else None, **row)
        into = {key: edge for key, edge in schema.edge_types.items() if edge.dst == kind}
        given = [_by_edge_type(node, what, place, into) for what in _OF_EDGES]
        for key in dict.fromkeys(chain(*given)):
            edge, ids = into[key], given[0].get(key, [])
            attrs = given[1].get(key) or [None] * len(ids)
            weights = given[2].get(key) or [1.0 if edge.has_weight else None] * len(ids)
            if not len(ids) == len(attrs) == len(weights):
                raise BadRequest(f"{place}: {key!r} has {len(ids)} neighbors, and other numbers of rows")
            if edge.has_time and time is None and ids:
                raise BadRequest(f"{place}: {key!r} has times; with keep, as_of is the time of new edges")
            for at, (src, attr, weight) in enumerate(zip(ids, attrs, weights, strict=True)):
                row = {"columns": attr} if isinstance(attr, Mapping) else {"attr": attr}
                row |= {"time": time if edge.has_time else None, "weight": weight}
                ends = (node.id, src) if edge.reverse_of else (src, node.id)
                name, own = f"{place}.neighbors[{at}] of {key!r}", edge.reverse_of or key
                edges[name] = wire.AddEdge(src=ends[0], dst=ends[1], edge_type=own, **row)
    events |= edges
    return list(events.values()), list(events)


def _by_edge_type(node: InlineNode, what: str, place: str, into: Mapping[str, Any]) -> dict[str, list[Any]]:
    """A field of an inline node by edge type; the name "" means the only type."""
    given: Mapping[str, Any] = getattr(node, what)
    found = {next(iter(into)) if not key and len(into) == 1 else key: _list(given[key]) for key in given}
    if found.keys() - into.keys() or len(found) < len(given):
        named, known = ", ".join(map(repr, given)), ", ".join(into) or "none"
        raise BadRequest(f"{place}.{what}: {named}; edge types that lead there: {known}")
    return found


def _list(values: Any) -> list[Any]:
    """The values, arrays and NumPy's numbers as Python's."""
    return [each.tolist() if isinstance(each, np.ndarray | np.generic) else each for each in values]


def _merged(groups: Sequence[dict[str, parts.PartT]]) -> dict[str, parts.PartT]:
    """The changes of groups by type."""
    names = dict.fromkeys(name for each in groups for name in each)
    return {name: parts.merge([each[name] for each in groups if name in each]) for name in names}


def _type_of(
    name: str | None, known: tuple[str, ...], what: str, numbers: IdArray, refusals: Refusals
) -> str | None:
    if name is None and len(known) == 1:
        return known[0]
    if name is not None and name in known:
        return name
    wrong = f"no {what} is named" if name is None else f"no {what} {name[:60]!r}"
    refusals.add_all(numbers, "unknown_type", f"{wrong}; the graph has {', '.join(known) or 'none'}")
    return None


def _typed(
    table: arrow_rows.Table,
    about: NDArray[np.bool_],
    column: str,
    known: tuple[str, ...],
    numbers: IdArray,
    refusals: Refusals,
) -> list[tuple[IdArray, str]]:
    """Group rows of a table by type."""
    if not about.any():
        return []
    codes = table.words(column, known)
    if len(known) == 1:
        codes = np.where(codes == -2, 0, codes)
    refusals.add_all(
        numbers[about & (codes < 0)],
        "unknown_type",
        f"{column.replace('_', ' ')} is missing or unknown; the graph has {', '.join(known) or 'none'}",
    )
    found = ((np.flatnonzero(about & (codes == at)), key) for at, key in enumerate(known))
    return [(rows, key) for rows, key in found if len(rows)]


def _refuse_repeated(
    payloads: dict[int, bytes], origin: list[int], index: list[int], numbers: IdArray, refusals: Refusals
) -> None:
    """Refuse events with a repeated field."""
    texts = {at: wire.split(payloads[at]) for at in dict.fromkeys(origin)}
    for number, at, place in zip(numbers.tolist(), origin, index, strict=True):
        text = texts[at][place]
        assert isinstance(text, bytes)  # the events of this payload were read
        name = repeated_name(text)
        if name:
            refusals.add(number, "malformed", f"field {name!r} is repeated")


def _times(values: list[Any], numbers: IdArray, refusals: Refusals) -> IdArray:
    """ms since 1970, -1 for missing ones."""
    if set(map(type, values)) == {type(None)}:
        return np.full(len(values), -1, np.int64)
    kept = []
    for number, value in zip(numbers.tolist(), values, strict=True):
        if value is None:
            kept.append(-1)
            continue
        is_moment = isinstance(value, datetime)
        if is_moment:
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            value = (aware - _EPOCH) // _MS
        is_seconds = not is_moment and _SECONDS[0] <= value < _SECONDS[1]
        if is_seconds or not 0 <= value <= _LATEST_MS:
            hint = f"; if it is in seconds, send {int(value * 1000)}" if is_seconds else ""
            refusals.add(number, "malformed", f"at {str(value)[:40]} {_BAD_AT}{hint}")
            value = 0
        kept.append(int(value))
    return np.array(kept, np.int64)


def _bad_times(ms: IdArray) -> NDArray[np.bool_]:
    """Mask of times that are invalid as ms since 1970: bool [n]."""
    bad: NDArray[np.bool_] = (ms < 0) | (ms > _LATEST_MS) | ((ms >= _SECONDS[0]) & (ms < _SECONDS[1]))
    return bad


def _joined(
    segments: list[_Segment], count: int, refusals: Refusals, refused: list[Refused], sent_ms: Sequence[int]
) -> Decoded:
    """One batch of all segments, without refused events."""
    none = np.empty(0, np.int64)
    payload = np.concatenate([none, *(each.payload for each in segments)])
    index = np.concatenate([none, *(each.index for each in segments)])
    times = np.concatenate([none, *(each.times for each in segments)])
    ids = segments[0].ids if len(segments) == 1 else [each for part in segments for each in part.ids]
    if sent_ms and count:
        # A producer may choose these times: the id of a Redis entry, the timestamp of a Kafka message.
        sent = [each if 0 <= each <= _LATEST_MS else 0 for each in sent_ms]
        times = np.where(times < 0, np.array(sent, np.int64)[payload], times)
    times = np.maximum(times, 0)
    edges, nodes = _merged([each.edges for each in segments]), _merged([each.nodes for each in segments])
    if refusals.by_number:
        for number, (code, reason) in sorted(refusals.by_number.items()):
            refused.append(Refused(int(payload[number]), int(index[number]), code, reason, ids[number]))
        good = np.ones(count, np.bool_)
        good[list(refusals.by_number)] = False
        place = np.cumsum(good) - 1
        edges, nodes = parts.keep(edges, good, place), parts.keep(nodes, good, place)
        payload, index, times = payload[good], index[good], times[good]
        ids = [each for each, ok in zip(ids, good.tolist(), strict=True) if ok]
    if not any(ids):
        ids = []
    return Decoded(
        Changes(edges, nodes, len(payload), ids, times if times.any() else None), payload, index, refused
    )
