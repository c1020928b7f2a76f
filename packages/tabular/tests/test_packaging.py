"""Packaged tabular models answer what their estimators answer."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import msgspec
import numpy as np
import onnx
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer, KBinsDiscretizer, OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from xgboost import XGBClassifier, XGBRegressor

import hopline
from hopline.artifact import read_spec
from hopline.errors import ArtifactCorrupted, ArtifactError
from hopline_tabular.model import TabularModel
from hopline_tabular.packaging.gate import probe
from hopline_tabular.packaging.oracle import Oracle
from hopline_tabular.packaging.sample import read_sample
from hopline_tabular.spec import Column, read_tabular
from packages.tabular.tests.tabular_models import (
    CATEGORIES,
    columns_of,
    is_fraud,
    payments,
    pipeline,
    risk_class,
)
from tests.thorough import thorough


def served(report: Any) -> TabularModel:
    return TabularModel(report.path, report.spec)


def expected(estimator: Any, frame: Any) -> Any:
    if not hasattr(estimator, "predict_proba"):
        return estimator.predict(frame).reshape(len(frame), -1)
    found = estimator.predict_proba(frame)
    return found[:, 1] if found.shape[1] == 2 else found


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("predictor", "target"),
    [
        (XGBClassifier(n_estimators=20), is_fraud),
        (XGBClassifier(n_estimators=10), lambda frame: np.digitize(np.log(frame.amount), [2.5, 3.5])),
        (XGBClassifier(n_estimators=10, base_score=0.2, scale_pos_weight=3), is_fraud),
        (XGBRegressor(n_estimators=20), lambda frame: frame.amount),
        (XGBRegressor(n_estimators=10, objective="count:poisson"), lambda frame: frame.weekday),
        (LogisticRegression(max_iter=2000), is_fraud),
        (LogisticRegression(max_iter=2000), risk_class),
        (DecisionTreeClassifier(random_state=0), is_fraud),
        (RandomForestClassifier(10, random_state=0), risk_class),
        (RandomForestRegressor(10, random_state=0), lambda frame: frame[["amount", "age"]]),
        (GradientBoostingClassifier(n_estimators=10, random_state=0), risk_class),
        (HistGradientBoostingClassifier(max_iter=10, random_state=0), is_fraud),
        (MLPClassifier((8,), max_iter=2000, random_state=0), is_fraud),
        (Ridge(), lambda frame: frame.amount),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "fit") else "",
)
def test_unseen_rows_have_the_estimators_answers(predictor, target, tmp_path):
    estimator = pipeline(predictor, target)
    report = hopline.package_tabular(estimator, payments(200, seed=1), tmp_path, name="m")
    unseen = payments(500, seed=2)
    unseen.loc[:50, "category"] = "never seen"
    model = served(report)
    answers = model.answer([columns_of(unseen)], [500])
    wanted = expected(estimator, unseen)
    assert answers.dtype == np.float32
    np.testing.assert_allclose(answers, wanted, atol=1e-4, rtol=1e-5)
    if report.spec.classes:
        names = np.array(report.spec.classes)[model.labels(answers)]
        certain = (
            np.abs(wanted - 0.5) > 1e-3
            if wanted.ndim == 1
            else np.ptp(np.sort(wanted)[:, -2:], axis=1) > 1e-3
        )
        assert (names == estimator.predict(unseen).astype(str))[certain].all()


@pytest.mark.sample(2)
@pytest.mark.parametrize("num_classes", [2, 4])
@pytest.mark.parametrize("num_trees", [20, 300])
def test_classes_with_as_many_trees_have_the_estimators_label(num_classes, num_trees, tmp_path):
    """A sum of float32 shares of a forest is 0.50000006 where half of the trees vote for each class."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(1500, 4)), columns=list("abcd"))
    forest = RandomForestClassifier(num_trees, random_state=0)
    forest.fit(rows[:200], rng.integers(0, num_classes, 200))
    report = hopline.package_tabular(forest, rows[200:300], tmp_path, name="m")
    model, unseen = served(report), rows[300:]
    ordered = np.sort(forest.predict_proba(unseen), axis=1)
    assert (ordered[:, -1] - ordered[:, -2] < 1e-12).any()
    names = np.array(report.spec.classes)[model.labels(model.answer([columns_of(unseen)], [len(unseen)]))]
    assert (names == forest.predict(unseen).astype(str)).all()


BINNERS = [
    KBinsDiscretizer(5, encode=encode, strategy=strategy, dtype=dtype)
    for encode, strategy, dtype in (
        ("ordinal", "uniform", None),
        ("ordinal", "quantile", None),
        ("onehot", "quantile", None),
        ("onehot-dense", "uniform", np.float32),
    )
]


@pytest.mark.filterwarnings("ignore:Bins whose width")
@pytest.mark.parametrize("step", [*BINNERS, Binarizer(threshold=20.1)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e8])
def test_a_number_at_a_fitted_bound_is_on_the_estimators_side(step, scale, tmp_path):
    """Bounds are float64."""
    amount = payments(300, seed=1).amount.round(2)
    rows = pd.DataFrame({"amount": amount * scale, "few": amount.rank() > 3})
    estimator = make_pipeline(clone(step), Ridge()).fit(rows * 1.0, amount)
    report = hopline.package_tabular(estimator, rows[:100] * 1.0, tmp_path, name="m")
    bounds = np.concatenate([*getattr(estimator[0], "bin_edges_", [[20.1]]), rows.amount])
    beside = np.concatenate([bounds, np.nextafter(bounds, -np.inf), np.nextafter(bounds, np.inf)])
    beside = np.concatenate([beside, bounds - 1e-7 * scale, bounds + 1e-7 * scale])
    frame = pd.DataFrame({"amount": beside, "few": np.resize([0.0, 1.0], len(beside))})
    answers = served(report).answer([columns_of(frame)], [len(frame)])
    np.testing.assert_allclose(answers, expected(estimator, frame), atol=1e-4, rtol=1e-5)


@pytest.fixture(scope="module")
def fraud(tmp_path_factory):
    """(estimator, report) of the usual model."""
    estimator = pipeline(XGBClassifier(n_estimators=100, max_depth=6))
    folder = tmp_path_factory.mktemp("models")
    return estimator, hopline.package_tabular(estimator, payments(200, seed=1), folder, name="fraud")


row_strategy = st.fixed_dictionaries(
    {
        "amount": st.one_of(st.none(), st.floats(0, 1e9), st.floats(-0.9, 1e-3)),
        "age": st.one_of(st.none(), st.integers(-(2**53), 2**53)),
        "balance": st.one_of(st.none(), st.floats(-1e30, 1e30)),
        "category": st.one_of(st.none(), st.sampled_from(CATEGORIES), st.text(max_size=8)),
        "country": st.one_of(st.none(), st.sampled_from(["DE", "FR", "US"])),
        "weekday": st.one_of(st.none(), st.integers(-1, 8)),
    }
)


@settings(max_examples=thorough(15, 60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(row_strategy, min_size=1, max_size=12))
def test_any_rows_have_the_estimators_answers(fraud, rows):
    estimator, report = fraud
    frame = pd.DataFrame(rows)
    for name in ("amount", "age", "balance", "weekday"):
        frame[name] = frame[name].astype(float)
    for name in ("category", "country"):
        frame[name] = frame[name].astype(object).where(frame[name].notna(), np.nan)
    with np.errstate(all="ignore"):
        wanted = expected(estimator, frame)
    answers = served(report).answer([{name: [row[name] for row in rows] for name in rows[0]}], [len(rows)])
    np.testing.assert_allclose(answers, wanted, atol=1e-4)


@settings(max_examples=thorough(10, 40), deadline=None)
@given(st.data())
def test_a_row_has_the_same_bytes_alone_and_in_any_batch(fraud, data):
    model = served(fraud[1])
    frame = payments(64, seed=3)
    together = model.answer([columns_of(frame)], [64])
    order = data.draw(st.lists(st.integers(0, 63), min_size=1, max_size=40))
    cuts = sorted({0, len(order), *data.draw(st.lists(st.integers(0, len(order)), max_size=6))})
    parts = [order[a:b] for a, b in itertools.pairwise(cuts)]
    requests = [columns_of(frame.iloc[part]) for part in parts]
    answers = model.answer(requests, [len(part) for part in parts])
    assert answers.tobytes() == together[order].tobytes()


def test_arrays_and_lists_are_the_same_columns(fraud):
    model = served(fraud[1])
    frame = payments(20, seed=4)
    arrays = {name: frame[name].to_numpy() for name in ("amount", "age", "balance", "weekday")}
    strings = {name: columns_of(frame)[name] for name in ("category", "country")}
    assert np.array_equal(
        model.answer([{**arrays, **strings}], [20]), model.answer([columns_of(frame)], [20])
    )


def test_the_artifact_says_what_it_is(fraud):
    report = fraud[1]
    spec = read_tabular(report.path)
    assert spec == report.spec
    assert (spec.kind, spec.task, spec.classes) == ("tabular", "binary", ("0", "1"))
    assert [(column.name, column.dtype) for column in spec.columns] == [
        ("amount", "float"),
        ("age", "int"),
        ("balance", "float"),
        ("category", "string"),
        ("country", "string"),
        ("weekday", "int"),
    ]
    assert spec.parity["rows"] == 200
    assert spec.parity["edge_rows"] > 50
    assert {"scikit-learn", "xgboost", "skl2onnx"} <= set(spec.producer)
    assert set(spec.files) == {"model.onnx", "preprocess.onnx"}
    opsets = {item.domain: item.version for item in onnx.load(report.path / "model.onnx").opset_import}
    assert opsets == {"": spec.opset, "ai.onnx.ml": spec.ml_opset}


def test_graph_models_and_table_models_are_distinguished(fraud, tmp_path):
    with pytest.raises(ArtifactError, match="a tabular model; a graph model is needed"):
        read_spec(fraud[1].path)
    (tmp_path / "model.json").write_text('{"kind": "image"}')
    with pytest.raises(ArtifactError, match="is a image model; a tabular model is needed"):
        read_tabular(tmp_path)
    (tmp_path / "model.json").write_bytes(msgspec.json.encode(fraud[1].spec))
    with pytest.raises(ArtifactCorrupted, match="but absent; package or copy it again"):
        read_tabular(tmp_path)


def test_preprocessing_has_an_identity_of_its_own(fraud, tmp_path):
    estimator, report = fraud
    sample = payments(50, seed=1)
    other_trees = make_pipeline(estimator[0], XGBClassifier(n_estimators=3))
    other_trees.steps[-1] = (
        "x",
        XGBClassifier(n_estimators=3).fit(estimator[0].transform(sample), is_fraud(sample)),
    )
    same = hopline.package_tabular(other_trees, sample, tmp_path, name="same")
    assert same.spec.preprocessing == report.spec.preprocessing
    refitted = pipeline(LogisticRegression(max_iter=2000), steps=None)
    refitted.fit(payments(seed=9), is_fraud(payments(seed=9)))
    other = hopline.package_tabular(refitted, sample, tmp_path, name="other")
    assert other.spec.preprocessing != report.spec.preprocessing
    assert len(bytes.fromhex(report.spec.preprocessing)) == hashlib.sha256().digest_size


def test_preprocessed_rows_are_what_the_predictor_was_given(fraud):
    estimator, report = fraud
    frame = payments(30, seed=5)
    found = served(report).preprocess(columns_of(frame), 30)
    wanted = estimator[0].transform(frame)
    np.testing.assert_allclose(
        found, wanted.toarray() if hasattr(wanted, "toarray") else wanted, atol=1e-12
    )


def test_an_estimator_of_arrays_gets_names_for_its_columns(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 3))
    estimator = make_pipeline(StandardScaler(), XGBClassifier(n_estimators=5)).fit(rows, rows[:, 0] > 0)
    report = hopline.package_tabular(estimator, rows, tmp_path, name="plain")
    assert [column.name for column in report.spec.columns] == ["f0", "f1", "f2"]
    named = [Column(name, "float") for name in ("a", "b", "c")]
    report = hopline.package_tabular(estimator, rows, tmp_path, name="named", columns=named)
    answers = served(report).answer([{"a": rows[:, 0], "b": rows[:, 1], "c": rows[:, 2]}], [300])
    np.testing.assert_allclose(answers, estimator.predict_proba(rows)[:, 1], atol=1e-6)
    assert not any(column.nullable for column in report.spec.columns)


def test_xgboost_alone_is_packaged_with_its_own_column_names(tmp_path):
    frame = payments()[["amount", "age"]]
    estimator = XGBClassifier(n_estimators=5).fit(frame, is_fraud(payments()))
    report = hopline.package_tabular(estimator, frame, tmp_path, name="alone")
    assert [column.name for column in report.spec.columns] == ["amount", "age"]
    assert report.spec.preprocess_file is None
    assert estimator.get_booster().feature_names == ["amount", "age"]  # the user's own is as it was


def test_early_stopping_keeps_the_trees_that_predict(tmp_path):
    frame = payments()[["amount", "age"]]
    target = is_fraud(payments())
    estimator = XGBClassifier(n_estimators=200, early_stopping_rounds=3)
    estimator.fit(frame, target, eval_set=[(frame[:100], 1 - target[:100])], verbose=False)
    assert estimator.best_iteration < 199
    report = hopline.package_tabular(estimator, frame, tmp_path, name="early")
    answers = served(report).answer([columns_of(frame)], [len(frame)])
    np.testing.assert_allclose(answers, estimator.predict_proba(frame)[:, 1], atol=1e-5)


def test_a_search_is_packaged_as_its_best_estimator(tmp_path):
    frame = payments()
    search = GridSearchCV(
        pipeline(LogisticRegression(max_iter=2000)), {"logisticregression__C": [0.1, 1]}, cv=2
    )
    search.fit(frame, is_fraud(frame))
    report = hopline.package_tabular(search, frame, tmp_path, name="search")
    answers = served(report).answer([columns_of(frame)], [len(frame)])
    np.testing.assert_allclose(answers, search.predict_proba(frame)[:, 1], atol=1e-6)


@pytest.mark.parametrize("absent", [None, np.nan])
def test_null_is_what_was_absent_in_training(absent, tmp_path):
    """Whichever of the two a data frame has for it, and whichever the sample has."""
    frame = pd.DataFrame({"country": np.array(["DE", "FR", absent, "DE", absent, "FR"] * 20, dtype=object)})
    target = np.array([0, 1, 1, 0, 1, 0] * 20)
    estimator = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression()).fit(
        frame, target
    )
    for other in (None, np.nan):
        sample = frame.where(frame.notna(), other)
        report = hopline.package_tabular(estimator, sample, tmp_path, name="m", overwrite=True)
        answer = served(report).answer([{"country": [None]}], [1])
        np.testing.assert_allclose(answer, estimator.predict_proba(frame[2:3])[:, 1], atol=1e-6)


class Particular(LogisticRegression):
    """Refuses amounts that it does not expect, and counts how often it is called."""

    calls = 0

    def predict_proba(self, rows: Any) -> Any:
        type(self).calls += 1
        if (rows.amount == 1e6).any() or (rows.amount == -1.0).any():
            raise ValueError("no such amount")
        return super().predict_proba(rows)


def test_probes_are_answered_together_and_only_what_is_refused_has_no_answer() -> None:
    frame = payments()[["amount", "age"]]
    oracle = Oracle(Particular(max_iter=2000).fit(frame, is_fraud(payments())))
    sample = read_sample(frame, list(frame), None)
    amount, age = sample.columns
    probes = list(probe(oracle, sample, (age,)))
    assert Particular.calls == 2 < len(probes)
    probes += probe(oracle, sample, (amount,))
    refused = [(one.column.name, one.value) for one in probes if one.answer is None]
    assert refused == [("age", None), ("amount", None), ("amount", -1.0), ("amount", 1e6)]
    for one in probes:
        if one.answer is not None:
            # in float64: a product of other row counts may round otherwise
            np.testing.assert_allclose(one.answer, oracle.answer(one.rows), rtol=1e-13, atol=1e-15)
