"""Rows that a student reads beside features: computed offline from the graph, looked up by node id.

A folder of an artifact: `rows.npy` float32 [N, S], the nodes' ids as `ids.<name>.npy`, `structure.json`. A
row is the fixed point of a diffusion of base rows over in-neighbours, and a base row is features times a
matrix (`jobs/distill/structure.py` computes them). Nodes that the file does not have get what the diffusion
starts from, their base row; nodes that a request describes with neighbours get one round of it. For those
there are `base.npy` float32 [d, S], the matrix, and `degrees.npy` int64 [N], in-neighbours of each node.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from hopline.engine.kernels import gather
from hopline.errors import ArtifactError, SchemaMismatch
from hopline.graph import Graph, IdIndex
from hopline.graph.live.view import LiveView
from hopline.graph.schema import IdKind
from hopline.types import FloatArray, IdArray

if TYPE_CHECKING:
    from hopline.engine.inline import InlineNodes
    from hopline.engine.narrow_kernels import Matrix


class StructureSpec(msgspec.Struct, frozen=True):
    """The content of structure.json.

    Attributes:
        graph: version of the graph that rows were computed on.
        node_type: whose they are.
        nodes, id_kind: how many, and what their ids are.
        restart: share of its own row that a node keeps in each round of the diffusion.
    """

    graph: str
    node_type: str
    nodes: int
    id_kind: IdKind
    restart: float


def write_structure(
    folder: Path,
    rows: FloatArray,
    base: FloatArray,
    degrees: IdArray,
    spec: StructureSpec,
    ids: IdIndex,
) -> None:
    """Write a folder.

    Args:
        rows: float32 [N, S]. base: float32 [d, S]. degrees: int64 [N].
        ids: of the N nodes, in order.
    """
    folder.mkdir(parents=True)
    np.save(folder / "rows.npy", np.ascontiguousarray(rows, np.float32))
    np.save(folder / "base.npy", base)
    np.save(folder / "degrees.npy", degrees)
    for name, array in ids.arrays().items():
        np.save(folder / f"ids.{name}.npy", array)
    (folder / "structure.json").write_bytes(msgspec.json.format(msgspec.json.encode(spec), indent=1))


class Structure:
    """Args:
        folder: as `write_structure` wrote it.
        graph: whose nodes will be asked for.

    Raises:
        ArtifactError: the folder cannot be read.
        SchemaMismatch: ids of the graph are of another kind.
    """

    def __init__(self, folder: Path, graph: Graph | LiveView) -> None:
        try:
            spec = msgspec.json.decode((folder / "structure.json").read_bytes(), type=StructureSpec)
            # plain arrays over the mapped files: indexing a memmap costs microseconds more
            self._rows: FloatArray = np.asarray(np.load(folder / "rows.npy", mmap_mode="r"))
            self._base: FloatArray = np.load(folder / "base.npy")
            self._degrees: IdArray = np.asarray(np.load(folder / "degrees.npy", mmap_mode="r"))
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
        everyone = np.arange(nodes.num_nodes)
        self._at: IdArray = everyone
        self._is_same = graph.version == spec.graph
        if not self._is_same:
            index = IdIndex.from_arrays(spec.id_kind, spec.nodes, arrays)
            self._at = index.lookup(nodes.ids.external(everyone))
        self._keys = [key for key, edge in graph.edges.items() if edge.src == edge.dst == spec.node_type]

    def rows(self, ids: IdArray, features: Matrix, feature_rows: IdArray) -> FloatArray:
        """Of int64 [n] global ids: float32 [n, S].

        Args:
            features, feature_rows: of those that the file does not have, as in `StageRunner.run`.
        """
        if self._is_same and ids.max(initial=-1) < self._at.shape[0]:
            same: FloatArray = self._rows.take(ids, axis=0)
            return same
        at = np.full(ids.shape[0], -1, np.int64)
        inside = ids < self._at.shape[0]  # of a live graph, nodes may have come since
        at[inside] = self._at[ids[inside]]
        if (at >= 0).all():
            found: FloatArray = self._rows[at]
            return found
        known = np.flatnonzero(at >= 0)
        new = np.flatnonzero(at < 0)
        found = np.empty((ids.shape[0], self._rows.shape[1]), np.float32)
        found[known] = self._rows[at[known]]
        width = self._base.shape[0]
        own = np.empty((new.shape[0], width), np.float32)
        gather(features, feature_rows[new], 0, width, own, 0)
        found[new] = own @ self._base
        return found

    def described(self, nodes: InlineNodes) -> FloatArray:
        """Of nodes that a request describes: one round over the kept rows of their neighbours."""
        own = nodes.features @ self._base
        num_nodes = own.shape[0]
        rows, owners, degrees = [], [], []
        for key in self._keys:
            edges = nodes.edges[key]
            is_known = edges.neighbors >= 0
            at = np.where(is_known, self._at[np.where(is_known, edges.neighbors, 0)], -1)
            counts = np.diff(edges.offsets)
            owner = np.repeat(np.arange(num_nodes), counts)
            kept = at >= 0
            rows += [self._rows[at[kept]], own[-1 - edges.neighbors[~is_known]]]
            degrees += [self._degrees[at[kept]], counts[-1 - edges.neighbors[~is_known]]]
            owners += [owner[kept], owner[~is_known]]
        if not rows:
            return own
        owner = np.concatenate(owners)
        count = np.bincount(owner, minlength=num_nodes)
        # the symmetric weights of the diffusion
        weights = 1 / np.sqrt(np.maximum(np.concatenate(degrees), 1) * count[owner])
        sums = np.zeros(own.shape, np.float32)
        np.add.at(sums, owner, np.concatenate(rows) * weights[:, None].astype(np.float32))
        mixed = self._restart * own + (1 - self._restart) * sums
        found: FloatArray = np.where(count[:, None] > 0, mixed, own).astype(np.float32)
        return found
