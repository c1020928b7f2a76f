"""A function answers as the server does, from a table and from a student, and loads little for it."""

import base64
import io
import json
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from wsgiref.util import setup_testing_defaults

import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper, save

from hopline.artifact import read_spec, sha256_of
from hopline.engine.precomputed_file import PrecomputedFile
from hopline.errors import (
    ArtifactCorrupted,
    ArtifactError,
    ConfigError,
    ModelNotFound,
    PrecomputedFileError,
)
from hopline.graph import Graph
from hopline_serverless import app, application, handler
from hopline_serverless.app import Models, read_settings
from hopline_serverless.known import probabilities
from tests.engine import zoo
from tests.precomputed_files import write_table

ABSENT, EXPIRED_MS = 3, 1


@pytest.fixture(scope="module")
def places(packaged, tmp_path_factory):
    """A repository of `sage`, its graph, and tables: whole, without `ABSENT`, old, of another graph."""
    root = tmp_path_factory.mktemp("serverless")
    folder = shutil.copytree(packaged / "models", root / "models") / "sage" / "1"
    shutil.copytree(packaged / "graph", root / "graph")
    graph = Graph.open(root / "graph")
    rows = np.array([i for i in range(zoo.N) if i != ABSENT])
    write_table(root / "holes.precomputed", folder, graph, rows=rows)
    write_table(root / "whole.precomputed", folder, graph)
    write_table(root / "old.precomputed", folder, graph, stamp_ms=EXPIRED_MS)
    write_table(root / "other.precomputed", folder, graph, graph_version="another")
    return root


@pytest.fixture
def student(places):
    """A linear student beside the model, for the length of a test: its weights."""
    folder = places / "models" / "sage" / "1"
    spec = read_spec(folder)
    dim, out = spec.graph_schema["node_types"]["node"]["feature_dim"], spec.head.output_dim
    weights = np.random.default_rng(0).normal(size=(dim, out)).astype(np.float32)
    value = helper.make_tensor("w", TensorProto.FLOAT, weights.shape, weights.ravel())
    made = helper.make_graph(
        [helper.make_node("MatMul", ["features", "w"], ["logits"])],
        "student",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", dim])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", out])],
        [value],
    )
    model = folder / "student.onnx"
    save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    told = {"sha256": sha256_of(model), "node_type": "node", "feature_dim": dim, "output_dim": out}
    (folder / "student.json").write_text(
        json.dumps(told | {"model": "s", "version": "1", "agreement": 1.0})
    )
    yield weights
    model.unlink()
    (folder / "student.json").unlink()


@pytest.fixture
def function(places, monkeypatch):
    """Sets the function up with a table: the function that asks it, by body."""

    def use(table="whole.precomputed", graph=True, **settings):
        env = {"HOPLINE__MODELS__REPOSITORY": str(places / "models")}
        env |= {"HOPLINE__GRAPH__PATH": str(places / "graph")} if graph else {}
        env |= {"HOPLINE__PRECOMPUTED__FILE": str(places / table)} if table else {}
        for name in ("MODELS__REPOSITORY", "MODELS__NAMES", "GRAPH__PATH", "PRECOMPUTED__FILE"):
            monkeypatch.delenv(f"HOPLINE__{name}", raising=False)
        for name, value in (env | settings).items():
            monkeypatch.setenv(name, value)
        app.models.cache_clear()
        return ask

    yield use
    app.models.cache_clear()


def ask(body, path="/v1/models/sage/score", method="POST", **event):
    """Status, headers and body of a function URL's event."""
    text = body if isinstance(body, str) else json.dumps(body)
    event = {"requestContext": {"http": {"method": method}}, "rawPath": path, "body": text, **event}
    answer = handler(event)
    return answer["statusCode"], answer["headers"], json.loads(answer["body"])


@pytest.fixture(scope="module")
def server(places):
    """`hopline serve` on the same graph and model: the function that asks it, by body."""
    words = [sys.executable, "-m", "hopline.cli", "serve", "--graph", str(places / "graph")]
    words += ["--repository", str(places / "models"), "--port", "0", "--grpc-port", "-1"]
    words += [
        "--set",
        f"models.state={places / 'state'}",
        "--precomputed",
        str(places / "whole.precomputed"),
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    killer = threading.Timer(60, process.kill)
    killer.start()
    url = process.stdout.readline().split(" at ")[1].split()[0]

    def ask_server(body, path="/v1/models/sage/score", method="POST"):
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        request = urllib.request.Request(url + path, data if method == "POST" else None, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    yield ask_server
    process.terminate()
    process.wait()
    killer.cancel()
    process.stdout.close()


BODIES = [
    {"nodes": ["n5"]},
    {"nodes": ["n7", "n0", "n7", "n21"], "outputs": ["probabilities", "label", "logits", "embedding"]},
    {"nodes": ["n2", "nobody", "n4"], "on_missing": "null"},
    {"nodes": ["n2", "nobody", "", "n-4"]},
    {"nodes": ["n0"], "outputs": ["embedding"], "degraded": "refuse", "timeout_ms": 5000},
    {"nodes": []},
    {"nodes": [1]},
    {"nodes": ["a", 1]},
    {"nodes": ["n1"], "outputs": ["nothing"]},
    {"pairs": [["n1", "n2"]]},
    {"rows": [{"a": 1}]},
    {"nodes": ["n1"], "unknown": 1},
    {"nodes": ["n1"], "timeout_ms": -1},
    {"nodes": [f"n{i}" for i in range(30)] * 200},
    {"nodes": ["n1"], "version": "9"},
    "",
    "{",
    "[1]",
]


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "table alone"])
def test_answers_and_errors_are_those_of_the_server(function, server, graph):
    ask = function(graph=graph)
    for body in BODIES:
        status, headers, said = ask(body)
        if not graph and "are strings here" in str(server(body)[1]):
            assert status == 404  # which kind ids are, a table alone cannot tell
            continue
        assert (status, said) == server(body), body
        assert headers["content-type"] == "application/json"
        assert (status == 200) == ("hopline-error" not in headers)


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/v1/models/other/score", "POST"),
        ("/v1/models/sage/versions/1/score", "POST"),
        ("/v1/models/sage/versions/7/score", "POST"),
        ("/v1/models/sage/score", "GET"),
        ("/nowhere", "POST"),
    ],
)
def test_paths_lead_where_the_servers_lead(function, server, path, method):
    status, _, said = function()({"nodes": ["n1"]}, path, method)
    assert (status, said) == server({"nodes": ["n1"]}, path, method)


def test_a_row_that_is_absent_or_too_old_takes_a_server(function):
    for ask, nodes in (
        (function("holes.precomputed"), [f"n{ABSENT}", "n5"]),
        (function("old.precomputed", HOPLINE__PRECOMPUTED__TTL_S="60"), ["n5"]),
    ):
        status, headers, said = ask({"nodes": nodes})
        assert (status, said["error"]["code"], headers["retry-after"]) == (503, "unavailable", "1")
        assert "have no valid row here" in said["error"]["message"]


def test_the_student_answers_for_rows_that_are_absent_and_for_new_nodes(function, places, student):
    features = np.asarray(Graph.open(places / "graph").nodes["node"].features, np.float32)
    whole = function("whole.precomputed")({"nodes": ["n5"], "outputs": ["logits"]})[2]
    ask = function("holes.precomputed")
    inline = [{"features": features[8].tolist()}]
    status, _, said = ask({"nodes": [f"n{ABSENT}", "n5"], "inline": inline, "outputs": ["logits"]})
    assert (status, said["degraded"]) == (200, ["student"])
    np.testing.assert_allclose(said["outputs"]["logits"][0], features[ABSENT] @ student, rtol=1e-4)
    assert said["outputs"]["logits"][1] == whole["outputs"]["logits"][0]
    np.testing.assert_allclose(said["outputs"]["logits"][2], features[8] @ student, rtol=1e-4)
    assert ask({"nodes": ["n5"]})[2]["degraded"] == []
    assert ask({"nodes": [f"n{ABSENT}"], "degraded": "refuse"})[0] == 503
    assert ask({"nodes": [f"n{ABSENT}"], "outputs": ["embedding"]})[0] == 503
    assert ask({"inline": [{"features": [1.0]}]})[2]["error"]["code"] == "bad_request"
    alone = function(None, graph=False)
    assert alone({"inline": inline, "outputs": ["logits"]})[2]["outputs"]["logits"][0] == pytest.approx(
        said["outputs"]["logits"][2]
    )
    assert alone({"nodes": ["n5"]})[0] == 503


@pytest.mark.parametrize("section", ["logits", "ids"])
def test_a_damaged_table_is_refused(function, places, section):
    file = PrecomputedFile.open(places / "whole.precomputed")
    content = bytearray(file.path.read_bytes())
    content[file.sections[section].offset + 1] ^= 0x41
    (places / "damaged.precomputed").write_bytes(content)
    _, _, said = function("damaged.precomputed")({"nodes": ["n5"]})
    assert said["error"]["code"] == PrecomputedFileError.code
    assert f"is damaged: {section} differ" in said["error"]["message"]


def test_a_damaged_or_foreign_student_is_refused(function, places, student):
    folder = places / "models" / "sage" / "1"
    (folder / "student.onnx").write_bytes(b"x")
    status, _, said = function("holes.precomputed")({"nodes": [f"n{ABSENT}"]})
    assert (status, said["error"]["code"]) == (422, ArtifactCorrupted.code)
    told = msgspec.json.decode((folder / "student.json").read_bytes()) | {"output_dim": 77}
    (folder / "student.json").write_bytes(msgspec.json.encode(told))
    status, _, said = function()({"nodes": ["n5"]})
    assert (status, said["error"]["code"]) == (422, ArtifactError.code)
    assert "width of logits 77" in said["error"]["message"]


def test_calls_at_once_do_not_mix_their_rows(function, student):
    """A WSGI platform may call on several threads."""
    ask = function(None, graph=False)
    rows = np.random.default_rng(2).normal(size=(8, student.shape[0])).astype(np.float32)

    def scores(row):
        body = {"inline": [{"features": row.tolist()}] * 64, "outputs": ["logits"]}
        return [ask(body)[2]["outputs"]["logits"] for _ in range(20)]

    with ThreadPoolExecutor(len(rows)) as pool:
        for row, answers in zip(rows, pool.map(scores, rows), strict=True):
            np.testing.assert_allclose(answers, np.tile(row @ student, (20, 64, 1)), rtol=1e-4, atol=1e-5)


def test_a_file_is_checked_as_a_server_checks_it(function, places):
    folder = places / "models" / "sage" / "1"
    # Rows over all neighbours; the model samples.
    write_table(places / "misfit.precomputed", folder, Graph.open(places / "graph"), exact=True)
    status, _, said = function("misfit.precomputed")({"nodes": ["n5"]})
    assert (status, said["error"]["code"]) == (422, PrecomputedFileError.code)
    assert "samples them" in said["error"]["message"]


def test_a_table_of_another_graph_is_refused_or_labelled(function):
    status, _, said = function("other.precomputed")({"nodes": ["n5"]})
    assert (status, said["error"]["code"]) == (422, PrecomputedFileError.code)
    status, _, said = function("other.precomputed", HOPLINE__PRECOMPUTED__STALE="serve")({"nodes": ["n5"]})
    assert (status, said["degraded"]) == (200, ["stale_row"])
    assert (
        function("other.precomputed", HOPLINE__PRECOMPUTED__STALE="serve")(
            {"nodes": ["n5"], "degraded": "refuse"}
        )[0]
        == 503
    )


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"HOPLINE__MODELS__REPOSITORY": "/nowhere"}, "models.repository"),
        ({"HOPLINE__PRECOMPUTED__STALE": "maybe"}, "precomputed.stale"),
        ({"HOPLINE__PRECOMPUTED__TTL_S": "soon"}, "precomputed.ttl_s"),
        ({"HOPLINE__LIMITS__MAX_NODES_PER_REQUEST": "0"}, "limits.max_nodes_per_request"),
        ({"HOPLINE__MODELS__NAMES": "nobody"}, "nobody"),
        ({"HOPLINE__GRAPH__PATH": "s3://bucket/graph"}, "graph.path"),
        ({"HOPLINE__PRECOMPUTED__FILES": "a.precomputed"}, "precomputed.file"),
        ({"HOPLINE_MODELS_NAMES": "sage"}, "HOPLINE__MODELS__NAMES"),
    ],
)
def test_wrong_settings_are_named(places, settings, error):
    env = {"HOPLINE__MODELS__REPOSITORY": str(places / "models")}
    with pytest.raises(ConfigError, match=error):
        Models.of_environment(env | settings)


def test_a_replaced_table_is_taken_up(places, tmp_path):
    table, now = tmp_path / "a.precomputed", [0.0]
    table.write_bytes((places / "holes.precomputed").read_bytes())
    env = {"HOPLINE__MODELS__REPOSITORY": str(places / "models"), "HOPLINE__PRECOMPUTED__FILE": str(table)}
    models = Models(read_settings(env), clock=lambda: now[0])
    before = models.of("sage", None)
    (tmp_path / "b").write_bytes((places / "whole.precomputed").read_bytes())
    (tmp_path / "b").rename(table)
    assert models.of("sage", None) is before
    now[0] = 3.0
    assert models.of("sage", None).rows.file.computed_at[ABSENT] > 0
    with pytest.raises(ModelNotFound, match="sage"):
        models.of("other", None)


def test_events_of_every_kind_lead_to_the_same_answer(function):
    expected = function()({"nodes": ["n5"]})[2]
    text = json.dumps({"nodes": ["n5"]})
    coded = base64.b64encode(text.encode()).decode()
    assert ask(coded, isBase64Encoded=True)[2] == expected
    stage = {"http": {"method": "POST"}, "stage": "prod"}
    assert ask(text, "/prod/v1/models/sage/score", requestContext=stage)[2] == expected
    rest = {"httpMethod": "POST", "path": "/v1/models/sage/score", "body": text, "headers": None}
    assert json.loads(handler(rest)["body"]) == expected
    assert handler({"nodes": ["n5"]}) == handler({"model": "sage", "nodes": ["n5"]}) == expected
    refused = handler({"nodes": ["nobody"]})
    assert (refused["status"], refused["error"]["code"]) == (404, "node_not_found")
    assert ask("%%", isBase64Encoded=True)[0] == 400
    assert ask("", path="/healthz", method="GET")[0] == 200


def test_wsgi_gives_the_same_answer(function):
    expected = function()({"nodes": ["n5"]})[2]
    text, environ, said = json.dumps({"nodes": ["n5"]}).encode(), {}, []
    setup_testing_defaults(environ)
    environ |= {"REQUEST_METHOD": "POST", "PATH_INFO": "/v1/models/sage/score"}
    environ |= {"CONTENT_LENGTH": str(len(text)), "wsgi.input": io.BytesIO(text)}
    body = b"".join(application(environ, lambda status, headers: said.append((status, dict(headers)))))
    assert (said[0][0], json.loads(body)) == ("200 OK", expected)
    assert said[0][1]["content-length"] == str(len(body))


@pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel"])
def test_probabilities_have_the_bits_of_the_kernels(task):
    from hopline.engine import outputs

    logits = np.random.default_rng(1).normal(size=(500, 1 if task == "binary" else 7), scale=6)
    logits = np.concatenate([logits, [[-200.0] * logits.shape[1], [200.0] * logits.shape[1]]])
    logits = logits.astype(np.float32)
    ours, theirs = probabilities(task, logits), outputs.probabilities(task, logits)
    assert ours.dtype == np.float32
    np.testing.assert_array_max_ulp(ours, theirs, maxulp=1)
    assert (ours == theirs).mean() > 0.99


HEAVY = {"numba", "llvmlite", "uvloop", "typer", "rich", "grpc", "torch", "onnxruntime", "asyncio", "scipy"}


def modules_loaded_for(places, table, node):
    """Top modules of a new process that answered for one node."""
    code = (
        "import sys; from hopline_serverless import handler\n"
        f"assert handler({{'nodes': ['{node}']}})['outputs'], 'no answer'\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    env = {"HOPLINE__MODELS__REPOSITORY": str(places / "models")}
    env |= {
        "HOPLINE__PRECOMPUTED__FILE": str(places / table),
        "HOPLINE__GRAPH__PATH": str(places / "graph"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_a_function_that_looks_up_loads_no_heavy_library(places):
    assert not HEAVY & modules_loaded_for(places, "whole.precomputed", "n5")


def test_a_function_that_runs_its_student_loads_no_compiled_kernels(places, student):
    assert not {"numba", "llvmlite"} & modules_loaded_for(places, "holes.precomputed", f"n{ABSENT}")
