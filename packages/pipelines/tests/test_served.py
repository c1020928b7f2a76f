"""A pipeline over packaged models in a repository: served, checked offline, asked over the wire's forms."""

import asyncio
import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import GradientBoostingClassifier
from typer.testing import CliRunner

from hopline.cli import build_app
from hopline.client import wire
from hopline.errors import HoplineError, ModelNotFound, PipelineInvalid
from hopline.models.kinds import nesting
from hopline.models.repositories import open_repository
from hopline.transports.oip import answer_parameters, tensors_from_result
from hopline.transports.score_json import encode_result
from hopline.types import ScoreRequest
from hopline_pipelines.check import no_models
from hopline_pipelines.offline import Offline
from tests import loaded_units_rig
from tests.engine import zoo
from tests.packaging.conftest import _one_thread_and_one_seed  # noqa: F401

FRAUD = """
[inputs]
nodes = true
[inputs.columns]
amount = "FP64"
[[step]]
id = "gnn"
kind = "model"
model = "sage"
nodes = "input.nodes"
[[step]]
id = "trees"
kind = "model"
model = "trees"
columns = { "*" = "input.columns", "emb_*" = "gnn.embedding" }
[[step]]
id = "decision"
kind = "rules"
default = "allow"
rules = [{ when = "trees.probabilities > 0.5", then = "block" }]
[outputs]
score = "trees.probabilities"
decision = "decision.decision"
"""


@pytest.fixture(scope="module")
def fraud(tmp_path_factory):
    """A repository with a graph model, trees on its embeddings, and the pipeline; and the fitted trees."""
    from hopline import package_tabular
    from tests.packaged import package

    root = tmp_path_factory.mktemp("fraud")
    graph = zoo.homogeneous(1).save(root / "graph")
    zoo.torch.manual_seed(1)
    options = {"name": "sage", "fanouts": [4, 3, 5], "task": "multiclass", "check_nodes": 20}
    package(zoo.Sage().eval(), graph, root / "models", version="1", **options)
    width = Offline(open_repository(root / "models")).describe("sage", None).outputs[0].shape[1]
    names = ["amount", *(f"emb_{i}" for i in range(width))]
    rng = np.random.default_rng(0)
    sample = pd.DataFrame(rng.normal(size=(300, len(names))), columns=names)
    trees = GradientBoostingClassifier(n_estimators=5, random_state=0).fit(
        sample, sample.amount + sample.emb_0 > 0
    )
    package_tabular(trees, sample, root / "models", name="trees")
    folder = root / "models" / "fraud" / "1"
    folder.mkdir(parents=True)
    (folder / "pipeline.toml").write_text(FRAUD)
    return root, trees, names


def edited(fraud, tmp_path, old, new):
    shutil.copytree(fraud[0], tmp_path / "copy")
    file = tmp_path / "copy" / "models" / "fraud" / "1" / "pipeline.toml"
    file.write_text(FRAUD.replace(old, new))
    return tmp_path / "copy", file


async def test_a_service_answers_what_its_models_do_one_after_the_other(fraud):
    root, trees, names = fraud
    service = await loaded_units_rig.started(root)
    try:
        nodes, amounts = ["n3", "n17", "n40"], [0.5, -0.7, 0.1]
        answer = await service.score(ScoreRequest("fraud", nodes=nodes, columns={"amount": amounts}))
        embedding = await service.score(ScoreRequest("sage", nodes=nodes, outputs=("embedding",)))
        rows = np.column_stack([amounts, embedding.outputs["embedding"].astype(np.float64)])
        expected = trees.predict_proba(pd.DataFrame(rows, columns=names))[:, 1]
        np.testing.assert_allclose(answer.outputs["score"], expected, atol=1e-5)
        assert answer.outputs["decision"].tolist() == ["block" if p > 0.5 else "allow" for p in expected]
        assert answer.parts == {"gnn": "sage/1", "trees": "trees/1"}
        assert answer.graph_version == embedding.graph_version
        request = ScoreRequest(
            "fraud", nodes=["n3", "nobody"], columns={"amount": [0.0, 0.0]}, on_missing="null"
        )
        partly = await service.score(request)
        assert partly.missing.tolist() == [False, True]

        # what is told without loading is what the loaded versions tell
        offline = Offline(open_repository(root / "models"))
        for name in ("sage", "trees", "fraud"):
            told, served = offline.describe(name, None), service.describe(name)
            assert (told.kind, told.id_kind) == (served.kind, served.id_kind)
            assert told.outputs == served.outputs
            assert told.default_outputs == served.default_outputs
            for tensor in told.inputs:
                found = next(each for each in served.inputs if each.name == tensor.name)
                assert (found.datatype, found.shape) == (tensor.datatype, tensor.shape)

        # over the wire
        body = json.loads(encode_result(partly, request))
        assert body["parts"] == {"gnn": "sage/1", "trees": "trees/1"}
        assert body["missing"] == ["nobody"]
        assert body["outputs"]["decision"][1] is None
        read = wire.read_result(encode_result(answer, request))
        assert read.parts == answer.parts
        assert read.outputs["decision"].tolist() == answer.outputs["decision"].tolist()
        assert answer_parameters(answer)["parts"] == "gnn=sage/1,trees=trees/1"
        tensors = {tensor.name: tensor for tensor in tensors_from_result(partly)}
        assert tensors["decision"].datatype == "BYTES"
        assert tensors["decision"].values[1] == b""
    finally:
        await loaded_units_rig.stop(service)


async def test_a_pipeline_that_does_not_fit_is_unavailable_and_says_why(fraud, tmp_path):
    root, _ = edited(fraud, tmp_path, '"emb_*"', '"embedding_*"')
    why = r"step 'trees': columns.embedding_0: model 'trees' has no"
    service = await loaded_units_rig.started(root)
    assert re.search(why, service.unavailable()["fraud"])
    assert {"sage", "trees"} <= set(service.model_names())
    with pytest.raises(PipelineInvalid, match=why):
        await service.load("fraud")
    await loaded_units_rig.stop(service)


async def test_a_pipeline_with_a_step_that_cannot_be_loaded_names_the_step(fraud, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(fraud[0], root)
    (root / "models" / "trees" / "1" / "model.json").write_text("{")
    service = await loaded_units_rig.started(root)
    assert service.model_names() == ("sage",)
    assert set(service.unavailable()) == {"fraud", "trees"}
    assert "trees" in service.unavailable()["fraud"]
    await loaded_units_rig.stop(service)


def run(*arguments):
    return CliRunner().invoke(build_app(["pipeline"]), ["pipeline", *map(str, arguments)])


def test_the_command_checks_against_a_repository(fraud, tmp_path):
    root = fraud[0]
    done = run("check", root / "models" / "fraud" / "1", "--repository", root / "models")
    assert done.exit_code == 0, done.output
    assert "takes node_ids BYTES, amount FP64" in done.output
    assert "answers score FP32, decision BYTES" in done.output
    copy, file = edited(fraud, tmp_path, "gnn.embedding", "gnn.logits")
    done = run("check", file, "--repository", copy / "models")
    assert done.exit_code == 1
    assert "error: step 'trees': columns:" in done.output or "no such column" in done.output


def test_the_command_draws(fraud):
    file = fraud[0] / "models" / "fraud" / "1" / "pipeline.toml"
    assert run("show", file).output.splitlines() == [
        "fraud/1",
        "├── score = trees.probabilities",
        "│   └── trees: model trees",
        "│       └── gnn: model sage",
        "└── decision = decision.decision",
        "    └── decision: rules: block, allow",
        "        └── trees …",
    ]


def test_pipelines_of_a_repository_that_nest_themselves_are_reported(tmp_path):
    text = (
        FRAUD.split("[[step]]")[0].replace('[inputs.columns]\namount = "FP64"\n', "")
        + """
[[step]]
id = "other"
kind = "model"
model = "MODEL"
nodes = "input.nodes"
[outputs]
score = "other.score"
"""
    )
    for name, model in (("a", "b"), ("b", "a")):
        folder = tmp_path / name / "1"
        folder.mkdir(parents=True)
        (folder / "pipeline.toml").write_text(text.replace("MODEL", model))
    offline = Offline(open_repository(tmp_path))
    with pytest.raises(PipelineInvalid, match="pipelines nest themselves: a → b → a"):
        offline.describe("a", None)
    with pytest.raises(ModelNotFound, match="no model 'c'"):
        offline.describe("c", None)
    with pytest.raises(ModelNotFound):
        no_models("a", None)


def test_what_others_are_made_of_is_loaded_first(tmp_path):
    step = (
        '[inputs]\nnodes = true\n[[step]]\nid = "x"\nkind = "model"\nmodel = "{}"\n[outputs]\ny = "x.y"\n'
    )
    for name, model in (("outer", "inner"), ("inner", "plain"), ("round", "round"), ("broken", None)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "pipeline.toml").write_text("[" if model is None else step.format(model))
    (tmp_path / "plain").mkdir()

    def folder_of(name):
        return tmp_path / name if (tmp_path / name).is_dir() else None

    depths = {
        name: nesting(name, folder_of) for name in ("outer", "inner", "plain", "none", "round", "broken")
    }
    assert depths == {"outer": 2, "inner": 1, "plain": 0, "none": 0, "round": 1, "broken": 1}


async def test_a_step_follows_its_model_to_another_version_and_loses_nothing(fraud, tmp_path):
    shutil.copytree(fraud[0], tmp_path / "copy")
    service = await loaded_units_rig.started(tmp_path / "copy")
    answers, errors, running = [], [], True

    def current():
        return f"sage/{service.describe('sage').version}"

    async def ask():
        while running:
            request, before = ScoreRequest("fraud", nodes=["n3"], columns={"amount": [0.5]}), current()
            try:
                answer = await service.score(request)
                answers.append((before, answer.parts["gnn"], current()))
            except HoplineError as error:
                errors.append(error)
            await asyncio.sleep(0)

    traffic = [asyncio.ensure_future(ask()) for _ in range(8)]
    try:
        loaded_units_rig.copy_version(tmp_path / "copy" / "models", "1", "2")
        await service.load("sage")
        await service.unload("sage", "1")
        await asyncio.sleep(0.05)
        running = False
        await asyncio.gather(*traffic)
        assert errors == []
        # no version but one that was current while the request lived
        assert [each for each in answers if not each[0] <= each[1] <= each[2]] == []
        assert {part for _, part, _ in answers} == {"sage/1", "sage/2"}
        assert current() == "sage/2"
    finally:
        await loaded_units_rig.stop(service)
