"""Events of a graph whose features are in a feature store: they bring nodes and edges, and no features.

To such events, node types have no features. The graph still has a row for each node, which is zero for
added nodes and which no model reads.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from hopline.graph.live.changes import Changes
from hopline.graph.schema import GraphSchema


def without_features(schema: GraphSchema) -> GraphSchema:
    """The schema to decode such events by."""
    types = {
        name: msgspec.structs.replace(node, feature_dim=0, feature_names=())
        for name, node in schema.node_types.items()
    }
    return GraphSchema(types, schema.edge_types)


def with_zeros(changes: Changes, schema: GraphSchema) -> Changes:
    """The changes with rows as the graph has them."""
    nodes = {
        name: replace(part, features=np.zeros((len(part), schema.node_types[name].feature_dim), np.float32))
        for name, part in changes.nodes.items()
    }
    return replace(changes, nodes=nodes)
