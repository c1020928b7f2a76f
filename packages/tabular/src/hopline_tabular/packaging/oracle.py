"""The estimator's own answers: the oracle that a packaged tabular model must agree with."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from sklearn.base import is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from hopline.errors import PackagingError
from hopline.types import AnyArray
from hopline_tabular.packaging.predictor import is_xgboost
from hopline_tabular.packaging.sample import Sample

Task = Literal["binary", "multiclass", "regression"]


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings: extremes and unknown categories are intended."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


class Oracle:
    """A fitted estimator with the answers that a server must give.

    Args:
        estimator: a classifier or regressor, a pipeline that ends in one, or a search over such.
        task: of the estimator; None detects it.

    Attributes:
        steps: the transformers before its last step.
        predictor: its last step.
        task: of the estimator.
        classes: names of its classes, in the order of its probabilities.

    Raises:
        PackagingError: the estimator is not fitted, or answers neither probabilities nor values.
    """

    def __init__(self, estimator: Any, task: str | None = None) -> None:
        # a search predicts with its best estimator
        estimator = getattr(estimator, "best_estimator_", estimator)
        if not hasattr(estimator, "predict"):
            raise PackagingError(
                f"{type(estimator).__name__} has no predictions; pass a classifier, a regressor, or a "
                "pipeline that ends in one"
            )
        check_fitted(estimator)
        self.estimator = estimator
        self.steps, self.predictor = _steps(estimator)
        self.classes: tuple[str, ...] = ()
        self.task: Task = self._task()
        if task is not None and task != self.task:
            raise PackagingError(
                f"task {task!r}: {type(self.predictor).__name__} is for {self.task}; leave task out"
            )
        if self.task != "regression":
            self.classes = tuple(str(value) for value in estimator.classes_)

    @property
    def feature_names(self) -> Sequence[str] | None:
        """Columns that it was fitted on; None if that was an array."""
        names = getattr(self.estimator, "feature_names_in_", None)
        return None if names is None else [str(name) for name in names]

    def answer(self, sample: Sample) -> AnyArray:
        """Answers expected of the packaged model, float64: [n] for binary, else [n, classes or targets]."""
        with quiet():
            rows = sample.for_estimator()
            if self.task == "regression":
                return np.asarray(self.estimator.predict(rows), np.float64).reshape(sample.num_rows, -1)
            found = np.asarray(self.estimator.predict_proba(rows), np.float64)
        return found[:, 1] if self.task == "binary" else found

    def labels(self, sample: Sample) -> AnyArray:
        """Class number of each row, int64 [n]."""
        with quiet():
            found = self.estimator.predict(sample.for_estimator())
        number = {value: place for place, value in enumerate(self.estimator.classes_)}
        return np.array([number[value] for value in found], dtype=np.int64)

    def preprocess(self, sample: Sample) -> AnyArray:
        """The input of the last step, float64 [n, features]."""
        with quiet():
            found = sample.for_estimator()
            for step in self.steps:
                found = step.transform(found)
        dense = found.toarray() if hasattr(found, "toarray") else np.asarray(found)
        return dense.astype(np.float64)

    def _task(self) -> Task:
        name = type(self.predictor).__name__
        classes = getattr(self.estimator, "classes_", None)
        if classes is None:
            if getattr(self.predictor, "_estimator_type", "") == "classifier":
                raise PackagingError(f"{name} is a classifier without classes_; fit it")
            if not is_regressor(self.predictor):
                raise PackagingError(f"{name} is neither a classifier nor a regressor")
            return "regression"
        if not hasattr(self.estimator, "predict_proba"):
            raise PackagingError(
                f"{name} has no probabilities; wrap it in sklearn.calibration.CalibratedClassifierCV"
            )
        if isinstance(classes, list):
            raise PackagingError(f"{name} answers several labels for a row; package one model for each")
        return "binary" if len(classes) == 2 else "multiclass"


def _steps(estimator: Any) -> tuple[list[Any], Any]:
    """All transformers of a pipeline, and the last step; also of nested pipelines."""
    if not isinstance(estimator, Pipeline):
        return [], estimator
    steps = [step for _, step in estimator.steps[:-1] if step is not None and step != "passthrough"]
    inner, last = _steps(estimator.steps[-1][1])
    return [*steps, *inner], last


def check_fitted(estimator: Any) -> None:
    """Raise PackagingError if an estimator or transformer is not fitted."""
    try:
        check_is_fitted(estimator)
        last = _steps(estimator)[1]
        if is_xgboost(last):
            last.get_booster()
    except NotFittedError:
        raise PackagingError(
            f"{type(estimator).__name__} is not fitted; call fit() before packaging"
        ) from None
