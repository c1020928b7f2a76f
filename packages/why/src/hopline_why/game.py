"""The game of a node: its score with some of its players, many coalitions as rows of one batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hopline.engine.model import Model
from hopline.engine.overlay import REQUEST, Lists, Overlay, offsets_of
from hopline.sampling.keyed import NO_CUT
from hopline.types import AnyArray, ContextNode, EdgeEdit, Edit, FloatArray, IdArray
from hopline_why.players import Players
from hopline_why.shapley import Coalitions

#: Coalitions in one call of the engine.
_BATCH = 256


@dataclass(slots=True)
class Game:
    """See the module.

    Attributes:
        node: global id, of the type that the model answers. row, background: float32 [d].
        players: whose edges and columns are there or not.
        evaluations: coalitions that were scored.
    """

    model: Model
    node: int
    players: Players
    row: FloatArray
    background: FloatArray
    evaluations: int = 0

    def outputs(self, coalitions: Coalitions, name: str) -> AnyArray:
        """An output of the node for each coalition, as the model answers it: [n], or [n, width]."""
        self.evaluations += len(coalitions)
        parts = [
            self._outputs(coalitions[at : at + _BATCH], name) for at in range(0, len(coalitions), _BATCH)
        ]
        return np.concatenate(parts)

    def _outputs(self, coalitions: Coalitions, name: str) -> AnyArray:
        model, tags = self.model, np.arange(len(coalitions)) << REQUEST
        overlay = self.overlay(coalitions)
        states = model.overlaid_states(overlay, [model.spec.head.node_type], [self.node | tags], NO_CUT)
        return model.outputs((name,), *states)[name]

    def overlay(self, coalitions: Coalitions) -> Overlay:
        """The graph as each coalition has it, tagged by the number of the coalition."""
        rows = {}
        if len(self.players.columns):
            is_there = (coalitions[:, None] >> self.players.columns.astype(np.uint64)) & np.uint64(1) != 0
            own = np.flatnonzero(~is_there.all(axis=1))
            features = np.where(is_there[own], self.row, self.background)
            rows[self.model.spec.head.node_type] = self.node | own << REQUEST, features
        listed: dict[str, list[tuple[IdArray, IdArray, IdArray, IdArray]]] = {}
        for (key, dst), (neighbors, owners, positions) in self.players.lists.items():
            bits = np.where(owners < 0, 0, np.uint64(1) << owners.clip(0).astype(np.uint64)).astype(
                np.uint64
            )
            is_there = coalitions[:, None] & bits == bits
            own = np.flatnonzero(~is_there.all(axis=1))
            if not len(own):
                continue
            variant, entry = is_there[own].nonzero()
            tags = own << REQUEST
            counts = is_there[own].sum(axis=1)
            listed.setdefault(key, []).append(
                (dst | tags, counts, neighbors[entry] | tags[variant], positions[entry])
            )
        lists = {}
        for key, parts in listed.items():
            attr_dim = self.model.graph.schema.edge_types[key].attr_dim
            none = np.empty(0, np.float32), np.empty((0, attr_dim), np.float32)
            ids, counts, neighbors, positions = (np.concatenate(each) for each in zip(*parts, strict=True))
            order = np.argsort(ids)
            begins = offsets_of(counts)[order]
            offsets = offsets_of(counts[order])
            at = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], counts[order])
            lists[key] = Lists(ids[order], offsets, neighbors[at], positions[at], *none)
        return Overlay(rows, lists, edits_known=True)

    def edits(self, coalition: int) -> tuple[Edit, ...]:
        """The edits (`if`) of a score request that leave the node with the players of a coalition only."""
        graph, found, seen = self.model.graph, list[Edit](), set[tuple[str, int, int]]()
        types = graph.schema.edge_types
        for (key, dst), (neighbors, owners, _) in self.players.lists.items():
            own = types[key].reverse_of or key
            for neighbor, owner in zip(neighbors.tolist(), owners.tolist(), strict=True):
                if owner < 0 or coalition >> owner & 1:
                    continue
                source, target = (neighbor, dst) if own == key else (dst, neighbor)
                if (own, source, target) not in seen:
                    seen.add((own, source, target))
                    ends = [
                        np.asarray(graph.nodes[name].ids.external(np.array([end]))).tolist()[0]
                        for name, end in ((types[own].src, source), (types[own].dst, target))
                    ]
                    found.append(Edit(remove_edge=EdgeEdit(ends[0], ends[1], own)))
        name = self.model.spec.head.node_type
        is_there = [bool(coalition >> owner & 1) for owner in self.players.columns.tolist()]
        if not all(is_there):
            row = np.where(is_there, self.row, self.background)
            (node,) = np.asarray(graph.nodes[name].ids.external(np.array([self.node]))).tolist()
            found.append(Edit(set=ContextNode(id=node, type=name, features=row.tolist())))
        return tuple(found)
