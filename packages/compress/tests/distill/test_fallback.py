"""The student's rung: where most rows cannot be had, an answer from a node's own row."""

import shutil

import numpy as np
import pytest
import torch

from hopline.artifact import read_spec
from hopline.engine.answer import Answerer, FetchedInputs
from hopline.engine.fallbacks import MEAN_FEATURES, SMALLER_FANOUT, STALE_FEATURES, STUDENT
from hopline.engine.model import load_model
from hopline.engine.source import FetchedRows
from hopline.engine.tasks import default_outputs
from hopline.errors import ArtifactCorrupted, ArtifactError, FeatureStoreUnavailable
from hopline.types import InlineNode, ScoreRequest
from hopline_compress.distill.export import write_fallback
from hopline_compress.distill.settings import Settings
from hopline_compress.distill.train import Student
from packages.compress.tests.distill.places import CLASSES, DIM
from tests.engine.test_source import Rows


@pytest.fixture(scope="module")
def places(places, tmp_path_factory):
    root = tmp_path_factory.mktemp("students")
    shutil.copytree(places.repository, root / "models")
    return type(places)(places.root, places.graph, root / "models")


@pytest.fixture(scope="module")
def student(places):
    torch.manual_seed(2)
    module = Student(DIM, 0, CLASSES, Settings(structure=False)).eval()
    features = np.array(places.graph.nodes["node"].features)
    write_fallback(
        places.folder(), module, read_spec(places.folder()), features, ("close-student", "1"), 0.9
    )
    return module


@pytest.fixture
def teacher(places, student):
    folder = places.folder()
    spec = read_spec(folder)
    rows = Rows(places.graph.nodes["node"].features)
    model = load_model(folder, spec, places.graph, sources={"node": rows})
    return Answerer(model, default_outputs(spec), 100), rows


def told(student, rows):
    with torch.no_grad():
        return student(torch.from_numpy(np.ascontiguousarray(rows))).numpy()


def ask(answerer, *nodes, fetched_rows=None, **fields):
    request = ScoreRequest("close", nodes=[f"n{i}" for i in nodes], outputs=("logits",), **fields)
    (outcome,) = answerer.answer_supplied([request], [FetchedInputs(fetched_rows or {}, is_last=True)])
    return outcome


def lone(rows, *kept):
    rows.near[:] = False
    rows.near[list(kept)] = True


def test_own_rows_alone_are_answered_by_the_student(teacher, student):
    answerer, rows = teacher
    lone(rows, 5, 9)
    outcome = ask(answerer, 5, 9)
    assert outcome.degraded == (STUDENT,)
    np.testing.assert_allclose(outcome.outputs["logits"], told(student, rows.values[[5, 9]]), atol=1e-4)


def test_rows_that_were_fetched_count_as_there(teacher, student):
    answerer, rows = teacher
    lone(rows)
    fetched_rows = {"node": [FetchedRows(np.array([5]), rows.values[[5]])]}
    outcome = ask(answerer, 5, fetched_rows=fetched_rows)
    assert outcome.degraded == (STUDENT,)
    np.testing.assert_allclose(outcome.outputs["logits"], told(student, rows.values[[5]]), atol=1e-4)


def test_stale_rows_keep_the_teacher(teacher):
    answerer, rows = teacher
    lone(rows, 5)
    rows.stale[:] = True
    assert ask(answerer, 5).degraded == (STALE_FEATURES,)


def test_a_stale_own_row_is_reported_beside_the_student(teacher, student):
    answerer, rows = teacher
    lone(rows)
    rows.stale[5] = True
    outcome = ask(answerer, 5)
    assert outcome.degraded == (STALE_FEATURES, STUDENT)
    np.testing.assert_allclose(outcome.outputs["logits"], told(student, rows.values[[5]]), atol=1e-4)


def test_few_absent_neighbours_leave_the_teacher_a_smaller_fanout(teacher, places):
    answerer, rows = teacher
    read = answerer.model.absent
    rows.near[:] = False
    wanted = read({"node": np.array([5])})["node"]
    neighbours = wanted[wanted != 5]
    assert neighbours.shape[0] >= 3
    rows.near[:] = True
    rows.near[neighbours[0]] = False
    assert ask(answerer, 5).degraded == (SMALLER_FANOUT,)


def test_without_any_own_row_the_ladder_goes_on_to_the_mean(teacher):
    answerer, rows = teacher
    lone(rows)
    outcome = ask(answerer, 5)
    assert MEAN_FEATURES in outcome.degraded
    assert STUDENT not in outcome.degraded


def test_of_several_nodes_those_without_a_row_get_the_mean_row(teacher, student):
    answerer, rows = teacher
    lone(rows, 5)
    outcome = ask(answerer, 5, 6)
    assert outcome.degraded == (STUDENT, MEAN_FEATURES)
    expected = told(student, np.stack([rows.values[5], rows.mean()]))
    np.testing.assert_allclose(outcome.outputs["logits"], expected, atol=1e-4)


def test_unknown_nodes_stay_unknown(teacher, student):
    answerer, rows = teacher
    lone(rows, 5)
    request = ScoreRequest("close", nodes=["n5", "nobody"], outputs=("logits",), on_missing="null")
    (outcome,) = answerer.answer_supplied([request], [FetchedInputs(is_last=True)])
    assert outcome.missing.tolist() == [False, True]
    assert outcome.degraded == (STUDENT,)
    np.testing.assert_allclose(outcome.outputs["logits"][:1], told(student, rows.values[[5]]), atol=1e-4)


def test_who_refuses_less_gets_no_student(teacher):
    answerer, rows = teacher
    lone(rows, 5)
    assert isinstance(ask(answerer, 5, degraded="refuse"), FeatureStoreUnavailable)


def test_what_a_student_cannot_answer_is_answered_without_it(teacher, places):
    answerer, rows = teacher
    lone(rows, 5)
    request = ScoreRequest("close", nodes=["n5"], outputs=("embedding",))
    (outcome,) = answerer.answer_supplied([request], [FetchedInputs(is_last=True)])
    assert outcome.degraded == (SMALLER_FANOUT,)
    described = InlineNode(features=rows.values[5], neighbors={"": ["n1"]})
    request = ScoreRequest("close", nodes=[], inline=(described,))
    (outcome,) = answerer.answer_supplied([request], [FetchedInputs(is_last=True)])
    assert STUDENT not in outcome.degraded


def test_a_teacher_answers_alike_with_and_without_a_student(teacher, places, tmp_path):
    answerer, _ = teacher
    folder = shutil.copytree(places.folder(), tmp_path / "1")
    (folder / "student.json").unlink()
    alone = load_model(folder, read_spec(folder), places.graph)
    assert alone.student is None
    request = ScoreRequest("close", nodes=["n5", "n7"])
    (expected,) = Answerer(alone, ("probabilities",), 10).answer([request])
    (found,) = answerer.answer_supplied([request], [FetchedInputs()])
    assert (found.outputs["probabilities"] == expected.outputs["probabilities"]).all()


@pytest.mark.parametrize(
    ("damage", "error", "match"),
    [
        (lambda f: (f / "student.onnx").write_bytes(b"x"), ArtifactCorrupted, "sha256 is"),
        (lambda f: (f / "student.onnx").unlink(), ArtifactCorrupted, "but student.onnx does not"),
        (lambda f: (f / "student.json").write_text("{}"), ArtifactError, r"not a valid student\.json"),
        (
            lambda f: (f / "student.json").write_text(
                (f / "student.json").read_text().replace('"feature_dim": 6', '"feature_dim": 4')
            ),
            ArtifactError,
            "width of features 4, its teacher's 6",
        ),
    ],
)
def test_a_damaged_student_is_named(places, student, tmp_path, damage, error, match):
    folder = shutil.copytree(places.folder(), tmp_path / "1")
    damage(folder)
    with pytest.raises(error, match=match):
        load_model(folder, read_spec(folder), places.graph)
