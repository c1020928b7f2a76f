"""Converts a fitted transformer, without an estimator behind it: the preprocessing of a graph model.

The steps and the gate are those of a tabular model; what an estimator would get is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline

from hopline.errors import PackagingError
from hopline.graph.list_columns import lists_of
from hopline.types import AnyArray
from hopline_tabular.packaging.gate import Agreement
from hopline_tabular.packaging.graph import ML_OPSET, OPSET
from hopline_tabular.packaging.oracle import Oracle, check_fitted, quiet
from hopline_tabular.packaging.packager import TabularJob
from hopline_tabular.packaging.predictor import GraphModel
from hopline_tabular.packaging.sample import Sample
from hopline_tabular.spec import Column, TabularSpec

#: Type of a graph's column -> type of the model's.
_DTYPES: dict[str, Any] = {
    "float": "float", "integer": "int", "boolean": "int", "timestamp": "float", "text": "string"
}  # fmt: skip


#: Part of its size by which some feature changes over the range of a time, or with a year at both ends.
_LEAST_CHANGE = 1e-3
_YEAR_S = 365 * 86_400


@dataclass(frozen=True, slots=True)
class Converted:
    """A converted transformer.

    Attributes:
        spec: its file and columns.
        names: of its features, or empty.
        agreement: with the fitted object. notes: for the user.
        reads: names of columns that a row has: those of the file, and all of a list without other codes.
    """

    spec: TabularSpec
    names: tuple[str, ...]
    agreement: Agreement
    notes: tuple[str, ...]
    reads: frozenset[str]


class TransformerOracle(Oracle):
    """The result of a fitted transformer.

    Raises: PackagingError: it is not a transformer, or not fitted.
    """

    def __init__(self, transformer: Any) -> None:
        if not hasattr(transformer, "transform"):
            raise PackagingError(
                f"{type(transformer).__name__} is not a transformer: it has no transform()"
            )
        check_fitted(transformer)
        self.estimator, self.steps, self.predictor = transformer, [transformer], GraphModel()
        self.task, self.classes = "regression", ()

    def answer(self, sample: Sample) -> AnyArray:
        """Features, float64 [n, d]. Raises: ValueError: some are NaN or infinite."""
        with quiet():
            found = self.estimator.transform(sample.for_estimator())
            dense = np.asarray(found.toarray() if hasattr(found, "toarray") else found, np.float64)
            bad = ~np.isfinite(dense.astype(np.float32))
        if bad.any():
            row, at = np.argwhere(bad)[0].tolist()
            names = feature_names(self.estimator, dense.shape[1])
            given = {name: values[row] for name, values in sample.rows.items()}
            why = "float32 has no such number: scale or clip it"
            if np.isnan(dense[row, at]):
                why = "impute missing values (SimpleImputer)"
            raise ValueError(
                f"feature {names[at] if names else at} is {dense[row, at]} for {given}; {why} in the "
                "preprocessing"
            )
        return dense


def convert_transformer(
    transformer: Any, types: Mapping[str, str], rows: Mapping[str, Any], folder: Path, file: str
) -> Converted:
    """Convert a transformer to ONNX, and compare it with the fitted object.

    Args:
        transformer: fitted on a DataFrame with these columns.
        types: column -> its type in the graph.
        rows: column -> values of some rows, as `StoredColumns.values` has them.
        folder, file: where the ONNX file is written.

    Raises:
        PackagingError: it cannot be converted, or reads columns that the graph does not have.
        ParityError: the file does not give the same features.
    """
    oracle = TransformerOracle(transformer)
    fitted_on = oracle.feature_names
    if fitted_on is None:
        raise PackagingError(
            f"{type(transformer).__name__} was fitted on an array: fit it on a DataFrame, so that its "
            "columns have names (graph.frame(TYPE) has those of a graph)"
        )
    absent = [name for name in fitted_on if name not in types]
    if unknown := sorted(_columns_read(transformer, fitted_on).intersection(absent)):
        raise PackagingError(
            f"it reads {', '.join(unknown)}, which the graph does not have; that has {', '.join(types)}"
        )
    columns = tuple(Column(name, _DTYPES[types.get(name, "float")]) for name in fitted_on)
    num_rows = len(next(iter(rows.values())))
    listed = {
        column.name: _listed(column, rows[column.name]) if column.name in rows else [None] * num_rows
        for column in columns
    }
    job = TabularJob(oracle, Sample(columns, listed, has_names=True), set())
    width = int(job.expected.shape[1])
    spec = TabularSpec(
        name="preprocessing",
        version="",
        task="regression",
        columns=job.columns,
        outputs=("logits",),
        output_dim=width,
        file=file,
        opset=OPSET,
        ml_opset=ML_OPSET,
    )
    for column in job.columns:
        if types[column.name] == "timestamp":
            _check_time(oracle, job.sample, column.name)
    spec, agreement = job.write(folder, spec)
    reads = frozenset(column.name for column in spec.columns)
    for name, each in lists_of(types).items():
        if f"{name}!" in each and not reads.isdisjoint(each):
            reads |= {*each}
    return Converted(spec, feature_names(transformer, width), agreement, tuple(job.notes), reads)


def _check_time(oracle: Oracle, sample: Sample, name: str) -> None:
    """Refuse a transformer that was fitted on times in another form than seconds since 1970.

    To a scaler that was fitted on nanoseconds, all seconds are one number: the answers of the module and of
    the server would be equal, and both wrong.
    """
    known = [value for value in sample.rows[name] if value is not None]
    if len(set(known)) < 2:
        return
    low, high, base = min(known), max(known), sample.take([0, 0])
    for more in (0, _YEAR_S):  # the range of a graph of one hour is nothing to a scale of years
        with suppress(ValueError):  # it may accept no such times
            first, last = oracle.answer(base.of({**base.rows, name: [low - more, high + more]}))
            if (np.abs(last - first) > _LEAST_CHANGE * np.maximum(np.abs(first), np.abs(last))).any():
                return
    raise PackagingError(
        f"its features do not depend on {name!r} between {low} and {high}: was it fitted on "
        "datetimes? Times are seconds since 1970 (graph.frame(TYPE))"
    )


def feature_names(transformer: Any, width: int) -> tuple[str, ...]:
    """Names of a transformer's features; empty if it does not know them."""
    try:
        names = tuple(str(name) for name in transformer.get_feature_names_out())
    except Exception:  # a part of it without names; scikit-learn has several errors for that
        return ()
    return names if len(set(names)) == width == len(names) else ()


def _columns_read(transformer: Any, names: Any) -> set[str]:
    while isinstance(transformer, Pipeline):
        transformer = transformer.steps[0][1]
    if not isinstance(transformer, ColumnTransformer):
        return set(names)
    places = transformer._transformer_to_input_indices
    return {
        names[at] for name, step, _ in transformer.transformers_ if step != "drop" for at in places[name]
    }


def _listed(column: Column, values: Any) -> list[Any]:
    if column.dtype == "string":
        return list(values)
    kind = int if column.dtype == "int" else float
    return [None if value != value else kind(value) for value in values.tolist()]
