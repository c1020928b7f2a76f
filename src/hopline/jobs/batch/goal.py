"""The work of a run: which rows of which levels, for which nodes, from which earlier states.

States of an earlier run are reused where nothing changed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hopline.artifact import ModelSpec, sha256_of
from hopline.errors import BadRequest, BatchError, GraphError, NodeNotFound, RunMismatch
from hopline.graph import Graph
from hopline.graph.live.view import LiveView
from hopline.jobs.batch import needed_rows as needs
from hopline.jobs.batch.changes import Matched, SnapshotChanges
from hopline.jobs.batch.journal import RunIdentity, RunManifest, read_manifest, read_marks
from hopline.jobs.batch.rows import with_all_neighbors
from hopline.jobs.batch.states import RowFile, create, state_path
from hopline.types import ExternalIds, IdArray

_ROWS = 4096
#: Unknown ids that a message lists.
_NAMED = 20


class PreviousRun:
    """A finished run whose work folder was kept.

    Raises:
        BatchError: the folder holds no run, or a run without states.
    """

    def __init__(self, folder: Path) -> None:
        manifest = read_manifest(folder)
        if manifest is None:
            raise BatchError(
                f"--since {folder}: no manifest.json; pass the work folder of a run with --keep"
            )
        self.folder = folder
        self.manifest: RunManifest = manifest
        log = folder / "done.log"
        marks = read_marks(log)[0] if log.is_file() else []
        self._complete = {(mark.level, mark.node_type) for mark in marks if mark.complete}

    def check(self, identity: RunIdentity, needed: list[list[str]]) -> None:
        """Check that its states can be reused.

        Raises:
            RunMismatch: the run was of another model or had other options; each difference is named.
            BatchError: states are missing.
        """
        theirs = self.manifest.identity
        differences = [
            f"{what} was {was!r} and is now {now!r}"
            for what, was, now in (
                ("model", theirs.model, identity.model),
                ("version", theirs.version, identity.version),
                ("content of the model's folder", theirs.model_hash, identity.model_hash),
                ("exact", theirs.exact, identity.exact),
            )
            if was != now
        ]
        if theirs.nodes:
            differences.append("it scored some nodes only")
        if differences:
            raise RunMismatch(
                f"--since {self.folder} cannot be continued: {'; '.join(differences)}", differences
            )
        for level, types in enumerate(needed):
            for name in types:
                if (level, name) not in self._complete or not state_path(
                    self.folder, level, name
                ).is_file():
                    raise BatchError(
                        f"--since {self.folder}: no states of {name!r} at level {level}; did the run "
                        "finish, with --keep?"
                    )

    def changes(self, spec: ModelSpec, graph: Graph) -> SnapshotChanges:
        """The differences between its graph and `graph`.

        Raises:
            BatchError: its graph is not at its former place.
        """
        path = self.manifest.graph_path
        again = "keep that folder until the next run, or start without --since"
        try:
            old = Graph.open(path)
        except GraphError as error:
            raise BatchError(
                f"--since {self.folder}: its graph cannot be read ({error}); {again}"
            ) from None
        if old.version != self.manifest.identity.graph_version:
            raise BatchError(
                f"--since {self.folder} used graph {self.manifest.identity.graph_version}, and {path} "
                f"is {old.version} now; {again}"
            )
        return SnapshotChanges(spec, old, graph)

    def copy(self, out: Path, level: int, node_type: str, matched: Matched, recomputed: IdArray) -> int:
        """Create the file of a level and fill in the rows that are not computed again.

        Args:
            recomputed: int64, ids that are computed again.

        Returns: rows copied.
        Raises:
            BatchError: the disk is full.
        """
        source = RowFile(state_path(self.folder, level, node_type))
        num_rows = matched.old_row.shape[0]
        create(out, num_rows, source.array.shape[1])
        target = RowFile(out, writable=True)
        taken = np.ones(num_rows, np.bool_)
        taken[recomputed] = False
        for a in range(0, num_rows, _ROWS):
            rows = np.flatnonzero(taken[a : a + _ROWS]) + a
            if rows.shape[0]:
                buffer = np.empty((rows.shape[0], source.array.shape[1]), np.float32)
                source.read(matched.old_row[rows], buffer)
                target.write(rows, buffer)
        target.sync()
        source.close()
        target.close()
        return int(taken.sum())


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
        types: node types, one table for each.
        needed: for each level, the node types that are computed.
        scored: node type -> int64 ids, distinct, in the requested order; None means all.
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
        self.types = needs.head_types(spec)
        self.duplicates = 0
        self.scored = self._find_nodes(options.nodes) if options.nodes is not None else None
        self.previous = PreviousRun(options.since) if options.since is not None else None
        self.changes: SnapshotChanges | None = None
        self.rows: dict[tuple[int, str], IdArray] = {}
        self.needed = needs.needed_levels(self.spec, graph)
        if self.scored is not None:
            self.rows = needs.rows_for(self.spec, graph, self.needed, self.scored)
        elif self.previous is not None:
            self.previous.check(self.identity, self.needed)
            self.changes = self.previous.changes(self.spec, graph)
            self.rows = self.changes.rows(self.needed)

    def _find_nodes(self, nodes: ExternalIds) -> dict[str, IdArray]:
        if self._options.since is not None:
            raise BadRequest("--nodes and --since exclude each other: since scores the whole graph")
        if len(self.types) > 1:
            raise BadRequest(f"--nodes are of one type of {' and '.join(self.types)}: name its --outputs")
        ids = known_nodes(self._graph, self.types[0], nodes)
        distinct, first = np.unique(ids, return_index=True)
        self.duplicates = len(nodes) - distinct.shape[0]
        return {self.types[0]: ids[np.sort(first)]}

    @property
    def identity(self) -> RunIdentity:
        """The identity of the run: all inputs that determine the states."""
        nodes = ""
        if self.scored is not None:
            digest = hashlib.blake2b(digest_size=16)
            for rows in self.scored.values():
                digest.update(np.ascontiguousarray(rows).data)
            nodes = digest.hexdigest()
        return RunIdentity(
            model=self.spec.name,
            version=self.spec.version,
            model_hash=sha256_of(self._folder / "model.json"),
            graph_version=self._graph.version,
            exact=self._options.exact,
            nodes=nodes,
            since=self.previous.manifest.identity.run_id if self.previous is not None else "",
        )


def known_nodes(graph: Graph | LiveView, node_type: str, nodes: ExternalIds, where: str = "") -> IdArray:
    """Rows of nodes of a type, int64 [n]. Raises: NodeNotFound: ids that are not in the graph."""
    found = graph.nodes[node_type].ids.lookup(nodes)
    unknown = list(dict.fromkeys(nodes[k] for k in np.flatnonzero(found < 0).tolist()))
    if unknown:
        listed = ", ".join(repr(name) for name in unknown[:_NAMED])
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        raise NodeNotFound(f"{where}the graph has no nodes {listed}{more}", unknown)
    return found
