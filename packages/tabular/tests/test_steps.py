"""Each transformer's ONNX form answers what the transformer answers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnxruntime as ort
import pandas as pd
import pytest
from onnx import TensorProto
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)

from hopline.errors import PackagingError
from hopline_tabular.packaging.compose import transform
from hopline_tabular.packaging.graph import OnnxGraph
from hopline_tabular.spec import NULL_STRING

ROWS = 200


def numbers(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({name: rng.lognormal(0, 1, ROWS) for name in "abc"})


VECTORIZERS = [CountVectorizer, HashingVectorizer, TfidfVectorizer]


def texts(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rare = np.array(["often", "some", "rare", "rarer"])
    frame = pd.DataFrame(
        {
            "x": rng.choice(rare, ROWS, p=[0.6, 0.3, 0.07, 0.03]),
            "y": rng.choice(["p", "q"], ROWS),
            "z": "only",
        }
    ).astype(object)
    frame.loc[rng.random(ROWS) < 0.1, "x"] = np.nan
    return frame


def in_onnx(step: Any, frame: pd.DataFrame) -> Any:
    """What the ONNX form answers."""
    kinds: list[Any] = [
        (name, "string" if frame[name].dtype == object else "number") for name in frame.columns
    ]
    graph = OnnxGraph()
    refs = transform(graph, step, graph.inputs(kinds))
    model = graph.model(graph.matrix(refs), TensorProto.DOUBLE, ["n", len(refs)], "features")
    feeds = {
        "numbers": frame[[name for name, kind in kinds if kind == "number"]].to_numpy(np.float64),
        "strings": frame[[name for name, kind in kinds if kind == "string"]].fillna(NULL_STRING).to_numpy(),
    }
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = {item.name for item in session.get_inputs()}
    return session.run(None, {name: feeds[name] for name in wanted})[0]


def dense(answer: Any) -> Any:
    return np.asarray(answer.toarray() if hasattr(answer, "toarray") else answer, dtype=np.float64)


def agrees(step: Any, frame: pd.DataFrame) -> None:
    np.testing.assert_allclose(in_onnx(step, frame), dense(step.transform(frame)), rtol=1e-12, atol=1e-14)


def name_of(step):
    """The same in every process: the text of a function has its address."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(step))


@pytest.mark.parametrize(
    "step",
    [
        StandardScaler(),
        StandardScaler(with_mean=False),
        StandardScaler(with_std=False),
        MinMaxScaler((-1, 2), clip=True),
        MaxAbsScaler(),
        RobustScaler(with_centering=False),
        *(
            FunctionTransformer(function)
            for function in (
                np.log,
                np.log1p,
                np.log2,
                np.log10,
                np.exp,
                np.expm1,
                np.sqrt,
                np.square,
                np.abs,
                np.negative,
                np.reciprocal,
                np.sign,
                np.floor,
                np.ceil,
                np.sin,
                np.cos,
                np.tanh,
            )
        ),
        FunctionTransformer(np.clip, kw_args={"a_min": 0.5, "a_max": None}),
        FunctionTransformer(),
        make_union(StandardScaler(), FunctionTransformer(np.log1p)),
        make_column_transformer((StandardScaler(), ["c", "a"]), remainder="passthrough"),
        make_column_transformer(("drop", ["b"]), (MinMaxScaler(), [0]), remainder=RobustScaler()),
        make_column_transformer((StandardScaler(), lambda frame: ["b", "c"])),
        make_pipeline(StandardScaler(), "passthrough", PCA(2, random_state=0)),
        PolynomialFeatures((2, 3), interaction_only=True, include_bias=False),
        make_pipeline(PolynomialFeatures(4), StandardScaler()),
    ],
    ids=name_of,
)
def test_numbers_are_transformed_as_by_scikit_learn(step: Any) -> None:
    agrees(step.fit(numbers()), numbers(seed=1))


@pytest.mark.parametrize(
    "imputer",
    [
        SimpleImputer(strategy="median"),
        SimpleImputer(strategy="mean", add_indicator=True),
        SimpleImputer(strategy="constant", fill_value=-1.0, keep_empty_features=True),
    ],
    ids=name_of,
)
def test_absent_numbers_are_filled_in(imputer: Any) -> None:
    frame = numbers().mask(np.random.default_rng(2).random((ROWS, 3)) < 0.2)
    agrees(imputer.fit(frame), frame)


@pytest.mark.parametrize(
    "encoder",
    [
        OneHotEncoder(handle_unknown="ignore"),
        OneHotEncoder(handle_unknown="ignore", drop="first", sparse_output=False),
        OneHotEncoder(drop="if_binary"),
        OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=0.1),
        OneHotEncoder(handle_unknown="ignore", max_categories=2),
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan, encoded_missing_value=-2),
        make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()),
        make_pipeline(SimpleImputer(strategy="constant", fill_value="none"), OrdinalEncoder()),
    ],
    ids=name_of,
)
@pytest.mark.filterwarnings("ignore:Found unknown categories")
def test_strings_are_encoded_as_by_scikit_learn(encoder: Any) -> None:
    fitted = encoder.fit(texts())
    agrees(fitted, texts(seed=1))
    unknown = texts(seed=1)
    unknown.loc[:20, "x"] = "never seen"
    try:
        fitted.transform(unknown)
    except ValueError:
        return  # a server refuses such rows, as the encoder does
    agrees(fitted, unknown)


@pytest.mark.parametrize(
    "encoder",
    [
        OneHotEncoder(handle_unknown="ignore"),
        OneHotEncoder(handle_unknown="ignore", min_frequency=30),
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    ],
    ids=name_of,
)
def test_numbers_are_encoded_as_by_scikit_learn(encoder: Any) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"day": rng.integers(0, 7, ROWS), "rate": rng.choice([0.1, 0.25, np.nan], ROWS), "one": 3}
    )
    fitted = encoder.fit(frame)
    agrees(fitted, frame)
    other = frame.copy()
    other.loc[:30, "day"] = 99
    other.loc[10:50, "rate"] = 0.3
    agrees(fitted, other)


def test_strings_and_numbers_go_through_one_encoder() -> None:
    frame = texts().join(pd.DataFrame({"n": np.arange(ROWS) % 3}))[["x", "n", "y"]]
    agrees(OneHotEncoder(handle_unknown="ignore").fit(frame), frame)


def test_targets_are_encoded_as_by_scikit_learn() -> None:
    frame = texts()
    classes = np.random.default_rng(0).integers(0, 3, ROWS)
    agrees(TargetEncoder(random_state=0).fit(frame, classes), texts(seed=1))
    agrees(TargetEncoder(random_state=0).fit(frame, classes * 1.5), texts(seed=1))


def test_an_encoder_that_refuses_strange_values_closes_its_columns() -> None:
    frame = texts()[["y"]]
    graph = OnnxGraph()
    transform(graph, OneHotEncoder().fit(frame), graph.inputs([("y", "string")]))
    assert graph.closed == {"y": ("p", "q")}


def test_columns_are_gathered_with_the_fewest_nodes() -> None:
    graph = OnnxGraph()
    refs = graph.inputs([("a", "number"), ("b", "string"), ("c", "number")])
    assert graph.matrix((refs[0], refs[2])) == "numbers"
    assert graph.matrix((refs[1],)) == "strings"
    assert graph.matrix((refs[2], refs[0])) not in ("numbers", "strings")


@pytest.mark.parametrize(
    ("step", "frame", "text"),
    [
        (FunctionTransformer(np.cbrt), numbers(), "cbrt.* has no ONNX form.*np.log1p"),
        (FunctionTransformer(np.round, kw_args={"decimals": 1}), numbers(), "holds no Python code"),
        (StandardScaler().fit(numbers()), texts(), "StandardScaler is given column 'x', which holds text$"),
        *((one().fit(texts().x.astype(str)), texts(), "Keep its words as a list") for one in VECTORIZERS),
        (SimpleImputer(missing_values=-1).fit(numbers()), numbers(), "mark them by NaN"),
        (MaxAbsScaler(clip=True).fit(numbers()), numbers(), "use MinMaxScaler"),
    ],
)
def test_what_has_no_form_is_named(step: Any, frame: pd.DataFrame, text: str) -> None:
    with pytest.raises(PackagingError, match=text):
        in_onnx(step, frame)
