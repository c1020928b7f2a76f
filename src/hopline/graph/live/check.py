"""Decides which events of a batch can be applied, and to which rows they refer. Changes nothing.

Events are checked in the order of arrival: an edge may refer to a node that an earlier event of the same
batch adds, but not to one that a later event adds, or that an earlier one removes. The removal of a node
removes the edges that it has in the graph, and those that earlier events of the batch add.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest
from hopline.graph import narrow
from hopline.graph.ids import IdIndex
from hopline.graph.live.changes import Changes, EdgeChanges, Ids, NodeChanges, Rejected
from hopline.graph.live.checked import NO_INTS, REMOVED, Checked, Edge, EdgeRows, NodeRows, in_order
from hopline.graph.schema import EdgeTypeSchema, GraphSchema, NodeTypeSchema, reverse_key
from hopline.types import AnyArray, ExternalId, IdArray

_NO_FLOATS = np.empty(0, np.float32)
_NOTHING = np.empty((0, 0), np.float32)
#: Longest text of an edge or an added node in a message, in characters.
_SHOWN = 40
#: Why a negative weight is refused.
NOT_SIGNED = (
    "{!r} is negative, and the graph was built without negative weights; build it with "
    "--signed-weights (EdgeTable.signed_weight) to accept them"
)

Reject = Callable[[NDArray[np.bool_], AnyArray, str, Callable[[int], str]], None]
#: Ids that a batch adds or removes -> (place of the event, row from then on, -1 for none), in order.
Steps = dict[ExternalId, list[tuple[int, int]]]
#: The ends of the edges of own types that rows of a node type have now, and perhaps of more.
EdgesOf = Callable[[str, IdArray], Mapping[str, tuple[IdArray, IdArray]]]
#: Node type with a history -> times of the first rows of nodes that have one, int64 [n] of ids int64 [n].
FirstTimes = Mapping[str, Callable[[IdArray], IdArray]]


def check(
    changes: Changes,
    skip: NDArray[np.bool_],
    schema: GraphSchema,
    ids: Mapping[str, IdIndex],
    counts: Mapping[str, int],
    room: Mapping[str, int],
    edges_of: EdgesOf,
    with_ids: Mapping[str, Callable[[Sequence[str]], dict[str, Edge]]],
    first_times: FirstTimes,
) -> Checked:
    """Check a batch.

    Args:
        skip: bool [num_events], events that were seen before.
        with_ids: edge type -> finds edges by their ids.
        ids: node type -> index. counts: rows. room: nodes that can still be added.
        first_times: see `FirstTimes`.
    """
    checked = Checked(~skip)

    def reject(wrong: NDArray[np.bool_], order: AnyArray, code: str, say: Callable[[int], str]) -> None:
        for at in np.flatnonzero(wrong).tolist():
            place = int(order[at])
            if checked.accepted[place]:
                checked.accepted[place] = False
                checked.rejected.append(Rejected(place, code, say(at)))

    def unknown(what: str, name: str, there: Mapping[str, object], order: IdArray) -> None:
        why = f"{what} type {name!r} is unknown; the graph has {', '.join(map(repr, there))}"
        reject(np.ones(len(order), bool), order, "unknown_type", lambda _: why)

    steps: dict[str, Steps] = {}
    for node_type, nodes in changes.nodes.items():
        known = schema.node_types.get(node_type)
        if known is None:
            unknown("node", node_type, schema.node_types, nodes.order)
            continue
        index = ids[node_type]
        found = _found(index, nodes.ids, nodes.order, reject, f"nodes of {node_type!r}")
        checked.nodes[node_type], steps[node_type] = _check_nodes(
            node_type, known, nodes, found, checked, reject, counts[node_type], room[node_type]
        )
    for key, edges in changes.edges.items():
        edge = schema.own_edge_types.get(key)
        if edge is None:
            unknown("edge", key, schema.own_edge_types, edges.order)
            continue
        ends = _ends(key, edge, edges, ids, steps, checked, reject)
        for name, rows in zip((edge.src, edge.dst)[: 1 + schema.both_directions], ends, strict=False):
            if name in first_times and edges.time is not None:
                own, past = checked.nodes.get(name), schema.node_types[name].history
                first = _first_times(rows, edges.order, own, first_times[name], counts[name])
                early = (edges.time < first) & (rows >= 0) & ~edges.remove
                if past is not None and past.since is not None:
                    early &= first > past.since
                why = f"an edge of {key!r} is older than its node, which exists from its first row on"
                reject(early, edges.order, "unknown_node", lambda _, why=why: why)  # type: ignore[misc]
        checked.edges[key] = _check_edges(edge, edges, ends, checked, reject, with_ids[key])
    for node_type in steps:
        if len(checked.nodes[node_type].removed):
            _remove_edges(node_type, edges_of, schema, checked)
    if schema.both_directions:
        checked.edges |= {reverse_key(key): edges.reverse() for key, edges in checked.edges.items()}
    checked.rejected.sort(key=lambda rejected: rejected.order)
    return checked


def _found(index: IdIndex, ids: Ids, order: IdArray, reject: Reject, what: str) -> IdArray:
    """Global ids, -1 for unknown ones; ids of a wrong kind are rejected individually."""
    try:
        return index.lookup(ids)
    except BadRequest:
        found = np.full(len(ids), -1, np.int64)
        reasons: dict[int, str] = {}
        for at, one in enumerate(ids):
            try:
                found[at] = index.lookup([one])[0]
            except BadRequest as error:
                reasons[at] = f"{what}: {error}"
        wrong = np.zeros(len(ids), bool)
        wrong[list(reasons)] = True
        reject(wrong, order, "bad_id", lambda at: reasons[at])
        return found


def _check_nodes(
    node_type: str,
    schema: NodeTypeSchema,
    nodes: NodeChanges,
    found: IdArray,
    checked: Checked,
    reject: Reject,
    count: int,
    room: int,
) -> tuple[NodeRows, Steps]:
    order, values, dim = nodes.order, nodes.features, schema.feature_dim
    everyone = np.ones(len(nodes), bool)
    remove = ~everyone if nodes.remove is None else nodes.remove
    if values.ndim != 2 or values.shape[1] != dim:
        shape = list(values.shape[1:])
        reject(
            everyone, order, "bad_shape",
            lambda _: f"features of {node_type!r} have shape {shape}; the graph has {dim} numbers a node",
        )  # fmt: skip
    if schema.history is not None and nodes.time is None:
        why = f"rows of {node_type!r} have times; set `time`"
        reject(~remove, order, "no_time", lambda _: why)
    cells, texts = _cells(nodes, schema, everyone, reject, f"node type {node_type!r}")
    if cells is None or not checked.accepted[order].any():
        none = np.empty((0, dim), np.float32), texts[:0], texts[:0]
        return NodeRows(count, [], NO_INTS, *none, *[NO_INTS] * 4), {}
    rounded = narrow.rounded(values, schema.feature_dtype)
    finite = np.asarray((np.isfinite(values) & np.isfinite(rounded)).all(axis=1))
    reject(
        ~finite, order, "not_finite", lambda at: f"features of node {_shown(nodes.ids[at])} are not finite"
    )

    def exists(name: Any) -> str:
        return f"node {_shown(name)} of type {node_type!r} exists; set its features instead"

    one_by_one = found < 0
    if remove.any():  # rows that are removed may be named by other events of the batch
        one_by_one |= np.isin(found, found[remove])
        rounded, cells, texts = np.array(rounded), np.array(cells), np.array(texts)
        rounded[remove], cells[remove], texts[remove] = 0.0, np.nan, None
    reject(nodes.add & ~one_by_one, order, "node_exists", lambda at: exists(nodes.ids[at]))
    targets = found.copy()
    steps: Steps = {}
    names: list[ExternalId] = []
    for at in np.flatnonzero(one_by_one).tolist():
        place = int(order[at])
        if not checked.accepted[place]:
            continue
        name: ExternalId = nodes.ids[at] if isinstance(nodes.ids[at], str) else int(nodes.ids[at])
        targets[at] = _row_at(steps, name, place, int(found[at]))
        if targets[at] < 0 and not nodes.add[at]:
            why = f"node {_shown(name)} of type {node_type!r} is unknown"
            _one(reject, at, order, "unknown_node", why)
        elif remove[at]:
            steps.setdefault(name, []).append((place, -1))
        elif not nodes.add[at]:
            continue
        elif targets[at] >= 0:
            _one(reject, at, order, "node_exists", exists(name))
        elif len(names) >= room:
            why = f"no room for more nodes of type {node_type!r}: live.spare_nodes are used up"
            _one(reject, at, order, "full", f"{why}; restart the server with more")
        else:
            targets[at] = count + len(names)
            steps.setdefault(name, []).append((place, int(targets[at])))
            names.append(name)
    keep = checked.accepted[order] & (targets >= 0)
    own, gone = (targets[keep], rounded[keep], cells[keep], texts[keep]), keep & remove
    times = NO_INTS, NO_INTS
    if schema.history is not None:
        given = np.zeros(len(nodes), np.int64) if nodes.time is None else nodes.time
        times = np.where(remove, REMOVED, given)[keep], order[keep]
    return NodeRows(count, names, *own, targets[gone], order[gone], *times), steps


def _row_at(steps: Steps, name: ExternalId, place: int, before: int) -> int:
    """The row of an id at a place of the batch, -1 for none; `before` is that before the batch."""
    for at, row in steps.get(name, ()):
        if at < place:
            before = row
    return before


def _remove_edges(node_type: str, edges_of: EdgesOf, schema: GraphSchema, checked: Checked) -> None:
    """Add removals of all edges that removed nodes have, in the graph and from earlier in the batch."""
    nodes = checked.nodes[node_type]
    removed, place = nodes.removed, np.argsort(nodes.removed)
    for key, (src, dst) in edges_of(node_type, removed[removed < nodes.first]).items():
        kind = schema.edge_types[key]
        rows = checked.edges.get(key) or _no_edges(kind)
        for end, name in ((0, kind.src), (1, kind.dst)):
            if name != node_type:
                continue
            sides = np.concatenate([src, rows.add_src]), np.concatenate([dst, rows.add_dst])
            gone = np.isin(sides[end], removed)
            by = nodes.removed_by[place[np.searchsorted(removed, sides[end][gone], sorter=place)]]
            rows = rows.without(sides[0][gone], sides[1][gone], by)
        checked.edges[key] = rows


def _no_edges(schema: EdgeTypeSchema) -> EdgeRows:
    attr = np.empty(
        (0, 1 if schema.columns else schema.attr_dim), np.int32 if schema.columns else np.float32
    )
    num_texts = sum(column.type == "text" for column in schema.columns)
    return EdgeRows(
        NO_INTS, NO_INTS, NO_INTS, _NO_FLOATS, attr, NO_INTS,
        NO_INTS, NO_INTS, NO_INTS, np.empty(0, np.bool_), NO_INTS,
        np.empty((0, len(schema.columns))), np.empty((0, num_texts), object), np.empty(0, np.int32),
    )  # fmt: skip


def _first_times(
    ids: IdArray, order: IdArray, nodes: NodeRows | None, known: Callable[[IdArray], IdArray], count: int
) -> IdArray:
    """Times int64 [n] of the first rows of ids int64 [n], at places of the batch; `REMOVED` for none."""
    found = np.full(len(ids), REMOVED)
    is_known = (ids >= 0) & (ids < count)
    found[is_known] = known(ids[is_known])
    if nodes is None:
        return found
    first: dict[int, int] = {}
    rows = deque(zip(nodes.orders.tolist(), nodes.ids.tolist(), nodes.times.tolist(), strict=True))
    for at in np.flatnonzero(np.isin(ids, nodes.ids)).tolist():
        while rows and rows[0][0] < order[at]:
            _, node, time = rows.popleft()
            first[node] = min(time, first.get(node, time))
        found[at] = min(found[at], first.get(int(ids[at]), found[at]))
    return found


def _cells(
    changes: NodeChanges | EdgeChanges,
    schema: NodeTypeSchema | EdgeTypeSchema,
    needed: NDArray[np.bool_],
    reject: Reject,
    what: str,
) -> tuple[AnyArray | None, AnyArray]:
    """Cells and texts; no cells if they are not of the columns that `needed` events must have."""
    num_texts = sum(column.type == "text" for column in schema.columns)
    none = np.empty((len(changes), 0))
    cells = none if changes.cells is None else changes.cells
    texts = none if changes.texts is None else changes.texts
    if cells.shape[1:] == (len(schema.columns),) and texts.shape[1:] == (num_texts,):
        return cells, texts
    named = ", ".join(column.name for column in schema.columns) or "none"
    why = f"{what} has the columns {named}; the event has others"
    reject(needed, changes.order, "bad_shape", lambda _: why)
    return None, texts


def _ends(
    key: str,
    schema: EdgeTypeSchema,
    edges: EdgeChanges,
    ids: Mapping[str, IdIndex],
    steps: Mapping[str, Steps],
    checked: Checked,
    reject: Reject,
) -> tuple[IdArray, IdArray]:
    """The rows of both ends of edges, -1 for unknown ones, which are rejected."""
    order = edges.order
    ends = []
    for node_type, external, what in (
        (schema.src, edges.src, "source"),
        (schema.dst, edges.dst, "destination"),
    ):
        found = _found(ids[node_type], external, order, reject, f"{what} of {key!r}")
        removed = checked.nodes[node_type].removed if node_type in steps else NO_INTS
        moved = (found < 0) | np.isin(found, removed) if len(removed) else found < 0
        if moved.any():
            found, own = found.copy(), steps.get(node_type, {})
            for at in np.flatnonzero(moved).tolist():
                name = external[at] if isinstance(external[at], str) else int(external[at])
                found[at] = _row_at(own, name, int(order[at]), int(found[at]))
            reject(
                found < 0, order, "unknown_node",
                lambda at, e=external, w=what, t=node_type: (  # type: ignore[misc]
                    f"{w} {_shown(e[at])} of {key!r} is not a node of type {t!r}; add the node first"
                ),
            )  # fmt: skip
        ends.append(found)
    return ends[0], ends[1]


def _check_edges(
    schema: EdgeTypeSchema,
    edges: EdgeChanges,
    ends: tuple[IdArray, IdArray],
    checked: Checked,
    reject: Reject,
    with_ids: Callable[[Sequence[str]], dict[str, Edge]],
) -> EdgeRows:
    key, order, adds, (src, dst) = schema.key, edges.order, ~edges.remove, ends
    time, has_time = edges.time, edges.has_time
    if schema.has_time and (time is None or has_time is not None):
        without = adds if time is None or has_time is None else adds & ~has_time
        reject(without, order, "no_time", lambda _: f"edges of {key!r} have times; set `time`")
    weight = _NO_FLOATS
    if schema.has_weight:
        if edges.weight is None:
            reject(adds, order, "no_weight", lambda _: f"edges of {key!r} have weights; set `weight`")
        else:
            weight = np.ascontiguousarray(edges.weight, np.float32)
            finite = np.isfinite(weight)
            why = lambda at: f"weight {weight[at]} of {key!r} is not finite"  # noqa: E731
            reject(adds & ~finite, order, "not_finite", why)
            if not schema.signed_weight:
                reject(
                    adds & (weight < 0), order, "negative_weight",
                    lambda at: f"weight {weight[at]} of {NOT_SIGNED.format(key)}",
                )  # fmt: skip
    attr: AnyArray = _NOTHING
    if schema.attr_dim:
        if edges.attr is None:
            reject(adds, order, "no_attr", lambda _: f"edges of {key!r} have attributes; set `attr`")
        elif edges.attr.ndim != 2 or edges.attr.shape[1] != schema.attr_dim:
            shape = list(edges.attr.shape[1:])
            reject(
                adds, order, "bad_shape",
                lambda _: f"attributes of {key!r} have shape {shape}; the graph has {schema.attr_dim}",
            )  # fmt: skip
        else:
            attr = np.ascontiguousarray(edges.attr, np.float32)
            bad = adds & ~np.isfinite(attr).all(axis=1)
            reject(bad, order, "not_finite", lambda _: f"attributes of an edge of {key!r} are not finite")
    cells, texts = _cells(edges, schema, adds, reject, f"edge type {key!r}")
    if schema.columns:
        attr = np.arange(len(edges), dtype=np.int32)[:, None]
    if schema.id_column and cells is not None:
        names = [column.name for column in schema.columns if column.type == "text"]
        own = texts[:, names.index(schema.id_column)].tolist()
        _check_ids(schema, edges, own, (src, dst), checked, reject, with_ids)
    accepted = checked.accepted[order]
    chosen = np.flatnonzero(accepted & adds)
    times = time[chosen] if schema.has_time and time is not None else NO_INTS
    by = chosen[in_order(dst[chosen], times, src[chosen])]
    gone = np.flatnonzero(accepted & edges.remove)
    gone = gone[in_order(dst[gone], NO_INTS, src[gone])]
    named = np.zeros(len(gone), bool)
    del_time = np.zeros(len(gone), np.int64)
    if schema.has_time and time is not None:
        named = np.ones(len(gone), bool) if has_time is None else has_time[gone]
        del_time = time[gone]
    return EdgeRows(
        dst[by], src[by],
        time[by] if schema.has_time and time is not None else NO_INTS,
        weight[by] if len(weight) else _NO_FLOATS,
        attr[by] if len(attr) else np.empty((0, schema.attr_dim), np.float32),
        order[by], dst[gone], src[gone], del_time, named, order[gone],
        texts if cells is None else cells, texts, np.empty(len(edges), np.int32),
    )  # fmt: skip


def _check_ids(
    schema: EdgeTypeSchema,
    edges: EdgeChanges,
    names: list[str | None],
    ends: tuple[IdArray, IdArray],
    checked: Checked,
    reject: Reject,
    with_ids: Callable[[Sequence[str]], dict[str, Edge]],
) -> None:
    """Reject edges without an id, and those whose id another edge has that no earlier event removes.

    Args:
        names: of all rows of `edges`. ends: sources and destinations.
    """
    order, accepted = edges.order.tolist(), checked.accepted[edges.order]
    times = [0] * len(order) if edges.time is None or not schema.has_time else edges.time.tolist()
    rows = [*zip(order, ends[0].tolist(), ends[1].tolist(), times, strict=True)]
    removals: dict[tuple[int, int, int | None], list[int]] = {}
    gone: tuple[dict[int, int], dict[int, int]] = {}, {}
    for at in np.flatnonzero(accepted & edges.remove).tolist():
        has_time = edges.time is not None if edges.has_time is None else edges.has_time[at]
        is_any = not (schema.has_time and has_time)
        removals.setdefault((*rows[at][1:3], None if is_any else times[at]), []).append(order[at])

    for end, node_type in enumerate((schema.src, schema.dst)):
        if nodes := checked.nodes.get(node_type):
            gone[end].update(zip(nodes.removed.tolist(), nodes.removed_by.tolist(), strict=True))

    def is_removed(edge: Edge, until: int) -> bool:
        by = [gone[0].get(edge.src, -1), gone[1].get(edge.dst, -1)]
        for time in (None, edge.time):
            after = removals.get((edge.src, edge.dst, time), [])
            by += after[bisect_right(after, edge.order) :][:1]
        return any(edge.order < place < until for place in by)

    added = np.flatnonzero(accepted & ~edges.remove).tolist()
    holders = with_ids([name for at in added if (name := names[at]) is not None])
    for at in added:
        name, edge = names[at], Edge(*rows[at])
        if name is None:
            why = f"edge type {schema.key!r}: column {schema.id_column!r}: each edge has an id"
            _one(reject, at, edges.order, "bad_value", why)
        elif (holder := holders.get(name)) is not None and not is_removed(holder, edge.order):
            why = f"an edge of {schema.key!r} has the id {_shown(name)}; remove it first"
            _one(reject, at, edges.order, "edge_exists", why)
        else:
            holders[name] = edge


def _one(reject: Reject, at: int, order: IdArray, code: str, reason: str) -> None:
    reject(np.ones(1, bool), order[at : at + 1], code, lambda _: reason)


def _shown(name: Any) -> str:
    text = repr(int(name) if isinstance(name, np.integer) else name)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
