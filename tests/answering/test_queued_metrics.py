"""What a version's queue tells of itself: stages, depth, age, cost."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hopline.answering.computer import Computer
from hopline.answering.queued import QueuedVersion
from hopline.config.reader import load_config
from hopline.errors import RuntimeFailure
from hopline.observe.metrics import Metrics
from hopline.types import ScoreRequest, ScoreResult
from tests.fake_version import hand_in

LABELS = {"model": "m", "version": "1"}


def sample(metrics, name, **labels):
    for family in text_string_to_metric_families(metrics.render().decode()):
        for found in family.samples:
            if found.name == name and found.labels == {**LABELS, **labels}:
                return found.value
    return None


class Squaring(Computer):
    """Answers with squares; waits for a gate where it computes on a thread."""

    def __init__(self):
        super().__init__("m", "1")
        self.gate = threading.Event()
        self.gate.set()
        self.lap = {}

    def num_seeds(self, request):
        return len(request.nodes)

    def stages(self):
        return dict(self.lap)

    def run(self, batch):
        assert self.gate.wait(5)
        return [
            RuntimeFailure("odd")
            if item.request.nodes[0] == 13
            else ScoreResult("m", "1", "", {"x": np.square(item.request.nodes)})
            for item in batch
        ]


def squares(metrics, executor, recorders=(), **settings):
    config = load_config(overrides=settings)
    version = QueuedVersion(Squaring(), config, metrics.model("m", "1"), executor, recorders)
    metrics.before_reading(version.flush_metrics)
    return version


class Notes:
    def __init__(self):
        self.ran = []

    def record(self, ran):
        self.ran.append(ran)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as pool:
        yield pool


async def answered(version, *numbers):
    futures = []
    for number in numbers:
        future = asyncio.get_running_loop().create_future()
        hand_in(version, ScoreRequest("m", nodes=[number]), future.set_result)
        futures.append(future)
    return await asyncio.gather(*futures)


async def test_stages_of_a_batch_add_up_to_its_time(pool):
    metrics, notes = Metrics(), Notes()
    version = squares(metrics, pool, [notes])
    version.computer.lap = {"sample": 1e-6, "compute": 2e-6}
    for number in range(3):
        await answered(version, number, number)
    for stage, seconds in (("sample", 3e-6), ("compute", 6e-6)):
        assert sample(metrics, "hopline_stage_seconds_count", stage=stage) == 3
        assert sample(metrics, "hopline_stage_seconds_sum", stage=stage) == pytest.approx(seconds)
    post = sum(ran.compute_s - 3e-6 for ran in notes.ran)
    assert sample(metrics, "hopline_stage_seconds_sum", stage="post") == pytest.approx(post)
    for ran in notes.ran:
        assert list(ran.stages) == ["sample", "compute", "post"]
        assert sum(ran.stages.values()) == pytest.approx(ran.compute_s)
    assert sample(metrics, "hopline_stage_seconds_count", stage="queue") == 6
    assert sample(metrics, "hopline_stage_seconds_count", stage="total") == 6
    assert sample(metrics, "hopline_batch_rows_sum") == 6


async def test_batches_of_different_stages_are_counted_each_by_its_own(pool):
    """In the process of a model, some batches are looked up and some are computed."""
    metrics = Metrics()
    version = squares(metrics, pool)
    for lap in ({"lookup": 1e-6}, {"sample": 2e-6, "compute": 3e-6}, {"lookup": 4e-6}):
        version.computer.lap = lap
        await answered(version, 2)
    assert sample(metrics, "hopline_stage_seconds_sum", stage="lookup") == pytest.approx(5e-6)
    assert sample(metrics, "hopline_stage_seconds_sum", stage="sample") == pytest.approx(2e-6)
    assert sample(metrics, "hopline_stage_seconds_count", stage="post") == 3


async def test_a_version_without_stages_has_its_whole_time_in_compute(pool):
    metrics, notes = Metrics(), Notes()
    version = squares(metrics, pool, [notes])
    await answered(version, 2)
    assert sample(metrics, "hopline_stage_seconds_count", stage="compute") == 1
    assert sample(metrics, "hopline_stage_seconds_count", stage="post") is None
    assert sample(metrics, "hopline_stage_seconds_sum", stage="compute") == notes.ran[0].compute_s
    assert notes.ran[0].stages == {}


async def test_statistics_divide_the_time_of_requests_as_the_protocol_does(pool):
    metrics = Metrics()
    version = squares(metrics, pool)
    version.computer.lap = {"sample": 1e-6, "compute": 2e-6}
    await answered(version, 1, 2, 3)
    stats = version.statistics()["inference_stats"]
    assert stats["compute_input"] == {"count": 3, "ns": 3000}
    parts = ("compute_input", "compute_infer", "compute_output")
    assert sum(stats[part]["ns"] for part in parts) == pytest.approx(stats["success"]["ns"], abs=3)


async def test_depth_and_age_of_the_queue_are_reported_while_requests_wait(pool):
    metrics = Metrics()
    version = squares(metrics, pool, **{"compute.inline_cost_us": 0})
    assert sample(metrics, "hopline_queue_age_seconds") == 0
    version.computer.gate.clear()
    first = asyncio.ensure_future(answered(version, 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert version.queue._busy
    others = asyncio.ensure_future(answered(version, 2, 3, 4))
    await asyncio.sleep(0.02)
    assert sample(metrics, "hopline_queue_requests") == 3
    assert sample(metrics, "hopline_queue_rows") == 3
    assert 0.015 < sample(metrics, "hopline_queue_age_seconds") < 60
    version.computer.gate.set()
    await asyncio.gather(first, others)
    assert sample(metrics, "hopline_queue_requests") == 0
    assert sample(metrics, "hopline_queue_age_seconds") == 0


async def test_a_released_version_leaves_no_gauge_that_holds_it(pool):
    metrics = Metrics()
    version = squares(metrics, pool)
    model = metrics.model("m", "1")
    await version.release()
    assert model.queue_age.read is None
    later = squares(metrics, pool)
    await version.release()  # once more, and late: the gauge is another one's now
    assert model.queue_requests.read is not None
    await later.release()
    assert model.queue_requests.read is None


async def test_age_is_that_of_the_worst_worker_and_depth_that_of_all(tmp_path):
    workers = [Metrics(tmp_path, slot) for slot in range(3)]
    for worker, age, depth in zip(workers, (0.5, 7.0, 2.0), (1, 2, 3), strict=True):
        worker.model("m", "1").queue_age.set_function(lambda age=age: age)
        worker.model("m", "1").queue_requests.set(depth)
        worker.flush()
    for worker in workers:
        assert sample(worker, "hopline_queue_age_seconds") == 7.0
        assert sample(worker, "hopline_queue_requests") == 6


@pytest.mark.parametrize("where", [1e9, 0.0], ids=["loop", "thread"])
async def test_processor_time_of_batches_is_counted_and_priced(pool, where):
    metrics = Metrics()
    settings = {"cost.cpu_hour": 3.6, "cost.currency": "EUR", "compute.inline_cost_us": where}
    version = squares(metrics, pool, **settings)
    seconds = iter(np.arange(0, 1000, 0.5).tolist())
    with pytest.MonkeyPatch.context() as patch:
        # each look at the thread's clock is half a second after the last one
        patch.setattr("hopline.scheduling.batcher.time.thread_time", lambda: next(seconds))
        patch.setattr(
            "hopline.scheduling.batcher._LONG_S", 1e9
        )  # a slow machine's batches are looked at each
        for number in range(17):
            await answered(version, number)
    # on the loop the 1st, 9th and 17th batch are looked at, and stand for 1, 8 and 8
    assert sample(metrics, "hopline_cpu_seconds_total") == 17 * 0.5
    assert sample(metrics, "hopline_cost_total", currency="EUR") == pytest.approx(17 * 0.5 * 3.6 / 3600)
    assert sample(metrics, "hopline_cpu_seconds_total") == 17 * 0.5  # counted once


async def test_no_price_no_cost(pool):
    metrics = Metrics()
    version = squares(metrics, pool)
    await answered(version, 1)
    assert sample(metrics, "hopline_cpu_seconds_total") > 0
    assert "hopline_cost_total{" not in metrics.render().decode()


@pytest.mark.parametrize(("device", "expected"), [("cpu", 0.0), ("cuda", 1.2)])
async def test_the_layers_of_a_model_on_a_gpu_are_gpu_seconds(pool, device, expected):
    metrics = Metrics()
    version = squares(metrics, pool, **{"compute.device": device})
    for _ in range(4):
        version._note(1, [0.0], 0.5, {"sample": 0.1, "compute": 0.3})
    version.flush_metrics()
    assert sample(metrics, "hopline_gpu_seconds_total") == pytest.approx(expected)


def test_gpu_seconds_have_a_price_of_their_own():
    metrics = Metrics()
    prices = load_config(overrides={"cost.cpu_hour": 1.0, "cost.gpu_hour": 10.0}).cost
    metrics.model("m", "1").charge(prices, cpu_s=360.0, gpu_s=720.0)
    assert sample(metrics, "hopline_gpu_seconds_total") == 720
    assert sample(metrics, "hopline_cost_total", currency="USD") == pytest.approx(0.1 + 2.0)


def test_the_processor_time_of_the_whole_process_is_there_to_compare_with():
    metrics = Metrics()

    def total():
        lines = metrics.render().decode().splitlines()
        return float(
            next(x for x in lines if x.startswith("hopline_process_cpu_seconds_total ")).split()[1]
        )

    first = total()
    assert first > 0
    sum(range(10**6))
    assert first < total() < first + 60


class Degraded(Squaring):
    """Answers with the fallbacks that the test names."""

    def run(self, batch):
        used = {1: ("stale_features", "mean_features"), 2: ("mean_features",)}
        return [
            ScoreResult("m", "1", "", {"x": np.zeros(1)}, None, used.get(item.request.nodes[0], ()))
            for item in batch
        ]


async def test_every_degraded_answer_is_counted_once_for_each_fallback(pool):
    metrics = Metrics()
    version = QueuedVersion(Degraded(), load_config(), metrics.model("m", "1"), pool, [])
    await answered(version, 1, 2, 3)
    with version.preflight():
        await answered(version, 2)
    assert metrics.degraded_answers("m", "stale_features").value == 1
    assert metrics.degraded_answers("m", "mean_features").value == 2


async def test_a_recorder_that_fails_costs_neither_answers_nor_other_records(pool, caplog):
    class Failing:
        def record(self, ran):
            raise ZeroDivisionError("a recorder's bug")

    notes = Notes()
    version = squares(Metrics(), pool, [Failing(), notes])
    answers = await asyncio.wait_for(answered(version, 2, 13, 3), 5)
    assert [answers[0].outputs["x"][0], answers[2].outputs["x"][0]] == [4, 9]
    assert sum(len(ran.requests) for ran in notes.ran) == 3
    assert "a recorder's bug" in caplog.text
    assert "Failing recorded nothing" in caplog.text
