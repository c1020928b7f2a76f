"""A packaged model on a graph, ready to answer: distinct node ids in, output rows out.

Not safe for concurrent calls: buffers are reused. The service gives each model one lane.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from hopline.artifact import ModelSpec, read_spec
from hopline.engine import outputs as out_of
from hopline.engine.arena import Arena
from hopline.engine.execute import execute
from hopline.engine.level import Level
from hopline.engine.plan import Plan, make_plan
from hopline.engine.table import Table
from hopline.errors import SchemaMismatch
from hopline.graph import Graph, GraphSchema
from hopline.runtimes.onnx import CHUNK_ROWS, RowStage
from hopline.sampling.keyed import NO_CUT, frozen
from hopline.types import AnyArray, FloatArray, IdArray

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def load(folder: Path, *, verify: bool = True) -> ModelSpec:
    """Read an artifact's spec; see `artifact.read_spec`."""
    return read_spec(folder, verify=verify)


def check_schema(spec: ModelSpec, graph: Graph) -> None:
    """Check that a model fits a graph.

    Raises:
        SchemaMismatch: each difference named.
    """
    expected = msgspec.convert(spec.graph_schema, GraphSchema)
    differences = expected.differences(graph.schema)
    if differences:
        listed = "; ".join(differences)
        raise SchemaMismatch(
            f"model {spec.name}/{spec.version} does not fit graph {graph.version}: {listed}", differences
        )


class TablePlan:
    """How a memory budget is divided among the tables of a model.

    Every worker derives the same plan from the same numbers, so that all carve the same arena.

    Args:
        spec, graph: the model and its graph.
        memory_bytes: for all tables and all workers together; 0 means no tables.
        num_workers: partitions.
        final: also keep the last level's rows (precomputed serving).
    """

    def __init__(
        self, spec: ModelSpec, graph: Graph, memory_bytes: int, num_workers: int = 1, *, final: bool = False
    ) -> None:
        self.num_workers = num_workers
        #: (level, node type) -> (num_nodes, dim, slots of each worker)
        self.tables: dict[tuple[int, str], tuple[int, int, int]] = {}
        top = spec.num_layers + 1 if final else spec.num_layers
        kept = [
            (level, node_type, graph.nodes[node_type].num_nodes, stage.state_dim)
            for level in range(top)
            for node_type, stage in sorted(spec.levels[level].items())
            if stage.file is not None
        ]
        full = sum(n * Table.row_bytes(dim) for _, _, n, dim in kept)
        index = sum(n * 4 for _, _, n, _ in kept)
        if memory_bytes <= index or not full:
            return
        share = min(1.0, (memory_bytes - index) / (full * num_workers))
        for level, node_type, num_nodes, dim in kept:
            slots = int(num_nodes * share)
            if slots:
                self.tables[level, node_type] = (num_nodes, dim, slots)

    @property
    def num_bytes(self) -> int:
        """Bytes of the arena that holds these tables."""
        return sum(
            Table.num_bytes(num_nodes, dim, slots, self.num_workers)
            for num_nodes, dim, slots in self.tables.values()
        )

    def build(self, arena: Arena, worker: int = 0) -> dict[tuple[int, str], Table]:
        """Create the tables in `arena`, for one worker."""
        return {
            key: Table(arena, num_nodes, dim, slots, worker, self.num_workers)
            for key, (num_nodes, dim, slots) in self.tables.items()
        }


class Model:
    """A loaded model version.

    Args:
        folder: `<repository>/<model>/<version>`.
        spec: its model.json.
        graph: the snapshot it answers about.
        tables: from `TablePlan.build`; empty serves without embedding tables.

    Raises:
        SchemaMismatch: the model was packaged for another graph schema.
        ArtifactError: a file cannot be loaded.
    """

    def __init__(
        self,
        folder: Path,
        spec: ModelSpec,
        graph: Graph,
        tables: Mapping[tuple[int, str], Table] | None = None,
    ) -> None:
        check_schema(spec, graph)
        self.spec = spec
        self.graph = graph
        self.tables = dict(tables or {})
        self.features: dict[str, FloatArray] = {
            # Narrow features are widened once, into memory of this process.
            name: frozen(np.ascontiguousarray(nodes.features, np.float32))
            for name, nodes in graph.nodes.items()
        }
        self.levels: list[dict[str, Level]] = [
            {
                node_type: Level(
                    folder, spec, graph, number, node_type, self.tables.get((number, node_type))
                )
                for node_type in stages
            }
            for number, stages in enumerate(spec.levels)
        ]
        for below, above in pairwise(self.levels):
            for level in above.values():
                level.link(below)
        head = spec.head
        final = spec.levels[-1]
        self._head: RowStage | None = None
        if head.file is not None:
            dims = [final[head.node_type].state_dim]
            names = ["h"]
            if head.kind == "link":
                dims.append(final[head.dst_node_type or head.node_type].state_dim)
                names = ["h_src", "h_dst"]
            self._head = RowStage(folder / head.file, names, dims, "logits", head.output_dim)

    def plan(self, wanted: Mapping[str, IdArray], as_of: int = NO_CUT) -> Plan:
        """Plan the final states of distinct global ids, node type -> int64 [n]."""
        return make_plan(self.levels, self.spec.num_layers, wanted, as_of)

    def states(self, plan: Plan) -> dict[str, FloatArray]:
        """Final states float32 [n, d] by node type, in the plan's order; valid until the next plan."""
        return execute(plan, self.features)

    def logits(self, *states: FloatArray) -> FloatArray:
        """The head over final states: one array [n, d], or two of them for a link model."""
        if self._head is None:
            if len(states) == 1:
                return states[0]
            product: FloatArray = np.einsum("nd,nd->n", *states)[:, None]
            return product
        n = states[0].shape[0]
        logits = np.empty((n, self.spec.head.output_dim), np.float32)
        for a in range(0, n, CHUNK_ROWS):
            b = min(a + CHUNK_ROWS, n)
            for buffer, state in zip(self._head.inputs, states, strict=True):
                buffer[: b - a] = state[a:b]
            logits[a:b] = self._head.run(b - a)
        return logits

    def outputs(self, names: Sequence[str], *states: FloatArray) -> dict[str, AnyArray]:
        """Named outputs of rows of final states; arrays of their own, never views of buffers."""
        found: dict[str, AnyArray] = {}
        logits: FloatArray | None = None
        for name in names:
            if name == "embedding":
                a, b = self.spec.head.embedding or (0, states[0].shape[1])
                found[name] = states[0][:, a:b].copy()
                continue
            if logits is None:
                logits = self.logits(*states)
            if name == "logits":
                found[name] = logits.copy()
            elif name == "probabilities":
                found[name] = out_of.probabilities(self.spec.task, logits)
            else:
                found[name] = out_of.labels(self.spec.task, logits)
        return found
