"""A student from a packaged teacher: what it answers, what is told of it, and when it is refused."""

import json
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from benchmarks.distill_phases.accuracy import new_rows
from hopline.artifact import read_spec
from hopline.cli import build_app
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import (
    BadRequest,
    ConfigError,
    HoplineError,
    NodeNotFound,
    PackagingError,
    SchemaMismatch,
)
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.types import InlineNode, ScoreRequest
from hopline_compress.distill.export import StructureRows, write_student
from hopline_compress.distill.propagate import directions
from hopline_compress.distill.report import by_degree, calibration, judge
from hopline_compress.distill.run import Distillation, DistillOptions, Split, structure_features
from hopline_compress.distill.settings import Settings
from hopline_compress.distill.teacher import soft_labels
from hopline_compress.distill.train import Student
from packages.compress.tests.distill.places import CLASSES, DIM, N

QUICK = Settings(structure=False, dropout=0.0, epochs=60)


@pytest.fixture
def own(places, tmp_path):
    """The same with a repository that the test may write in."""
    shutil.copytree(places.repository, tmp_path / "models")
    return type(places)(places.root, places.graph, tmp_path / "models")


@pytest.fixture
def hopline(own, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*words, model="close", fails=False):
        where = ["--repository", str(own.repository), "--graph", str(own.root / "graph")]
        arguments = ["distill", "--model", model, *where, "--epochs", "60", *words]
        result = CliRunner().invoke(build_app(arguments), arguments)
        if isinstance(result.exception, HoplineError) and not fails:
            raise result.exception
        assert (result.exit_code == 0) is not fails, result.output
        return result.output

    return run


def distil(own, model="close", *, graph=None, **options):
    options = {"settings": QUICK, "force": True, **options}
    folder = graph or own.root / "graph"
    return Distillation(own.folder(model), folder, own.repository, DistillOptions(**options)).run()


def some_student(outputs=CLASSES, layers=2):
    """A student with statistics and weights of its own, as after training."""
    torch.manual_seed(1)
    settings = Settings(structure=False, layers=layers, hidden=8)
    student = Student(DIM, 0, outputs, settings)
    student.train()
    for _ in range(5):
        student(torch.randn(64, DIM) * 2 + 1)
    return student.eval()


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("teacher", ["close", "yes"])
def test_a_served_student_answers_what_the_trained_one_does(own, teacher, layers):
    student = some_student(2 if teacher == "yes" else CLASSES, layers)
    features = np.array(own.graph.nodes["node"].features)
    spec = read_spec(own.folder(teacher))
    folder = write_student(
        own.repository, "small", "1", student, spec, own.graph, features, {}, overwrite=False
    )
    model = load_model(folder, read_spec(folder), own.graph)
    names = ("logits", "probabilities", "label")
    nodes = [f"n{i}" for i in range(N)]
    described = InlineNode(features=features[7], neighbors={"": ["n1", "n2"]})
    request = ScoreRequest("small", nodes=nodes, inline=(described,), outputs=names)
    (found,) = Answerer(model, names, 1000).answer([request])
    with torch.no_grad():
        logits = student(torch.from_numpy(np.concatenate([features, features[7:8]])))
    expected = logits.softmax(1).numpy()
    shown = found.outputs["probabilities"]
    if teacher == "yes":
        expected = expected[:, 1]
    np.testing.assert_allclose(shown, expected, atol=1e-5)
    assert (found.outputs["label"] == logits.argmax(1).numpy()).mean() > 0.99
    assert read_spec(folder).classes == spec.classes


def test_a_student_answers_alike_on_a_graph_without_edges(own):
    report = distil(own, labels=own.root / "labels.npy")
    features = np.array(own.graph.nodes["node"].features)
    names = [f"n{i}" for i in range(N)]
    bare = Graph.from_edges(([], []), features, ids=names)
    folder = own.repository / "close-student" / "1"
    assert report.path == str(folder)
    request = ScoreRequest("close-student", nodes=names)
    spec = read_spec(folder)
    answers = [
        Answerer(load_model(folder, spec, graph), ("probabilities",), 10).answer([request])[0]
        for graph in (own.graph, bare)
    ]
    assert (answers[0].outputs["probabilities"] == answers[1].outputs["probabilities"]).all()


def test_soft_labels_are_what_the_server_answers(own):
    for name in ("close", "yes"):
        folder = own.folder(name)
        model = load_model(folder, read_spec(folder), own.graph)
        request = ScoreRequest(name, nodes=[f"n{i}" for i in range(N)])
        (answer,) = Answerer(model, ("probabilities",), 10).answer([request])
        expected = answer.outputs["probabilities"]
        found = soft_labels(folder, own.graph, lambda *_: None)
        assert (found if name == "close" else found[:, 1]).tolist() == expected.tolist()
        np.testing.assert_allclose(found.sum(1), 1, atol=1e-6)


def test_one_seed_gives_one_student_and_another_seed_another_split(own):
    files = []
    for name in ("a", "b"):
        distil(own, student=name)
        files.append(read_spec(own.repository / name / "1").files)
    assert files[0] == files[1]
    first, other = Split.of(N, 0), Split.of(N, 1)
    assert set(first.held_out) != set(other.held_out)
    parts = np.concatenate([first.fit, first.valid, first.held_out])
    assert np.sort(parts).tolist() == list(range(N))


def test_the_report_has_accuracies_where_labels_are_known(own):
    report = distil(own, labels=own.root / "labels.npy")
    assert report.judged_by == "labels"
    assert 0.7 < report.teacher_accuracy <= 1
    assert None not in (report.student_accuracy, report.mlp_accuracy)
    assert report.calibration.keys() == {"teacher", "student", "mlp"}
    assert sum(bucket.nodes for bucket in report.by_degree) == report.nodes["held_out"] == N // 5
    whole = sum(bucket.nodes * bucket.student for bucket in report.by_degree) / report.nodes["held_out"]
    assert whole == pytest.approx(report.student_accuracy)


def test_an_unlabelled_graph_is_judged_by_the_teacher(own):
    report = distil(own)
    assert report.judged_by == "teacher"
    assert report.teacher_accuracy is report.student_accuracy is report.mlp_accuracy is None
    assert report.calibration.keys() == {"student"}
    assert report.why.startswith("it agrees with its teacher on")


def test_calibration_is_that_of_a_hand_count():
    probabilities = np.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.4, 0.6]], np.float32)
    found = calibration(probabilities, np.array([0, 1, 1, 1]))
    assert found.ece == pytest.approx(0.5 * abs(0.9 - 0.5) + 0.5 * abs(0.6 - 1.0))
    assert [count for _, _, count in found.bins] == [2, 2]


def test_degrees_fall_into_their_buckets():
    rows = np.array([0, 1, 0, 1])
    buckets = by_degree(
        np.array([0, 1, 2, 51]),
        np.array([0, 1, 1, -1]),
        {"teacher": rows, "student": np.array([0, 1, 1, 1])},
    )
    assert [(b.degrees, b.nodes, b.agreement, b.teacher, b.student) for b in buckets] == [
        ("0", 1, 1.0, 1.0, 1.0),
        ("1–2", 2, 0.5, 0.5, 1.0),
        ("above 50", 1, 1.0, None, None),
    ]


# The gate


@pytest.mark.parametrize(
    ("agreement", "teacher", "student", "passes"),
    [
        (0.5, 0.80, 0.785, True),
        (0.99, 0.80, 0.783, False),
        (0.5, 0.80, 0.90, True),
        (0.981, None, None, True),
        (0.979, None, None, False),
    ],
)
def test_the_gate_takes_two_percent(agreement, teacher, student, passes):
    assert judge(agreement, teacher, student)[0] is passes


def test_a_student_that_is_too_bad_is_not_written_unless_forced(hopline, own, tmp_path):
    words = ["--epochs", "1", "--report", "report.json"]
    said = hopline(*words, fails=True)
    assert "Gate: it agrees with its teacher on" in said
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["within"], report["written"]) == (False, False)
    assert "required: at least 98%" in report["why"]
    assert not (own.repository / "close-student").exists()
    assert not (own.folder() / "student.onnx").exists()
    hopline(*words, "--force")
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["within"], report["written"]) == (False, True)
    assert (own.folder() / "student.onnx").is_file()


# The command


def test_the_command_writes_student_report_and_plot(hopline, own, tmp_path):
    before = (own.folder() / "model.json").read_bytes()
    words = ["--labels", str(own.root / "labels.npy"), "--plot", "plot.svg", "--json", "--force"]
    report = json.loads(hopline(*words))
    assert report["student"] == "close-student/1"
    assert report["settings"]["epochs"] == 60
    drawing = ElementTree.parse(tmp_path / "plot.svg").getroot()
    texts = [item.text for item in drawing.iter() if item.text]
    assert "accuracy by in-degree" in texts
    assert "plain MLP" in texts
    # what the teacher's precomputed files and kept states hang on
    assert (own.folder() / "model.json").read_bytes() == before


def test_labels_by_id_are_those_by_row(hopline, own, tmp_path):
    names = ("low", "mid", "high")
    lines = [f"n{i},{names[c]}" for i, c in enumerate(own.labels)]
    (tmp_path / "labels.csv").write_text("id,class\n" + "\n".join(lines) + "\n")
    words = ["--json", "--force"]
    by_id = json.loads(hopline(*words, "--labels", "labels.csv", "--student", "a"))
    by_row = json.loads(hopline(*words, "--labels", str(own.root / "labels.npy"), "--student", "b"))
    assert by_id["student_accuracy"] == by_row["student_accuracy"]
    assert by_id["nodes"] == by_row["nodes"]


# What is refused


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("n1,low\nm7,low\n", NodeNotFound, "the graph has no nodes 'm7'"),
        ("n1,low\nn2,huge\n", BadRequest, "line 2: class 'huge' is unknown; known are low, mid, high"),
        ("n1,huge\nn2,low\n", BadRequest, "line 1: class 'huge' is unknown; known are low, mid, high"),
        ("n1,2\nn2,3\n", BadRequest, "classes 3 are unknown; the model has 0 to 2"),
        ("n1,low,7\n", BadRequest, "line 1: 3 columns"),
        ("", BadRequest, "no node has a class"),
    ],
)
def test_labels_that_do_not_fit_are_named(own, tmp_path, text, error, match):
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(error, match=match):
        distil(own, labels=path)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (np.zeros(N - 1, np.int64), f"299 labels, but the graph has {N} nodes"),
        (np.zeros(N), "integers"),
        (np.full(N, -1), "no node has a class"),
        (np.full(N, 7), "classes 7 are unknown"),
    ],
)
def test_label_arrays_that_do_not_fit_are_named(own, tmp_path, values, match):
    path = tmp_path / "labels.npy"
    np.save(path, values)
    with pytest.raises(BadRequest, match=match):
        distil(own, labels=path)


def changed(own, **fields):
    """The teacher with some of its model.json replaced."""
    path = own.folder() / "model.json"
    content = json.loads(path.read_text()) | fields
    content.pop("digest")  # the change is meant
    path.write_text(json.dumps(content))
    return own


@pytest.mark.parametrize(
    ("task", "match"),
    [
        ("embedding", "its task is embedding; it answers states"),
        ("regression", "its task is regression; it answers numbers"),
        ("multilabel", "its task is multilabel"),
    ],
)
def test_teachers_of_other_tasks_are_refused_with_the_reason(own, task, match):
    with pytest.raises(BadRequest, match=match):
        distil(changed(own, task=task))


def test_a_link_teacher_is_refused(own):
    head = json.loads((own.folder() / "model.json").read_text())["head"] | {"kind": "link"}
    with pytest.raises(BadRequest, match="scores pairs of nodes"):
        distil(changed(own, head=head))


def test_a_student_is_no_teacher(own):
    distil(own)
    with pytest.raises(BadRequest, match="reads no neighbours"):
        distil(own, "close-student")


@pytest.mark.parametrize(
    ("columns", "match"),
    [(4, "has 4 features; the model was packaged for 6"), (0, "has 0 features")],
)
def test_a_graph_that_does_not_fit_is_refused_with_the_difference(own, tmp_path, columns, match):
    features = np.ones((50, columns), np.float32)
    Graph.from_edges(([0, 1], [1, 2]), features, num_nodes=50).save(tmp_path / "other")
    with pytest.raises(SchemaMismatch, match=match):
        distil(own, graph=tmp_path / "other")


def test_too_few_nodes_are_refused(own, tmp_path):
    Graph.from_edges(([0, 1], [1, 2]), np.ones((5, DIM), np.float32)).save(tmp_path / "tiny")
    with pytest.raises(BadRequest, match="5 nodes of type 'node'; at least 20"):
        distil(own, graph=tmp_path / "tiny")


def test_names_that_are_taken_are_refused(own):
    distil(own)
    with pytest.raises(PackagingError, match=r"close-student/1 exists; .*--overwrite"):
        distil(own)
    assert distil(own, overwrite=True).written
    with pytest.raises(BadRequest, match="that is the teacher"):
        distil(own, student="close")


def test_bad_words_are_refused_before_any_work(hopline):
    with pytest.raises(BadRequest, match=r"drawn as SVG; name a \.svg file"):
        hopline("--plot", "plot.png")
    with pytest.raises(BadRequest, match="nowhere is not a folder"):
        hopline("--report", "nowhere/report.json")
    with pytest.raises(ConfigError, match="learns from features from the graph folder"):
        hopline("--set", "features.store=redis://localhost")
    with pytest.raises(ConfigError, match="layers is 0"):
        hopline("--layers", "0")


# Structure


@pytest.fixture
def seeing(own):
    """A student with structure features, written: (folder, module, rows, structure)."""
    settings = Settings(structure=True, hidden=8)
    features = np.array(own.graph.nodes["node"].features)
    edge = own.graph.edge()
    edges = np.stack([edge.indices, np.repeat(np.arange(N), np.diff(edge.indptr))])
    structure = structure_features(edges, features, settings)
    told = StructureRows(structure, directions(features, settings.width), settings.restart)
    torch.manual_seed(4)
    module = Student(DIM, DIM, CLASSES, settings).eval()
    folder = write_student(
        own.repository, "seeing", "1", module, read_spec(own.folder()), own.graph, features, {},
        overwrite=False, structure=told,
    )  # fmt: skip
    return folder, module, features, structure


def answered(folder, graph, *nodes, inline=()):
    model = load_model(folder, read_spec(folder), graph)
    request = ScoreRequest("seeing", nodes=list(nodes), inline=tuple(inline), outputs=("logits",))
    (found,) = Answerer(model, ("logits",), 100).answer([request])
    assert not isinstance(found, HoplineError), found
    return found.outputs["logits"]


def expected_of(module, features, structure):
    with torch.no_grad():
        return module(torch.from_numpy(np.concatenate([features, structure], 1).astype(np.float32))).numpy()


def test_structure_rows_are_looked_up_by_node(own, seeing):
    folder, module, features, structure = seeing
    found = answered(folder, own.graph, *[f"n{i}" for i in range(N)])
    np.testing.assert_allclose(found, expected_of(module, features, structure), atol=1e-4)


def test_structure_rows_follow_ids_into_another_snapshot(own, seeing):
    """The same graph in another order, with a node more that nobody listens to."""
    folder, module, features, structure = seeing
    order = np.random.default_rng(0).permutation(N)
    names = [f"n{i}" for i in order] + ["new"]
    rows = np.concatenate([features[order], np.ones((1, DIM), np.float32)])
    edge = own.graph.edge()
    sources, targets = edge.indices.tolist(), np.repeat(np.arange(N), np.diff(edge.indptr)).tolist()
    ends = ([f"n{u}" for u in sources], [f"n{v}" for v in targets])
    graph = Graph.from_edges(ends, rows, ids=names)
    base = rows[-1:] @ directions(features, Settings().width)
    own_rows = np.concatenate([structure[order], base])
    found = answered(folder, graph, *names)
    np.testing.assert_allclose(found, expected_of(module, rows, own_rows), atol=1e-4)


def test_described_nodes_get_their_structure_from_their_neighbours(own, seeing):
    folder, module, features, structure = seeing
    row = np.linspace(-1, 1, DIM, dtype=np.float32)[None]
    inline = (
        InlineNode(features=row[0], neighbors={"": ["n1", "n5", "n9"]}),
        InlineNode(features=row[0], neighbors={}),
    )
    settings = Settings(structure=True)
    base = row @ directions(features, settings.width)
    near = new_rows(
        base, np.array([0, 3]), structure[[1, 5, 9]], np.diff(own.graph.edge().indptr)[[1, 5, 9]], settings
    )
    expected = expected_of(module, np.repeat(row, 2, 0), np.concatenate([near, base]))
    np.testing.assert_allclose(answered(folder, own.graph, inline=inline), expected, atol=1e-4)


def test_a_batch_run_scores_what_the_server_answers(own, seeing):
    folder = seeing[0]
    labels = soft_labels(folder, own.graph, lambda *_: None)
    logits = answered(folder, own.graph, *[f"n{i}" for i in range(N)])
    np.testing.assert_allclose(labels, torch.from_numpy(logits).softmax(1).numpy(), atol=1e-6)


def test_ids_of_another_kind_are_refused(seeing):
    folder, _, features, _ = seeing
    graph = Graph.from_edges(([0], [1]), features)
    with pytest.raises(SchemaMismatch, match=r"ids of 'node' are .*, those of its structure string"):
        load_model(folder, read_spec(folder), graph)


def test_the_command_makes_a_student_that_sees_structure(hopline, own):
    report = json.loads(hopline("--structure", "--json", "--force"))
    assert report["structure"] == DIM
    spec = read_spec(own.repository / "close-student" / "1")
    assert [entry.kind for entry in spec.levels[0]["node"].inputs] == ["features", "structure"]
    assert "structure/rows.npy" in spec.files
    model = load_model(own.folder(), read_spec(own.folder()), own.graph)
    assert model.student.spec.agreement == report["fallback_agreement"]


def without_edges(own, tmp_path):
    """Nodes that the teacher fits, and that no edge joins."""
    features = np.array(own.graph.nodes["node"].features)
    names = [f"n{i}" for i in range(N)]
    other = NodeTable(np.ones((3, 2), np.float32))
    tables = {"node": NodeTable(features, ids=names), "shop": other}
    return Graph.from_tables(
        tables,
        {("node", "to", "node"): EdgeTable(([], [])), ("shop", "sees", "node"): EdgeTable(([0], ["n1"]))},
    ).save(tmp_path / "bare")


def test_structure_is_left_out_where_there_is_nothing_to_see_unless_requested(own, tmp_path):
    graph = without_edges(own, tmp_path).path
    settings = Settings(dropout=0.0, epochs=5)
    with pytest.raises(BadRequest, match="no edges between nodes of type 'node'"):
        distil(own, graph=graph, settings=settings)
    assert distil(own, graph=graph, settings=settings, needs_structure=False).structure == 0
