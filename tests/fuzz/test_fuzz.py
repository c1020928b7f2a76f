"""Each harness for a second, from its kept corpus and a fixed seed, and before a release for five.

Longer runs are `scripts/fuzz`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.fuzz.harnesses import HARNESSES
from tests.fuzz.run import CORPUS, Budget, Found, fuzz_all
from tests.thorough import thorough

#: Bytes of all kept corpora: they are read by every run.
_MAX_CORPUS_BYTES = 100_000


class Results:
    """What harnesses found, as far as they have run."""

    def __init__(self, results: Iterator[Found]) -> None:
        self._results = results
        self._known: dict[str, Found] = {}

    def of(self, harness: str) -> Found:
        while harness not in self._known:
            found = next(self._results)
            self._known[found.harness] = found
        return self._known[harness]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Iterator[Results]:
    """Of the harnesses whose tests were chosen: they run as many at a time as there are processors."""
    names = [
        item.callspec.params["harness"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "results" in item.fixturenames
    ]
    with contextlib.closing(fuzz_all(names, Budget(seconds=thorough(1, 5)))) as found:
        yield Results(found)


@pytest.mark.parametrize("harness", HARNESSES)
def test_nothing_that_comes_from_outside_makes_its_reader_fail(harness: str, results: Results) -> None:
    found = results.of(harness)
    assert not found.failure, f"{found.failure}\ninput: {found.crash!r}"
    assert found.runs > 0


def test_every_harness_has_a_small_corpus() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(HARNESSES)
    sizes = [file.stat().st_size for file in CORPUS.rglob("*") if file.is_file()]
    assert sum(sizes) < _MAX_CORPUS_BYTES
