"""Converts the last step of an estimator to ONNX: from a matrix of numbers to probabilities or values."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from skl2onnx import update_registered_converter
from sklearn.ensemble._forest import BaseForest
from sklearn.tree import BaseDecisionTree

from hopline_tabular.packaging.compose import foreign
from hopline_tabular.packaging.graph import OnnxGraph


class GraphModel:
    """Marks that no estimator follows: a graph model reads the features."""


def precisions(predictor: Any) -> tuple[str, ...]:
    """Types of its input; the one closest to its own computation comes first.

    Trees compare float32 (scikit-learn and XGBoost both narrow their input); other estimators compute in
    float64, as far as the converter supports that.
    """
    module = type(predictor).__module__
    in_float32 = ("xgboost.", "sklearn.tree.", "sklearn.ensemble.")
    return ("float",) if module.startswith(in_float32) else ("double", "float")


def predict(graph: OnnxGraph, predictor: Any, x: str, width: int, precision: str) -> str:
    """Add the nodes of a fitted predictor.

    Args:
        x: float64 [n, width].
        precision: one of `precisions`.

    Returns: the tensor of its answers, float32: probabilities [n], of the second of two classes, or
        [n, classes]; values [n, targets].

    Raises:
        PackagingError: the predictor has no ONNX form.
    """
    if isinstance(predictor, GraphModel):
        return graph.node("Cast", [x], to=TensorProto.FLOAT)
    if is_xgboost(predictor):
        _register_xgboost()
        predictor = _without_names(predictor)
    model = foreign(predictor, width, precision)
    _set_missing(model, predictor)
    if precision == "float":
        x = graph.node("Cast", [x], to=TensorProto.FLOAT)
    answer = graph.embed(model, x, len(model.graph.output) - 1)
    if model.graph.output[-1].type.tensor_type.elem_type != TensorProto.FLOAT:
        answer = graph.node("Cast", [answer], to=TensorProto.FLOAT)
    if hasattr(predictor, "classes_"):
        if len(predictor.classes_) == 2:
            answer = graph.node("Gather", [answer, graph.const(1, np.int64)], axis=1)
        return answer
    return graph.node("Reshape", [answer, graph.const([-1, _num_targets(predictor, width)], np.int64)])


def _set_missing(model: onnx.ModelProto, predictor: Any) -> None:
    """Set the way of absent values in a forest's splits; skl2onnx 1.20 sends all of them to the right."""
    if isinstance(predictor, BaseDecisionTree):
        trees = [predictor]
    elif isinstance(predictor, BaseForest):
        trees = list(predictor.estimators_)
    else:
        return
    for node in model.graph.node:
        if not node.op_type.startswith("TreeEnsemble"):
            continue
        attributes = {attribute.name: attribute for attribute in node.attribute}
        places = zip(attributes["nodes_treeids"].ints, attributes["nodes_nodeids"].ints, strict=True)
        tracks = [int(trees[tree].tree_.missing_go_to_left[place]) for tree, place in places]
        tracked = attributes["nodes_missing_value_tracks_true"]
        del tracked.ints[:]
        tracked.ints.extend(
            0 if mode == b"LEAF" else track
            for track, mode in zip(tracks, attributes["nodes_modes"].strings, strict=True)
        )


def is_xgboost(predictor: Any) -> bool:
    """True if a predictor is one of XGBoost's scikit-learn classes; imports nothing."""
    return type(predictor).__module__.startswith("xgboost.")


def _num_targets(predictor: Any, width: int) -> int:
    shape = np.shape(predictor.predict(np.zeros((1, width))))
    return int(shape[1]) if len(shape) == 2 else 1


def _without_names(predictor: Any) -> Any:
    """A copy whose trees number their features, as the converter requires."""
    predictor = copy.deepcopy(predictor)
    booster = predictor.get_booster()
    booster.feature_names = None
    booster.feature_types = None
    return predictor


def _register_xgboost() -> None:
    import xgboost
    from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
    from skl2onnx.common.shape_calculator import (
        calculate_linear_classifier_output_shapes,
        calculate_linear_regressor_output_shapes,
    )

    options = {"nocl": [True, False], "zipmap": [True, False, "columns"]}
    for name, shapes, allowed in (
        ("XGBClassifier", calculate_linear_classifier_output_shapes, options),
        ("XGBRFClassifier", calculate_linear_classifier_output_shapes, options),
        ("XGBRegressor", calculate_linear_regressor_output_shapes, None),
        ("XGBRFRegressor", calculate_linear_regressor_output_shapes, None),
    ):
        update_registered_converter(
            getattr(xgboost, name),
            f"XGBoost{name}",
            shapes,
            convert_xgboost,
            options=allowed,
            overwrite=True,
        )
