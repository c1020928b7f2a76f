"""Rows that a student reads in addition to features: computed offline from the graph, looked up by node id.

A folder of an artifact: `rows.npy` float32 [N, S], the nodes' ids as `ids.<name>.npy`, `structure.json`. A
row is the fixed point of a diffusion of base rows over in-neighbours, and a base row is features times a
matrix (`hopline_compress/distill/run.py` computes them).

A node of the served graph uses its stored row while its features and its in-neighbours equal those that the
row was computed from (`seen.npy` uint64 [N] is a hash of both). Any other node, which is new or has changed
edges or features, gets one round of the diffusion over the stored rows of its present in-neighbours. A row
therefore depends on the files and the present graph, not on the order of changes: a live graph and a
snapshot of it give the same bits. New in-neighbours have no stored row and are ignored. That round needs
`base.npy` float32 [d, S], the matrix, and `degrees.npy` int64 [N], in-neighbours of each node.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from hopline.engine.kernels import gather
from hopline.engine.overlay import ADDED, NODE, Lists
from hopline.engine.structure_kernels import add_features, add_neighbors, add_rows, finish_rows
from hopline.errors import ArtifactError, SchemaMismatch
from hopline.graph import Graph, IdIndex
from hopline.graph.live.view import LiveView
from hopline.graph.schema import IdKind
from hopline.sampling.keyed import frozen
from hopline.types import AnyArray, FloatArray, IdArray

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopline.engine.narrow_kernels import Matrix


class StructureSpec(msgspec.Struct, frozen=True):
    """The content of structure.json.

    Attributes:
        graph: version of the graph that rows were computed on.
        node_type: of the nodes.
        nodes, id_kind: number of nodes, and the kind of their ids.
        restart: share of its row that a node retains in each round of the diffusion.
    """

    graph: str
    node_type: str
    nodes: int
    id_kind: IdKind
    restart: float


class Structure:
    """The rows of a folder, for the nodes of one graph.

    Raises:
        ArtifactError: the folder cannot be read.
        SchemaMismatch: ids of the graph are of another kind.
    """

    def __init__(self, folder: Path, graph: Graph | LiveView) -> None:
        try:
            spec = msgspec.json.decode((folder / "structure.json").read_bytes(), type=StructureSpec)
            # plain arrays over the mapped files: indexing a memmap costs microseconds more
            self._rows: FloatArray = np.asarray(np.load(folder / "rows.npy", mmap_mode="r"))
            self._base: FloatArray = np.ascontiguousarray(np.load(folder / "base.npy"))
            self._degrees: IdArray = np.asarray(np.load(folder / "degrees.npy", mmap_mode="r"))
            self._seen = np.asarray(np.load(folder / "seen.npy", mmap_mode="r"))
            arrays = {
                path.name[len("ids.") : -len(".npy")]: np.load(path, mmap_mode="r")
                for path in folder.glob("ids.*.npy")
            }
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{folder}: structure features cannot be read: {error}") from None
        self._node_type = spec.node_type
        self._restart = np.float32(spec.restart)
        nodes = graph.nodes[spec.node_type]
        if (nodes.ids.kind == "string") != (spec.id_kind == "string"):
            text = f"ids of {spec.node_type!r} are {nodes.ids.kind}, those of its structure {spec.id_kind}"
            raise SchemaMismatch(f"{folder} does not fit graph {graph.version}: {text}", [text])
        self._nodes = nodes
        self._lists = InLists(graph, spec.node_type)
        self._index = IdIndex.from_arrays(spec.id_kind, spec.nodes, arrays)
        self._is_same = not isinstance(graph, LiveView) and graph.version == spec.graph
        self._at: IdArray = np.arange(nodes.num_nodes) if self._is_same else self._stored_rows(0)

    def rows(self, ids: IdArray, features: Matrix, feature_rows: IdArray) -> FloatArray:
        """Rows of int64 [n] global ids: float32 [n, S].

        Args:
            features, feature_rows: of the same nodes, as in `Given`.
        """
        if self._is_same:
            same: FloatArray = self._rows.take(ids, axis=0)
            return same
        self._follow()
        own = np.empty((ids.shape[0], self._base.shape[0]), np.float32)
        gather(features, feature_rows, 0, own.shape[1], own, 0)
        seen, counts = self._lists.seen(self._at, ids, own)
        at = self._at[ids]
        is_kept = at >= 0
        is_kept[is_kept] = seen[is_kept] == self._seen[at[is_kept]]
        found: FloatArray = self._rows.take(at, axis=0, mode="clip")
        anew = np.flatnonzero(~is_kept)
        if anew.shape[0]:
            rows = np.zeros((anew.shape[0], found.shape[1]), np.float32)
            counts = counts[anew]
            self._lists.add_rows(self._at, ids[anew], self._rows, self._degrees, counts, rows)
            finish_rows(own[anew], self._base, self._restart, counts, rows)
            found[anew] = rows
        return found

    def _follow(self) -> None:
        """Look up the nodes that were added to a live graph since the last call."""
        if self._nodes.num_nodes > self._at.shape[0]:
            self._at = np.concatenate([self._at, self._stored_rows(self._at.shape[0])])

    def _stored_rows(self, first: int) -> IdArray:
        """Stored rows of the nodes from `first` on, -1 for none; nodes are matched by id."""
        ids = np.arange(first, self._nodes.num_nodes)
        return self._index.lookup(self._nodes.ids.external(ids)) if ids.shape[0] else ids

    def described(self, ids: IdArray, features: FloatArray, lists: Mapping[str, Lists]) -> FloatArray:
        """Rows of added nodes of an overlay: one round over the stored rows of their neighbours."""
        self._follow()
        own = np.zeros((ids.shape[0], self._base.shape[1]), np.float32)
        finish_rows(features, self._base, self._restart, np.zeros(ids.shape[0], np.int64), own)
        rows, owners, degrees = [], [], []
        for key in self._lists.keys:
            neighbors, counts = lists[key].neighbors, lists[key].counts
            is_known = neighbors & ADDED == 0
            at = np.where(is_known, self._at[np.where(is_known, neighbors & NODE, 0)], -1)
            owner = np.repeat(np.arange(ids.shape[0]), counts)
            others, kept = ids.searchsorted(neighbors[~is_known]), at >= 0
            rows += [self._rows[at[kept]], own[others]]
            degrees += [self._degrees[at[kept]], counts[others]]
            owners += [owner[kept], owner[~is_known]]
        if not rows:
            return own
        owner = np.concatenate(owners)
        count = np.bincount(owner, minlength=ids.shape[0])
        # the symmetric weights of the diffusion
        weights = 1 / np.sqrt(np.maximum(np.concatenate(degrees), 1) * count[owner])
        sums = np.zeros(own.shape, np.float32)
        np.add.at(sums, owner, np.concatenate(rows) * weights[:, None].astype(np.float32))
        mixed = self._restart * own + (1 - self._restart) * sums
        found: FloatArray = np.where(count[:, None] > 0, mixed, own).astype(np.float32)
        return found


class InLists:
    """In-neighbours of the nodes of one type among themselves, over all edge types.

    Attributes:
        keys: of the edge types.
    """

    def __init__(self, graph: Graph | LiveView, node_type: str) -> None:
        own = graph.schema.own_edge_types.items()
        self.keys = sorted(key for key, edge in own if edge.src == edge.dst == node_type)
        self._edges = [graph.edges[key] for key in self.keys]  # kept: kernels get addresses of packed ones
        self._arrays = [
            (frozen(edge.indptr), frozen(edge.records), edge.clock, frozen(edge.indices))
            for edge in self._edges
        ]

    def seen(self, at: IdArray, ids: IdArray, own: FloatArray) -> tuple[AnyArray, IdArray]:
        """A hash of the inputs of each row, uint64 [n], and the number of in-neighbours with stored rows.

        Args:
            at: int64 [N], stored rows of nodes. ids: int64 [n]. own: float32 [n, d], their features.
        """
        sums, counts = np.zeros(ids.shape[0], np.uint64), np.zeros(ids.shape[0], np.int64)
        add_features(own.view(np.uint32), sums)
        for indptr, records, clock, indices in self._arrays:
            add_neighbors(indptr, records, clock.version, indices, at, ids, sums, counts)
        return sums, counts

    def add_rows(
        self,
        at: IdArray,
        ids: IdArray,
        rows: FloatArray,
        degrees: IdArray,
        counts: IdArray,
        out: FloatArray,
    ) -> None:
        """See the kernel of this name."""
        for indptr, records, clock, indices in self._arrays:
            add_rows(indptr, records, clock.version, indices, at, ids, rows, degrees, counts, out)
