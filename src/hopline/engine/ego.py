"""Models that cannot be split: each seed's sampled ego-graph goes through the whole model.

Has the same interface as `model.Model`. There is no state cache, and seeds share no work: it is slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hopline.artifact import ModelSpec
from hopline.engine import outputs as out_of
from hopline.engine.encoders import RowEncoder
from hopline.engine.guard import EDGE_BYTES, Guard
from hopline.engine.inline_features import InlineNodes
from hopline.engine.interner import Interner
from hopline.engine.lap import LapWatch
from hopline.engine.schema import fitted
from hopline.engine.source import Ages
from hopline.engine.state_cache import StateCache
from hopline.engine.tasks import outputs_of
from hopline.errors import BadRequest
from hopline.graph import Graph
from hopline.graph.live.view import LiveView
from hopline.runtimes.unknown_code import UnknownCode
from hopline.sampling import BlockBuffers, Sampler, layer_key
from hopline.sampling.keyed import NO_CUT
from hopline.types import AnyArray, FloatArray, IdArray


class EgoModel:
    """A loaded model version of runtime "torch".

    Args:
        folder, spec, graph: as for `model.Model`.

    Attributes:
        state_dim: columns of a row of `final_states`, which are logits here.
        num_hops: of an ego-graph.
        offers: outputs of the model by name.
        watch: separates sampling time from compute time.
        guard: as in `Model`.
        encoder, encoders: none: it takes no inline nodes.
        ages: as in `Model`; its features are in the graph.
    """

    ages = Ages()

    def __init__(self, folder: Path, spec: ModelSpec, graph: Graph | LiveView, threads: int = 1) -> None:
        from hopline.runtimes.torch import WholeModel, read_slots

        graph = fitted(folder, spec, graph)
        self.spec = spec
        self.graph = graph
        self.watch = LapWatch()
        self.guard = Guard()
        self.state_caches: dict[tuple[int, str], StateCache] = {}
        self.state_dim = spec.head.output_dim
        self.num_hops = max(len(fanouts) for fanouts in spec.fanouts.values())
        self.offers = outputs_of(spec)
        self.reads_attr: frozenset[str] = frozenset()
        self.encoder = None
        self.encoders: dict[str, RowEncoder] = {}
        described = read_slots(folder)
        self._relations = described.relations
        self._whole = WholeModel(folder, spec, threads=threads)
        self._buffers = BlockBuffers()
        self._rows = {name: _Rows() for name in graph.nodes}
        self._samplers: list[dict[str, Sampler]] = [
            {
                key: Sampler(
                    graph.edges[key],
                    fanouts[hop],
                    spec.sampling,
                    layer_key(spec.salt, self.num_hops - hop, key),
                    spec.max_degree,
                )
                for key, fanouts in sorted(spec.fanouts.items())
            }
            for hop in range(self.num_hops)
        ]

    def final_states(self, wanted: Mapping[str, IdArray], as_of: int = NO_CUT) -> dict[str, FloatArray]:
        """Logits float32 [n, output_dim] of distinct ids, node type -> int64 [n], in their order."""
        found: dict[str, FloatArray] = {}
        for node_type, ids in wanted.items():
            rows = np.empty((ids.shape[0], self.state_dim), np.float32)
            for i, seed in enumerate(ids.tolist()):
                slots = self._slots(node_type, seed, as_of)
                self.watch.sampled()
                try:
                    rows[i] = self._whole.run_slots(slots, np.zeros(1, np.int64))[0]
                except UnknownCode as unknown:
                    raise BadRequest(self._named(unknown, node_type, seed)) from unknown
                self.watch.computed()
            found[node_type] = rows
        return found

    def shrink(self) -> None:
        """Release the memory that only the largest ego-graphs need."""
        self._buffers.shrink()
        for rows in self._rows.values():
            rows.shrink()

    def inline_states(self, nodes: Mapping[str, InlineNodes], as_of: int) -> FloatArray:
        """Reject the request: whole models do not support inline nodes.

        Raises: BadRequest: always.
        """
        raise BadRequest(
            f"model {self.spec.name!r} is served whole and accepts only nodes of the graph, not inline "
            f"nodes ({self.spec.why_whole})"
        )

    def outputs(self, names: Sequence[str], *states: FloatArray) -> dict[str, AnyArray]:
        """Named outputs of rows of final states."""
        return out_of.named_outputs(names, self.offers, states[0], lambda: states[0])

    def _named(self, unknown: UnknownCode, node_type: str, seed: int) -> str:
        """The refusal of a request that reaches a code without an entry: the node and the column."""
        kind, _, name = unknown.slot.partition(":")
        where = f"in the neighbourhood of node {self._external(node_type, seed)}"
        if kind == "features":
            names = self.graph.schema.node_types[name].feature_names
            node = self._external(name, int(self._rows[name].ids[unknown.row]))
            where = f"in column {names[unknown.column] if names else unknown.column} of node {node}"
        elif kind == "edge_attr":
            where = f"in attribute {unknown.column} of an edge of {name}, {where}"
        return f"{unknown} ({where}): correct it, or package a model with an entry for unknown codes"

    def _external(self, node_type: str, row: int) -> object:
        """A node's id as callers know it."""
        (node,) = list(self.graph.nodes[node_type].ids.external(np.array([row])))
        return node

    def _slots(self, node_type: str, seed: int, as_of: int) -> dict[str, AnyArray]:
        """One seed's ego-graph as the program's tensors; the seed is row 0 of its type.

        A node's edges are sampled once, at the hop at which it is first reached.
        """
        guard = self.guard
        guard.num_bytes = 0
        guard.look()
        for rows in self._rows.values():
            rows.start()
        self._rows[node_type].add(np.array([seed]))
        edges: dict[str, list[tuple[IdArray, IdArray, IdArray]]] = {key: [] for key in self.graph.edges}
        expanded = dict.fromkeys(self._rows, 0)
        for samplers in self._samplers:
            reached = {name: rows.count for name, rows in self._rows.items()}
            for key, sampler in samplers.items():
                first, end = expanded[sampler.adjacency.dst], reached[sampler.adjacency.dst]
                if first == end:
                    continue
                destinations = self._rows[sampler.adjacency.dst].ids[first:end]
                bound = sampler.bound(destinations)
                features = self.graph.nodes[sampler.adjacency.src].features
                guard.look_at(bound)
                guard.reserve(bound * (EDGE_BYTES + 4 * features.shape[1]), bound)
                block = sampler.sample(destinations, self._buffers, as_of, bound)
                guard.rows += block.num_edges
                sources = self._rows[sampler.adjacency.src].add(block.neighbors)
                targets = np.repeat(np.arange(first, end), np.diff(block.offsets))
                edges[key].append((sources, targets, block.positions.copy()))
            expanded = reached
        return self._tensors(edges)

    def _tensors(self, edges: dict[str, list[tuple[IdArray, IdArray, IdArray]]]) -> dict[str, AnyArray]:
        slots: dict[str, AnyArray] = {}
        for name, rows in self._rows.items():
            features = np.asarray(self.graph.nodes[name].features[rows.ids], np.float32)
            slots[f"features:{name}"] = _with_zeros(features, _FURTHER)
        for key, parts in edges.items():
            adjacency = self.graph.edges[key]
            joined = [np.concatenate([_NO_IDS, *column]) for column in zip(*parts, strict=True)] or [
                _NO_IDS
            ] * 3
            apart = np.arange(_FURTHER)
            ends = (adjacency.src, adjacency.dst)
            slots[f"edge_index:{key}"] = np.stack(
                [
                    np.concatenate([rows, self._rows[end].count + apart])
                    for rows, end in zip(joined, ends, strict=False)
                ]
            )
            if adjacency.attr is not None:
                slots[f"edge_attr:{key}"] = _with_zeros(adjacency.attr[joined[2]], _FURTHER)
            if adjacency.weight is not None:
                slots[f"edge_weight:{key}"] = _with_zeros(adjacency.weight[joined[2]], _FURTHER)
        if self._relations:
            lists = [slots[f"edge_index:{key}"] for key in self._relations]
            slots["edge_index:*"] = np.concatenate(lists, axis=1)
            slots["edge_type:*"] = np.repeat(np.arange(len(lists)), [part.shape[1] for part in lists])
            for role in ("edge_attr", "edge_weight"):
                if all(f"{role}:{key}" in slots for key in self._relations):
                    slots[f"{role}:*"] = np.concatenate([slots[f"{role}:{key}"] for key in self._relations])
        return slots


def _with_zeros(rows: AnyArray, count: int) -> AnyArray:
    """Append `count` rows of zeros."""
    return np.concatenate([rows, np.zeros((count, *rows.shape[1:]), rows.dtype)])


class _Rows:
    """Rows of one node type in an ego-graph: ids numbered in order of first occurrence."""

    def __init__(self) -> None:
        self._interner = Interner()
        self._bound = self._used = self.count = 0

    @property
    def ids(self) -> IdArray:
        """int64 [count], by row."""
        return self._interner.distinct

    def shrink(self) -> None:
        """See `Interner.shrink`."""
        self._interner.shrink()

    def start(self) -> None:
        """Forget everything."""
        self._used = self.count = 0
        self._bound = _FIRST_BOUND
        self._interner.start(self._bound)

    def add(self, ids: IdArray) -> IdArray:
        """The row of each id: int64 [n], a new array."""
        if self._used + ids.shape[0] > self._bound:
            known = self.ids.copy()
            self._bound = 2 * (known.shape[0] + ids.shape[0])
            self._interner.start(self._bound)
            self._interner.add(known)
            self._used = known.shape[0]
        rows = self._interner.add(ids).copy()
        self._used += ids.shape[0]
        self.count = self.ids.shape[0]
        return rows


_NO_IDS: IdArray = np.empty(0, np.int64)
#: Nodes of each type that are added to an ego-graph, with an edge of each type between them: torch.export
#: treats sizes of 0 and 1 as constants, so every size must be at least 2. No edge joins them to the seed,
#: so its answer does not change (packaging checks that only a node's neighbourhood changes it).
_FURTHER = 2
#: Ids, with repetitions, that an ego-graph is expected to have of a type before it grows.
_FIRST_BOUND = 512
