"""The sample, the alarms, the hours, the reference."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from hopline.errors import ArtifactCorrupted, ArtifactError
from hopline.observe.psi import Comparison
from hopline.types import ScoreRequest, ScoreResult
from hopline_drift.alarms import Alarm, AlarmRule
from hopline_drift.bins import PROBABILITY_BINS, CategoryBins
from hopline_drift.files import known_versions, read_sealed, version_folder, write_sealed
from hopline_drift.hours import KEPT_HOURS, Hours, read_hours
from hopline_drift.observed import SCORE, VALUE, Observed, Quantity
from hopline_drift.reference import Reference, read_reference, write_reference
from hopline_drift.reservoir import Reservoir
from packages.drift.tests.streams import FakeServed, ran

# The sample


def numbered(count: int) -> list[ScoreRequest]:
    return [ScoreRequest("m", nodes=[number]) for number in range(count)]


def offered(size: int, count: int, batch: int, seed: int) -> list[int]:
    """Numbers of the requests that a reservoir keeps of `count`."""
    reservoir = Reservoir(size, Random(seed))
    result = ScoreResult("m", "1", "g", {})
    requests = numbered(count)
    for at in range(0, count, batch):
        part = requests[at : at + batch]
        reservoir.offer(ran(FakeServed(), part, [result] * len(part)))
    assert reservoir.num_seen == count
    return [request.nodes[0] for request, _ in reservoir.items]


@pytest.mark.sample(1)
@pytest.mark.parametrize("batch", [1, 7, 300])
def test_each_request_has_the_same_chance_whatever_the_batches(batch):
    hits = np.zeros(300)
    for seed in range(2000):
        kept = offered(30, 300, batch, seed)
        assert len(set(kept)) == 30
        hits[kept] += 1
    # 200 hits each, binomial: 13.4 standard deviation
    assert hits.mean() == 200
    assert abs(hits - 200).max() < 5 * 13.4
    assert hits.std() == pytest.approx(13.4, rel=0.2)


def test_few_requests_are_all_kept():
    assert offered(30, 20, 3, 0) == list(range(20))


# Alarms

RULE = AlarmRule(0.1, 0.25, 3)


def of(psi: float, count: int = 100_000) -> Comparison:
    return Comparison(psi, 0.0, 0.0, count, count, "a")


def levels(*indices: float, rule: AlarmRule = RULE) -> list[str]:
    alarm, found = Alarm(), []
    for at, index in enumerate(indices):
        changed = rule.step(alarm, of(index), at)
        assert changed == (alarm.since == at and alarm.level != (found[-1] if found else "ok"))
        found.append(alarm.level)
    return found


def test_an_index_must_be_held_to_rise():
    assert levels(0.3, 0.3, 0.0, 0.3, 0.3) == ["ok"] * 5
    assert levels(0.3, 0.3, 0.3, 0.3) == ["ok", "ok", "alert", "alert"]
    assert levels(0.2, 0.2, 0.2, 0.2) == ["ok", "ok", "watch", "watch"]
    assert levels(0.2, 0.2, 0.3, 0.3, 0.3) == ["ok", "ok", "watch", "watch", "alert"]


def test_it_must_be_well_below_to_fall():
    up = [0.3, 0.3, 0.3]
    assert levels(*up, 0.24, 0.24, 0.24, 0.24)[-1] == "alert"  # at the threshold it would flap
    assert levels(*up, 0.15, 0.15, 0.15)[-1] == "watch"
    assert levels(*up, 0.0, 0.0, 0.0)[-1] == "ok"
    assert levels(*up, 0.0, 0.0, 0.3)[-1] == "alert"


def test_few_values_decide_nothing():
    alarm = Alarm()
    assert not any(AlarmRule(0.1, 0.25, 1).step(alarm, of(9.0, count=20), 0) for _ in range(5))


def test_what_chance_can_do_raises_nothing():
    by_chance = Comparison(0.3, 0.2, 0.35, 100, 100, "a")
    assert not AlarmRule(0.05, 0.25, 1).step(Alarm(), by_chance, 0)


# Hours


def scores(*values: float) -> Observed:
    observed = Observed()
    observed.numbers(SCORE, np.array(values))
    return observed


def test_hours_of_workers_add_up_and_a_restart_goes_on(tmp_path):
    for worker, values in ((0, (0.1, 0.2)), (1, (0.9,)), (0, (0.15,))):
        hours = Hours(tmp_path, worker)
        hours.update(scores(*values), 10, None, 7200.0 + worker)
        hours.write()
    (hour,) = read_hours(tmp_path, lambda: None)
    assert (hour.start, hour.num_seen, hour.scores.num_values) == (7200, 30, 4)
    assert hour.total == pytest.approx(1.35)
    assert hour.scores.counts == PROBABILITY_BINS.count([0.1, 0.2, 0.9, 0.15]).tolist()


def test_a_week_is_kept(tmp_path):
    hours = Hours(tmp_path, 0)
    for number in range(KEPT_HOURS + 30):
        hours.update(scores(0.5), 1, None, 3600.0 * number)
    hours.write()
    starts = [hour.start // 3600 for hour in read_hours(tmp_path, lambda: None)]
    assert starts == list(range(30, KEPT_HOURS + 30))


def test_values_that_are_no_probabilities_take_the_reference_s_bins(tmp_path):
    observed = Observed()
    observed.numbers(VALUE, np.arange(100.0))
    hours = Hours(tmp_path, 0)
    hours.update(observed, 100, None, 0.0)  # no reference yet
    reference = Reference.of(observed, "here", 0.0)
    hours.update(observed, 100, reference, 0.0)
    hours.write()
    (hour,) = read_hours(tmp_path, lambda: None)
    assert hour.scores.bins == reference.bins(VALUE)
    assert hour.total == 4950


# The reference and its file


def test_a_reference_is_read_back_and_damage_is_noticed(tmp_path):
    observed = scores(*np.linspace(0, 1, 200))
    observed.categories(Quantity("input", "shop"), ["a", "b"] * 100)
    reference = Reference.of(observed, "here", 5.0, model="m", version="1")
    path = tmp_path / "m" / "reference.json"
    digest = write_reference(path, reference)
    assert read_reference(path) == (reference, digest)
    assert reference.bins(Quantity("input", "shop")) == CategoryBins(("a", "b"))
    assert list(path.parent.iterdir()) == [path]
    whole = path.read_bytes()
    for at in range(0, len(whole), 37):
        path.write_bytes(whole[:at])
        with pytest.raises(ArtifactCorrupted):
            read_reference(path)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ArtifactCorrupted):
            read_reference(path)


def test_a_newer_reference_is_refused(tmp_path):
    write_sealed(tmp_path / "r.json", Reference("m", "1", "", 0.0, 0, (), format=99))
    with pytest.raises(ArtifactError, match="format 99 is newer"):
        read_reference(tmp_path / "r.json")


def test_what_a_base_lacks_is_added_and_what_says_nothing_left_out():
    first = scores(*np.linspace(0, 1, 200))
    base = Reference.of(first, "graph", 0.0, is_complete=False)
    more = scores(*np.linspace(5, 6, 200))
    more.categories(Quantity("output", "label"), [0, 1] * 100)
    more.numbers(Quantity("input", "rare"), [1.0] * 10)
    both = Reference.of(more, "traffic", 1.0, base=base)
    assert [entry.quantity for entry in both.entries] == [SCORE, Quantity("output", "label")]
    assert both.bins(SCORE) == base.bins(SCORE)
    assert (both.source, both.is_complete) == ("graph, then traffic", True)


@pytest.mark.parametrize("name", ["1", "..", "a/b", ".hidden", "ümlaut %2F"])
def test_any_name_has_a_folder_of_its_own(tmp_path, name):
    folder = version_folder(tmp_path, name, "v")
    assert folder.parent.parent == tmp_path
    write_sealed(folder / "x.json", [1])
    assert read_sealed(folder / "x.json", list[int])[0] == [1]
    assert [found[:2] for found in known_versions(tmp_path)] == [(name, "v")]
