"""`--on-unknown-node add`: nodes that events name are created before the events are applied.

An added edge creates its missing ends, with features of zero. Adding a node or setting its features creates
or updates it, as needed. Nodes are never deleted, so known nodes are not looked up again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hopline.graph.live.changes import Changes, NodeChanges
from hopline.graph.schema import GraphSchema
from hopline.types import ExternalId, FloatArray

#: Nodes that are remembered as existing; beyond this, all are forgotten.
_MOST_KNOWN = 1_000_000


class Upserts:
    """Creates nodes that events name before the events are applied.

    Args:
        schema: of the graph.
    """

    def __init__(self, schema: GraphSchema) -> None:
        self._schema = schema
        self._known: set[tuple[str, ExternalId]] = set()

    def missing(self, changes: Changes) -> Changes:
        """Nodes to add first: all named nodes that are not known to exist."""
        rows: dict[str, dict[ExternalId, FloatArray | None]] = {}
        for name, part in changes.nodes.items():
            wanted = rows.setdefault(name, {})
            for row, node in enumerate(_plain(part.ids)):
                if (name, node) not in self._known:
                    wanted.setdefault(node, part.features[row])
        for key, edges in changes.edges.items():
            adds = (~edges.remove).tolist()
            kind = self._schema.edge_types[key]
            for node_type, ids in ((kind.src, edges.src), (kind.dst, edges.dst)):
                wanted = rows.setdefault(node_type, {})
                for node, yes in zip(_plain(ids), adds, strict=True):
                    if yes and (node_type, node) not in self._known:
                        wanted.setdefault(node, None)
        nodes: dict[str, NodeChanges] = {}
        count = 0
        for name, wanted in rows.items():
            if wanted:
                nodes[name] = self._added(name, wanted, count)
                count += len(wanted)
        return Changes(nodes=nodes, num_events=count)

    def remember(self, added: Changes) -> None:
        """Remember nodes that the writer has."""
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        for name, part in added.nodes.items():
            self._known.update((name, node) for node in _plain(part.ids))

    def _added(self, name: str, wanted: dict[ExternalId, FloatArray | None], first: int) -> NodeChanges:
        features = np.zeros((len(wanted), self._schema.node_types[name].feature_dim), np.float32)
        for row, values in enumerate(wanted.values()):
            if values is not None:
                features[row] = values
        ids = list(wanted)
        external: Any = np.array(ids, np.int64) if isinstance(ids[0], int) else ids
        order = np.arange(first, first + len(ids), dtype=np.int64)
        return NodeChanges(external, np.ones(len(ids), np.bool_), features, order)


def as_sets(changes: Changes) -> Changes:
    """The same events after all nodes were created: adding a node becomes setting its features."""
    nodes = {name: replace(part, add=np.zeros(len(part), np.bool_)) for name, part in changes.nodes.items()}
    return replace(changes, nodes=nodes)


def _plain(ids: Any) -> Sequence[ExternalId]:
    plain: Sequence[ExternalId] = ids.tolist() if isinstance(ids, np.ndarray) else ids
    return plain
