"""What cannot be packaged as a tabular model says why, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import joblib
import numpy as np
import onnx
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from typer.testing import CliRunner
from xgboost import XGBClassifier

import hopline
from hopline import cli
from hopline.errors import PackagingError, ParityError
from hopline_tabular.command import load_fitted, read_sample_file
from hopline_tabular.packaging import packager
from hopline_tabular.spec import Column, read_tabular
from packages.tabular.tests.tabular_models import is_fraud, payments, pipeline

NUMBERS = payments()[["amount", "age"]]


def fitted(predictor: Any, frame: pd.DataFrame = NUMBERS) -> Any:
    return predictor.fit(frame, is_fraud(payments()))


def renamed(**names: str) -> pd.DataFrame:
    return NUMBERS.rename(columns=names)


@pytest.mark.parametrize(
    ("estimator", "sample", "text"),
    [
        (LogisticRegression(), NUMBERS, "LogisticRegression is not fitted"),
        (StandardScaler(), NUMBERS, "StandardScaler has no predictions"),
        (fitted(LinearSVC()), NUMBERS, "CalibratedClassifierCV"),
        (fitted(LogisticRegression()), NUMBERS[["age"]], "the sample has no column 'amount'"),
        (fitted(LogisticRegression()), NUMBERS[:0], "no rows"),
        (fitted(LogisticRegression()), np.zeros(3), "an array \\[rows, columns\\]"),
        (fitted(LogisticRegression(), renamed(age="node_ids")), renamed(age="node_ids"), "another name"),
        (fitted(LogisticRegression(), renamed(age="a\nb")), renamed(age="a\nb"), "printable"),
        (
            fitted(LogisticRegression()),
            NUMBERS.assign(age=pd.Timestamp("2026-01-01")),
            "requests have numbers and strings",
        ),
        (
            fitted(make_pipeline(FunctionTransformer(lambda x: x * 2), LogisticRegression())),
            NUMBERS,
            "holds no Python code",
        ),
        (fitted(LogisticRegression()), NUMBERS.mask(NUMBERS.age > 80), "fails on the sample"),
    ],
)
@pytest.mark.filterwarnings("ignore:Liblinear failed to converge", "ignore:lbfgs failed")
def test_what_cannot_be_packaged_says_why(estimator, sample, text, tmp_path):
    with pytest.raises(PackagingError, match=text):
        hopline.package_tabular(estimator, sample, tmp_path, name="m")
    assert list(tmp_path.rglob("*.json")) == []


def test_text_must_be_encoded_in_the_pipeline(tmp_path):
    frame = payments()[["amount", "category"]]
    selector = make_column_transformer((StandardScaler(), ["amount"]), ("passthrough", ["category"]))
    estimator = make_pipeline(selector, LogisticRegression())
    estimator.steps[0][1].fit(frame)
    estimator.steps[1][1].fit(np.eye(2), [0, 1])
    with pytest.raises(PackagingError, match="given column 'category', which holds text"):
        hopline.package_tabular(estimator, frame, tmp_path, name="m")


def test_native_categories_of_xgboost_are_refused(tmp_path):
    frame = payments()[["amount"]].assign(category=payments().category.astype("category"))
    estimator = XGBClassifier(n_estimators=2, enable_categorical=True).fit(frame, is_fraud(payments()))
    with pytest.raises(PackagingError, match="enable_categorical"):
        hopline.package_tabular(estimator, frame, tmp_path, name="m")


def broken(change: Any) -> Any:
    """`predict`, after which the graph is changed."""
    original = packager.predict

    def predict(graph: Any, *arguments: Any) -> str:
        return change(graph, original(graph, *arguments))

    return predict


def test_a_file_that_answers_otherwise_is_not_kept(tmp_path, monkeypatch):
    def shifted(graph: Any, answer: str) -> str:
        return graph.node("Add", [answer, graph.const(1e-3, np.float32)])

    monkeypatch.setattr(packager, "predict", broken(shifted))
    estimator = pipeline(XGBClassifier(n_estimators=5))
    message = r"200 of 200 rows differ .* row 0 of the sample, columns .* instead of"
    with pytest.raises(ParityError, match=message):
        hopline.package_tabular(estimator, payments(200), tmp_path, name="m")
    assert not (tmp_path / "m").exists()


def test_a_difference_at_the_edges_only_is_found(tmp_path, monkeypatch):
    """The sample has no amount below zero."""

    def clipped(graph: Any, answer: str) -> str:
        negative = graph.node(
            "Less", [graph.node("Gather", ["numbers", graph.const(0, np.int64)], axis=1), graph.const(0.0)]
        )
        return graph.node("Where", [negative, graph.const(0.5, np.float32), answer])

    monkeypatch.setattr(packager, "predict", broken(clipped))
    estimator = XGBClassifier(n_estimators=5).fit(NUMBERS, is_fraud(payments()))
    with pytest.raises(ParityError, match="edge row amount = -"):
        hopline.package_tabular(estimator, NUMBERS, tmp_path, name="m")


def test_rows_that_depend_on_their_batch_are_found(tmp_path, monkeypatch):
    def mixed(graph: Any, answer: str) -> str:
        mean = graph.node("ReduceMean", [answer], keepdims=1)
        noise = graph.node("Mul", [mean, graph.const(1e-7, np.float32)])
        return graph.node("Add", [answer, noise])

    monkeypatch.setattr(packager, "predict", broken(mixed))
    with pytest.raises(ParityError, match="other answers in a batch than alone"):
        hopline.package_tabular(pipeline(XGBClassifier(n_estimators=5)), payments(200), tmp_path, name="m")


def test_where_few_rows_compute_otherwise_calls_are_filled_up(tmp_path, monkeypatch):
    def lonely(graph: Any, answer: str) -> str:
        """A single row answers a little more."""
        rows = graph.node("Size", [answer])
        alone = graph.node(
            "Cast", [graph.node("Less", [rows, graph.const(2, np.int64)])], to=onnx.TensorProto.FLOAT
        )
        return graph.node("Add", [answer, graph.node("Mul", [alone, graph.const(1e-6, np.float32)])])

    monkeypatch.setattr(packager, "predict", broken(lonely))
    estimator = pipeline(XGBClassifier(n_estimators=5))
    report = hopline.package_tabular(estimator, payments(200), tmp_path, name="m")
    assert report.spec.min_rows == 2


def test_columns_say_what_they_may_hold(tmp_path):
    frame = payments()[["amount", "age", "category"]]
    steps = make_column_transformer((StandardScaler(), ["amount"]), (OneHotEncoder(), ["category"]))
    estimator = make_pipeline(steps, LogisticRegression()).fit(frame, is_fraud(payments()))
    report = hopline.package_tabular(
        estimator, frame, tmp_path, name="m", columns=[Column("amount", "float", default=10.0)]
    )
    amount, category = report.spec.columns
    assert (amount.default, amount.nullable) == (10.0, False)
    assert (set(category.values), category.nullable) == ({"grocery", "fuel", "travel", "games"}, False)
    assert any("nothing is computed from age" in note for note in report.notes)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ([Column("colour", "string")], "has no column 'colour'"),
        ([Column("amount", "float", nullable=True)], "refuses NaN"),
        ([Column("category", "float")], "declared as float"),
        ([Column("category", "string", default="toys")], "not one of its values"),
    ],
)
def test_columns_that_cannot_be_so_are_refused(columns, text, tmp_path):
    frame = payments()[["amount", "category"]]
    steps = make_column_transformer((StandardScaler(), ["amount"]), (OneHotEncoder(), ["category"]))
    estimator = make_pipeline(steps, LogisticRegression()).fit(frame, is_fraud(payments()))
    with pytest.raises(PackagingError, match=text):
        hopline.package_tabular(estimator, frame, tmp_path, name="m", columns=columns)


def test_a_task_that_is_not_the_estimators_is_refused(tmp_path):
    with pytest.raises(PackagingError, match="LogisticRegression is for binary"):
        hopline.package_tabular(
            fitted(LogisticRegression()), NUMBERS, tmp_path, name="m", task="regression"
        )


# The command


def run(*arguments: Any) -> Any:
    words = ["package", *map(str, arguments)]
    return CliRunner().invoke(cli.build_app(words), words)


@pytest.fixture
def files(tmp_path):
    """An estimator in joblib and in a Python file, and a sample in CSV and Parquet."""
    estimator = pipeline(XGBClassifier(n_estimators=5))
    joblib.dump(estimator, tmp_path / "fraud.joblib")
    (tmp_path / "fraud_file.py").write_text(
        "from pathlib import Path\nimport joblib\n"
        "ready = joblib.load(Path(__file__).parent / 'fraud.joblib')\n"
        "def build():\n    return ready\n"
    )
    payments(100).to_csv(tmp_path / "sample.csv", index=False)
    payments(100).to_parquet(tmp_path / "sample.parquet")
    return tmp_path


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("reference", "sample"),
    [
        ("fraud.joblib", "sample.csv"),
        ("fraud_file.py:ready", "sample.parquet"),
        ("fraud_file.py:build", "sample.csv"),
    ],
)
def test_the_command_packages_an_estimator(files, reference, sample):
    done = run(
        *("--sklearn", files / reference, "--sample", files / sample),
        *("--repository", files / "models", "--name", "fraud", "--version", "3"),
    )
    assert done.exit_code == 0, done.output
    spec = read_tabular(files / "models" / "fraud" / "3")
    assert [column.name for column in spec.columns] == list(payments(1).columns)
    assert "country   string  yes" in done.stdout
    assert "largest difference from the estimator" in done.stdout.replace("\n", " ").replace("  ", " ")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--sklearn", "x.joblib"], "needs --sample"),
        (["--sklearn", "x.joblib", "--sample", "s.csv", "--graph", "g"], "--graph is for graph models"),
        (["--sample", "s.csv"], "needs --sklearn"),
        (["--model", "m.py:M"], "--graph, --fanouts, --task missing"),
        (["--sklearn", "x.joblib", "--sample", "s.csv"], "x.joblib: no such file"),
        (["--sklearn", "x", "--sample", "s.csv"], "is not FILE.py:NAME"),
    ],
)
def test_options_that_do_not_go_together_are_named(arguments, text):
    done = run(*arguments, "--repository", "r", "--name", "n")
    assert isinstance(done.exception, PackagingError)
    assert text in str(done.exception)


def test_bad_files_are_named(files):
    with pytest.raises(PackagingError, match="has no 'other'"):
        load_fitted(f"{files}/fraud_file.py:other", "--sklearn")
    (files / "broken.joblib").write_bytes(b"nothing")
    with pytest.raises(PackagingError, match="cannot be read"):
        load_fitted(f"{files}/broken.joblib", "--sklearn")
    joblib.dump(3, files / "three.joblib")
    with pytest.raises(PackagingError, match="is int, not a fitted estimator"):
        load_fitted(f"{files}/three.joblib", "--sklearn")
    with pytest.raises(PackagingError, match="must end in"):
        read_sample_file(files / "sample.txt")
    with pytest.raises(PackagingError, match="no such file"):
        read_sample_file(files / "absent.csv")
    (files / "bad.csv").write_text('a,b\n"1')
    with pytest.raises(PackagingError, match="cannot be read"):
        read_sample_file(files / "bad.csv")
