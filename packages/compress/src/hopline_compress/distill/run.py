"""A distillation from start to end: a teacher's answers, a student, a report, files."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from hopline.errors import BadRequest, PackagingError
from hopline.jobs.batch.report import Advance, silent
from hopline.live.snapshots import open_graph
from hopline.types import FloatArray, IdArray
from hopline_compress.distill.export import StructureRows, write_fallback, write_student
from hopline_compress.distill.propagate import by_destination, diffuse, directions
from hopline_compress.distill.report import DistillReport, by_degree, calibration, judge, share
from hopline_compress.distill.settings import Settings
from hopline_compress.distill.teacher import check_fit, read_teacher, soft_labels
from hopline_compress.distill.train import Trained, train_student
from hopline_compress.labels import read_labels
from hopline_compress.quantize.nodes import degrees


def structure_features(edge_index: IdArray, x: FloatArray, settings: Settings) -> FloatArray:
    """Rows of all nodes, computed offline: reduced features, diffused.

    Args:
        edge_index: int64 [2, E]: sources, destinations; a row comes from in-neighbours.
        x: float32 [N, D].

    Returns: float32 [N, S].
    """
    indptr, indices = by_destination(np.asarray(edge_index, np.int64), len(x))
    base = x @ directions(x, settings.width)
    return diffuse(indptr, indices, base, restart=settings.restart, tolerance=settings.tolerance)


#: Shares of all nodes that choose the epoch, and that are held out for the report.
_VALID, _HELD_OUT = 0.1, 0.2


@dataclass(frozen=True)
class DistillOptions:
    """Options of a distillation.

    Attributes:
        student: its name; "" means the teacher's with "-student" added.
        needs_structure: refuse a graph without usable edges if `settings` require structure; else the
            student is trained without.
        labels: file of known classes; None for an unlabelled graph.
        force: write a student that the gate refuses.
        overwrite: replace an existing version.
        settings: of the training.
    """

    student: str = ""
    needs_structure: bool = True
    labels: Path | None = None
    force: bool = False
    overwrite: bool = False
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class Split:
    """Disjoint rows of the graph: to learn from, to stop by, to evaluate on; int64, ascending."""

    fit: IdArray
    valid: IdArray
    held_out: IdArray

    @classmethod
    def of(cls, num_nodes: int, seed: int) -> Split:
        """Draw a split from a seed."""
        order = np.random.default_rng(seed).permutation(num_nodes)
        held_out = max(1, round(_HELD_OUT * num_nodes))
        valid = max(1, round(_VALID * num_nodes))
        parts = np.split(order, [held_out, held_out + valid])
        return cls(np.sort(parts[2]), np.sort(parts[1]), np.sort(parts[0]))


class Distillation:
    """One distillation: trains, judges and writes a student.

    Args:
        teacher_folder: `<repository>/<model>/<version>` of a packaged graph model.
        graph_folder: a saved graph, or the folder of a live one, of which a snapshot is taken.
        repository: for the student.
        options: see there.
        advance: called with the progress of the run.

    Raises:
        BadRequest: a teacher that cannot teach, too few nodes, or labels that do not fit.
        NodeNotFound: labels of unknown ids.
        SchemaMismatch: the teacher does not fit the graph; each difference is named.
        PackagingError: the student's version exists.
    """

    def __init__(
        self,
        teacher_folder: Path,
        graph_folder: Path,
        repository: Path,
        options: DistillOptions | None = None,
        *,
        advance: Advance = silent,
    ) -> None:
        self._options = options or DistillOptions()
        self._folder = teacher_folder
        self._repository = repository
        self._advance = advance
        self._seconds: dict[str, float] = {}
        self.spec = read_teacher(teacher_folder)
        self._name = self._options.student or f"{self.spec.name}-student"
        if self._name == self.spec.name:
            raise BadRequest(
                f"--student {self._name}: that is the teacher; choose another name for the student"
            )
        path = repository / self._name / self.spec.version
        if path.exists() and not self._options.overwrite:
            raise PackagingError(
                f"{path} exists; name another one with --student, or replace it with --overwrite"
            )
        self._graph = open_graph(graph_folder, fresh=True)
        check_fit(self.spec, self._graph)
        nodes = self._graph.nodes[self.spec.head.node_type]
        self._labels = np.full(nodes.num_nodes, -1, np.int64)
        if self._options.labels is not None:
            num_classes = max(2, self.spec.head.output_dim)
            self._labels = read_labels(self._options.labels, nodes.ids, self.spec.classes, num_classes)
        self._split = Split.of(nodes.num_nodes, self._options.settings.seed)

    def run(self) -> DistillReport:
        """Train, evaluate and, if the student passes the gate, write it.

        Returns: the report; `written` says whether the student was written, and `why` gives the reason.
        Raises:
            BatchError: the teacher's answers cannot be computed.
            ParityError: a written file does not give the student's answers.
        """
        node_type = self.spec.head.node_type
        # A copy: torch requires writable memory.
        features = np.array(self._graph.nodes[node_type].features, np.float32)
        began = time.monotonic()
        structure = self._structure(features)
        began = self._note("structure", began)
        soft = soft_labels(self._folder, self._graph, self._advance)
        began = self._note("teacher", began)
        plain = dataclasses.replace(self._options.settings, structure=False)
        known = self._labels.copy()
        known[self._split.held_out] = -1  # nothing learns from the rows of the evaluation
        rows = None if structure is None else structure.rows
        student = self._train("student", features, soft, known, self._options.settings, rows)
        fallback = student
        if structure is not None:
            fallback = self._train("student next to its teacher", features, soft, known, plain)
        mlp = self._plain_mlp(features, soft.shape[1], known, plain)
        began = self._note("training", began)
        report = self._judge(features, rows, soft, student, fallback, mlp)
        if report.within or self._options.force:
            report = self._write(report, features, structure, student, fallback)
            self._note("writing", began)
        return msgspec.structs.replace(report, seconds=dict(self._seconds))

    def _note(self, step: str, began: float) -> float:
        now = time.monotonic()
        self._seconds[step] = round(now - began, 3)
        return now

    def _structure(self, features: FloatArray) -> StructureRows | None:
        settings = self._options.settings
        if not settings.structure:
            return None
        self._advance("structure", 0, 1)
        edges = self._edges()
        if edges is None:
            return None
        found = StructureRows(
            structure_features(edges, features, settings),
            directions(features, settings.width),
            settings.restart,
        )
        self._advance("structure", 1, 1)
        return found

    def _edges(self) -> IdArray | None:
        """Edges among nodes of the answered type, int64 [2, E]; None if the student can do without.

        Raises: BadRequest: there are no such edges.
        """
        node_type = self.spec.head.node_type
        found = [
            np.stack(
                [
                    np.asarray(edge.indices[:], np.int64),
                    np.repeat(np.arange(edge.indptr.shape[0] - 1), np.diff(edge.indptr)),
                ]
            )
            for edge in map(self._graph.edge, self._graph.schema.own_edge_types)
            if edge.src == edge.dst == node_type and edge.num_edges
        ]
        if not found and not self._options.needs_structure:
            return None
        if not found:
            raise BadRequest(
                f"--structure: the graph has no edges between nodes of type {node_type!r}; leave it out, "
                "or pass --no-structure"
            )
        return np.concatenate(found, axis=1)

    def _train(
        self,
        label: str,
        features: FloatArray,
        soft: FloatArray,
        labels: IdArray,
        settings: Settings,
        structure: FloatArray | None = None,
        fit: IdArray | None = None,
    ) -> Trained:
        def advance(epoch: int, most: int, score: float) -> None:
            self._advance(f"{label}, at {score:.2%}", epoch, most)

        return train_student(
            features,
            soft,
            labels,
            self._split.fit if fit is None else fit,
            self._split.valid,
            settings,
            structure=structure,
            advance=advance,
        )

    def _plain_mlp(
        self, features: FloatArray, num_classes: int, labels: IdArray, settings: Settings
    ) -> Trained | None:
        """The same network without a teacher; None if no class is known."""
        fit = self._split.fit[labels[self._split.fit] >= 0]
        if not fit.shape[0] or not (labels[self._split.valid] >= 0).any():
            return None
        hard = np.zeros((labels.shape[0], num_classes), np.float32)
        hard[fit, labels[fit]] = 1
        return self._train("plain MLP", features, hard, labels, settings, fit=fit)

    def _judge(
        self,
        features: FloatArray,
        structure: FloatArray | None,
        soft: FloatArray,
        student: Trained,
        fallback: Trained,
        mlp: Trained | None,
    ) -> DistillReport:
        rows = self._split.held_out
        labels = self._labels[rows]
        labelled = labels >= 0
        own = features[rows]
        whole = own if structure is None else np.concatenate([own, structure[rows]], axis=1)
        answers = {"teacher": soft[rows], "student": student.probabilities(whole)}
        if mlp is not None:
            answers["mlp"] = mlp.probabilities(own)
        chosen = {name: found.argmax(axis=1) for name, found in answers.items()}
        accuracy = {name: share((found == labels)[labelled]) for name, found in chosen.items()}
        agreement = float((chosen["student"] == chosen["teacher"]).mean())
        within, why = judge(agreement, accuracy["teacher"], accuracy["student"])
        if labelled.any():
            judged_by = "labels"
            kept = {name: calibration(found[labelled], labels[labelled]) for name, found in answers.items()}
        else:
            judged_by = "teacher"
            kept = {"student": calibration(answers["student"], chosen["teacher"])}
        settings = self._options.settings
        return DistillReport(
            teacher=f"{self.spec.name}/{self.spec.version}",
            student=f"{self._name}/{self.spec.version}",
            graph=self._graph.version,
            judged_by=judged_by,
            agreement=agreement,
            by_degree=by_degree(degrees(self._graph, self.spec.head.node_type)[rows], labels, chosen),
            calibration=kept,
            best_epoch=student.best_epoch,
            epochs=len(student.history),
            nodes={
                "fit": self._split.fit.shape[0],
                "valid": self._split.valid.shape[0],
                "held_out": rows.shape[0],
                "labelled": int((self._labels >= 0).sum()),
                "held_out_labelled": int(labelled.sum()),
            },
            structure=0 if structure is None else structure.shape[1],
            fallback_agreement=float((fallback.probabilities(own).argmax(1) == chosen["teacher"]).mean()),
            settings=dataclasses.asdict(settings),
            within=within,
            why=why,
            teacher_accuracy=accuracy["teacher"],
            student_accuracy=accuracy["student"],
            mlp_accuracy=accuracy.get("mlp"),
        )

    def _write(
        self,
        report: DistillReport,
        features: FloatArray,
        structure: StructureRows | None,
        student: Trained,
        fallback: Trained,
    ) -> DistillReport:
        figures: dict[str, object] = {
            "teacher": report.teacher,
            "agreement": report.agreement,
            "teacher_accuracy": report.teacher_accuracy,
            "student_accuracy": report.student_accuracy,
            "within": report.within,
        }
        path = write_student(
            self._repository,
            self._name,
            self.spec.version,
            student.module,
            self.spec,
            self._graph,
            features,
            figures,
            overwrite=self._options.overwrite,
            structure=structure,
        )
        origin = (self._name, self.spec.version)
        beside = write_fallback(
            self._folder, fallback.module, self.spec, features, origin, report.fallback_agreement
        )
        return msgspec.structs.replace(report, written=True, path=str(path), fallback=str(beside))
