"""The work of a run: which rows of which levels, for which nodes, from which earlier states."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hopline.artifact import ModelSpec, sha256_of
from hopline.errors import BadRequest, BatchError, NodeNotFound
from hopline.graph import Graph
from hopline.jobs.batch import needed as needs
from hopline.jobs.batch.changes import Changes
from hopline.jobs.batch.journal import Identity
from hopline.jobs.batch.previous import PreviousRun
from hopline.jobs.batch.rows import with_all_neighbors
from hopline.types import ExternalIds, IdArray

#: Unknown ids that a message lists.
_NAMED = 20


@dataclass(frozen=True)
class BatchOptions:
    """Options of a run.

    Attributes:
        outputs: columns of the table; () means `usual`.
        usual: the default outputs of the sink; those that the model has are written. () means what the
            server answers.
        exact: read all neighbours, not the model's fanouts.
        memory_bytes: of resident memory; 0 means no limit.
        threads: 0 means one for each processor.
        nodes: external ids to score; None means all.
        since: work folder of an earlier run of this model, kept with `keep`.
        keep: leave the work folder, so that a later run can be `since` this one.
        restart: discard the work of an unfinished run.
        checkpoint_s: seconds of work that a kill can cost. States that the last level computes in the first
            such seconds of a run are not saved later either.
    """

    outputs: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    exact: bool = False
    memory_bytes: int = 0
    threads: int = 0
    nodes: ExternalIds | None = None
    since: Path | None = None
    keep: bool = False
    restart: bool = False
    checkpoint_s: float = 5.0


class Goal:
    """The work that the options of a run mean on a graph.

    Args:
        folder, spec, graph: the model and its graph, which fit.
        options: of the run.

    Attributes:
        spec: as rows are computed, with all neighbours where the run is exact.
        is_whole: the model is served whole; its only level is 1, the logits.
        types: node types, one table for each.
        needed: for each level, the node types that are computed.
        asked: node type -> int64 ids, distinct, in the requested order; None means all.
        duplicates: ids that were repeated.
        rows: (level, node type) -> int64 ids to compute, ascending; levels that are missing need all.
        previous, changes: the earlier run, and the differences from its graph; None without an earlier run.

    Raises:
        NodeNotFound: ids that are not in the graph.
        BadRequest: options that exclude each other.
        BatchError, RunMismatch: the earlier run cannot be continued.
    """

    def __init__(self, folder: Path, spec: ModelSpec, graph: Graph, options: BatchOptions) -> None:
        self._folder = folder
        self._graph = graph
        self._options = options
        self.spec = with_all_neighbors(spec) if options.exact else spec
        self.is_whole = spec.runtime == "torch"
        self.types = needs.head_types(spec)
        self.duplicates = 0
        self.asked = self._find_nodes(options.nodes) if options.nodes is not None else None
        self.previous = PreviousRun(options.since) if options.since is not None else None
        self.changes: Changes | None = None
        self.rows: dict[tuple[int, str], IdArray] = {}
        if self.is_whole:
            self._plan_whole()
            return
        self.needed = needs.needed_levels(self.spec, graph)
        if self.asked is not None:
            self.rows = needs.rows_for(self.spec, graph, self.needed, self.asked)
        elif self.previous is not None:
            self.previous.check(self.identity, self.needed)
            self.changes = self.previous.changes(self.spec, graph)
            self.rows = self.changes.rows(self.needed)

    def _plan_whole(self) -> None:
        if self.previous is not None:
            raise BatchError(
                f"{self.spec.name}/{self.spec.version} is served whole and stores no states: start without "
                "--since"
            )
        node_type = self.types[0]
        self.needed = [[], [node_type]]
        if self.asked is not None:
            self.rows[1, node_type] = np.sort(self.asked[node_type])

    def _find_nodes(self, asked: ExternalIds) -> dict[str, IdArray]:
        if self._options.since is not None:
            raise BadRequest("--nodes and --since exclude each other: since scores the whole graph")
        if len(self.types) > 1:
            raise BadRequest(f"--nodes works for one node type; this model has {' and '.join(self.types)}")
        ids = self._graph.nodes[self.types[0]].ids.lookup(asked)
        unknown = [asked[k] for k in np.flatnonzero(ids < 0).tolist()]
        if unknown:
            listed = ", ".join(repr(name) for name in unknown[:_NAMED])
            more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
            raise NodeNotFound(f"the graph has no nodes {listed}{more}", unknown)
        distinct, first = np.unique(ids, return_index=True)
        self.duplicates = len(asked) - distinct.shape[0]
        return {self.types[0]: ids[np.sort(first)]}

    @property
    def identity(self) -> Identity:
        """The identity of the run: all inputs that determine the states."""
        nodes = ""
        if self.asked is not None:
            digest = hashlib.blake2b(digest_size=16)
            for rows in self.asked.values():
                digest.update(np.ascontiguousarray(rows).data)
            nodes = digest.hexdigest()
        return Identity(
            model=self.spec.name,
            version=self.spec.version,
            model_hash=sha256_of(self._folder / "model.json"),
            graph_version=self._graph.version,
            exact=self._options.exact,
            nodes=nodes,
            since=self.previous.manifest.identity.run_id if self.previous is not None else "",
        )
