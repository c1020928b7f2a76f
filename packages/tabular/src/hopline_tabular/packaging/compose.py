"""Converts a fitted scikit-learn transformer to nodes: pipelines, column transformers, unions.

skl2onnx converts everything else, over a matrix of float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import onnx
from onnx import TensorProto
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType
from sklearn import preprocessing
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline

from hopline.errors import PackagingError
from hopline_tabular.packaging import scaling
from hopline_tabular.packaging.encoders import encoder
from hopline_tabular.packaging.graph import IR_VERSION, ML_OPSET, OPSET, OnnxGraph, Ref

Refs = tuple[Ref, ...]


def transform(graph: OnnxGraph, transformer: Any, refs: Refs) -> Refs:
    """Add the nodes of a fitted transformer; return references to its output.

    Raises:
        PackagingError: it has no ONNX form; the message names it.
    """
    if transformer is None or transformer == "passthrough":
        return refs
    form = _FORMS.get(type(transformer))
    if form is not None:
        return form(graph, transformer, refs)
    if isinstance(transformer, preprocessing.MaxAbsScaler) and getattr(transformer, "clip", False):
        raise PackagingError("MaxAbsScaler(clip=True) has no ONNX form here; use MinMaxScaler")
    x = scaling.numbers_of(graph, refs, transformer)
    model = foreign(transformer, len(refs), "double")
    output = graph.embed(model, x)
    width = model.graph.output[0].type.tensor_type.shape.dim
    num_columns = width[-1].dim_value or transformer.transform([[0.0] * len(refs)]).shape[1]
    if model.graph.output[0].type.tensor_type.elem_type != TensorProto.DOUBLE:
        output = graph.node("Cast", [output], to=TensorProto.DOUBLE)
    return graph.columns(output, num_columns)


def foreign(estimator: Any, width: int, dtype: str) -> onnx.ModelProto:
    """Convert an estimator over a matrix of numbers with skl2onnx.

    Args:
        dtype: "double" or "float", of its input `x` [n, width].

    Raises:
        PackagingError: skl2onnx has no converter for it, or fails.
    """
    tensor_type = (DoubleTensorType if dtype == "double" else FloatTensorType)([None, width])
    options = {id(estimator): {"zipmap": False}} if hasattr(estimator, "classes_") else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of libraries about each other
            model = convert_sklearn(
                estimator,
                initial_types=[("x", tensor_type)],
                target_opset={"": OPSET, "ai.onnx.ml": ML_OPSET},
                options=options,
            )
    except Exception as error:  # converters raise errors of any type, with no common base
        text = str(error).strip().splitlines()
        raise PackagingError(
            f"{type(estimator).__name__} has no ONNX form: {text[0] if text else type(error).__name__}"
        ) from error
    model.ir_version = IR_VERSION
    return model


def _pipeline(graph: OnnxGraph, pipeline: Pipeline, refs: Refs) -> Refs:
    for _, step in pipeline.steps:
        refs = transform(graph, step, refs)
    return refs


def _column_transformer(graph: OnnxGraph, columns: ColumnTransformer, refs: Refs) -> Refs:
    weights = columns.transformer_weights or {}
    out: Refs = ()
    for name, step, _ in columns.transformers_:
        places = columns._transformer_to_input_indices[name]  # however it was selected
        if step == "drop" or not len(places):
            continue
        answer = transform(graph, step, tuple(refs[place] for place in places))
        out += _weighted(graph, answer, weights.get(name))
    return out


def _feature_union(graph: OnnxGraph, union: FeatureUnion, refs: Refs) -> Refs:
    weights = union.transformer_weights or {}
    out: Refs = ()
    for name, step in union.transformer_list:
        if step != "drop":
            out += _weighted(graph, transform(graph, step, refs), weights.get(name))
    return out


def _weighted(graph: OnnxGraph, refs: Refs, weight: float | None) -> Refs:
    if weight is None:
        return refs
    return graph.columns(graph.node("Mul", [graph.matrix(refs), graph.const(weight)]), len(refs))


_FORMS: dict[type, Callable[[OnnxGraph, Any, Refs], Refs]] = {
    Pipeline: _pipeline,
    ColumnTransformer: _column_transformer,
    FeatureUnion: _feature_union,
    SimpleImputer: scaling.simple_imputer,
    preprocessing.FunctionTransformer: scaling.function_transformer,
    preprocessing.Binarizer: scaling.binarizer,
    preprocessing.KBinsDiscretizer: scaling.bins,
    preprocessing.PolynomialFeatures: scaling.powers,
    preprocessing.OneHotEncoder: encoder,
    preprocessing.OrdinalEncoder: encoder,
    preprocessing.TargetEncoder: encoder,
}
