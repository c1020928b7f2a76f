"""The game of a node: its score with some of its players, many coalitions as rows of one batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hopline.engine.model import Model
from hopline.engine.overlay import REQUEST
from hopline.sampling.keyed import NO_CUT
from hopline.types import AnyArray, ContextNode, EdgeEdit, Edit, FloatArray
from hopline_why.players import Players
from hopline_why.shapley import Coalitions
from hopline_why.variants import Variants

#: Coalitions in one call of the engine.
_BATCH = 256


@dataclass(slots=True)
class Game:
    """See the module.

    Attributes:
        node: global id, of the type that the model answers. row, background: float32 [d].
        players: whose edges and columns are there or not.
        evaluations: coalitions that were scored.
        variants: makes overlays.
    """

    model: Model
    node: int
    players: Players
    row: FloatArray
    background: FloatArray
    evaluations: int = 0
    variants: Variants = field(init=False)

    def __post_init__(self) -> None:
        args = self.model, self.node, self.players, self.row, self.background
        self.variants = Variants(*args)

    def outputs(self, coalitions: Coalitions, name: str) -> AnyArray:
        """An output of the node for each coalition, as the model answers it: [n], or [n, width]."""
        self.evaluations += len(coalitions)
        parts = [
            self._outputs(coalitions[at : at + _BATCH], name) for at in range(0, len(coalitions), _BATCH)
        ]
        return np.concatenate(parts)

    def _outputs(self, coalitions: Coalitions, name: str) -> AnyArray:
        model, variants = self.model, self.variants
        overlay = (variants.shared if variants.is_shared else variants.apart)(coalitions)
        ids = self.node | 1 + np.arange(len(coalitions)) << REQUEST
        states = model.overlaid_states(overlay, [model.spec.head.node_type], [ids], NO_CUT)
        return model.outputs((name,), *states)[name]

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
