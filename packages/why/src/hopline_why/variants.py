"""Overlays of the coalitions of a node: the graph as each of them has it, with one tag for each variant.

`apart` gives each coalition its own tag, so that the engine computes all that the coalition changes.
`shared` gives neighbours tags by the players that their states depend on: a neighbour on which one player
of ten has an effect has two states, and not one for each coalition. It is for models of up to two hops,
whose neighbours read rows and no other states, and for those that read no degrees of neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.engine.model import Model
from hopline.engine.overlay import REQUEST, Lists, Overlay, offsets_of
from hopline.types import FloatArray, IdArray
from hopline_why.players import Place, Players
from hopline_why.shapley import Coalitions

_NONE, _ONE = np.uint64(0), np.uint64(1)


@dataclass(slots=True)
class Variants:
    """Makes overlays of one node.

    Args:
        node: global id. row, background: float32 [d], its columns where they are there and where not.

    Attributes:
        is_shared: `shared` can be used.
    """

    model: Model
    node: int
    players: Players
    row: FloatArray
    background: FloatArray
    is_shared: bool = field(init=False)
    _columns: Coalitions = field(init=False)
    _bits: dict[Place, Coalitions] = field(init=False)
    _masks: dict[Place, int] = field(init=False)

    def __post_init__(self) -> None:
        levels = [level for stages in self.model.levels for level in stages.values()]
        reads_degrees = any(each.gcn for level in levels for each in level.relations.values())
        self.is_shared = self.model.num_hops <= 2 and not reads_degrees
        self._columns = _ONE << self.players.columns.astype(np.uint64)
        self._bits = {
            place: np.where(owners < 0, _NONE, _ONE << owners.clip(0).astype(np.uint64))
            for place, (_, owners, _) in self.players.lists.items()
        }
        self._masks = {place: int(np.bitwise_or.reduce(bits)) for place, bits in self._bits.items()}

    def apart(self, coalitions: Coalitions) -> Overlay:
        """Coalition number k has the tag k + 1."""
        tags, listed = 1 + np.arange(len(coalitions)), _Listed(self.model)
        for (key, dst), (neighbors, _, positions) in self.players.lists.items():
            is_there = coalitions[:, None] & self._bits[key, dst] == self._bits[key, dst]
            listed.add(key, dst, tags, is_there, neighbors | tags[:, None] << REQUEST, positions)
        return Overlay(self._rows([(tags, coalitions)]), listed.joined(), edits_known=True)

    def shared(self, coalitions: Coalitions) -> Overlay:
        """As `apart`; neighbours have other tags, or none where nothing of them is absent."""
        seeds = 1 + np.arange(len(coalitions))
        rows, listed, next_tag = [(seeds, coalitions)], _Listed(self.model), 1 + len(coalitions)
        name, edges = self.model.spec.head.node_type, self.model.graph.edges
        #: By mask of players: the tag of each coalition, and the tags and coalitions of the variants.
        tags: dict[int, NDArray[np.int64]] = {0: np.zeros(len(coalitions), np.int64)}
        variants: dict[int, tuple[IdArray, Coalitions]] = {}
        masks, columns = self._neighbor_masks(), int(np.bitwise_or.reduce(self._columns, initial=_NONE))
        for mask in sorted({*masks.values()} - {0}):
            kept: Coalitions
            kept, at = np.unique(coalitions & np.uint64(mask), return_inverse=True)
            kept = kept[:-1] if kept[-1] == mask else kept
            variants[mask] = own = next_tag + np.arange(len(kept)), kept
            next_tag += len(kept)
            tags[mask] = np.append(own[0], 0)[at]
            if mask & columns:
                rows.append(own)
        for (key, dst), (neighbors, _, positions) in self.players.lists.items():
            bits, into, source = self._bits[key, dst], edges[key].dst, edges[key].src
            if not len(neighbors):
                continue
            if (into, dst) == (name, self.node):
                table = np.stack(
                    [tags[masks.get((source, each), 0)] for each in neighbors.tolist()], axis=1
                )
                if source == name:
                    table[:, neighbors == self.node] = seeds[:, None]
                is_there = coalitions[:, None] & bits == bits
                listed.add(key, dst, seeds, is_there, neighbors | table << REQUEST, positions, table)
            elif (mask := masks.get((into, dst), 0)) and len(variants[mask][0]):
                own_tags, kept = variants[mask]
                if len(kept) == 1 and not kept[0] and bits.all():  # all edges of the list are absent
                    listed.add_empty(key, dst | own_tags << REQUEST)
                    continue
                is_there = kept[:, None] & bits == bits
                listed.add(
                    key, dst, own_tags, is_there, neighbors | own_tags[:, None] << REQUEST, positions
                )
        return Overlay(self._rows(rows), listed.joined(), edits_known=True)

    def _neighbor_masks(self) -> dict[tuple[str, int], int]:
        """Node type and neighbour of the node -> the players that its state below the top depends on."""
        if self.model.num_hops < 2:
            return {}
        name, edges, found = (
            self.model.spec.head.node_type,
            self.model.graph.edges,
            dict[tuple[str, int], int](),
        )
        columns = int(np.bitwise_or.reduce(self._columns, initial=_NONE))
        known: dict[tuple[str, int], int] = {}
        reads_node: dict[tuple[str, int], bool] = {}
        num_known: dict[tuple[str, int], int] = {}
        for (key, dst), (neighbors, _, _) in self.players.lists.items():
            own = edges[key].dst, dst
            known[own] = known.get(own, 0) | self._masks[key, dst]
            if edges[key].src == name:
                reads_node[own] = reads_node.get(own, False) or bool((neighbors == self.node).any())
                num_known[own] = num_known.get(own, 0) + 1
        stages = self.model.levels[1]
        for (key, dst), (neighbors, _, _) in self.players.lists.items():
            if (edges[key].dst, dst) != (name, self.node):
                continue
            source = edges[key].src
            num = sum(relation.source == name for relation in stages[source].relations.values())
            for each in np.unique(neighbors).tolist():
                own = source, each
                # Of a neighbour whose lists were not read, the node's columns may be a part.
                reads = reads_node.get(own, False) or num_known.get(own, 0) < num
                found[own] = known.get(own, 0) | (columns if reads else 0)
        return found

    def _rows(self, variants: list[tuple[IdArray, Coalitions]]) -> dict[str, tuple[IdArray, FloatArray]]:
        """Rows of the node in the variants of which a column is absent."""
        tags = np.concatenate([each for each, _ in variants])
        coalitions = np.concatenate([each for _, each in variants])
        is_there = coalitions[:, None] & self._columns != 0
        own = np.flatnonzero(~is_there.all(axis=1))
        if not len(own):
            return {}
        features = np.where(is_there[own], self.row, self.background)
        return {self.model.spec.head.node_type: (self.node | tags[own] << REQUEST, features)}


@dataclass(slots=True)
class _Listed:
    """Collects lists by edge type."""

    model: Model
    parts: dict[str, list[tuple[IdArray, ...]]] = field(default_factory=dict)

    def add(
        self,
        key: str,
        dst: int,
        tags: IdArray,
        is_there: NDArray[np.bool_],
        neighbors: IdArray,
        positions: IdArray,
        tagged: IdArray | None = None,
    ) -> None:
        """Add variants of one list, those of which something is absent.

        Args:
            tags: int64 [n]. is_there: bool [n, E]. neighbors: tagged, int64 [n, E]. positions: int64 [E].
            tagged: int64 [n, E], not zero where a neighbour has another tag than 0.
        """
        is_other = ~is_there.all(axis=1)
        if tagged is not None:  # what has no list passes its own tag on
            is_other |= tagged.any(axis=1)
        own = np.flatnonzero(is_other)
        if len(own):
            variant, entry = is_there[own].nonzero()
            counts = is_there[own].sum(axis=1)
            part = dst | tags[own] << REQUEST, counts, neighbors[own[variant], entry], positions[entry]
            self.parts.setdefault(key, []).append(part)

    def add_empty(self, key: str, ids: IdArray) -> None:
        """Add lists without edges, of tagged destinations int64 [n]."""
        self.parts.setdefault(key, []).append((ids, np.zeros(len(ids), np.int64), ids[:0], ids[:0]))

    def joined(self) -> dict[str, Lists]:
        """The lists, sorted by their destinations."""
        found: dict[str, Lists] = {}
        for key, parts in self.parts.items():
            attr_dim = self.model.graph.schema.edge_types[key].attr_dim
            ids, counts, *entries = (np.concatenate(each) for each in zip(*parts, strict=True))
            order = np.argsort(ids)
            begins, offsets = offsets_of(counts)[order], offsets_of(counts[order])
            at = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], counts[order])
            none: Any = np.empty(0, np.float32), np.empty((0, attr_dim), np.float32)
            found[key] = Lists(ids[order], offsets, *(each[at] for each in entries), *none)
        return found
