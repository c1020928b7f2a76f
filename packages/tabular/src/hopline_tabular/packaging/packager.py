"""`hopline.package_tabular`: packages a fitted estimator, checked on a sample, as an artifact folder.

Columns, nodes of the preprocessing, nodes of the last step, parity, alone and together, rename into place.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import onnx
from onnx import TensorProto

from hopline.artifact import write_spec
from hopline.errors import ArtifactError, PackagingError, ParityError, RuntimeFailure
from hopline.observe.progress import shown
from hopline.packaging.folder import new_version
from hopline.types import Progress
from hopline_tabular.model import TabularModel
from hopline_tabular.packaging.compose import transform
from hopline_tabular.packaging.gate import (
    Agreement,
    ColumnProbe,
    answers_alone,
    check_answers,
    check_preprocessing,
    compare,
    probe,
)
from hopline_tabular.packaging.graph import ML_OPSET, OPSET, Kind, OnnxGraph
from hopline_tabular.packaging.oracle import Oracle
from hopline_tabular.packaging.predictor import GraphModel, is_xgboost, precisions, predict
from hopline_tabular.packaging.sample import Sample, SampleLike, read_sample
from hopline_tabular.spec import Column, TabularSpec

#: Names of the steps, for progress output.
_RUN = "running the estimator on the sample"
_WRITE = "writing the model and comparing served answers"


@dataclass(frozen=True, slots=True)
class TabularReport:
    """The packaged tabular model.

    Attributes:
        path: the artifact folder `<repository>/<name>/<version>`.
        spec: as written to model.json.
        agreement: what the gate compared, and the rows that differ most.
        notes: for the user (unused columns, rows that the estimator refuses).
        seconds: how long packaging took.
    """

    path: Path
    spec: TabularSpec
    agreement: Agreement
    notes: tuple[str, ...]
    seconds: float

    @property
    def num_bytes(self) -> int:
        """Size of the artifact folder."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())


def package_tabular(
    estimator: Any,
    sample: SampleLike,
    repository: Path | str,
    *,
    name: str,
    version: str = "1",
    task: Literal["binary", "multiclass", "regression"] | None = None,
    columns: Sequence[Column] | None = None,
    overwrite: bool = False,
    progress: Progress | bool | None = None,
) -> TabularReport:
    """Package a fitted scikit-learn or XGBoost estimator, its preprocessing included, as one ONNX file.

    Args:
        estimator: a classifier with probabilities or a regressor, alone or as the last step of a pipeline,
            or a search over such. It is not changed.
        sample: rows as the estimator accepts them: a DataFrame, column name -> values, or an array. Columns
            and their types are read from it, and parity is checked on it: use rows that are not in
            training.
        repository: folder of models; the artifact is `<repository>/<name>/<version>`.
        task: only as a check; it follows from the estimator.
        columns: overrides for some columns: type, whether values may be absent, a default if requests
            leave the column out. All columns are needed if the sample is an array.
        overwrite: replace an existing version.
        progress: True if steps are shown on stderr while they run; None shows them on a terminal and in a
            notebook. A function is called with each step instead.

    Returns: where the artifact is and how well it agrees.

    Raises:
        PackagingError: the estimator or the sample cannot be packaged; the message names the step or
            column.
        ParityError: the written file does not give the estimator's answers; nothing is written.
    """
    started = time.perf_counter()
    with shown(progress, f"packaging {name}") as report_step:
        report_step(_RUN, 0.0)
        oracle = Oracle(estimator, task)
        rows = read_sample(sample, oracle.feature_names, columns)
        _check_xgboost(oracle.predictor)
        job = TabularJob(oracle, rows, {column.name for column in columns or ()})
        report_step(_RUN, 1.0)
        report_step(_WRITE, 0.0)
        spec = TabularSpec(
            name=name,
            version=version,
            task=oracle.task,
            columns=job.columns,
            outputs=("logits",) if oracle.task == "regression" else ("probabilities", "label"),
            output_dim=len(oracle.classes) or int(job.expected.shape[1]),
            classes=oracle.classes,
            opset=OPSET,
            ml_opset=ML_OPSET,
            producer=_producer(oracle.predictor),
        )
        with new_version(Path(repository), name, version, overwrite=overwrite) as place:
            spec, agreement = job.write(place.folder, spec)
            spec = write_spec(place.folder, spec)
        report_step(_WRITE, 1.0)
    return TabularReport(place.path, spec, agreement, tuple(job.notes), time.perf_counter() - started)


class TabularJob:
    """One run of `package_tabular`: what it has detected, and the graph."""

    def __init__(self, oracle: Oracle, sample: Sample, given: set[str]) -> None:
        self.oracle = oracle
        self.sample = sample
        self.given = given
        self.notes: list[str] = []
        unused = self._build(())
        self._build(unused)
        floats = frozenset(name for name, values in sample.rows.items() if None in values)
        nones = frozenset(self.graph.nones)
        self.sample = sample = dataclasses.replace(sample, nones=nones, floats=floats)
        try:
            self.expected = oracle.answer(sample)
        except Exception as error:  # an estimator may raise any error
            raise PackagingError(f"the estimator fails on the sample: {error}") from error
        if unused:
            self.notes.append(
                f"nothing is computed from {', '.join(sorted(unused))}: requests do not have it"
            )
        found = tuple(column for column in sample.columns if column.name not in unused)
        self.probes = list(probe(oracle, sample, found))
        self.columns = tuple(self._column(column) for column in found)
        self.probes = [one for one in self.probes if self._answers_probe(one)]

    def _build(self, unused: Sequence[str]) -> list[str]:
        """Add nodes up to the last step's input; return the columns that no node reads."""
        graph = OnnxGraph()
        kinds: list[tuple[str, Kind]] = [
            (column.name, "string" if column.dtype == "string" else "number")
            for column in self.sample.columns
        ]
        refs = graph.inputs(kinds, unused)
        for step in self.oracle.steps:
            refs = transform(graph, step, refs)
        text = next((ref for ref in refs if ref.kind == "string"), None)
        if text is not None:
            raise PackagingError(
                f"{type(self.oracle.predictor).__name__} is given column {text.origin!r}, which holds "
                "text; encode it in the pipeline (OneHotEncoder, OrdinalEncoder)"
            )
        if not refs:
            raise PackagingError("the preprocessing returns no columns")
        self.graph, self.features, self.width = graph, graph.matrix(refs), len(refs)
        return [name for name, _ in kinds if name not in graph.used]

    def _column(self, column: Column) -> Column:
        """A column with what is known from the estimator."""
        is_null_in_sample = None in self.sample.rows[column.name]
        absent = next(one for one in self.probes if one.column is column and one.value is None)
        if column.name in self.given:
            if is_null_in_sample and not column.nullable:
                raise PackagingError(f"column {column.name!r} is not nullable, but the sample lacks values")
            if column.nullable and absent.answer is None:
                raise PackagingError(
                    f"column {column.name!r} is nullable, but the estimator refuses NaN there"
                )
            nullable = column.nullable
        else:
            nullable = absent.answer is not None
        values = column.values or self.graph.closed.get(column.name, ())
        plain = tuple(value.item() if hasattr(value, "item") else value for value in values)
        plain = tuple(int(value) if isinstance(value, bool) else value for value in plain)
        if column.default is not None and plain and column.default not in plain:
            raise PackagingError(
                f"column {column.name!r}: default {column.default!r} is not one of its values"
            )
        return msgspec.structs.replace(column, nullable=nullable, values=plain)

    def _answers_probe(self, one: ColumnProbe) -> bool:
        """True if a server would accept these rows."""
        column = next(column for column in self.columns if column.name == one.column.name)
        if one.value is None:
            return column.nullable
        if column.values and one.value not in column.values:
            return False
        if one.answer is None:
            self.notes.append(f"the estimator refuses {one}: not compared")
        return True

    def write(self, folder: Path, spec: TabularSpec) -> tuple[TabularSpec, Agreement]:
        """Write the files and check them; return the spec with the results.

        Raises:
            PackagingError, ParityError: as `package_tabular`.
        """
        content = b""
        if self.oracle.steps and not isinstance(self.oracle.predictor, GraphModel):
            model = self.graph.model(self.features, TensorProto.DOUBLE, ["n", self.width], "features")
            content = model.SerializeToString(deterministic=True)
            (folder / "preprocess.onnx").write_bytes(content)
            spec = msgspec.structs.replace(spec, preprocess_file="preprocess.onnx")
        named = msgspec.json.encode([(column.name, column.dtype) for column in spec.columns])
        identity = hashlib.sha256(named + content).hexdigest()
        spec = msgspec.structs.replace(spec, preprocessing=identity)
        first: Exception | None = None
        for precision in precisions(self.oracle.predictor):
            try:
                return self._write(folder, spec, precision)
            except (PackagingError, ArtifactError, RuntimeFailure) as error:
                first = first or error
        assert first is not None
        if isinstance(first, PackagingError):
            raise first
        raise PackagingError(f"{type(self.oracle.predictor).__name__}: {first}") from first

    def _write(self, folder: Path, spec: TabularSpec, precision: str) -> tuple[TabularSpec, Agreement]:
        answer = predict(self.graph, self.oracle.predictor, self.features, self.width, precision)
        is_regression = spec.task == "regression"
        shape = ["n"] if spec.task == "binary" else ["n", spec.output_dim]
        name = "logits" if is_regression else "probabilities"
        model = self.graph.model(answer, TensorProto.FLOAT, shape, name)
        onnx.save(model, folder / spec.file)
        loaded = self._without_absent(_loaded(folder, spec, self.sample))
        agreement = check_answers(loaded, self.oracle, self.sample, self.expected, self.probes)
        if spec.preprocess_file is not None:
            check_preprocessing(loaded, self.oracle, self.sample)
        parity: dict[str, object] = {
            "rows": agreement.num_rows,
            "edge_rows": agreement.num_edge_rows,
            "max_abs_diff": agreement.max_abs_diff,
            "max_abs_diff_edges": agreement.max_abs_diff_edges,
            "precision": precision,
        }
        return msgspec.structs.replace(loaded.spec, parity=parity), agreement

    def _without_absent(self, model: TabularModel) -> TabularModel:
        """Refuse absent values that only the estimator answers and that the sample does not have."""
        refused = set()
        for one in self.probes:
            name = one.column.name
            if one.value is None and name not in self.given and None not in self.sample.rows[name]:
                try:
                    compare(model, [one])
                except ParityError:
                    refused.add(name)
                    self.notes.append(
                        f"column {name} must have a value: the sample lacks none, and the ONNX form of the "
                        "estimator treats absent ones differently"
                    )
        self.probes = [
            one for one in self.probes if one.value is not None or one.column.name not in refused
        ]
        columns = tuple(
            msgspec.structs.replace(column, nullable=column.nullable and column.name not in refused)
            for column in model.spec.columns
        )
        return TabularModel(model.folder, msgspec.structs.replace(model.spec, columns=columns))


def _loaded(folder: Path, spec: TabularSpec, sample: Sample) -> TabularModel:
    """The written model, with the fewest rows of a call at which rows are independent."""
    for min_rows in (1, 2, 4, 8):
        model = TabularModel(folder, msgspec.structs.replace(spec, min_rows=min_rows))
        if answers_alone(model, sample):
            return model
    raise ParityError("rows have other answers in a batch than alone; nothing was written")


def _check_xgboost(predictor: Any) -> None:
    if is_xgboost(predictor) and "c" in (predictor.get_booster().feature_types or ()):
        raise PackagingError(
            "XGBoost was fitted on columns of type category (enable_categorical); encode them in the "
            "pipeline (OneHotEncoder, OrdinalEncoder), so that the artifact has the categories"
        )


def _producer(predictor: Any) -> dict[str, str]:
    names = ["hopline", "scikit-learn", "skl2onnx", "onnx", "onnxruntime", "numpy"]
    found = {name: importlib.metadata.version(name) for name in names}
    if is_xgboost(predictor):
        import xgboost

        found |= {"xgboost": xgboost.__version__, "onnxmltools": importlib.metadata.version("onnxmltools")}
    return found
