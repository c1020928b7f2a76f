"""Converts transformers of numbers that skl2onnx cannot convert to ONNX: NumPy functions, absent values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto
from sklearn.impute import SimpleImputer

from hopline.errors import PackagingError
from hopline_tabular.packaging.graph import OnnxGraph, Ref
from hopline_tabular.spec import NULL_STRING

Refs = tuple[Ref, ...]
#: Advice for what splits texts into words: no operator of ONNX splits them by an expression.
_OF_TEXT = (
    ": a text is not split into words in an artifact. Keep its words as a list, which is a column for each "
    "word, as of CountVectorizer(binary=True), or the vectorizer's row as a list of numbers "
    '(docs/packaging.md, "Texts and PyTorch Frame")'
)


def numbers_of(graph: OnnxGraph, refs: Refs, what: object) -> str:
    """The matrix of columns that must be numbers.

    Raises:
        PackagingError: one of them holds text.
    """
    for ref in refs:
        if ref.kind != "number":
            name = type(what).__name__
            advice = _OF_TEXT if "Vectorizer" in name or "Hash" in name else ""
            raise PackagingError(f"{name} is given column {ref.origin!r}, which holds text{advice}")
    return graph.matrix(refs)


def binarizer(graph: OnnxGraph, scaler: Any, refs: Refs) -> Refs:
    """1 above the threshold, else 0; skl2onnx holds the threshold in float32."""
    above = graph.node("Greater", [numbers_of(graph, refs, scaler), graph.const(float(scaler.threshold))])
    return graph.columns(graph.node("Cast", [above], to=TensorProto.DOUBLE), len(refs))


def bins(graph: OnnxGraph, binner: Any, refs: Refs) -> Refs:
    """The number of each value's bin, or a column for each bin; skl2onnx holds the bounds in float32."""
    x = numbers_of(graph, refs, binner)
    if binner.dtype == np.float32:
        x = graph.node("Cast", [graph.node("Cast", [x], to=TensorProto.FLOAT)], to=TensorProto.DOUBLE)
    out: Refs = ()
    for place, (bounds, num_bins) in enumerate(zip(binner.bin_edges_, binner.n_bins_, strict=True)):
        value = graph.node("Gather", [x, graph.const([place], np.int64)], axis=1)
        # one bin has no inner bound, and no number is infinite
        above = graph.node("GreaterOrEqual", [value, graph.const([[*bounds[1:-1], np.inf]])])
        above = graph.node("Cast", [above], to=TensorProto.DOUBLE)
        number = graph.node("ReduceSum", [above, graph.const([1], np.int64)], keepdims=1)
        if binner.encode == "ordinal":
            out += graph.columns(number, 1)
        else:
            here = graph.node("Equal", [number, graph.const([range(num_bins)])])
            out += graph.columns(graph.node("Cast", [here], to=TensorProto.DOUBLE), int(num_bins))
    return out


def powers(graph: OnnxGraph, features: Any, refs: Refs) -> Refs:
    """Products of powers of the columns; skl2onnx computes them in float32."""
    x = graph.node("Unsqueeze", [numbers_of(graph, refs, features), graph.const([1], np.int64)])
    factors = graph.node("Pow", [x, graph.const(features.powers_)])
    product = graph.node("ReduceProd", [factors, graph.const([2], np.int64)], keepdims=0)
    return graph.columns(product, len(features.powers_))


def _log_of(graph: OnnxGraph, x: str, base: float) -> str:
    return graph.node("Div", [graph.node("Log", [x]), graph.const(np.log(base))])


#: NumPy function -> its nodes, for FunctionTransformer.
_FUNCTIONS: dict[Any, Callable[[OnnxGraph, str], str]] = {
    np.log: lambda graph, x: graph.node("Log", [x]),
    np.log1p: lambda graph, x: graph.node("Log", [graph.node("Add", [x, graph.const(1.0)])]),
    np.log2: lambda graph, x: _log_of(graph, x, 2.0),
    np.log10: lambda graph, x: _log_of(graph, x, 10.0),
    np.exp: lambda graph, x: graph.node("Exp", [x]),
    np.expm1: lambda graph, x: graph.node("Sub", [graph.node("Exp", [x]), graph.const(1.0)]),
    np.sqrt: lambda graph, x: graph.node("Sqrt", [x]),
    np.square: lambda graph, x: graph.node("Mul", [x, x]),
    np.abs: lambda graph, x: graph.node("Abs", [x]),
    np.negative: lambda graph, x: graph.node("Neg", [x]),
    np.reciprocal: lambda graph, x: graph.node("Div", [graph.const(1.0), x]),
    np.sign: lambda graph, x: graph.node("Sign", [x]),
    np.floor: lambda graph, x: graph.node("Floor", [x]),
    np.ceil: lambda graph, x: graph.node("Ceil", [x]),
    np.sin: lambda graph, x: graph.node("Sin", [x]),
    np.cos: lambda graph, x: graph.node("Cos", [x]),
    np.tanh: lambda graph, x: graph.node("Tanh", [x]),
}


def function_transformer(graph: OnnxGraph, transformer: Any, refs: Refs) -> Refs:
    """A NumPy function of each number.

    Raises:
        PackagingError: another function, which an artifact cannot hold.
    """
    function, arguments = transformer.func, dict(transformer.kw_args or {})
    if function is None:
        return refs
    if function is np.clip:
        low = arguments.pop("a_min", arguments.pop("min", None))
        high = arguments.pop("a_max", arguments.pop("max", None))
        if not arguments:
            bounds = ["" if bound is None else graph.const(bound) for bound in (low, high)]
            clipped = graph.node("Clip", [numbers_of(graph, refs, transformer), *bounds])
            return graph.columns(clipped, len(refs))
    if function not in _FUNCTIONS or arguments:
        known = ", ".join(sorted(f"np.{item.__name__}" for item in (*_FUNCTIONS, np.clip)))
        name = getattr(function, "__name__", repr(function))
        raise PackagingError(
            f"FunctionTransformer({name}) has no ONNX form: an artifact holds no Python code. "
            f"Functions that do: {known}, each without further arguments but np.clip"
        )
    x = numbers_of(graph, refs, transformer)
    return graph.columns(_FUNCTIONS[function](graph, x), len(refs))


def simple_imputer(graph: OnnxGraph, imputer: SimpleImputer, refs: Refs) -> Refs:
    """Absent values replaced by the fitted statistics.

    Raises:
        PackagingError: `add_indicator` with text, or a marker for absent values that is not NaN or None.
    """
    marker = imputer.missing_values
    if not (marker is None or marker is np.nan or (isinstance(marker, float) and np.isnan(marker))):
        raise PackagingError(
            f"SimpleImputer(missing_values={marker!r}): absent values are null in requests; mark them "
            "by NaN"
        )
    if marker is None:
        graph.nones.update(ref.origin for ref in refs if ref.origin is not None)
    statistics = imputer.statistics_
    # A column without any value is dropped in fitting.
    kept = [
        place for place, value in enumerate(statistics) if imputer.keep_empty_features or value == value
    ]
    filled: dict[int, Ref] = {}
    for kind in ("number", "string"):
        places = [place for place in kept if refs[place].kind == kind]
        if not places:
            continue
        x = graph.matrix([refs[place] for place in places])
        fill = [[statistics[place] for place in places]]
        if kind == "number":
            whole = graph.node("Where", [graph.node("IsNaN", [x]), graph.const(fill), x])
        else:
            whole = graph.node("Where", [_is_null(graph, x), graph.const(fill, object), x])
        graph.widths[whole] = len(places)
        for position, place in enumerate(places):
            filled[place] = Ref(whole, position, refs[place].kind, refs[place].origin)
    return tuple(filled[place] for place in kept) + _indicator(graph, imputer, refs)


def _indicator(graph: OnnxGraph, imputer: SimpleImputer, refs: Refs) -> Refs:
    if not imputer.add_indicator:
        return ()
    chosen = tuple(refs[place] for place in imputer.indicator_.features_.tolist())
    if not chosen:
        return ()
    absent = graph.node("IsNaN", [numbers_of(graph, chosen, imputer)])
    return graph.columns(graph.node("Cast", [absent], to=TensorProto.DOUBLE), len(chosen))


def _is_null(graph: OnnxGraph, x: str) -> str:
    # a look-up of one key: ONNX Runtime compares no strings below opset 19
    found = graph.node(
        "LabelEncoder",
        [x],
        domain="ai.onnx.ml",
        keys_strings=[NULL_STRING],
        values_int64s=[1],
        default_int64=0,
    )
    return graph.node("Cast", [found], to=TensorProto.BOOL)
