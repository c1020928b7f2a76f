"""Schemas to decode for, Arrow messages, and a reading of events that is slow and plain."""

import io

import numpy as np
import pyarrow as pa

from hopline.graph.schema import EdgeTypeSchema, GraphSchema, NodeTypeSchema

#: People buy items (times, weights, attributes); people know people (nothing).
SHOP = GraphSchema(
    {
        "user": NodeTypeSchema(3, feature_names=("age", "spent", "visits"), id_kind="string"),
        "item": NodeTypeSchema(2, id_kind="int"),
    },
    {
        "user__buys__item": EdgeTypeSchema(
            "user",
            "buys",
            "item",
            attr_dim=2,
            attr_names=("price", "count"),
            has_time=True,
            has_weight=True,
        ),
        "user__knows__user": EdgeTypeSchema("user", "knows", "user"),
    },
)
#: One node type, one edge type, nothing else.
PLAIN = GraphSchema({"node": NodeTypeSchema(2)}, {"node__to__node": EdgeTypeSchema("node", "to", "node")})


def arrow(columns):
    """The IPC stream of a table."""
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def events_of(changes, schema=SHOP):
    """Changes as a list of dicts in order of their events: what a person would have written."""
    found = {}
    for key, part in changes.edges.items():
        edge = schema.edge_types[key]
        for row in range(len(part)):
            remove = bool(part.remove[row])
            event = {"op": "remove_edge" if remove else "add_edge", "edge_type": key}
            event |= {"src": plain(part.src[row]), "dst": plain(part.dst[row])}
            if edge.has_time and (part.has_time is None or part.has_time[row]):
                event["time"] = int(part.time[row])
            if edge.has_weight and not remove:
                event["weight"] = float(part.weight[row])
            if edge.attr_dim and not remove:
                event["attr"] = part.attr[row].tolist()
            found[int(part.order[row])] = event
    for name, part in changes.nodes.items():
        for row in range(len(part)):
            op = "add_node" if part.add[row] else "set_features"
            event = {"op": op, "node_type": name, "node": plain(part.ids[row])}
            if part.remove is not None and part.remove[row]:
                found[int(part.order[row])] = {**event, "op": "remove_node"}
                continue
            found[int(part.order[row])] = {**event, "features": part.features[row].tolist()}
    assert sorted(found) == list(range(changes.num_events))
    for part in (*changes.edges.values(), *changes.nodes.values()):
        assert (np.diff(part.order) > 0).all()
        assert len(part) > 0
    return [found[order] for order in range(changes.num_events)]


def plain(value):
    return value.item() if isinstance(value, np.generic) else value
