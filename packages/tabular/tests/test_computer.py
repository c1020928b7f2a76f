"""Table models behind their queue: columns checked, rows answered, whoever shares the batch."""

from __future__ import annotations

import asyncio
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder
from xgboost import XGBClassifier

import hopline
from hopline.answering.queued import QueuedVersion
from hopline.artifact import write_spec
from hopline.config.schema import Config
from hopline.errors import ArtifactError, BadRequest, HoplineError, RequestTooLarge
from hopline.observe.metrics import Metrics
from hopline.types import ContextNode, ScoreRequest, ScoreResult, TensorInfo
from hopline_tabular.computer import ColumnCheck, TabularComputer
from hopline_tabular.kind import TABULAR
from hopline_tabular.model import TabularModel
from hopline_tabular.spec import Column, read_tabular
from packages.tabular.tests.tabular_models import columns_of, is_fraud, payments, pipeline, risk_class
from tests.fake_version import hand_in
from tests.thorough import thorough

ROW = {"amount": 12.5, "age": 30, "balance": None, "category": "grocery", "country": "DE", "weekday": 3}


@pytest.fixture(scope="module")
def models(tmp_path_factory: Any) -> Path:
    """`fraud` (binary), `risk` (three classes), `amount` (regression), `strict` (four categories only)."""
    folder: Path = tmp_path_factory.mktemp("models")
    sample = payments(100, seed=1)
    packaged = {
        "fraud": pipeline(XGBClassifier(n_estimators=20)),
        "risk": pipeline(LogisticRegression(max_iter=2000), risk_class),
        "amount": pipeline(Ridge(), lambda frame: frame.amount),
    }
    for name, estimator in packaged.items():
        hopline.package_tabular(estimator, sample, folder, name=name)
    frame = payments()[["amount", "category", "weekday"]]
    steps = make_column_transformer(
        (FunctionTransformer(np.log), ["amount"]), (OneHotEncoder(), ["category", "weekday"])
    )
    strict = make_pipeline(steps, LogisticRegression(max_iter=2000)).fit(frame, is_fraud(payments()))
    columns = [Column("weekday", "int", default=0)]
    hopline.package_tabular(strict, frame, folder, name="strict", columns=columns)
    return folder


def version(
    models: Path, name: str, config: Config | None = None, as_version: str | None = None
) -> QueuedVersion:
    folder = models / name / "1"
    spec = read_tabular(folder)
    config = config or Config()
    computer = TabularComputer(TabularModel(folder, spec), config, as_version)
    metrics = Metrics(None, 0).model(name, "1")
    return QueuedVersion(computer, config, metrics, ThreadPoolExecutor(1))


def ask(served: QueuedVersion, *requests: ScoreRequest) -> list[Any]:
    """Their outcomes, as one batch where they fit."""

    async def main() -> list[Any]:
        outcomes: list[Any] = [None] * len(requests)

        def deliver(place: int) -> Any:
            return lambda outcome: outcomes.__setitem__(place, outcome)

        for place, request in enumerate(requests):
            try:
                hand_in(served, request, deliver(place))
            except HoplineError as error:
                outcomes[place] = error
        await served.join()
        return outcomes

    return asyncio.run(main())


def request_of(row: Any = ROW, **options: Any) -> ScoreRequest:
    return ScoreRequest("m", columns={name: [value] for name, value in row.items()}, **options)


def test_outputs_are_those_of_the_task(models: Path) -> None:
    columns = columns_of(payments(5))
    shapes = {
        "fraud": {"probabilities": ("float32", (5,)), "label": ("int64", (5,))},
        "risk": {"probabilities": ("float32", (5, 3)), "label": ("int64", (5,))},
        "amount": {"logits": ("float32", (5, 1))},
    }
    for name, wanted in shapes.items():
        served = version(models, name)
        served.warm_up()
        (result,) = ask(served, ScoreRequest(name, columns=columns))
        assert {key: (value.dtype.name, value.shape) for key, value in result.outputs.items()} == wanted
        assert (result.model, result.version, result.graph_version) == (name, "1", "")
        described = {item.name: (item.datatype, item.shape) for item in served.info(("1",)).outputs}
        assert set(described) == set(wanted)


def test_only_requested_outputs_are_answered(models: Path) -> None:
    (result,) = ask(version(models, "fraud"), request_of(outputs=("label",)))
    assert list(result.outputs) == ["label"]


@settings(max_examples=thorough(6, 25), deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_a_requests_answer_does_not_depend_on_its_batch(
    models: Path, sizes: list[int], random: Any
) -> None:
    served = version(models, "fraud")
    frames = [payments(size, seed=random.randrange(1000)) for size in sizes]
    requests = [ScoreRequest("fraud", columns=columns_of(frame)) for frame in frames]
    together = ask(served, *requests)
    for request, outcome in zip(requests, together, strict=True):
        (alone,) = ask(served, request)
        for name, values in alone.outputs.items():
            assert outcome.outputs[name].tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"amount": ...}, "column 'amount' is missing; rows have amount \\(float"),
        ({"colour": "red"}, "unexpected column 'colour': rows of model 'fraud' have amount"),
        ({"amount": "12"}, "column 'amount', row 0: '12' instead of a number"),
        ({"amount": True}, "True instead of a number"),
        ({"amount": float("inf")}, "inf is beyond"),
        ({"amount": 1e39}, "1e\\+39 is beyond"),
        ({"age": 3.5}, "column 'age', row 0: 3.5 instead of a whole number"),
        ({"age": 2**53 + 1}, "beyond"),
        ({"category": 7}, "column 'category', row 0: 7 instead of a string"),
        ({"category": ["grocery"]}, "instead of a string"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(models: Path, change: Any, text: str) -> None:
    row = {key: value for key, value in {**ROW, **change}.items() if value is not ...}
    (error,) = ask(version(models, "fraud"), request_of(row))
    assert isinstance(error, BadRequest)
    with pytest.raises(BadRequest, match=text):
        raise error


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"amount": None, "category": "fuel"}, "column 'amount', row 0: no value, but a number is needed"),
        ({"amount": float("nan"), "category": "fuel"}, "no value"),
        ({"amount": 1.0, "category": None}, "no value, but a string"),
        ({"amount": 1.0, "category": "toys"}, "'toys' is unknown to the model; known are 'fuel', 'games'"),
        ({"amount": 1.0, "category": "fuel", "weekday": 9}, "9 is unknown to the model; known are 0, 1"),
        ({"amount": -1.0, "category": "fuel"}, "has no answer for row 0"),
    ],
)
def test_values_that_the_preprocessing_does_not_know_are_refused(models: Path, row: Any, text: str) -> None:
    (error,) = ask(version(models, "strict"), request_of(row))
    with pytest.raises(BadRequest, match=text):
        raise error


def test_a_column_with_a_default_may_be_left_out(models: Path) -> None:
    served = version(models, "strict")
    row = {"amount": 3.0, "category": "fuel"}
    without, with_it, other = ask(
        served, request_of(row), request_of({**row, "weekday": 0}), request_of({**row, "weekday": 5})
    )
    assert np.array_equal(without.outputs["probabilities"], with_it.outputs["probabilities"])
    assert not np.array_equal(without.outputs["probabilities"], other.outputs["probabilities"])
    many = ScoreRequest("m", columns={"amount": np.full(3, 3.0), "category": ["fuel"] * 3})
    (result,) = ask(served, many)
    assert np.array_equal(result.outputs["probabilities"], np.repeat(without.outputs["probabilities"], 3))


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (ScoreRequest("m", nodes=[1]), "takes rows or columns of amount"),
        (ScoreRequest("m"), "takes rows or columns of amount"),
        (request_of(context=(ContextNode(features=[1.0]),)), "not nodes or pairs"),
        (ScoreRequest("m", columns={}), "column 'amount' is missing"),
        (ScoreRequest("m", columns={name: [] for name in ROW}), "no rows"),
        (
            ScoreRequest("m", columns={**{name: [value] for name, value in ROW.items()}, "age": [1, 2]}),
            "unequal length: 'amount' has 1, 'age' has 2",
        ),
        (
            ScoreRequest("m", columns={**{name: [value] for name, value in ROW.items()}, "age": 3}),
            "a list of",
        ),
        (request_of(outputs=("embedding",)), "output 'embedding' is unknown"),
        (request_of(as_of=3), "as_of"),
    ],
)
def test_requests_of_another_kind_are_refused(models: Path, request_: ScoreRequest, text: str) -> None:
    (error,) = ask(version(models, "fraud"), request_)
    with pytest.raises(BadRequest, match=text):
        raise error


def test_too_many_rows_are_refused(models: Path) -> None:
    config = Config()
    config = dataclasses.replace(config, limits=dataclasses.replace(config.limits, max_nodes_per_request=4))
    (error,) = ask(version(models, "fraud", config), ScoreRequest("m", columns=columns_of(payments(5))))
    assert isinstance(error, RequestTooLarge)


def test_a_row_without_an_answer_fails_its_own_request_only(models: Path) -> None:
    good, bad = {"amount": 2.0, "category": "fuel"}, {"amount": -2.0, "category": "fuel"}
    first, second, third = ask(
        version(models, "strict"), request_of(good), request_of(bad), request_of(good)
    )
    assert isinstance(second, BadRequest)
    assert isinstance(first, ScoreResult)
    assert np.array_equal(first.outputs["probabilities"], third.outputs["probabilities"])


def test_arrays_are_checked_as_lists_are() -> None:
    check = ColumnCheck(Column("age", "int")).check
    assert check(np.array([1, 2])) == 2
    assert check(np.array([1.0, 2.0], dtype=np.float32)) == 2
    assert check((1, 2)) == 2
    for bad, text in [
        (np.array([1.0, 2.5]), "row 1: 2.5 instead of a whole number"),
        (np.array([1.0, np.nan]), "row 1: no value"),
        (np.array([True]), "True instead of"),
        (np.array([[1]]), "shape \\[1, 1\\]"),
        (np.array(["1"]), "'1' instead of"),
        (np.array([2**63], dtype=np.uint64), "beyond"),
        (np.array([-(2**63)]), "beyond"),
        ([10**400] * 40, "beyond"),
        ("12", "str instead of a list"),
    ]:
        with pytest.raises(BadRequest, match=text):
            check(bad)
    assert ColumnCheck(Column("age", "int", nullable=True)).check(np.array([1.0, np.nan])) == 2
    assert ColumnCheck(Column("name", "string")).check(np.array(["a", "b"])) == 2


numbers = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.floats(), st.text(max_size=2)
)


@given(
    st.lists(numbers, max_size=4),
    st.sampled_from(["float", "int", "string"]),
    st.booleans(),
    st.sampled_from([1, 40]),
)
def test_a_list_passes_exactly_when_each_value_does(
    values: list[Any], dtype: Any, nullable: bool, copies: int
) -> None:
    check = ColumnCheck(Column("c", dtype, nullable)).check

    def fits(value: Any) -> bool:
        if value is None or value != value:
            return nullable and (value is None or dtype != "string")
        if dtype == "string":
            return isinstance(value, str)
        if isinstance(value, str | bool):
            return False
        if dtype == "int":
            return abs(value) <= 2**53 and value == int(value)
        return abs(value) <= float(np.finfo(np.float32).max)

    values = values * copies  # many are looked at together
    if all(map(fits, values)):
        assert check(values) == len(values)
    else:
        with pytest.raises(BadRequest, match="column 'c', row"):
            check(values)


@pytest.mark.parametrize("copies", [1, 40])
@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1])
def test_a_whole_number_is_looked_at_before_it_is_rounded(value: int, copies: int) -> None:
    for values in ([value] * copies, np.array([value] * copies)):
        with pytest.raises(BadRequest, match=r"column 'c', row 0: -?9007199254740993 is beyond"):
            ColumnCheck(Column("c", "int", False)).check(values)


def test_what_a_column_takes_may_be_said_in_other_words() -> None:
    check = ColumnCheck(Column("c", "int", False), "true or false").check
    for value, text in ((None, "no value, but true or false is needed"), ("x", "'x' instead of true or")):
        with pytest.raises(BadRequest, match=text):
            check([value])


@pytest.mark.parametrize("copies", [1, 40])
def test_an_array_of_float32_has_whole_numbers_up_to_its_precision(copies: int) -> None:
    check = ColumnCheck(Column("c", "int", False)).check
    assert check(np.full(copies, 2**24 - 1, np.float32)) == copies
    with pytest.raises(BadRequest, match=r"column 'c', row 0: 16777216\.0 is beyond"):
        check(np.full(copies, 2**24 + 1, np.float32))
    assert ColumnCheck(Column("c", "float", False)).check(np.full(copies, 2**30, np.float32)) == copies


def test_it_describes_its_columns(models: Path) -> None:
    info = version(models, "strict", as_version="7").info(("7",))
    assert (info.kind, info.id_kind, info.graph_version, info.version) == ("tabular", "none", "", "7")
    assert info.inputs == (
        TensorInfo("amount", "FP64", (-1,)),
        TensorInfo("category", "BYTES", (-1,)),
        TensorInfo("weekday", "INT64", (-1,), optional=True),
    )
    assert info.properties["columns"][1]["values"] == ["fuel", "games", "grocery", "travel"]
    assert info.properties["preprocessing"]
    msgspec.json.encode(info)


def test_an_opset_that_the_runtime_does_not_run_is_refused(models: Path) -> None:
    folder = models / "fraud" / "1"
    TABULAR.check(folder, "fraud")
    spec = read_tabular(folder)
    write_spec(folder, msgspec.structs.replace(spec, ml_opset=99))
    with pytest.raises(
        ArtifactError, match=r"ai.onnx opset 18 and ai.onnx.ml opset 99; .* runs up to .* opset"
    ):
        TABULAR.check(folder, "fraud")
    write_spec(folder, spec)


def test_a_folder_with_the_model_of_another_is_refused(models: Path) -> None:
    with pytest.raises(ArtifactError, match=r"the artifact is of model 'fraud', its folder of 'risk'"):
        TABULAR.check(models / "fraud" / "1", "risk")
