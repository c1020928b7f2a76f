"""The service on a real graph and model: what every transport relies on."""

import asyncio
import os
import shutil
from datetime import UTC, datetime

import numpy as np
import pytest

from hopline.config.reader import load_config
from hopline.errors import (
    ArtifactCorrupted,
    ArtifactError,
    BadRequest,
    ConfigError,
    DeadlineExceeded,
    FeatureSchemaMismatch,
    FeatureStoreUnavailable,
    GraphError,
    ModelNotFound,
    RequestTooLarge,
    SchemaMismatch,
    SnapshotNotFound,
    Unavailable,
)
from hopline.service import Service
from hopline.types import ScoreRequest
from tests import loaded_units_rig as rig
from tests.engine import zoo
from tests.shared_memory import create_shared


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A repository with versions 1, 2 and 10 of one model, and its graph, saved."""
    from tests.packaged import package

    root = tmp_path_factory.mktemp("service")
    graph = zoo.homogeneous(1).save(root / "graph")
    zoo.torch.manual_seed(0)
    module = zoo.Sage().eval()
    options = {"name": "sage", "fanouts": [4, 3, 5], "task": "multiclass", "check_nodes": 60}
    package(module, graph, root / "models", version="2", **options)
    for version in ("1", "10"):
        folder = root / "models" / "sage" / version
        shutil.copytree(root / "models" / "sage" / "2", folder)
        text = (folder / "model.json").read_text().replace('"version": "2"', f'"version": "{version}"')
        (folder / "model.json").write_text(text)
    return root


def config(places, **settings):
    overrides = {"graph.path": places / "graph", "models.repository": places / "models"}
    return load_config(overrides={**overrides, **settings})


@pytest.fixture
async def service(places):
    service = Service(config(places, **{"limits.max_nodes_per_request": 50}))
    await service.start()
    yield service
    service.begin_drain()
    await service.drain(5)
    await service.close()


async def test_the_newest_version_serves_and_others_can_be_requested(service):
    assert (await service.score(ScoreRequest("sage", nodes=["n1"]))).version == "10"
    assert (await service.score(ScoreRequest("sage", nodes=["n1"], version="1"))).version == "1"
    assert service.describe("sage").versions == ("1", "2", "10")


async def test_concurrent_requests_get_what_they_get_alone(service):
    ids = [f"n{i}" for i in range(60)]
    alone = [(await service.score(ScoreRequest("sage", nodes=[i]))).outputs["probabilities"] for i in ids]
    together = await asyncio.gather(*[service.score(ScoreRequest("sage", nodes=[i])) for i in ids])
    assert all((a == b.outputs["probabilities"]).all() for a, b in zip(alone, together, strict=True))


async def test_the_service_is_pressed_while_a_queue_has_something_to_run(service):
    assert not service.is_pressed()
    told = asyncio.get_running_loop().create_future()
    service.submit(ScoreRequest("sage", nodes=["n1"]), told.set_result)
    assert service.is_pressed()
    await told
    assert not service.is_pressed()


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        (ScoreRequest("nobody", nodes=["n1"]), ModelNotFound, "there are: sage"),
        (ScoreRequest("sage", nodes=["n1"], version="7"), ModelNotFound, "there are: 1, 2, 10"),
        (ScoreRequest("sage"), BadRequest, "names no nodes"),
        (ScoreRequest("sage", nodes=["n1"] * 51), RequestTooLarge, "51 nodes in one request; at most 50"),
        (ScoreRequest("sage", nodes=["n1"], outputs=("x",)), BadRequest, "embedding, logits"),
        (ScoreRequest("sage", pairs=(["n1"], ["n2"])), BadRequest, "not with pairs"),
        (ScoreRequest("sage", nodes=["n1"], deadline=1.0), DeadlineExceeded, "had passed"),
        (ScoreRequest("sage", nodes=[1]), BadRequest, "strings"),
    ],
)
async def test_bad_requests_are_named(service, request_, kind, message):
    with pytest.raises(kind, match=message):
        await service.score(request_)
    assert (await service.score(ScoreRequest("sage", nodes=["n1"]))).version == "10"


async def test_draining_refuses_new_requests_and_finishes_admitted_ones(places):
    service = Service(config(places))
    await service.start()
    outcomes = []
    for i in range(20):
        service.submit(ScoreRequest("sage", nodes=[f"n{i}"]), outcomes.append)
    service.begin_drain()
    with pytest.raises(Unavailable):
        service.submit(ScoreRequest("sage", nodes=["n1"]), outcomes.append)
    assert not service.ready()
    assert await service.drain(5)
    assert [outcome.version for outcome in outcomes] == ["10"] * 20
    await service.close()


async def test_requests_computed_on_a_thread_answer_the_same(places, service):
    threaded = Service(config(places, **{"compute.inline_cost_us": 0}))
    await threaded.start()
    request = ScoreRequest("sage", nodes=[f"n{i}" for i in range(40)])
    a, b = await threaded.score(request), await service.score(request)
    assert (a.outputs["probabilities"] == b.outputs["probabilities"]).all()
    threaded.begin_drain()
    assert await threaded.drain(5)
    await threaded.close()


async def test_workers_share_one_table(places):
    fd = create_shared()
    shared = config(places, **{"server.workers": 2}).replace(worker__state_cache_fd=fd)
    try:
        workers = [
            Service(shared.replace(worker__index=i, worker__count=2, state_cache__memory_bytes=2**26))
            for i in range(2)
        ]
        for worker in workers:
            await worker.start()
        nodes = [f"n{i}" for i in range(zoo.N)]
        first = await workers[0].score(ScoreRequest("sage", nodes=nodes))
        caches = workers[1]._serving["sage"].computer.model.state_caches
        before = {key: cache.num_rows for key, cache in caches.items()}
        second = await workers[1].score(ScoreRequest("sage", nodes=nodes))
        assert (first.outputs["probabilities"] == second.outputs["probabilities"]).all()
        # every row was there already: the second worker wrote none
        assert {key: cache.num_rows for key, cache in caches.items()} == before
        for worker in workers:
            worker.begin_drain()
            await worker.drain(5)
            await worker.close()
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"graph.path": None}, "graph.path: not set"),
        ({"models.repository": None}, "models.repository: not set"),
        ({"models.names": ("sage", "other")}, "'other' is not in"),
    ],
)
async def test_missing_settings_fail_at_start_with_their_name(places, settings, message):
    values = {"graph.path": places / "graph", "models.repository": places / "models", **settings}
    with pytest.raises(ConfigError, match=message):
        await rig.begin(Service(load_config(overrides=values)))


def spoil(places, tmp_path, change):
    copy = tmp_path / "models"
    shutil.copytree(places / "models", copy)
    change(copy / "sage" / "10")
    return config(places, **{"models.repository": copy})


async def test_a_changed_file_is_refused_by_its_hash(places, tmp_path):
    def change(folder):
        file = next((folder / "layers").iterdir())
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)

    with pytest.raises(ArtifactCorrupted, match="sha256"):
        await rig.begin(Service(spoil(places, tmp_path, change)))


async def test_a_missing_file_is_named(places, tmp_path):
    settings = spoil(places, tmp_path, lambda folder: (folder / "head.onnx").unlink())
    with pytest.raises(ArtifactCorrupted, match=r"head.onnx: listed in model.json but absent"):
        await rig.begin(Service(settings))


async def test_a_newer_format_says_what_to_do(places, tmp_path):
    def change(folder):
        text = (folder / "model.json").read_text()
        assert '"format": 1,' in text
        (folder / "model.json").write_text(text.replace('"format": 1,', '"format": 99,'))

    with pytest.raises(ArtifactError, match="upgrade hopline"):
        await rig.begin(Service(spoil(places, tmp_path, change)))


@pytest.mark.release
async def test_a_time_cut_that_could_cut_nothing_is_refused(tmp_path):
    from tests.packaged import package

    timeless = zoo.heterogeneous().save(tmp_path / "graph")
    options = {"fanouts": [4, 3], "task": "multiclass", "target": "user", "check_nodes": 60}
    package(zoo.Hetero().eval(), timeless, tmp_path / "models", name="people", **options)
    service = Service(config(tmp_path))
    await service.start()
    with pytest.raises(BadRequest, match="as_of: no edge type"):
        await service.score(ScoreRequest("people", nodes=[1], as_of=5))
    assert (await service.score(ScoreRequest("people", nodes=[1]))).version == "1"
    await service.close()


async def test_a_time_cut_is_a_number_of_the_graphs_unit_or_a_moment(places, service, tmp_path):
    zoo.homogeneous(1, since=np.datetime64("2011-01-01T00", "ms")).save(tmp_path / "graph")
    dated = Service(config(places, **{"graph.path": tmp_path / "graph"}))
    await dated.start()

    async def ask(of, as_of):
        request = ScoreRequest("sage", nodes=["n1", "n5"], as_of=as_of)
        return (await of.score(request)).outputs["probabilities"]

    cut = datetime(2011, 1, 3, 2, tzinfo=UTC)  # after 50 hours
    want = await ask(service, 50)
    assert (want != await ask(service, None)).any()
    assert (await ask(dated, cut) == want).all()
    assert (await ask(dated, int(cut.timestamp() * 1000)) == want).all()
    with pytest.raises(BadRequest, match="looks like seconds; send 1294020000000, which is 2011-01-03T02"):
        await ask(dated, int(cut.timestamp()))
    with pytest.raises(BadRequest, match="the unit of the graph's edge times is unknown"):
        await ask(service, cut)
    await dated.close()


async def test_a_model_of_another_graph_is_refused_with_each_difference(places, tmp_path):
    from hopline.graph import Graph

    Graph.from_edges([[0], [1]], np.zeros((2, 5), np.float32)).save(tmp_path / "other")
    with pytest.raises(SchemaMismatch, match="5 features"):
        await rig.begin(Service(config(places, **{"graph.path": tmp_path / "other"})))


@pytest.mark.parametrize(
    "address",
    [
        "http://[::1", "http://127.0.0.1:99999/x", "ftp://no.such.host.invalid/x", "zip://x", "redis://h/1",
        "nosuch://x", "simplecache::nosuch://x",
    ],
)  # fmt: skip
async def test_a_load_from_a_wrong_address_is_the_callers_fault_with_its_cause(service, address):
    with pytest.raises(BadRequest, match=r"graph: .* cannot be used: ."):
        await service.load("sage", "2", graph=address)


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (GraphError("the cause"), ArtifactError),
        (FeatureSchemaMismatch("the cause"), ArtifactError),
        (ConfigError("the cause"), BadRequest),
        (SnapshotNotFound("the cause"), SnapshotNotFound),
        (FeatureStoreUnavailable("the cause"), FeatureStoreUnavailable),
    ],
)
async def test_what_cannot_be_loaded_is_the_callers_fault_and_what_is_away_is_not(
    service, monkeypatch, error, wanted
):
    async def load(*args, **kwargs):
        raise error

    monkeypatch.setattr(service._lifecycle, "load", load)
    with pytest.raises(wanted, match="the cause"):
        await service.load("sage", "2")
