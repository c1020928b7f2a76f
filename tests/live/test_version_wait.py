"""A request waits for a version of the graph, is answered from it, or is told to go elsewhere."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopline.errors import BadRequest, GraphBehind, HoplineError
from hopline.graph import Graph
from hopline.graph.live.version import read_version
from hopline.live import version_wait
from hopline.live.version_wait import VersionWait, checked
from hopline.observe.metrics import Metrics
from hopline.scheduling.work import Work
from hopline.types import ScoreRequest, ScoreResult
from tests.graph.live.keepers import Kept, base_graph
from tests.graph.live.test_version import of_stream


class Rig:
    """A live graph, what waits for it, and what became of requests."""

    def __init__(self, folder: Path, wait_s: float = 30.0) -> None:
        graph: Graph = base_graph().save(folder / "graph")
        self.lineage = graph.version
        self.kept = Kept(folder / "live", graph, follows=True)
        self.accepted: list[Work] = []
        self.outcomes: list[Any] = []
        self.wait = VersionWait(self.kept.memory, self.accepted.append, wait_s, Metrics())

    def submit(self, version: str, deadline: float | None = None) -> Work:
        request = ScoreRequest("m", min_version=version, deadline=deadline)
        work = Work(request, self.outcomes.append)
        self.wait.submit(work, read_version(version, "min_version"))
        return work


async def until(some: list[Any]) -> None:
    """Wait until there is something."""
    async with asyncio.timeout(10):
        while not some:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.fixture
async def rig(tmp_path: Path) -> Any:
    found = Rig(tmp_path)
    yield found
    await found.wait.close()
    found.kept.close()


async def test_a_version_that_is_there_is_not_waited_for(rig: Rig) -> None:
    rig.kept.apply(of_stream(0, 3))
    for version in (rig.lineage, f"{rig.lineage}+1", f"{rig.lineage}+3"):
        rig.submit(version)
    assert len(rig.accepted) == 3


async def test_a_version_is_looked_for_without_waiting(rig: Rig) -> None:
    rig.kept.apply(of_stream(0, 2))
    rig.wait.check(read_version(f"{rig.lineage}+2", "min_version"))
    for version in (f"{rig.lineage}+3", "0" * 16 + "+1"):
        with pytest.raises(GraphBehind):
            rig.wait.check(read_version(version, "min_version"))


async def test_a_request_waits_until_its_version_is_there(rig: Rig) -> None:
    work = rig.submit(f"{rig.lineage}+3")
    rig.kept.apply(of_stream(0, 2))
    await asyncio.sleep(0.01)
    assert rig.accepted == []
    rig.kept.apply(of_stream(2, 5))
    await until(rig.accepted)
    assert rig.accepted == [work]
    assert rig.outcomes == []


async def test_a_request_that_waited_long_enough_goes_elsewhere(tmp_path: Path) -> None:
    rig = Rig(tmp_path, wait_s=0.01)
    rig.submit(f"{rig.lineage}+3")
    await until(rig.outcomes)
    rig.kept.close()
    (error,) = rig.outcomes
    assert isinstance(error, GraphBehind)
    assert error.retry_after_s > 0


async def test_a_deadline_that_has_passed_leaves_no_wait(rig: Rig) -> None:
    with pytest.raises(GraphBehind):
        rig.submit(f"{rig.lineage}+3", deadline=time.monotonic())


async def test_another_graph_is_not_waited_for(rig: Rig) -> None:
    with pytest.raises(GraphBehind, match="ask another server"):
        rig.submit(f"{'0' * 16}+1")


async def test_a_cancelled_request_is_forgotten(rig: Rig) -> None:
    work = rig.submit(f"{rig.lineage}+3")
    work.cancel()
    rig.kept.apply(of_stream(0, 3))
    await asyncio.sleep(0.01)
    assert rig.accepted == rig.outcomes == []


async def test_what_is_refused_after_the_wait_is_delivered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(work: Work) -> None:
        raise BadRequest("no such node")

    monkeypatch.setattr(rig.wait, "_accept", refuse)
    rig.submit(f"{rig.lineage}+1")
    rig.kept.apply(of_stream(0, 1))
    await until(rig.outcomes)
    assert isinstance(rig.outcomes[0], BadRequest)


async def test_requests_that_wait_are_refused_at_the_end(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.submit(f"{rig.lineage}+3")
    await rig.wait.close()
    assert isinstance(rig.outcomes[0], GraphBehind)
    rig.kept.close()


async def test_not_too_many_wait(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_wait, "_MAX_WAITING", 1)
    rig.submit(f"{rig.lineage}+3")
    with pytest.raises(HoplineError, match="1 requests wait"):
        rig.submit(f"{rig.lineage}+3")


A, B = "a" * 16, "b" * 16


@pytest.mark.parametrize(
    ("answered", "wanted", "error"),
    [
        (f"{A}+7.00000000000a", f"{A}+7", None),
        (f"{A}+7.00000000000a", f"{A}+7.00000000000a", None),
        (f"{A}+7.00000000000a", f"{A}+7.00000000000b", GraphBehind),  # another history
        (f"{A}+6.00000000000a", f"{A}+7", GraphBehind),
        (f"{A}+5-1.00000000000a", f"{A}+5-0", None),
        (f"{A}+5-1.00000000000a", f"{A}+7", GraphBehind),  # another kind of stream
        (A, A, None),
        (A, f"{A}+1", GraphBehind),
        (B, A, GraphBehind),
        (f"{B},{A}+9.00000000000a", f"{A}+9", None),  # a pipeline that reads two graphs
        ("", A, BadRequest),
    ],
)
def test_an_answer_is_of_the_wanted_version_or_a_later_one(
    answered: str, wanted: str, error: type[HoplineError] | None
) -> None:
    outcomes: list[Any] = []
    deliver = checked(outcomes.append, read_version(wanted, "min_version"))
    result = ScoreResult("m", "1", answered, {"label": np.zeros(1)})
    deliver(result)
    if error is None:
        assert outcomes == [result]
    else:
        assert type(outcomes[0]) is error
