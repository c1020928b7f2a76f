"""A model that cannot be loaded is unavailable and says why; the server and its other models go on."""

import logging
import re
import shutil

import httpx
import msgspec
import pytest

from hopline.answering.queued import QueuedVersion
from hopline.artifact import ModelSpec
from hopline.errors import (
    ArtifactCorrupted,
    ConfigError,
    ModelNotFound,
    ModelNotReady,
    RepositoryUnavailable,
    RuntimeFailure,
)
from hopline.models.graph_kind import GraphKind
from hopline.models.model_inputs import SharedInputs
from hopline.service import Service
from hopline.types import ScoreRequest
from tests import loaded_units_rig as rig
from tests.servers import running
from tests.shared_memory import create_shared


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return rig.repository(tmp_path_factory.mktemp("unavailable"))


@pytest.fixture
def root(source, tmp_path):
    """Models `sage` and `other`, one version each."""
    shutil.copytree(source, tmp_path / "root")
    models = tmp_path / "root" / "models"
    for version in ("2", "3"):
        shutil.move(models / "sage" / version, tmp_path / version)
    shutil.copytree(models / "sage", models / "other")
    change(models / "other" / "1", name="other")
    return tmp_path / "root"


def change(folder, **fields):
    spec = msgspec.json.decode((folder / "model.json").read_bytes(), type=ModelSpec)
    (folder / "model.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(spec, **fields)))


def corrupt(folder):
    file = next((folder / "layers").glob("*.onnx"))
    file.write_bytes(file.read_bytes()[:-1])


def ask(model, **kwargs):
    return ScoreRequest(model, nodes=["n1"], **kwargs)


def no_model_json(folder):
    (folder / "model.json").write_text("{")


def of_another_graph(folder):
    schema = msgspec.json.decode((folder / "model.json").read_bytes(), type=ModelSpec).graph_schema
    types = {**schema["node_types"], "user": {"feature_dim": 3}}
    change(folder, graph_schema={**schema, "node_types": types})


def of_another_name(folder):
    change(folder, name="somebody")


def bad_limits(folder):
    (folder.parent / "serving.toml").write_text("no_such_limit = 3\n")


BREAK = {
    "corrupted": (corrupt, "artifact_corrupted.*sha256"),
    "unreadable": (no_model_json, "artifact_error.*model.json"),
    "another graph": (of_another_graph, "schema_mismatch.*node type 'user' is missing.*'node'"),
    "another name": (of_another_name, "artifact_error.*'somebody'"),
    "bad serving.toml": (bad_limits, "config_error.*no_such_limit"),
}


@pytest.mark.parametrize("fault", BREAK)
async def test_a_model_that_cannot_be_loaded_says_why_and_the_others_serve(root, fault, caplog):
    spoil, why = BREAK[fault]
    spoil(root / "models" / "other" / "1")
    with caplog.at_level(logging.ERROR):
        service = await rig.started(root)
    assert (await service.score(ask("sage"))).version == "1"
    for version in (None, "1"):
        with pytest.raises(ModelNotReady, match=f"(?s)other/1 is not ready: {why}"):
            await service.score(ask("other", version=version))
    assert service.ready()
    (row,) = [row for row in service.index() if row["name"] == "other"]
    assert row["state"] == "UNAVAILABLE"
    assert row["reason"] == service.unavailable()["other"]
    assert service.model_names() == ("sage",)
    assert "cannot load other/1" in caplog.text
    assert 'hopline_model_unavailable{model="other",version="1"} 1' in service.metrics.render().decode()
    await rig.stop(service)


@pytest.mark.parametrize("error", [ValueError("bad weights"), KeyError("node"), MemoryError()])
async def test_a_warm_up_that_fails_in_an_unexpected_way_harms_only_its_model(root, error, monkeypatch):
    warm_up = QueuedVersion.warm_up

    def failing(served):
        if served.name == "other":
            raise error
        warm_up(served)

    monkeypatch.setattr(QueuedVersion, "warm_up", failing)
    service = await rig.started(root)
    assert (await service.score(ask("sage"))).version == "1"
    with pytest.raises(ModelNotReady, match=f"other/1 failed while it was loaded: {type(error).__name__}"):
        await service.score(ask("other"))
    await rig.stop(service)


async def test_a_package_that_is_not_installed_is_named(root, monkeypatch):
    async def failing(kind, load, folder, limits, tools):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(GraphKind, "load", failing)
    (root / "models" / "sage").rename(root / "sage")
    with pytest.raises(RuntimeFailure, match="package that is not installed here: No module named 'torch'"):
        await rig.started(root)


async def test_an_earlier_version_never_takes_the_place_of_the_newest(root):
    shutil.copytree(root.parent / "2", root / "models" / "sage" / "2")
    corrupt(root / "models" / "sage" / "2")
    service = await rig.started(root)
    with pytest.raises(ModelNotReady, match="sage/2 is not ready: artifact_corrupted"):
        await service.score(ask("sage"))
    assert (await service.score(ask("sage", version="1"))).version == "1"
    await rig.stop(service)


async def test_a_model_comes_back_when_it_is_loaded_again(root):
    folder = root / "models" / "other" / "1"
    shutil.copytree(folder, root / "whole")
    corrupt(folder)
    service = await rig.started(root)
    with pytest.raises(ArtifactCorrupted):
        await service.load("other")
    assert "other" in service.unavailable()
    shutil.rmtree(folder)
    (root / "whole").rename(folder)
    assert await service.load("other") == "1"
    assert (await service.score(ask("other"))).version == "1"
    assert service.unavailable() == {}
    assert 'hopline_model_unavailable{model="other",version="1"} 0' in service.metrics.render().decode()
    await rig.stop(service)


@pytest.mark.parametrize("required", ["any", "none"])
async def test_a_server_whose_models_are_all_unloaded_is_not_ready_until_one_is_loaded(root, required):
    service = await rig.started(root, **{"models.required": required})
    await service.unload("other")
    assert service.ready()
    await service.unload("sage")
    assert not service.ready()
    await rig.stop(service)
    service = await rig.started(root, **{"models.required": required})
    assert not service.ready()
    await service.load("sage")
    assert service.ready()
    await rig.stop(service)


async def test_all_workers_load_a_model_again(root, tmp_path):
    folder = root / "models" / "other" / "1"
    shutil.copytree(folder, root / "whole")
    corrupt(folder)
    (tmp_path / "shared").mkdir()
    shared = rig.config(root, **{"server.workers": 2}).replace(
        worker__metrics_dir=str(tmp_path / "shared"),
        worker__state_cache_fd=create_shared(),
        worker__count=2,
    )
    both = [Service(shared.replace(worker__index=i)) for i in range(2)]
    for worker in both:
        await worker.start()
        with pytest.raises(ModelNotReady, match="other/1"):
            await worker.score(ask("other"))
    shutil.rmtree(folder)
    (root / "whole").rename(folder)
    await both[0].load("other")
    for worker in both:
        assert (await worker.score(ask("other"))).version == "1"
        assert worker.unavailable() == {}
    for worker in both:
        await rig.stop(worker)


async def test_a_server_without_a_model_that_serves_ends_with_every_reason(root):
    for name in ("sage", "other"):
        corrupt(root / "models" / name / "1")
    with pytest.raises(ModelNotReady, match=r"no model can serve: other/1: .*sha256.*; sage/1: .*sha256"):
        await rig.started(root)
    with pytest.raises(ArtifactCorrupted):  # one model: its own error
        await rig.started(root, **{"models.names": ("sage",)})


async def test_a_missing_version_that_serves_is_reported_with_who_wants_it_and_the_way_out(root):
    shutil.copytree(root.parent / "2", root / "models" / "sage" / "2")
    service = await rig.started(root)
    await service.load("sage", "1")
    await rig.stop(service)
    shutil.move(root / "models" / "sage" / "1", root / "kept")
    says = (
        rf"model 'sage' has no version '1' in {root}/models; there are: 2\. models\.state \({root}/models/"
        r"\.hopline\) says that it serves, as it was loaded or rolled out: copy it back, or move the state "
        "away while no server runs"
    )
    service = await rig.started(root)
    assert re.search(says, service.unavailable()["sage"])
    await rig.stop(service)
    shutil.rmtree(root / "models" / "other")
    with pytest.raises(ModelNotFound, match=says):
        await rig.started(root)
    shutil.move(root / "kept", root / "models" / "sage" / "1")
    service = await rig.started(root)
    assert (await service.score(ask("sage"))).version == "1"
    await rig.stop(service)


async def test_every_model_can_be_required(root):
    corrupt(root / "models" / "other" / "1")
    with pytest.raises(
        ModelNotReady, match=r"models\.required = all: not every model can serve: other/1: .*sha256"
    ):
        await rig.started(root, **{"models.required": "all"})


async def test_folders_without_a_version_are_left_out_and_named(root, caplog):
    (root / "models" / "empty").mkdir()
    (root / "models" / "notes" / "drafts").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        service = await rig.started(root)
    assert service.model_names() == ("other", "sage")
    for name in ("empty", "notes"):
        assert f"models/{name} is left out: no version with a model.json" in caplog.text
    await rig.stop(service)
    for name in ("sage", "other"):
        shutil.rmtree(root / "models" / name)
    with pytest.raises(ConfigError, match=r"holds no models \(no version in: empty, notes\)"):
        await rig.started(root)


async def test_a_folder_that_may_not_be_read_is_left_out(root, caplog, monkeypatch):
    (root / "models" / "lost+found").mkdir()
    iterdir = type(root).iterdir

    def refusing(path):
        if path.name == "lost+found":
            raise PermissionError(13, "Permission denied")
        return iterdir(path)

    monkeypatch.setattr(type(root), "iterdir", refusing)
    service = await rig.started(root)
    assert service.model_names() == ("other", "sage")
    assert "lost+found cannot be read: Permission denied" in caplog.text
    await rig.stop(service)


async def test_what_all_models_stand_on_ends_the_start(root, monkeypatch):
    with pytest.raises(ConfigError, match=r"graph\.path"):
        await rig.started(root, **{"graph.path": root / "absent"})

    def refuses(loader, unit, snapshot):
        raise RepositoryUnavailable("no route to the repository")

    monkeypatch.setattr(SharedInputs, "_open_graph", refuses)
    with pytest.raises(RepositoryUnavailable):
        await rig.started(root)


def test_http_and_grpc_report_an_unavailable_model(root):
    import tritonclient.grpc as triton

    corrupt(root / "models" / "other" / "1")
    with running(
        "hopline.service:Service", graph__path=root / "graph", models__repository=root / "models"
    ) as server:
        ready = httpx.get(f"{server.url}/readyz")
        assert ready.status_code == 200
        assert ready.json()["ready"] is True
        assert ready.json()["models"] == {"sage": "READY", "other": "UNAVAILABLE"}
        assert any("other" in reason and "sha256" in reason for reason in ready.json()["reasons"])
        answer = httpx.post(f"{server.url}/v1/models/other/score", json={"nodes": ["n1"]})
        assert answer.status_code == 503
        assert "sha256" in answer.json()["error"]["message"]
        assert httpx.get(f"{server.url}/v2/models/other/ready").status_code == 503
        assert httpx.get(f"{server.url}/v2/models/sage/ready").status_code == 200
        assert "UNAVAILABLE" in httpx.get(server.url).text
        index = httpx.post(f"{server.url}/v2/repository/index", json={}).json()
        states = {row["name"]: row["state"] for row in index}
        assert states == {"sage": "READY", "other": "UNAVAILABLE"}
        with triton.InferenceServerClient(server.grpc.rpartition("/")[2]) as client:
            assert client.is_server_ready()
            assert client.is_model_ready("sage")
            assert not client.is_model_ready("other")
