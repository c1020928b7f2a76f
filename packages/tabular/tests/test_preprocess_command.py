"""`hopline package --preprocess`: fitted transformers of files, as --sklearn loads estimators."""

import joblib
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from hopline import cli
from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import PackagingError
from hopline.types import ScoreRequest
from packages.tabular.tests import fraud_graph as fraud

FILE = """
from packages.tabular.tests import fraud_graph as fraud

def account(graph):
    return fraud.transformers(graph)["account"]

def net(graph):
    return fraud.Net([each.shape[1] for each in fraud.features(fraud.transformers(graph), graph).values()])

def nothing():
    return 3
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        folder = tmp_path_factory.mktemp("world")
        graph = fraud.graph_of(fraud.accounts(), fraud.merchants()).save(folder / "graph")
        joblib.dump(fraud.transformers(graph)["merchant"], folder / "merchant.joblib")
        joblib.dump(3, folder / "three.joblib")
        (folder / "risk.py").write_text(FILE)
        yield folder, graph


def run(folder, *preprocess):
    words = ["package", "--model", f"{folder}/risk.py:net", "--graph", f"{folder}/graph"]
    words += ["--repository", f"{folder}/models", "--name", "risk", "--fanouts", "-1,-1", "--overwrite"]
    words += ["--task", "multiclass", "--target", "account", "--check-nodes", "40"]
    for each in preprocess:
        words += ["--preprocess", each.format(folder)]
    return CliRunner().invoke(cli.build_app(words), words)


def test_transformers_of_a_function_and_a_joblib_file_are_packaged(world):
    folder, graph = world
    done = run(folder, "account={}/risk.py:account", "merchant={}/merchant.joblib")
    assert done.exit_code == 0, done.output
    assert "6 columns become" in done.stdout.replace("\n", " ")
    report = folder / "models" / "risk" / "1"
    (found,) = Answerer(load_model(report, read_spec(report), graph), ("logits",), 9).answer(
        [ScoreRequest("risk", nodes=list(range(fraud.ACCOUNTS)))]
    )
    x = fraud.features(fraud.transformers(graph), graph)
    with torch.no_grad():
        expected = fraud.Net([each.shape[1] for each in x.values()])(x, fraud.edge_indices()).numpy()
    np.testing.assert_allclose(found.outputs["logits"], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("preprocess", "message"),
    [
        (["{}/merchant.joblib"], "--preprocess .*merchant.joblib: write NAME=VALUE, such as account=prep"),
        (
            ["shop={}/merchant.joblib"],
            "preprocessing of 'shop': the graph has no such node type or edge type; it has acc",
        ),
        (["merchant={}/none.joblib"], "none.joblib: no such file"),
        (["merchant={}/three.joblib"], "three.joblib is int, not a fitted transformer"),
        (
            ["merchant={}/risk.py:nothing"],
            "--preprocess merchant: .*nothing is int, not a fitted transformer",
        ),
        (["merchant={}/risk.py:other"], "--preprocess merchant: .* has no 'other'"),
        (
            ["merchant=merchant"],
            "--preprocess merchant 'merchant' is not FILE.py:NAME or MODULE:NAME; or a",
        ),
        (
            ["account={}/merchant.joblib"],
            "preprocessing of 'account': it reads category, risk, which the graph",
        ),
        (
            ["account={}/risk.py:account"],
            "node type 'merchant' has columns .risk, category, unread. and no",
        ),
    ],
)
def test_what_cannot_be_used_is_named(world, preprocess, message):
    done = run(world[0], *preprocess)
    assert isinstance(done.exception, PackagingError)
    with pytest.raises(PackagingError, match=message):
        raise done.exception


def test_the_option_is_for_graph_models():
    words = ["package", "--sklearn", "x.joblib", "--preprocess", "a=b.joblib", "--name", "n"]
    done = CliRunner().invoke(cli.build_app(words), [*words, "--repository", "r"])
    assert "--preprocess is for graph models" in str(done.exception)
