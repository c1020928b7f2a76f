"""Modules made at random are served as their own author's module answers, or refused with a reason.

Each case packages, loads and asks through the public interface, which takes about a second, most of it the
exporter; `python -m tests.packaging.random_modules` runs thousands.
"""

import pytest

from benchmarks.zoo_phases.verdict import ask_module
from tests.packaging.module_source import ALL_TRICKS, write_case, write_single
from tests.packaging.random_graphs import make_places
from tests.packaging.random_modules import Bench, report_of

PLAIN_SEEDS = range(100_000, 100_002)
RELEASE_PLAIN_SEEDS = range(100_002, 100_024)
#: Of modules that were once not answered as they should.
FAILED_SEEDS = (1436, 500_908, 501_226, 901_011)
SAMPLE_SEEDS = range(1)
RELEASE_SEEDS = range(1, 60)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("random_modules"))


@pytest.mark.parametrize(
    "seed", [*PLAIN_SEEDS, *(pytest.param(seed, marks=pytest.mark.release) for seed in RELEASE_PLAIN_SEEDS)]
)
def test_a_module_of_supported_parts_is_served(bench, seed):
    case = write_case(seed, plain=True)
    verdict = bench.judge(case)
    # answers that are between 0 and 1 everywhere may be logits or probabilities: the user says which
    says_how = verdict.kind == "refused" and "set output='probabilities'" in verdict.why
    assert verdict.kind == "split" or says_how, report_of(case, verdict)


@pytest.mark.parametrize(
    "seed",
    [
        *FAILED_SEEDS,
        *SAMPLE_SEEDS,
        *(pytest.param(seed, marks=pytest.mark.release) for seed in RELEASE_SEEDS),
    ],
)
def test_a_random_module_is_served_as_it_answers_or_refused(bench, seed):
    case = write_case(seed)
    verdict = bench.judge(case)
    assert verdict is None or verdict.kind not in ("silent", "crashed"), report_of(case, verdict)


def test_a_seed_writes_the_same_module_again():
    assert [write_case(seed) for seed in range(20)] == [write_case(seed) for seed in range(20)]


@pytest.mark.parametrize("seed", [901_086])  # one trick twice
def test_tricks_that_are_drawn_together_are_source_that_compiles(seed):
    compile(write_case(seed).source, "case.py", "exec")


@pytest.mark.release
def test_every_trick_is_source_that_runs(tmp_path):
    places, failed = {}, []
    for kind, name in ALL_TRICKS:
        case = write_single(kind, name, "SAGEConv")
        has = (*case.takes, *case.columns)
        if has not in places:
            places[has] = make_places(tmp_path, has).small.data
        data = places[has]
        try:
            ask_module(case.build(tmp_path)[0], {name: data[role] for name, role in case.call.items()})
        except Exception as error:
            failed.append(f"{kind}: {name}: {error}")
    assert failed == []
