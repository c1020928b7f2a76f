"""The log never costs a request anything: what it cannot write it drops, counts and says once."""

import asyncio
import shutil
import time

import numpy as np
import pytest

from hopline.config.reader import load_config
from hopline.errors import ConfigError, Overloaded
from hopline.observe.metrics import Metrics
from hopline.records.log import PredictionLog
from hopline.records.pace import Pace
from hopline.types import ScoreRequest
from hopline_drift.log_reader import LogReader
from tests.records.conftest import FakeServed, ran, scored, until

SERVED = FakeServed()


def made(folder, **settings):
    overrides = {"prediction_log.path": folder}
    overrides |= {f"prediction_log.{name}": value for name, value in settings.items()}
    metrics = Metrics()
    return PredictionLog(load_config(overrides=overrides), metrics), metrics


def value(metrics, name, **labels):
    text = metrics.render().decode()
    inside = ",".join(f'{key}="{label}"' for key, label in labels.items())
    line = f"hopline_prediction_log_{name}{{{inside}}} " if labels else f"hopline_prediction_log_{name} "
    return sum(float(row.removeprefix(line)) for row in text.splitlines() if row.startswith(line))


def dropped(metrics):
    reasons = ("queue", "disk", "shutdown", "error")
    return {why: count for why in reasons if (count := value(metrics, "dropped_total", reason=why))}


async def test_every_answer_has_its_entry(tmp_path):
    log, metrics = made(tmp_path / "log")
    log.start()
    stages = {"sample": 0.0001, "compute": 0.0015}
    log.record(ran(SERVED, *(scored(i) for i in range(3)), ended=1000.1234567, stages=stages))
    log.record(
        ran(SERVED, (ScoreRequest("risk", nodes=[9], request_id="x", client="shop"), Overloaded("no")))
    )
    await log.close()
    entries = list(LogReader(tmp_path / "log"))
    by_id = {entry.request_id: entry for entry in entries}
    assert by_id.keys() == {"r0", "r1", "r2", "x"}
    first = by_id["r1"]
    assert first.time == 1000.123457
    assert (first.model, first.version, first.graph_version) == ("risk", "7", "snapshot")
    assert (first.artifact_hash, first.preprocessing_hash, first.feature_schema_hash) == ("a", "p", "f")
    assert "onnxruntime" in first.runtime
    assert first.latency_ms == {"queue": 1.0, "sample": 0.1, "compute": 1.5, "total": 3.0}
    assert first.inputs.nodes == [1]
    answer = scored(1)[1].outputs["probabilities"]
    assert first.outputs["probabilities"].tobytes() == answer.tobytes()
    assert (by_id["x"].outcome, by_id["x"].client, by_id["x"].outputs) == ("overloaded", "shop", {})
    assert value(metrics, "written_total") == 4
    assert dropped(metrics) == {}


async def test_requests_that_have_no_outcome_have_no_entry(tmp_path):
    log, metrics = made(tmp_path / "log")
    log.start()
    log.record(ran(SERVED, scored(1), (scored(2)[0], None)))
    await log.close()
    assert [entry.request_id for entry in LogReader(tmp_path / "log")] == ["r1"]
    assert log.num_pending == 0
    assert dropped(metrics) == {}


@pytest.mark.parametrize(("inputs", "kept"), [("all", 400), ("none", 0)])
async def test_inputs_are_kept_as_configured(inputs, kept, tmp_path):
    log, _ = made(tmp_path / "log", inputs=inputs)
    log.start()
    log.record(ran(SERVED, *(scored(i) for i in range(400))))
    await log.close()
    entries = list(LogReader(tmp_path / "log"))
    assert sum(entry.inputs is not None for entry in entries) == kept
    assert all(entry.input_hash for entry in entries)


async def test_a_sample_is_the_same_requests_in_every_log(tmp_path):
    samples = []
    for name in ("a", "b"):
        log, _ = made(tmp_path / name, inputs="sample", input_share=0.25)
        log.start()
        log.record(ran(SERVED, *(scored(i) for i in range(1000))))
        await log.close()
        samples.append([e.request_id for e in LogReader(tmp_path / name) if e.inputs is not None])
    assert samples[0] == samples[1]
    assert 180 < len(samples[0]) < 320


async def test_tensors_are_kept_for_their_share_with_the_inputs(tmp_path):
    class Shows(FakeServed):
        def preprocessed(self, request):
            return {"x": np.array([request.nodes], np.float32)}

    log, _ = made(tmp_path / "log", inputs="none", tensors_share=0.2)
    log.start()
    log.record(ran(Shows(), *(scored(i) for i in range(500))))
    await log.close()
    entries = list(LogReader(tmp_path / "log"))
    assert 60 < sum(bool(entry.tensors) for entry in entries) < 140
    for entry in entries:
        assert (entry.inputs is not None) == bool(entry.tensors)
        if entry.tensors:
            assert entry.tensors["x"].tolist() == [entry.inputs.nodes]


async def test_one_odd_request_costs_only_its_own_entry(tmp_path, caplog):
    log, metrics = made(tmp_path / "log")
    log.start()
    odd, answer = scored(5)
    odd = ScoreRequest("risk", nodes=odd.nodes, request_id="odd", attributes={"a": object()})
    log.record(ran(SERVED, scored(1), (odd, answer), scored(2)))
    await log.close()
    assert [entry.request_id for entry in LogReader(tmp_path / "log")] == ["r1", "r2"]
    assert dropped(metrics) == {"error": 1}
    assert "is dropped" in caplog.text


async def test_a_full_queue_drops_and_counts(tmp_path):
    log, metrics = made(tmp_path / "log", max_pending=10)  # nobody writes yet
    for i in range(0, 30, 3):
        log.record(ran(SERVED, scored(i), scored(i + 1), scored(i + 2)))
    assert log.num_pending == 9
    assert dropped(metrics) == {"queue": 21}
    log.start()
    await log.close()
    assert len(list(LogReader(tmp_path / "log"))) == 9
    assert value(metrics, "written_total") == 9


async def test_large_answers_find_room_for_fewer(tmp_path):
    log, metrics = made(tmp_path / "log", max_pending_bytes=2**20)
    log.start()
    log.record(ran(SERVED, scored(1, rows=10_000)))
    await until(lambda: value(metrics, "written_total") == 1)
    for i in range(20):
        log.record(ran(SERVED, scored(i)))
    assert 10 < dropped(metrics)["queue"] < 20
    await log.close()


async def test_a_full_disk_harms_nobody_and_writing_goes_on_after_it(small_disk, caplog):
    caplog.set_level("INFO", "hopline")
    log, metrics = made(small_disk.folder, max_pending=200)
    log.start()
    slowest = 0.0
    for number in range(2000):
        began = time.perf_counter()
        log.record(ran(SERVED, scored(number)))
        slowest = max(slowest, time.perf_counter() - began)
        if number % 20 == 0:
            await asyncio.sleep(0.001)
    await until(lambda: value(metrics, "failing") == 1)
    while "disk" not in dropped(metrics):
        log.record(ran(SERVED, scored(number)))
        number += 1
    assert slowest < 20  # the disk is full until it grows
    small_disk.grow()
    await until(lambda: value(metrics, "failing") == 0)
    last = scored(10**6)
    log.record(ran(SERVED, last))
    await log.close()
    entries = list(reader := LogReader(small_disk.folder))
    assert (reader.num_torn, reader.num_bad) == (0, 0)
    assert "r1000000" in {entry.request_id for entry in entries}
    assert len(entries) == value(metrics, "written_total")
    assert len(entries) + sum(dropped(metrics).values()) == number + 2
    assert caplog.text.count("cannot write to") == 1
    assert caplog.text.count("writing again") == 1


async def test_a_disk_that_stays_full_does_not_keep_the_server_from_ending(small_disk, caplog):
    caplog.set_level("INFO", "hopline")
    log, metrics = made(small_disk.folder)
    log.start()
    for number in range(2000):
        log.record(ran(SERVED, scored(number)))
        if number == 9:
            await until(lambda: not log.num_pending)
    await until(lambda: value(metrics, "failing") == 1)
    await asyncio.wait_for(log.close(), 5)
    written = value(metrics, "written_total")
    assert written >= 10
    assert dropped(metrics) == {"shutdown": 2000 - written}
    # The metrics end with the process; the log stays.
    assert f"prediction log: {2000 - written:.0f} entries are lost" in caplog.text
    assert "writing again" not in caplog.text
    entries = list(reader := LogReader(small_disk.folder))
    assert len(entries) == written
    assert (reader.num_torn, reader.num_bad) == (0, 0)


async def test_a_folder_that_is_deleted_is_made_anew(tmp_path, caplog):
    log, _ = made(tmp_path / "log")
    log.start()
    log.record(ran(SERVED, scored(1)))
    await until(lambda: not log.num_pending)
    shutil.rmtree(tmp_path / "log")
    await until(lambda: "was deleted" in caplog.text)
    log.record(ran(SERVED, scored(2)))
    await log.close()
    assert [entry.request_id for entry in LogReader(tmp_path / "log")] == ["r2"]


async def test_a_version_is_not_kept_alive_by_the_log(tmp_path):
    import gc
    import weakref

    log, _ = made(tmp_path / "log")
    log.start()
    served = FakeServed()
    gone = weakref.ref(served)
    log.record(ran(served, scored(1)))
    await until(lambda: not log.num_pending)
    del served
    gc.collect()
    await until(lambda: gone() is None)
    await log.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep_bytes": 2**20, "rotate_bytes": 2**20}, "prediction_log.keep_bytes"),
        ({"path": "/dev/null/log"}, "prediction_log.path"),
        ({"path": "/proc/log"}, "prediction_log.path"),
    ],
)
def test_what_can_never_work_is_reported_at_start(settings, message, tmp_path):
    log, _ = made(**{"folder": settings.pop("path", tmp_path / "log"), **settings})
    with pytest.raises(ConfigError, match=message):
        log.start()


def test_parquet_without_pyarrow_is_reported_at_start(tmp_path, monkeypatch):
    log, _ = made(tmp_path / "log", format="parquet")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(
        "importlib.import_module", lambda name: (_ for _ in ()).throw(ModuleNotFoundError())
    )
    with pytest.raises(ConfigError, match=r"hopline\[parquet,drift\]"):
        log.start()


def test_a_pace_rests_after_a_tenth_of_a_millisecond_of_work():
    now, rests = [0.0], []

    def sleep(seconds):
        rests.append(now[0])
        now[0] += seconds

    pace = Pace(lambda: now[0], sleep)
    for _ in range(100):
        pace()
        now[0] += 10e-6
    assert 9 <= len(rests) <= 11


async def test_a_log_that_was_never_started_can_be_closed(tmp_path):
    log, _ = made(tmp_path / "log")
    await log.close()
    assert not (tmp_path / "log").exists()
