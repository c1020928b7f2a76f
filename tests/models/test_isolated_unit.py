"""A packaged model in a process of its own answers as it does in the server."""

import asyncio

import msgspec
import numpy as np
import pytest

from hopline.answering.limits import ModelLimits
from hopline.answering.unit import Unit
from hopline.config.reader import load_config
from hopline.errors import HoplineError, NodeNotFound
from hopline.isolated.version import ProcessVersion, Program
from hopline.models.loader import Loader
from hopline.observe.metrics import Metrics
from hopline.types import ScoreRequest, ScoreResult
from tests.engine import zoo
from tests.fake_version import hand_in


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    from tests.packaged import package

    root = tmp_path_factory.mktemp("isolated")
    graph = zoo.homogeneous(1).save(root / "graph")
    zoo.torch.manual_seed(0)
    module = zoo.Sage().eval()
    package(
        module, graph, root / "models", name="sage", version="1",
        fanouts=[4, 3, 5], task="multiclass", check_nodes=60,
    )  # fmt: skip
    return load_config(overrides={"graph.path": root / "graph", "models.repository": root / "models"})


def submit(served, request):
    future = asyncio.get_running_loop().create_future()
    try:
        hand_in(served, request, future.set_result)
    except HoplineError as error:
        future.set_result(error)
    return future


@pytest.mark.release
async def test_answers_are_equal_bit_for_bit(config):
    loader = Loader(config, Metrics(), [], lambda name, version: None)
    load = await loader.load("sage", Unit("1"))
    inside = load.served
    metrics = Metrics()
    limits = ModelLimits.of(config)
    content = {name: value for name, value in load.content.items() if name != "graph"}
    program = Program(arguments={"unit": msgspec.to_builtins(Unit("1")), "content": content})
    config = config.replace(state_cache__memory_bytes=2**20)
    apart = ProcessVersion("sage", "1", config, limits, metrics, program=program)
    await apart.begin()
    try:
        ids = [f"n{row}" for row in range(60)]
        requests = [
            ScoreRequest("sage", nodes=ids),
            ScoreRequest("sage", nodes=ids[:1], outputs=("embedding", "label", "logits")),
            ScoreRequest("sage", nodes=["n1", "nobody"], on_missing="null"),
            *(ScoreRequest("sage", nodes=[each]) for each in ids),
        ]
        for mine, theirs in zip(
            await asyncio.gather(*(submit(inside, request) for request in requests)),
            await asyncio.gather(*(submit(apart, request) for request in requests)),
            strict=True,
        ):
            assert isinstance(theirs, ScoreResult)
            assert (mine.version, mine.graph_version) == (theirs.version, theirs.graph_version)
            for name, values in mine.outputs.items():
                np.testing.assert_array_equal(values, theirs.outputs[name])
                assert values.dtype == theirs.outputs[name].dtype
        absent = await submit(apart, ScoreRequest("sage", nodes=["n1", "nobody"]))
        assert isinstance(absent, NodeNotFound)
        assert absent.missing == ("nobody",)
        asked_wrongly = ScoreRequest("sage", nodes=["n1"], outputs=("x",))
        errors = [await submit(served, asked_wrongly) for served in (inside, apart)]
        assert str(errors[0]) == str(errors[1])
        mine, theirs = inside.info(("1",)), apart.info(("1",))
        assert (mine.inputs, mine.outputs, mine.kind) == (theirs.inputs, theirs.outputs, theirs.kind)
        assert apart.graph_version == inside.graph_version
    finally:
        await apart.release()
        await load.give_back()
        await loader.close()
