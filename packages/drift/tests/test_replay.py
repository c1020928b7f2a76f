"""A log replayed on the same version gives the same answers, bit for bit; on another one, how far apart."""

import asyncio
import heapq
import json
import math
import shutil

import msgspec
import numpy as np
import pytest

from hopline.errors import (
    BadRequest,
    GraphBehind,
    HoplineError,
    ModelNotFound,
    ModelNotReady,
    Overloaded,
    RateLimited,
    Unavailable,
)
from hopline.records.entry import Entry, EntryWriter
from hopline.records.inputs import Inputs
from hopline.types import ContextNode, EdgeEdit, Edit, InlineNode, ScoreRequest, ScoreResult
from hopline_drift.log_reader import LogReader
from hopline_drift.replay import BOUNDS, OTHER_GRAPH, compare, replay
from hopline_drift.targets import ServiceTarget
from tests.records.conftest import logging_service
from tests.servers import running

N = 120


def requests():
    """All that a node model can be asked, with duplicates, unknown ids, time cuts and failures."""
    rng = np.random.default_rng(3)
    for i in range(60):
        yield ScoreRequest("plain", nodes=[f"n{i}"], request_id=f"one-{i}")
        count = int(rng.integers(1, 40))
        nodes = [f"n{k}" for k in rng.integers(0, N, count)]
        yield ScoreRequest("plain", nodes=nodes, request_id=f"many-{i}", outputs=("logits", "embedding"))
        yield ScoreRequest("plain", nodes=[*nodes, "gone"], on_missing="null", request_id=f"null-{i}")
        yield ScoreRequest("plain", nodes=nodes, as_of=50, request_id=f"then-{i}", outputs=("label",))
        features = rng.standard_normal(6)
        node = InlineNode(features if i % 2 else features.tolist(), {"": nodes[:5]})
        yield ScoreRequest("plain", nodes=nodes[:2], inline=[node], request_id=f"inline-{i}")
    yield ScoreRequest("plain", nodes=["gone"], request_id="failed")


async def answered(service):
    for request in requests():
        try:
            await service.score(request)
        except HoplineError:
            assert request.request_id == "failed"


@pytest.fixture(params=["jsonl", "parquet"])
def logged(config, request):
    """Settings of a server that keeps a log in one of the forms."""
    return config(**{"prediction_log.format": request.param})


@pytest.mark.sample(1)
async def test_the_same_version_gives_the_same_answers_bit_for_bit(logged):
    async with logging_service(logged) as service:
        await answered(service)
    done = []
    async with ServiceTarget(logged.replace(state_cache__memory_bytes=0)) as target:
        report = await replay(LogReader(logged.prediction_log.path), target, progress=done.append)
    assert report.all_identical
    assert (report.read, report.compared, report.identical) == (301, 300, 300)
    assert (report.max_abs_difference, report.label_flips, report.missing_changed) == (0, 0, 0)
    assert report.skipped == {"failed before": 1}
    assert report.errors == {}
    assert len(report.answered_by) == 1
    assert done[-1] == 1.0
    assert report.histogram == [300] + [0] * len(BOUNDS)


def edited():
    """Requests with edits of each kind, of ids that the model reads."""
    for i in range(40):
        edge, row = EdgeEdit(f"n{i + 1}", f"n{i}", time=30), ContextNode([i / 7] * 6, id=f"n{i + 1}")
        edits = Edit(add_edge=edge), Edit(set=row), Edit(remove_edge=EdgeEdit(edge.src, edge.dst))
        yield ScoreRequest("plain", nodes=[f"n{i}"], edits=edits[: 1 + i % 3], outputs=("logits",))


@pytest.mark.sample(1)
async def test_requests_with_edits_are_answered_again_bit_for_bit(logged):
    async with logging_service(logged) as service:
        found = [await service.score(request) for request in edited()]
        plain = [await service.score(msgspec.structs.replace(each, edits=())) for each in edited()]
    assert any(
        (a.outputs["logits"] != b.outputs["logits"]).any() for a, b in zip(found, plain, strict=True)
    )
    entries = [*LogReader(logged.prediction_log.path)]
    assert [entry.inputs.edits for entry in entries[:40]] == [request.edits for request in edited()]
    assert len({entry.input_hash for entry in entries}) == 80
    async with ServiceTarget(logged.replace(state_cache__memory_bytes=0)) as target:
        report = await replay(LogReader(logged.prediction_log.path), target)
    assert report.all_identical
    assert (report.read, report.identical) == (80, 80)


async def test_another_version_gives_other_answers(config):
    settings = config()
    async with logging_service(settings) as service:
        await answered(service)
        expected = {}
        for request in requests():
            if request.request_id.startswith("one-"):
                one = await service.score(request)
                request = ScoreRequest("plain", nodes=request.nodes, version="1")
                assert (await service.score(request)).outputs["label"] == one.outputs["label"]
                await service.load("plain", "2", serve=False)
                two = await service.score(ScoreRequest("plain", nodes=request.nodes, version="2"))
                apart = np.abs(one.outputs["probabilities"] - two.outputs["probabilities"]).max()
                expected[request.nodes[0]] = float(apart)
    async with ServiceTarget(settings) as target:
        report = await replay(LogReader(settings.prediction_log.path), target, version="2")
    assert not report.all_identical
    assert report.compared == 300 + len(expected) * 3
    assert report.identical == len(expected)  # those that version 2 itself had answered
    assert report.by_output["probabilities"] >= max(expected.values()) > 0
    assert report.label_flips > 0
    assert len(report.worst) == 10
    assert report.worst[0].largest == report.max_abs_difference
    assert all("plain/2" in pair for pair in report.answered_by)


@pytest.mark.release
async def test_a_queue_of_its_own_that_is_full_is_waited_for(config):
    settings = config()
    async with logging_service(settings) as service:
        await answered(service)
    async with ServiceTarget(settings.replace(batching__max_queue_rows=60)) as target:
        with pytest.raises(Overloaded):
            await asyncio.gather(*map(target.score, requests()))
        report = await replay(LogReader(settings.prediction_log.path), target, concurrency=64)
    assert report.all_identical
    assert report.compared == 300


class Fixed:
    """Answers every request alike."""

    def __init__(self, result, graph_version=""):
        self.result, self.graph_version = result, graph_version
        self.prepared, self.num_asked = [], 0

    async def log_id(self):
        return "written here"

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, error, trace):
        pass

    async def prepare(self, model, version):
        self.prepared.append((model, version))
        if version == "gone":
            raise ModelNotFound("it is gone")
        return self.graph_version

    async def score(self, request):
        self.num_asked += 1
        if request.nodes == [13]:
            raise BadRequest("no")
        return self.result


def log_of(*entries):
    """What `replay` needs of a `LogReader`."""

    class Log(list):
        id = ""
        num_torn = num_bad = 0
        done = 0.5
        num_entries = len(entries)

    return Log(entries)


SCORE = {"probabilities": np.array([0.25], np.float32)}


def entry(number, **changes):
    fields = {"model": "m", "version": "1", "outputs": SCORE, "inputs": Inputs([number])} | changes
    return Entry(f"r{number}", float(number), **fields)


async def test_what_cannot_be_compared_is_counted_and_said(tmp_path):
    log = log_of(
        entry(1),
        entry(2, degraded=("stale_features",)),
        entry(3, inputs=None),
        entry(4, outcome="overloaded", outputs={}),
        entry(5, is_copy=True),
        entry(13),
        Entry("r6", 6.0, "m", "gone", outputs=SCORE, inputs=Inputs([6])),
        Entry("r7", 7.0, "m", "gone", outputs=SCORE, inputs=Inputs([7])),
        Entry("r8", 8.0, "other", "1", outputs=SCORE, inputs=Inputs([8])),
    )
    target = Fixed(ScoreResult("m", "1", "g", SCORE))
    report = await replay(log, target, model="m", concurrency=2)
    assert report.compared == report.identical == 1
    assert report.skipped == {
        "degraded": 1,
        "inputs not kept": 1,
        "failed before": 1,
        "copy": 1,
        "other model": 1,
    }
    assert report.errors == report.not_compared == {"bad_request": 1, "model_not_found": 2}
    assert report.examples == {"bad_request": "r13: no", "model_not_found": "r6: it is gone"}
    assert not report.is_complete
    assert not report.all_identical
    assert sorted(target.prepared) == [("m", "1"), ("m", "gone")]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("score", [0.25, 0.75])
async def test_an_answer_on_another_graph_is_neither_identical_nor_different(is_known, score):
    now = {"probabilities": np.array([score], np.float32)}
    target = Fixed(ScoreResult("m", "1", "base", now), "base" if is_known else "")
    log = log_of(
        *(entry(i, graph_version=f"base+{i}") for i in range(2, 6)),
        entry(6, graph_version="base"),
        entry(7),
    )
    report = await replay(log, target, concurrency=1)
    assert (report.compared, report.identical) == (2, 2 if score == 0.25 else 0)
    assert report.not_compared == {OTHER_GRAPH: 4}
    assert sum(report.histogram) == report.rows == 2
    assert [(item.request_id, item.graph_version) for item in report.inexact] == [
        (f"r{i}", f"base+{i}") for i in range(2, 6)
    ]
    assert {item.replay_graph_version for item in report.inexact} == {"base"}
    assert {item.request_id for item in report.worst} <= {"r6", "r7"}
    assert not report.is_complete
    assert not report.all_identical
    assert target.num_asked == (2 if is_known else 6)
    told = await replay(log, target, any_graph=True)
    assert (told.compared, told.inexact, told.not_compared) == (6, [], {})


async def test_a_request_that_the_graph_of_the_replay_cannot_answer_is_no_failure():
    target = Fixed(ScoreResult("m", "1", "base", SCORE), "base")
    report = await replay(log_of(entry(13, graph_version="base+1")), target)
    assert (report.errors, report.not_compared) == ({}, {OTHER_GRAPH: 1})


async def test_a_graph_that_is_behind_is_not_waited_for():
    class Behind(Fixed):
        async def score(self, request):
            raise GraphBehind("the graph has version base")

    report = await replay(log_of(entry(1, graph_version="base+1")), Behind(None))
    assert report.not_compared == {"graph_behind": 1}


async def test_an_answer_that_is_degraded_now_is_not_compared():
    target = Fixed(ScoreResult("m", "1", "g", SCORE, None, ("mean_features",)))
    report = await replay(log_of(entry(1)), target)
    assert (report.compared, report.not_compared) == (0, {"degraded now": 1})
    assert not report.is_complete
    assert not report.all_identical


class Clock:
    """Time that passes only while everybody waits."""

    def __init__(self):
        self.now = 0.0
        self.waits = []
        self._waiting = []
        self._driver = None

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.waits.append(seconds)
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self.now + seconds, len(self.waits), woken))
        if self._driver is None or self._driver.done():
            self._driver = asyncio.ensure_future(self._drive())
        await woken

    async def _drive(self):
        while self._waiting:
            for _ in range(3):  # who was woken goes on
                await asyncio.sleep(0)
            self.now, _, woken = heapq.heappop(self._waiting)
            woken.set_result(None)


class Busy(Fixed):
    """Has room for a few requests at once; model `m2` is never ready."""

    def __init__(self, room, clock):
        super().__init__(ScoreResult("m", "1", "g", SCORE))
        self.room, self.clock = room, clock
        self.waiting = self.most = 0
        self.refused = 0

    async def score(self, request):
        if request.model == "m2":
            raise ModelNotReady("m2 is not ready", retry_after_s=3.0)
        if self.waiting >= self.room:
            self.refused += 1
            raise (Overloaded, RateLimited, Unavailable)[self.refused % 3]("busy", retry_after_s=0.5)
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await self.clock.sleep(1.0)
        self.waiting -= 1
        return self.result


async def test_a_target_that_has_enough_to_do_is_waited_for():
    target = Busy(room=3, clock=(clock := Clock()))
    log = log_of(*map(entry, range(200)))
    report = await replay(log, target, concurrency=32, clock=clock, sleep=clock.sleep)
    assert report.all_identical
    assert (report.compared, report.errors) == (200, {})
    assert target.refused > 0
    assert set(clock.waits) == {0.5, 1.0}
    assert target.most == 3


async def test_a_model_that_answers_nobody_is_given_up_and_the_others_are_compared():
    target = Busy(room=100, clock=(clock := Clock()))
    entries = [entry(i, model="m2") if i % 2 else entry(i) for i in range(100)]
    report = await replay(log_of(*entries), target, concurrency=8, clock=clock, sleep=clock.sleep)
    assert (report.compared, report.not_compared) == (50, {"model_not_ready": 50})
    assert clock.now < 60  # not half a minute for each
    assert not report.is_complete


async def test_lines_that_are_no_entries_are_not_compared():
    log = log_of(entry(1))
    log.num_bad = 2
    report = await replay(log, Fixed(ScoreResult("m", "1", "g", SCORE)))
    assert (report.compared, report.not_compared) == (1, {"unreadable line": 2})
    assert not report.all_identical


async def test_a_target_that_writes_the_log_is_refused():
    log = log_of(entry(1))
    log.id = "written here"
    target = Fixed(ScoreResult("m", "1", "g", SCORE))
    with pytest.raises(BadRequest, match="writes this very log"):
        await replay(log, target)
    log.id = "written elsewhere"
    assert (await replay(log, target)).all_identical


async def test_a_limit_ends_it():
    report = await replay(
        log_of(*map(entry, range(100))), Fixed(ScoreResult("m", "1", "g", SCORE)), limit=7
    )
    assert report.compared == 7


F = np.float32


@pytest.mark.parametrize(
    ("before", "after", "identical", "largest", "flips"),
    [
        ({"p": F([0.1, 0.2])}, {"p": F([0.1, 0.2])}, True, 0.0, 0),
        ({"p": F([0.0])}, {"p": F([-0.0])}, False, 0.0, 0),
        ({"p": F([np.nan])}, {"p": F([np.nan])}, True, 0.0, 0),
        ({"p": F([1.0])}, {"p": F([np.nan])}, False, math.inf, 0),
        ({"p": F([1.0])}, {"p": F([[1.0]])}, False, math.inf, 0),
        ({"p": F([1.0])}, {"p": np.array([1.0])}, False, 0.0, 0),
        ({"p": F([1.0])}, {"q": F([1.0])}, False, None, 0),
        ({"label": np.array([1, 2])}, {"label": np.array([1, 3])}, False, 1.0, 1),
        ({"probabilities": F([0.4, 0.6])}, {"probabilities": F([0.6, 0.6])}, False, 0.2, 1),
        ({"probabilities": F([[0.4, 0.6]])}, {"probabilities": F([[0.6, 0.4]])}, False, 0.2, 1),
        ({"t": np.array(["a"], object)}, {"t": np.array(["a"])}, True, 0.0, 0),
        ({"t": np.array(["a"], object)}, {"t": np.array(["b"])}, False, math.inf, 0),
    ],
)
def test_answers_are_compared_by_their_bits(before, after, identical, largest, flips):
    found = compare(before, after, None, None)
    assert (found.identical, found.flips) == (identical, flips)
    assert max(found.largest.values(), default=None) == (
        largest if largest is None else pytest.approx(largest, abs=1e-6)
    )


def test_rows_that_are_missing_are_not_compared_but_counted():
    zeros, nans = {"p": F([0.5, 0.0])}, {"p": F([0.5, np.nan])}
    gone = np.array([False, True])
    assert compare(zeros, nans, gone, gone).identical
    found = compare(zeros, nans, gone, None)
    assert (found.identical, found.missing, found.largest) == (False, 1, {"p": 0.0})


# The commands


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line: (exit code, stdout, stderr)."""
    from hopline import cli

    monkeypatch.setenv("COLUMNS", "200")

    def command(*words):
        monkeypatch.setattr("sys.argv", ["hopline", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return command


@pytest.fixture
def log(config):
    settings = config()

    async def write():
        async with logging_service(settings) as service:
            await answered(service)

    asyncio.run(write())
    return settings.prediction_log.path


def test_the_command_says_by_its_exit_code_whether_all_is_identical(log, places, run):
    places_of = ("--graph", places / "graph", "--repository", places / "models")
    code, out, _ = run("replay", log, *places_of, "--require-identical")
    assert code == 0
    assert "All 300 answers are identical, bit for bit" in out
    code, out, _ = run("replay", log, *places_of, "--require-identical", "--version", "2")
    assert code == 1
    assert "Most different" in out
    code, out, _ = run("replay", log, *places_of, "--version", "2", "--json", "--limit", "10")
    assert code == 0
    assert json.loads(out)["compared"] == 10
    code, _, err = run("replay", log, "--url", "http://127.0.0.1:1", *places_of)
    assert code == 1
    assert "--url" in err
    code, _, err = run("replay", log.parent / "nothing", *places_of)
    assert code == 1
    assert "no such file or folder" in err


def test_a_server_is_called_through_the_client(log, places, run, serving):
    code, out, _ = run("replay", log, "--url", serving, "--json", "--version", "1", "--require-identical")
    found = json.loads(out)
    assert found["identical"] == found["compared"] == 300
    assert code == 0


def test_what_was_not_compared_is_the_last_word_and_the_exit_code(log, places, run):
    places_of = ("--graph", places / "graph", "--repository", places / "models")
    (file,) = log.glob("predictions-*")
    lines = file.read_text().splitlines(keepends=True)
    gone = [line.replace('"version":"1"', '"version":"9"') for line in lines[:200]]
    file.write_text("".join([*gone, "no entry\n", *lines[200:]]))
    code, out, err = run("replay", log, *places_of)
    assert code == 1
    assert "All " not in out
    assert "200 model_not_found, 1 unreadable line" in err
    assert "201 of 301 answers were not compared" in err
    code, out, err = run("replay", log, *places_of, "--json")
    assert code == 1
    assert json.loads(out)["not_compared"] == {"model_not_found": 200, "unreadable line": 1}
    file.write_text("".join(lines))
    code, out, err = run("replay", log, *places_of, "--model", "other")
    assert code == 1
    assert "nothing was compared: 301 other model" in err


def test_answers_on_versions_of_a_live_graph_are_listed_and_fail_the_command(log, places, run):
    places_of = ("--graph", places / "graph", "--repository", places / "models")
    (file,) = log.glob("predictions-*")
    lines = file.read_text().splitlines(keepends=True)
    base = json.loads(lines[0])["graph_version"]
    live = [line.replace(f'"{base}"', f'"{base}+{i}"') for i, line in enumerate(lines[:40])]
    file.write_text("".join([*live, *lines[40:]]))
    code, out, err = run("replay", log, *places_of)
    assert code == 1
    assert "40 of 300 answers were not compared, so they may differ: 40 on another graph version" in err
    assert f"{base}+" in out
    assert "Most different" not in out
    assert "All " not in out
    code, out, _ = run("replay", log, *places_of, "--json")
    found = json.loads(out)
    assert (code, found["compared"], found["identical"], len(found["inexact"])) == (1, 260, 260, 40)
    assert {each["replay_graph_version"] for each in found["inexact"]} == {base}
    code, out, _ = run("replay", log, *places_of, "--any-graph", "--require-identical")
    assert code == 0
    assert "All 300 answers are identical" in out


@pytest.mark.release
def test_a_server_is_not_sent_what_it_writes_down(log, places, run):
    settings = {"graph__path": places / "graph", "models__repository": places / "models"}
    with running("hopline.service:Service", **settings, prediction_log__path=log) as server:
        code, _, err = run("replay", log, "--url", server.url)
        assert code == 1
        assert "the server writes this very log" in err
        shutil.copytree(log, log.parent / "copy")
        code, out, _ = run("replay", log.parent / "copy", "--url", server.url, "--version", "1")
        assert code == 0
        assert "All 300 answers are identical" in out


def test_the_last_entries_are_shown(log, run):
    code, out, _ = run("log", "show", log, "-n", "3")
    assert code == 0
    assert "node_not_found" in out
    code, out, _ = run("log", "show", log, "-n", "5", "--json")
    lines = out.splitlines()
    assert len(lines) == 5
    assert json.loads(lines[-1])["outcome"] == "node_not_found"


def test_rows_of_unknown_nodes_are_shown_without_an_answer(tmp_path, run):
    lines = bytearray()
    outputs = {"label": np.array([0, 1])}
    EntryWriter(lambda: None).append(entry(1, outputs=outputs, missing=(0,)), lines)
    (tmp_path / "predictions-x.jsonl").write_bytes(lines)
    _, out, _ = run("log", "show", tmp_path / "predictions-x.jsonl")
    assert "label [unknown, 1]" in out


def test_string_ids_are_shown_as_they_are(tmp_path, run):
    """The screen's library would take [a] for a style and leave it out."""
    lines = bytearray()
    EntryWriter(lambda: None).append(entry(1, inputs=Inputs(["a", "b"])), lines)
    (tmp_path / "predictions-x.jsonl").write_bytes(lines)
    _, out, _ = run("log", "show", tmp_path / "predictions-x.jsonl")
    assert "nodes [a, b]" in out
