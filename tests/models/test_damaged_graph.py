"""A flipped bit in a served graph's files: the server refuses it, or withdraws what answers from it."""

import random
import shutil

import pytest

from hopline.errors import HoplineError, ModelNotReady
from hopline.graph import file_watch
from hopline.models.version_folder import content_of, verify
from hopline.types import ScoreRequest
from tests import loaded_units_rig as rig
from tests.graph.test_file_watch import flip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(file_watch, "_LOOK_S", 0.02)


async def answer(service):
    return (await service.score(ScoreRequest("sage", nodes=["n1"]))).outputs["probabilities"].tolist()


async def test_a_server_refuses_a_flipped_bit_in_any_file_of_graph_and_package(root, monkeypatch):
    service = await rig.started(root)
    right = await answer(service)
    await rig.stop(service)
    folders = root / "graph", root / "models" / "sage" / "1"
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    assert len(files) > 10
    refused = 0
    for path in files:
        content = path.read_bytes()
        for _ in range(3):
            flip(path)
            try:
                service = await rig.started(root)
            except HoplineError:
                refused += 1
            else:  # words of a JSON file that decide nothing, such as who wrote it
                assert path.suffix == ".json", path
                assert await answer(service) == right
                await rig.stop(service)
            path.write_bytes(content)
    assert refused > 2.5 * len(files)


def test_a_flipped_bit_of_model_json_changes_nothing_or_is_refused(root):
    folder = root / "models" / "sage" / "1"
    path, right = folder / "model.json", content_of(folder)
    content, fields = path.read_bytes(), {name: right[name] for name in right if name != "digest"}
    for bit in random.Random(1).sample(range(len(content) * 8), 400):
        flip(path, bit)
        try:
            verify(folder)
        except HoplineError:
            pass
        else:
            found = content_of(folder)  # the digest may have got another name
            assert {name: found.get(name) for name in right if name != "digest"} == fields
        path.write_bytes(content)


async def test_a_bit_that_flips_while_it_is_served_withdraws_the_model_until_it_is_right(root):
    service = await rig.started(root)
    right = await answer(service)
    path = next((root / "graph").rglob("features.npy"))
    bit = 8 * (path.stat().st_size - 2)
    flip(path, bit)
    await rig.until(lambda: not service.ready())
    with pytest.raises(ModelNotReady, match=r"features\.npy is damaged: its hash is"):
        await answer(service)
    assert "features.npy" in service.unavailable()["sage"]
    assert 'hopline_model_unavailable{model="sage",version="1"} 1' in service.metrics.render().decode()
    with pytest.raises(HoplineError, match=r"features\.npy"):
        await service.load("sage", "1")
    flip(path, bit)
    await service.load("sage", "1")
    assert service.ready()
    assert await answer(service) == right
    await rig.stop(service)


async def test_a_large_damaged_graph_is_withdrawn_in_all_workers(root, workers, monkeypatch):
    """`workers` began with a right graph; the damage comes later, and one of them reads it."""
    path = next((root / "graph").rglob("features.npy"))
    flip(path, 8 * (path.stat().st_size - 2))
    await rig.until(lambda: not any(worker.ready() for worker in workers))
    for worker in workers:
        assert "features.npy" in worker.unavailable()["sage"]


async def test_other_graphs_answer_on(root):
    shutil.copytree(root / "graph", root / "other")
    service = await rig.started(root)
    unit = await service.load("sage", "1", graph=str(root / "other"), serve=False)
    path = next((root / "other").rglob("features.npy"))
    flip(path, 8 * (path.stat().st_size - 2))
    await rig.until(lambda: any(row["version"] == unit and row["reason"] for row in service.index()))
    await answer(service)
    assert service.ready()
    with pytest.raises(ModelNotReady, match=r"features\.npy"):
        await service.score(ScoreRequest("sage", nodes=["n1"], version=unit))
    await rig.stop(service)


async def test_the_process_of_a_model_ends_and_the_server_says_why(root):
    (root / "models" / "sage" / "serving.toml").write_text("isolate = true\n")
    service = await rig.started(root)
    await answer(service)
    path = next((root / "graph").rglob("features.npy"))
    flip(path, 8 * (path.stat().st_size - 2))

    async def why():
        try:
            await answer(service)
        except HoplineError as error:
            return str(error)
        return ""

    for _ in range(200):
        if "features.npy" in (found := await why()):
            break
        await rig.asyncio.sleep(0.1)
    assert "features.npy" in found
    await rig.stop(service)
