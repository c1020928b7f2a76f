"""One model of a function: precomputed rows for known nodes, and its student for other nodes.

Rows become outputs in NumPy, with the same bits as from the kernels of `engine/outputs.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.artifact import ModelSpec
from hopline.config.schema import Config
from hopline.engine.fallbacks import STALE_ROW, STUDENT
from hopline.engine.inline_features import feature_rows
from hopline.engine.precomputed import OTHER_GRAPH_ADVICE, PrecomputedRows, check_fits, on_other_graph
from hopline.engine.precomputed_file.header import model_hash
from hopline.engine.precomputed_file.reader import PrecomputedFile
from hopline.engine.request_ids import not_found
from hopline.engine.student import SPEC_FILE, Student, read_student
from hopline.engine.tasks import Outputs, default_outputs, labels, outputs_of
from hopline.errors import ArtifactError, BadRequest, PrecomputedFileError, RequestTooLarge, Unavailable
from hopline.graph.ids import IdIndex
from hopline.graph.schema import NodeTypeSchema
from hopline.types import AnyArray, FloatArray, IdArray, ScoreRequest, ScoreResult
from hopline_serverless.ids import HashedIds, id_hash, ids_of_graph

#: Files up to this size are compared with their digests when they are opened: a third of a second.
_VERIFIED_BYTES = 256 << 20


def _outputs_of(
    names: Sequence[str], outputs: Outputs, embedding: FloatArray, logits: FloatArray
) -> dict[str, AnyArray]:
    """The requested outputs of rows: embedding float32 [n, d], logits float32 [n, c]."""
    found: dict[str, AnyArray] = {}
    for name in names:
        task, kind, columns, *_ = outputs[name]
        rows = embedding if name == "embedding" else logits if columns is None else logits[:, columns]
        if kind == "probabilities":
            found[name] = probabilities(task, rows)
        else:
            found[name] = labels(task, rows) if kind == "label" else rows
    return found


def probabilities(task: str, logits: FloatArray) -> FloatArray:
    """As `engine.outputs.probabilities`, with the same bits: sums from left to right, in float32."""
    if task == "multiclass":
        powers = _exp(logits - logits.max(axis=1, keepdims=True))
        totals: FloatArray = np.add.accumulate(powers, axis=1)[:, -1:]
        return powers / totals
    power = _exp(-np.abs(logits))  # exp of a non-positive number cannot overflow
    one = np.float32(1.0)
    tops: FloatArray = np.where(logits >= 0, one, power)
    sigmoid = tops / (one + power)
    return sigmoid[:, 0] if task == "binary" else sigmoid


def _exp(x: FloatArray) -> FloatArray:
    """exp rounded to the nearest float32, like expf in C; NumPy's exp is up to two units off."""
    return np.exp(x.astype(np.float64)).astype(np.float32)


class KnownModel:
    """A version of a model that answers without a server.

    Args:
        folder: folder of the version.
        spec: content of its model.json.
        table: file of precomputed answers, or None.
        settings: settings of the function.
        clock_ms: returns ms since the epoch.

    Raises:
        PrecomputedFileError: the file is of another artifact, or of another graph and not allowed.
        ArtifactError: a link model, or neither a file nor a student.
        GraphError: the graph cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        spec: ModelSpec,
        table: Path | None,
        settings: Config,
        clock_ms: Callable[[], float] = lambda: time.time() * 1e3,
    ) -> None:
        self.name, self.version = spec.name, spec.version
        if spec.head.kind != "node" or spec.heads:
            raise ArtifactError(f"{folder}: {spec.name} scores links or several types; functions serve one")
        self._spec, self._offers = spec, outputs_of(spec)
        self._settings = settings
        self._clock_ms = clock_ms
        self._folder = folder
        self._student: Student | None = None  # opened at its first call
        self._student_lock = threading.Lock()
        self._has_student = (folder / SPEC_FILE).is_file()
        if self._has_student:
            read_student(folder, spec)
        self._features: AnyArray | None = None
        self._ids: IdIndex | HashedIds | None = None
        self.graph_version = ""
        if settings.graph.path is not None:
            self.graph_version, self._ids, self._features = ids_of_graph(
                Path(settings.graph.path), spec.head.node_type
            )
        self.rows = None if table is None else self._fitted(PrecomputedFile.open(table), folder)
        if self.rows is None and not self._has_student:
            raise ArtifactError(
                f"{folder}: no source of answers: name a file of `hopline batch` in "
                "HOPLINE__PRECOMPUTED__FILE, or add a student to the model (`hopline distill`)"
            )

    def answer(self, request: ScoreRequest) -> ScoreResult:
        """Answer a request, as the server does.

        Raises:
            BadRequest, NodeNotFound, RequestTooLarge: as on the server.
            Unavailable: only a server can answer: missing rows, or a time cut.
        """
        self._check(request)
        names = request.outputs or default_outputs(self._spec)
        ids = self._look_up(request)
        present = ids >= 0
        good = self._good(request, ids)
        wants_student = bool((present & ~good).any()) or bool(request.inline)
        used_stale = self.rows is not None and self.rows.is_stale and bool(good.any())
        if wants_student or used_stale:
            self._check_possible(request, names, int((present & ~good).sum()), wants_student)
        count = len(ids) + len(request.inline)
        dims = self._widths()
        embedding = np.zeros((count, dims[0]), np.float32)
        logits = np.zeros((count, dims[1]), np.float32)
        self._read(names, ids, good, embedding, logits)
        if wants_student:
            self._run_student(request, ids, np.flatnonzero(present & ~good), logits)
        missing: NDArray[np.bool_] | None = None
        if not present.all():
            missing = np.concatenate([~present, np.zeros(len(request.inline), np.bool_)])
        degraded = (STALE_ROW,) * used_stale + (STUDENT,) * wants_student
        found = _outputs_of(names, self._offers, embedding, logits)
        return ScoreResult(self.name, self.version, self.graph_version, found, missing, degraded)

    # Internals

    def _check(self, request: ScoreRequest) -> None:
        if request.columns is not None:
            named = ", ".join(map(repr, request.columns)) or "rows"
            raise BadRequest(f"unexpected input {named}: model {self.name!r} takes nodes, not columns")
        for name in request.outputs:
            if name not in (known := self._offers):
                raise BadRequest(f"output {name!r} is unknown; model {self.name!r} has {', '.join(known)}")
        if request.ends is not None:
            raise BadRequest(f"model {self.name!r} scores nodes; ask with nodes or inline, not with pairs")
        count = len(request.nodes) + len(request.inline)
        if count == 0:
            raise BadRequest("the request names no nodes; at least one is needed")
        most = self._settings.limits.max_nodes_per_request
        if count > most:
            raise RequestTooLarge(
                f"{count} nodes in one request; at most {most} are allowed (limits.max_nodes_per_request)"
            )
        if request.as_of is not None or request.keep or request.edits or request.exclude_seed_edges:
            raise Unavailable("as_of, if, exclude_seed_edges and keep: this function only has current rows")

    def _look_up(self, request: ScoreRequest) -> IdArray:
        nodes: Sequence[Any] = request.nodes  # type: ignore[assignment]  # lists, as decoded
        if not len(nodes):
            return np.empty(0, np.int64)
        if self._ids is None:
            raise Unavailable(
                f"this function knows no nodes: it has neither a graph nor precomputed answers of "
                f"{self.name!r}; send inline nodes, or use a server"
            )
        ids = self._ids.lookup(nodes)
        if request.on_missing == "error" and ids.min() < 0:
            raise not_found(self.graph_version, nodes, ids)
        return ids

    def _good(self, request: ScoreRequest, ids: IdArray) -> NDArray[np.bool_]:
        """Mask of the nodes that have a valid row; bool [n]."""
        rows = self.rows
        if rows is None:
            return np.zeros(len(ids), np.bool_)
        good = ids >= 0
        good[good] = rows.good(ids[good])
        if rows.is_stale:  # a row is valid if it belongs to the node with that number here
            for place in np.flatnonzero(good).tolist():
                good[place] = rows.file.ids[ids[place]] == id_hash(request.nodes[place])
        return good

    def _check_possible(
        self, request: ScoreRequest, names: tuple[str, ...], num_absent: int, student: bool
    ) -> None:
        """Refuse requests that only a server can answer."""
        what = f"{num_absent} of {len(request.nodes)} nodes have no valid row here"
        if request.inline:
            what = "inline nodes have no row here"
        if request.degraded == "refuse":
            why = what if student else "the rows here are of another graph version"
            raise Unavailable(f'{why}, and degraded is "refuse"; use a server')
        if not student:
            return
        if not self._has_student:
            raise Unavailable(f"{what}, and model {self.name!r} has no student; use a server")
        if "embedding" in names:
            raise Unavailable(f"{what}, and a student has no embedding; use a server")
        if num_absent and self._features is None:
            raise Unavailable(
                f"{what}, and this function has no graph to read their features from; send inline nodes, "
                "or use a server"
            )

    def _widths(self) -> tuple[int, int]:
        """Number of columns of embeddings and of logits."""
        if self.rows is None:
            return 0, self._spec.head.output_dim
        a, b = self.rows.embedding
        return b - a, self.rows.num_logits

    def _read(
        self,
        names: tuple[str, ...],
        ids: IdArray,
        good: NDArray[np.bool_],
        embedding: FloatArray,
        logits: FloatArray,
    ) -> None:
        places = np.flatnonzero(good)
        if self.rows is None or not len(places):
            return
        if "embedding" in names:
            embedding[places] = self.rows.embeddings(ids[places])
        if names != ("embedding",):
            logits[places] = self.rows.logits(ids[places])

    def _run_student(
        self, request: ScoreRequest, ids: IdArray, places: IdArray, logits: FloatArray
    ) -> None:
        node_type = self._spec.head.node_type
        node_types: Any = self._spec.graph_schema["node_types"]
        schema = msgspec.convert(node_types[node_type], NodeTypeSchema)
        rows = inline = feature_rows(request.inline, node_type, schema)
        if len(places):
            assert self._features is not None
            rows = np.concatenate([self._features[ids[places]].astype(np.float32), inline])
        num_known = len(ids)
        where = np.concatenate([places, np.arange(num_known, num_known + len(inline))])
        with self._student_lock:
            if self._student is None:
                self._student = Student(self._folder, self._spec)
            logits[where] = self._student.logits(rows)

    def _fitted(self, file: PrecomputedFile, folder: Path) -> PrecomputedRows | None:
        """The rows of a file, if allowed by the rules of `answering.precomputed_files`."""
        plan, spec, settings = file.header.plan, self._spec, self._settings.precomputed
        check_fits(file, spec, model_hash(folder))
        if file.header.file_bytes <= _VERIFIED_BYTES:
            file.verify()
        is_stale = False
        if self._ids is None:
            if plan.num_nodes > 1 and not file.ids[:2].any():
                raise PrecomputedFileError(
                    f"{file.path} was written without external ids: set HOPLINE__GRAPH__PATH to its graph"
                )
            self._ids, self.graph_version = HashedIds(file.ids), plan.graph_version
        elif plan.graph_version != self.graph_version:
            if settings.stale == "refuse":
                differ = on_other_graph(file.path, plan, spec.name, self.graph_version)
                raise PrecomputedFileError(f"{differ}: {OTHER_GRAPH_ADVICE}")
            if settings.stale == "compute":
                return None
            is_stale = True
        return PrecomputedRows(file, spec, ttl_s=settings.ttl_s, is_stale=is_stale, clock_ms=self._clock_ms)
