"""Each harness for a second, from its kept corpus and a fixed seed, and before a release for five.

Longer runs are `scripts/fuzz`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.fuzz.harnesses import HARNESSES
from tests.fuzz.run import CORPUS, Budget, Found, fuzz

_BUDGET, _BUDGET_OF_A_RELEASE = Budget(seconds=1), Budget(seconds=5)
#: Bytes of all kept corpora: they are read by every run.
_MAX_CORPUS_BYTES = 100_000


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Found]]]:
    """The harnesses whose tests were chosen, as many at a time as there are processors."""
    names = [
        item.callspec.params["harness"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "running" in item.fixturenames
    ]
    budget = _BUDGET_OF_A_RELEASE if request.config.getoption("--all") else _BUDGET
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        yield {name: pool.submit(fuzz, name, budget) for name in names}


@pytest.mark.parametrize("harness", HARNESSES)
def test_nothing_that_comes_from_outside_makes_its_reader_fail(
    harness: str, running: dict[str, Future[Found]]
) -> None:
    found = running[harness].result()
    assert not found.failure, f"{found.failure}\ninput: {found.crash!r}"
    assert found.runs > 0


def test_every_harness_has_a_small_corpus() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(HARNESSES)
    sizes = [file.stat().st_size for file in CORPUS.rglob("*") if file.is_file()]
    assert sum(sizes) < _MAX_CORPUS_BYTES
