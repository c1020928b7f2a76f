"""States of an earlier run, reused where nothing changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hopline.artifact import ModelSpec
from hopline.errors import BatchError, GraphError, RunMismatch
from hopline.graph import Graph
from hopline.jobs.batch.changes import Changes, Matched
from hopline.jobs.batch.journal import Identity, Manifest, read_manifest, read_marks
from hopline.jobs.batch.states import RowFile, create, state_path
from hopline.types import IdArray

_ROWS = 4096


class PreviousRun:
    """A finished run whose work folder was kept.

    Args:
        folder: its work folder.

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
        self.manifest: Manifest = manifest
        log = folder / "done.log"
        marks = read_marks(log)[0] if log.is_file() else []
        self._complete = {(mark.level, mark.node_type) for mark in marks if mark.complete}

    def check(self, identity: Identity, needed: list[list[str]]) -> None:
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

    def changes(self, spec: ModelSpec, graph: Graph) -> Changes:
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
        return Changes(spec, old, graph)

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
