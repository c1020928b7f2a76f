"""Models with a precomputed file: what is looked up, what is computed, and that nobody can tell."""

import asyncio
import shutil
import threading

import numpy as np
import pytest

from hopline.config.reader import load_config
from hopline.engine.final_rows import Cold
from hopline.engine.precomputed_file import PrecomputedFile
from hopline.errors import (
    BadRequest,
    ConfigError,
    DeadlineExceeded,
    NodeNotFound,
    PrecomputedFileError,
    RateLimited,
    Unavailable,
)
from hopline.graph import Graph
from hopline.service import Service
from hopline.types import InlineNode, ScoreRequest
from tests.engine import zoo
from tests.fake_version import hand_in
from tests.precomputed_files import write_table

N = zoo.N


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A repository of `sage` (three classes), `hetero` and `link`, and the graphs of both kinds, saved."""
    root = tmp_path_factory.mktemp("hybrid")
    cases = zoo.build(root / "models")
    for name in ("plain", "gcn", "gat"):
        shutil.rmtree(root / "models" / name)
    cases["sage"].graph.save(root / "graph")
    return root


def graph(places):
    return Graph.open(places / "graph")


def table(places, tmp_path, model="sage", **changes):
    folder = places / "models" / model / "1"
    return write_table(tmp_path / f"{model}.precomputed", folder, graph(places), **changes)


def config(places, *files, models="sage", **settings):
    return load_config(
        overrides={
            "graph.path": places / "graph",
            "models.repository": places / "models",
            "models.names": models,
            "models.state": files[0].parent / "state" if files else places / "state",
            "precomputed.file": tuple(map(str, files)),
            **settings,
        }
    )


class Running:
    """A service for the length of a block."""

    def __init__(self, config):
        self.service = Service(config)

    async def __aenter__(self):
        try:
            await self.service.start()
        except BaseException:
            await self.service.close()
            raise
        return self.service

    async def __aexit__(self, *raised):
        self.service.begin_drain()
        assert await self.service.drain(5)
        await self.service.close()


def rows(service, outcome, model="sage"):
    line = f'hopline_precomputed_rows_total{{model="{model}",version="1",outcome="{outcome}"}} '
    text = service.metrics.render().decode()
    return sum(float(each.removeprefix(line)) for each in text.splitlines() if each.startswith(line))


def at_once(service, request):
    """What `submit` delivers before it returns."""
    found = []
    service.submit(request, found.append)
    return found


async def until(condition):
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be")


def same(a, b):
    assert a.outputs.keys() == b.outputs.keys()
    for name in a.outputs:
        assert a.outputs[name].dtype == b.outputs[name].dtype
        assert (a.outputs[name] == b.outputs[name]).all(), name


REQUESTS = [
    ScoreRequest("sage", nodes=["n1"]),
    ScoreRequest("sage", nodes=["n1"], outputs=("embedding",)),
    ScoreRequest("sage", nodes=["n5"], outputs=("label", "logits", "embedding", "probabilities")),
    ScoreRequest("sage", nodes=[f"n{i}" for i in range(N)]),
    ScoreRequest("sage", nodes=["n7", "n3", "n7"], outputs=("embedding", "logits")),
    ScoreRequest("sage", nodes=["n7", "nobody", "n3"], on_missing="null"),
    ScoreRequest("sage", nodes=["n2"], as_of=50),
    ScoreRequest("sage", inline=[InlineNode(np.ones(6, np.float32), {"": ["n1", "n2"]})], nodes=["n9"]),
    ScoreRequest("sage", nodes=np.array(["n4", "n6"])),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize("partial", [False, True])
async def test_answers_are_those_without_a_table_bit_for_bit(places, tmp_path, partial):
    some = np.arange(0, N, 2) if partial else None
    file = table(places, tmp_path, rows=some)
    async with Running(config(places)) as plain, Running(config(places, file)) as hybrid:
        for request in REQUESTS:
            a, b = await plain.score(request), await hybrid.score(request)
            same(a, b)
            assert (b.model, b.version, b.graph_version, b.degraded) == ("sage", "1", a.graph_version, ())
            assert (a.missing is None) == (b.missing is None)
        together = await asyncio.gather(*[hybrid.score(request) for request in REQUESTS * 3])
        for request, result in zip(REQUESTS * 3, together, strict=True):
            same(result, await plain.score(request))


async def test_known_nodes_are_answered_before_submit_returns(places, tmp_path):
    async with Running(config(places, table(places, tmp_path))) as service:
        for request in (REQUESTS[0], REQUESTS[1], REQUESTS[2], REQUESTS[3], REQUESTS[4], REQUESTS[8]):
            assert len(at_once(service, request)) == 1
        assert rows(service, "looked_up") == 1 + 1 + 1 + N + 3 + 2


async def test_the_engine_computes_no_known_nodes(places, tmp_path, monkeypatch):
    async with Running(config(places, table(places, tmp_path))) as service:
        served = service._resolve("sage", None)

        def never(*arguments):
            raise AssertionError("computed")

        monkeypatch.setattr(served.computer.model, "final_states", never)
        monkeypatch.setattr(served.computer.model, "logits", never)
        for request in REQUESTS[:5]:
            await service.score(request)


async def test_rows_that_are_absent_are_computed_and_counted(places, tmp_path):
    async with Running(config(places, table(places, tmp_path, rows=np.arange(0, N, 2)))) as service:
        await service.score(ScoreRequest("sage", nodes=["n0", "n1", "n2", "n3", "n3"]))
        assert rows(service, "looked_up") == 2
        assert rows(service, "absent") == 3


async def test_rows_beyond_the_ttl_are_computed(places, tmp_path):
    file = table(places, tmp_path, stamp_ms=1_000)
    async with Running(config(places, file, **{"precomputed.ttl_s": 60})) as service:
        assert at_once(service, REQUESTS[0]) == []
        await service.score(REQUESTS[0])
        assert (rows(service, "expired"), rows(service, "looked_up")) == (2, 0)
    file = table(places, tmp_path)
    async with Running(config(places, file, **{"precomputed.ttl_s": 60})) as service:
        await service.score(REQUESTS[0])
        assert (rows(service, "expired"), rows(service, "looked_up")) == (0, 1)


async def test_changed_and_new_nodes_are_computed(places, tmp_path):
    async with Running(config(places)) as plain, Running(config(places, table(places, tmp_path))) as hybrid:
        served = hybrid._resolve("sage", None)
        own = served.look_up._precomputed["node"]
        own.unchanged = lambda ids: ids % 3 != 0
        own.num_rows = 100  # as if 20 nodes had come since
        request = ScoreRequest("sage", nodes=[f"n{i}" for i in range(N)])
        same(await plain.score(request), await hybrid.score(request))
        assert rows(hybrid, "new") == 20
        assert rows(hybrid, "changed") == 34
        assert rows(hybrid, "looked_up") == 66
        assert at_once(hybrid, ScoreRequest("sage", nodes=["n3"])) == []
        assert at_once(hybrid, ScoreRequest("sage", nodes=["n110"])) == []
        assert len(at_once(hybrid, ScoreRequest("sage", nodes=["n4"]))) == 1


async def test_pairs_use_states_of_the_table(places, tmp_path):
    pairs = ScoreRequest(
        "link", pairs=(["n1", "n2", "n1"], ["n4", "n1", "n90"]), outputs=("logits", "label")
    )
    file = table(places, tmp_path, "link", rows=np.arange(50))
    async with (
        Running(config(places, models="link")) as plain,
        Running(config(places, file, models="link")) as hybrid,
    ):
        same(await plain.score(pairs), await hybrid.score(pairs))
        assert (rows(hybrid, "looked_up", "link"), rows(hybrid, "absent", "link")) == (5, 1)


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        (ScoreRequest("sage"), BadRequest, "names no nodes"),
        (ScoreRequest("sage", nodes=["n1"], outputs=("x",)), BadRequest, "embedding, logits"),
        (ScoreRequest("sage", nodes=["n1", "zz"]), NodeNotFound, "1 of 2 node ids"),
        (ScoreRequest("sage", nodes=[1]), BadRequest, "strings"),
        (ScoreRequest("sage", nodes=["n1"], deadline=1.0), DeadlineExceeded, "had passed"),
        (ScoreRequest("sage", nodes=["n1"] * 5000), BadRequest, "5000 nodes"),
    ],
)
async def test_bad_requests_are_answered_as_ever(places, tmp_path, request_, kind, message):
    async with Running(config(places, table(places, tmp_path))) as service:
        with pytest.raises(kind, match=message):
            await service.score(request_)


async def test_look_ups_count_as_requests_and_reach_recorders(places, tmp_path):
    class Told:
        def __init__(self):
            self.ran = []

        def record(self, ran):
            self.ran.append(ran)

    told = Told()
    async with Running(config(places, table(places, tmp_path))) as service:
        service.recorders.append(told)
        for i in range(5):
            at_once(service, ScoreRequest("sage", nodes=[f"n{i}"], request_id=str(i)))
        assert told.ran == []  # answers first
        await asyncio.sleep(0)
        (ran,) = told.ran
        assert [request.request_id for request in ran.requests] == ["0", "1", "2", "3", "4"]
        assert ran.stages.keys() == {"lookup"}
        text = service.metrics.render().decode()
        assert 'hopline_requests_total{model="sage",version="1",outcome="ok"} 5' in text
        for stage in ("total", "lookup", "queue"):
            assert f'hopline_stage_seconds_count{{model="sage",version="1",stage="{stage}"}} 5' in text
        (stats,) = service.statistics("sage")
        assert stats["inference_count"] == 5


async def test_requests_of_a_preflight_are_neither_counted_nor_recorded(places, tmp_path):
    recorded = []

    class Recorder:
        def record(self, ran):
            recorded.append(ran)

    async with Running(config(places, table(places, tmp_path))) as service:
        service.recorders.append(Recorder())
        with service.preflight() as requests:
            assert requests
            for request in [*requests, ScoreRequest("sage", nodes=["n1"])]:
                await service.score(request)
        await asyncio.sleep(0)
        assert recorded == []
        assert 'model="sage",version="1",outcome="ok"} 0' in service.metrics.render().decode()
        assert rows(service, "looked_up") == 0
        await service.score(ScoreRequest("sage", nodes=["n1"]))
        await asyncio.sleep(0)
        assert len(recorded) == 1
        assert rows(service, "looked_up") == 1


@pytest.mark.parametrize("section", ["state", "logits", "computed_at", "ids"])
async def test_a_damaged_table_is_refused(places, tmp_path, section):
    file = table(places, tmp_path)
    at = PrecomputedFile.open(file).sections[section].offset + 1
    content = bytearray(file.read_bytes())
    content[at] ^= 0x41
    file.write_bytes(content)
    with pytest.raises(PrecomputedFileError, match=f"is damaged: {section} differ"):
        async with Running(config(places, file)):
            pass


async def test_a_models_rate_holds_for_look_ups(places, tmp_path):
    models = tmp_path / "models"
    shutil.copytree(places / "models" / "sage", models / "sage")
    (models / "sage" / "serving.toml").write_text("rate_per_s = 0.01\nburst = 2\n")
    settings = {"models.repository": models}
    async with Running(config(places, table(places, tmp_path), **settings)) as service:
        for _ in range(2):
            await service.score(REQUESTS[0])
        with pytest.raises(RateLimited):
            await service.score(REQUESTS[0])
        assert 'outcome="rate_limited"} 1' in service.metrics.render().decode()


async def test_serving_toml_names_the_table(places, tmp_path):
    models = tmp_path / "models"
    shutil.copytree(places / "models" / "sage", models / "sage")
    file = table(places, tmp_path)
    (models / "sage" / "serving.toml").write_text(f'precomputed_file = "{file}"\n')
    settings = {"models.repository": models, "precomputed.file": ()}
    async with Running(config(places, file, **settings)) as service:
        assert len(at_once(service, REQUESTS[0])) == 1


# What does not fit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_hash": "0" * 64}, r"artifact 000000000000…; the one that is loaded is"),
        ({"graph_version": "aaaa"}, r"graph aaaa; sage is served on"),
        ({"exact": True}, "over all neighbours"),
    ],
)
async def test_a_table_that_does_not_fit_is_refused_and_says_why(places, tmp_path, changes, message):
    file = table(places, tmp_path, **changes)
    with pytest.raises(PrecomputedFileError, match=message):
        async with Running(config(places, file)):
            pass


async def test_a_table_of_nobody_is_refused(places, tmp_path):
    file = table(places, tmp_path, model="link")
    with pytest.raises(ConfigError, match=r"model 'link', which is not served; served are sage"):
        async with Running(config(places, file)):
            pass
    with pytest.raises(ConfigError, match=r"cannot be opened: No such file"):
        async with Running(config(places, tmp_path / "absent.precomputed")):
            pass


async def test_a_table_of_another_version_is_left_alone(places, tmp_path, caplog):
    file = table(places, tmp_path, version="7")
    async with Running(config(places, file)) as service:
        assert at_once(service, REQUESTS[0]) == []
        await service.score(REQUESTS[0])
    assert "is about sage/7; not used for 1" in caplog.text


async def test_a_table_of_another_snapshot_is_computed_or_served_as_configured(places, tmp_path):
    file = table(places, tmp_path, graph_version="older")
    async with Running(config(places, file, **{"precomputed.stale": "compute"})) as service:
        assert at_once(service, REQUESTS[0]) == []
        assert (await service.score(REQUESTS[0])).degraded == ()
    async with Running(config(places, file, **{"precomputed.stale": "serve"})) as service:
        (found,) = at_once(service, REQUESTS[0])
        assert found.degraded == ("stale_row",)
        refusing = ScoreRequest("sage", nodes=["n1"], degraded="refuse")
        assert at_once(service, refusing) == []
        whole, mixed, inline = await asyncio.gather(
            service.score(refusing), service.score(REQUESTS[5]), service.score(REQUESTS[6])
        )
        assert (whole.degraded, mixed.degraded, inline.degraded) == ((), ("stale_row",), ())
        text = service.metrics.render().decode()
        # one was looked up before the queue, and one in a batch
        assert 'hopline_degraded_answers_total{model="sage",reason="stale_row"} 2' in text


async def test_stale_rows_of_nodes_with_other_numbers_are_computed(places, tmp_path):
    old = graph(places)
    order = np.roll(np.arange(N), 1)
    edges = zoo.homogeneous(1)
    x = np.array(old.nodes["node"].features)
    ids = [f"n{i}" for i in range(N)]
    other = Graph.from_edges((np.zeros(0, np.int64), np.zeros(0, np.int64)), x, ids=[ids[i] for i in order])
    assert edges.num_nodes == other.num_nodes
    file = table(places, tmp_path, graph_version="older")
    from hopline.answering.precomputed_files import _known_rows
    from hopline.engine.precomputed_file import PrecomputedFile

    assert not _known_rows(PrecomputedFile.open(file), other).any()
    assert _known_rows(PrecomputedFile.open(file), old).all()


# Life


async def test_a_replaced_file_is_taken_up(places, tmp_path, monkeypatch):
    monkeypatch.setattr("hopline.answering.lookup._LOOK_S", 0.01)
    file = table(places, tmp_path, rows=np.arange(2))
    async with Running(config(places, file)) as service:
        request = ScoreRequest("sage", nodes=["n9"])
        assert at_once(service, request) == []
        table(places, tmp_path)
        await until(lambda: at_once(service, request))


async def test_a_replacement_that_does_not_fit_changes_nothing(places, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("hopline.answering.lookup._LOOK_S", 0.01)
    async with Running(config(places, table(places, tmp_path))) as service:
        table(places, tmp_path, graph_version="newer")
        await until(lambda: "keeps the precomputed answers that it has" in caplog.text)
        assert len(at_once(service, REQUESTS[0])) == 1


async def test_a_closed_version_refuses_look_ups(places, tmp_path):
    async with Running(config(places, table(places, tmp_path))) as service:
        served = service._resolve("sage", None)
        served.close("unloaded")
        with pytest.raises(Unavailable, match="unloaded"):
            hand_in(served, REQUESTS[0], lambda outcome: None)


# Rows on a disk


class Disk:
    """Makes rows of a service's table cold until `read_ahead` may continue."""

    def __init__(self, service, monkeypatch):
        self.may_read = threading.Event()
        self.is_cold = True
        self.num_read = 0
        (file, *_) = service._resolve("sage", None).look_up._precomputed["node"]._of_all
        monkeypatch.setattr(type(file), "are_near", lambda _, *asked: self.are_near(*asked))
        monkeypatch.setattr(Cold, "read_ahead", lambda _: self.read_ahead())

    def are_near(self, ids, num_rows, seen):
        return not self.is_cold

    def read_ahead(self):
        assert threading.current_thread() is not threading.main_thread()
        assert self.may_read.wait(10)
        self.num_read += 1
        self.is_cold = False


async def test_cold_rows_are_read_on_a_thread(places, tmp_path, monkeypatch):
    async with (
        Running(config(places)) as plain,
        Running(config(places, table(places, tmp_path))) as service,
    ):
        disk = Disk(service, monkeypatch)
        asked = asyncio.ensure_future(service.score(REQUESTS[4]))
        await asyncio.sleep(0)  # the loop is free
        assert not asked.done()
        disk.may_read.set()
        same(await plain.score(REQUESTS[4]), await asked)
        assert disk.num_read == 1


async def test_cold_rows_beside_new_nodes_are_read_on_a_thread_too(places, tmp_path, monkeypatch):
    file = table(places, tmp_path, rows=np.arange(10))
    async with Running(config(places)) as plain, Running(config(places, file)) as service:
        disk = Disk(service, monkeypatch)
        disk.may_read.set()
        request = ScoreRequest("sage", nodes=["n5", "n50"])
        same(await plain.score(request), await service.score(request))
        assert disk.num_read == 1


async def test_rows_that_are_cold_again_are_read_in_place(places, tmp_path, monkeypatch):
    async with Running(config(places, table(places, tmp_path))) as service:
        Disk(service, monkeypatch)
        monkeypatch.setattr(Cold, "read_ahead", lambda _: None)
        assert (await service.score(REQUESTS[0])).version == "1"
        assert rows(service, "looked_up") == 1


async def test_rows_that_cannot_be_read_are_computed(places, tmp_path, monkeypatch, caplog):
    def fail(cold):
        raise OSError("the disk is broken")

    async with (
        Running(config(places)) as plain,
        Running(config(places, table(places, tmp_path))) as service,
    ):
        Disk(service, monkeypatch)
        monkeypatch.setattr(Cold, "read_ahead", fail)
        same(await plain.score(REQUESTS[0]), await service.score(REQUESTS[0]))
        assert "cannot be read: the disk is broken" in caplog.text


async def test_a_deadline_passes_while_rows_are_read(places, tmp_path, monkeypatch):
    import time

    async with Running(config(places, table(places, tmp_path))) as service:
        disk = Disk(service, monkeypatch)
        request = ScoreRequest("sage", nodes=["n1"], deadline=time.monotonic() + 0.02)
        with pytest.raises(DeadlineExceeded, match="read from the disk"):
            await service.score(request)
        disk.may_read.set()


async def test_a_request_is_withdrawn_while_its_rows_are_read(places, tmp_path, monkeypatch):
    async with Running(config(places, table(places, tmp_path))) as service:
        disk = Disk(service, monkeypatch)
        found = []
        service.submit(REQUESTS[0], found.append).cancel()
        disk.may_read.set()
        await asyncio.sleep(0.05)
        assert found == []
        assert 'outcome="cancelled"} 1' in service.metrics.render().decode()


async def test_requests_whose_rows_are_read_outlive_a_close(places, tmp_path, monkeypatch):
    file = table(places, tmp_path, rows=np.arange(10))
    async with Running(config(places, file)) as service:
        disk = Disk(service, monkeypatch)
        served = service._resolve("sage", None)
        found = []
        hand_in(served, ScoreRequest("sage", nodes=["n1"]), found.append)
        hand_in(served, ScoreRequest("sage", nodes=["n1", "n60"]), found.append)
        served.close("unloaded")
        with pytest.raises(Unavailable):
            hand_in(served, REQUESTS[0], found.append)
        disk.may_read.set()
        await served.join()
        assert [outcome.version for outcome in found] == ["1", "1"]
