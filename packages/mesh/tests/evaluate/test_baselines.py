"""Baselines on drawn data with known answers."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hopline.errors import ConfigError
from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate.baselines import (
    BASELINES,
    isolation_forest,
    maximum,
    pca,
    percentile,
    robust,
    sigma,
    static,
)
from hopline_mesh.evaluate.report import detector
from hopline_mesh.evaluate.run import judge
from hopline_mesh.evaluate.scores import episodes
from hopline_mesh.schema import Schema
from packages.mesh.tests.evaluate.drawn import START, recording

USUAL = [9.0, 10.0, 11.0, 10.0] * 25


def fired(detector, one):
    """Minutes into the test at which it began and ended an incident, and the first suspect of each."""
    first = one.test[0].start_s
    return [
        (
            round((episode.start_s - first) / one.interval_s),
            round((episode.end_s - first) / one.interval_s),
            episode.last.suspects[0].service,
        )
        for episode in episodes(judge(detector, one).verdicts)
    ]


def latencies(test, **more):
    return recording({"p99_ms": [*USUAL, *test]}, train=len(USUAL), **more)


@pytest.mark.parametrize(
    ("detector", "over", "under"),
    [
        (percentile(), 11.1, 10.9),  # the 99th percentile is 11
        (maximum(), 13.3, 13.1),  # 1.2 times 11 is 13.2
        (sigma(), 10 + 6 * 0.7072, 10 + 6 * 0.7070),  # the standard deviation is the root of a half
        (static(), 1000.1, 999.9),
        (robust(), 12.6, 12.4),  # the median is 10, the quartiles are 9.75 and 10.25
    ],
    ids=lambda value: getattr(value, "_alarm", value)._name if not isinstance(value, float) else str(value),
)
def test_it_fires_above_its_bound_after_two_intervals_and_not_below(detector, over, under):
    # It ends 90 s after the last: in the second quiet minute.
    assert fired(detector, latencies([10, over, over, over, 10, 10])) == [(2, 5, "a")]
    assert fired(detector, latencies([10, under, under, under, 10, 10])) == []


def test_one_sample_out_of_bounds_is_not_two_minutes():
    assert fired(maximum(), latencies([10, 50, 10, 50, 10])) == []


def test_a_value_that_was_not_measured_is_within_bounds():
    assert fired(maximum(), latencies([50, math.nan, 50, math.nan])) == []


def test_time_without_snapshots_holds_nothing():
    one = latencies([50, 50, 10])
    detector = maximum()
    detector.fit(*one.training())
    first, second, _ = one.testing()[0]
    late = type(second)(
        second.time_s + 600, *(getattr(second, name) for name in list(second.__slots__)[1:])
    )
    assert detector.step(first, one.contexts[0]).state == "normal"
    assert detector.step(late, one.contexts[0]).state == "normal"


def test_hold_is_counted_in_intervals():
    one = latencies([50] * 12, interval_s=15.0)
    assert fired(maximum(), one)[0][0] == 5  # 80 s are six intervals


def test_an_incident_ends_after_two_intervals_at_least():
    one = latencies([50] * 3 + [10] * 4, interval_s=120.0)
    assert fired(maximum(), one) == [(1, 4, "a")]  # the last verdict that names it is the one at its end


def test_sigma_fires_below_as_well_and_the_others_do_not():
    low = [1.0] * 4
    assert fired(sigma(), latencies(low)) == [(1, 3, "a")]
    assert fired(maximum(), latencies(low)) == []


def test_edges_are_watched_and_name_the_callee_and_the_path():
    edge = [*USUAL, 10, 100, 100, 100, 10]
    one = latencies([10] * 5, edge=edge)
    assert fired(maximum(), one) == [(2, 4, "b")]
    suspect = episodes(judge(maximum(), one).verdicts)[0].first.suspects[0]
    assert (suspect.caller, suspect.evidence[0].feature, suspect.evidence[0].seen) == (
        "a",
        "client_ms",
        100.0,
    )


def test_a_suspect_is_a_call_path_only_if_nothing_else_of_its_callee_is_out_of_bounds():
    one = latencies([10] * 5, edge=[*USUAL, 10, 100, 100, 100, 10])
    snapshots = [*one.snapshots]
    for at in (101, 102, 103):
        slow = snapshots[at].node_features.copy()
        slow[1] = 20.0  # of "b" itself
        snapshots[at] = replace(snapshots[at], node_features=slow)
    first = episodes(judge(maximum(), replace(one, snapshots=snapshots)).verdicts)[0].first.suspects[0]
    assert (first.service, first.caller) == ("b", None)
    assert [piece.caller for piece in first.evidence] == ["a", None]


def test_the_largest_exceedance_comes_first():
    one = latencies([10, 20, 20, 20], edge=[*USUAL, 10, 100, 100, 100])
    suspects = judge(maximum(), one).verdicts[3].incidents[0].suspects
    assert [suspect.service for suspect in suspects] == ["b", "a"]
    assert suspects[0].score == pytest.approx(100 / 13.2)
    assert suspects[0].evidence[0].expected == pytest.approx(13.2)


def test_memory_and_rates_are_left_alone_unless_they_are_named():
    one = recording({"memory_bytes": USUAL + [900.0] * 4, "request_rate": USUAL + [900.0] * 4}, train=100)
    assert fired(maximum(), one) == []
    assert fired(maximum(columns=["memory_bytes"]), one) == [(1, 3, "a")]


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    ("column", "times"),
    [
        ("request_duration_p99_seconds", 1e-3),
        ("latency", 1.0),
        ("latency_p99_ms", 1.0),
        ("error_ratio", 1e-3),
        ("error", 1.0),
        ("cpu_usage_cores", 1e-2),
        ("cpu", 1e-2),
        ("client_latency_us", 1e3),
        ("http_5xx_share", 1e-3),
    ],
)
@pytest.mark.parametrize("name", sorted({*BASELINES} - {"static", "pca"}))  # pca explains a single series
def test_columns_are_watched_by_their_role_under_any_name(name, column, times):
    usual = np.random.default_rng(0).normal(10, 1, 300).tolist()
    values = [times * value for value in [*usual, 10, 500, 500, 500, 10]]
    one = recording({column: values, "heap_bytes": [5.0] * len(values)}, train=300)
    assert fired(detector(name, one), one)[0][::2] == (2, "a")


@pytest.mark.parametrize(
    ("columns", "bounds"),
    [
        ({"request_duration_p99_seconds": 1.0}, 1.0),
        ({"latency_p99_us": 1.0}, 1e6),
        ({"LatencyP99Millis": 1.0, "LatencyP50Millis": 5000.0}, 1e3),  # the other is not a 99th percentile
        ({"latency_s": 1.0}, 1.0),
        ({"p90_ms": 1.0, "client_p99_ms": 5000.0}, 1e3),  # the other is that of its calls
        ({"cpu_usage": 1.0, "cpu_limit": 9.0}, 0.4),
        ({"cpu_millicores": 1.0}, 400.0),
    ],
)
def test_static_reads_the_unit_from_the_name(columns, bounds):
    for factor, found in ((0.99, []), (1.01, [(2, 5, "a")])):
        values = {
            column: [value] * 10 + [value if value > 1 else factor * bounds] * 4
            for column, value in columns.items()
        }
        name = next(iter(columns))
        values[name][10] = values[name][0] = 0.0
        one = recording({each: [*some, some[0]] for each, some in values.items()}, train=10,
                        cpu_limits={"a": 0.5})  # fmt: skip
        assert [each[::2] for each in fired(detector("static", one), one)] == [each[::2] for each in found]


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_a_recording_of_which_no_column_is_judged_is_an_error(name):
    one = recording({"request_rate": USUAL, "memory_bytes": USUAL}, train=50)
    bare = Schema(one.snapshots[0].schema.node_features, ())
    snapshots = [
        replace(each, schema=bare, edge_features=np.empty((1, 0), np.float32)) for each in one.snapshots
    ]
    one = replace(one, snapshots=snapshots)
    with pytest.raises(
        SnapshotInvalid, match=f"{name} can judge no column of this recording .request_rate, memory_bytes."
    ):
        judge(detector(name, one), one)


def test_static_refuses_a_latency_without_a_unit():
    with pytest.raises(SnapshotInvalid, match="its name needs one unit, such as latency_p99_ms"):
        judge(static(), recording({"latency_p99": USUAL}, train=50))


def test_static_knows_shares_and_limits_of_processors():
    shares = recording({"cpu_share": [0.5] * 10 + [0.85] * 4}, train=10)
    assert fired(static(), shares) == [(1, 3, "a")]
    cores = {"cpu_cores": [0.1] * 10 + [0.17] * 4}
    with pytest.raises(
        SnapshotInvalid, match=r"static can judge no column of this recording \(cpu_cores, "
    ):
        fired(static(), recording(cores, train=10))
    limited = recording(cores, train=10, cpu_limits={"a": 0.2, "b": 0.2})
    assert fired(detector("static", limited), limited) == [(1, 3, "a")]


def test_static_looks_at_errors_where_configured():
    one = recording({"error_share": [0.0] * 10 + [0.06] * 4, "p99_ms": [9.0] * 14}, train=10)
    assert fired(static(), one) == []
    assert fired(static(error_share=0.05), one) == [(1, 3, "a")]


def test_what_is_new_has_static_bounds_and_no_learned_ones():
    one = recording({"p99_ms": [math.nan] * 10 + [5000.0] * 4}, train=10)
    assert fired(static(), one) == [(1, 3, "a")]
    assert fired(maximum(), one) == []


def noisy(test, seed=0):
    """Latencies and processor of a service that follow one another, then the test."""
    rng = np.random.default_rng(seed)
    load = rng.uniform(0.5, 1.5, 300)
    p99 = [*(10 * load * rng.lognormal(0, 0.05, 300)).tolist(), *[p99 for p99, _ in test]]
    cpu = [*(0.1 * load * rng.lognormal(0, 0.05, 300)).tolist(), *[cpu for _, cpu in test]]
    return recording({"p99_ms": p99, "cpu_cores": cpu}, train=300)


@pytest.mark.parametrize("detector", [isolation_forest(trees=50), pca()], ids=["isolation_forest", "pca"])
def test_models_of_the_whole_mesh_find_what_is_far_out_and_name_it(detector):
    one = noisy([(10, 0.1)] * 5 + [(300, 3.0)] * 4 + [(10, 0.1)] * 3)
    assert fired(detector, one) == [(6, 10, "a")]


def test_pca_sees_what_breaks_a_relation_though_each_value_is_usual():
    one = noisy([(10, 0.1)] * 5 + [(14, 0.06)] * 4)
    assert fired(pca(variance=0.6), one)[0][0] == 6
    assert fired(maximum(), one) == []


def test_models_of_the_whole_mesh_do_not_mind_what_is_missing():
    assert fired(pca(), noisy([(math.nan, math.nan)] * 4)) == []


def test_two_runs_are_the_same():
    one = noisy([(10, 0.1)] * 5 + [(300, 3.0)] * 4)
    both = [judge(isolation_forest(trees=20), one).verdicts for _ in range(2)]
    assert both[0] == both[1]


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_every_baseline_can_be_made_by_its_name(name):
    one = noisy([(10, 0.1)] * 3)
    verdicts = judge(detector(name, one), one).verdicts
    assert [verdict.time_s for verdict in verdicts] == [START + 60 * k for k in range(300, 303)]


def test_an_unknown_baseline_is_named():
    with pytest.raises(
        ConfigError, match=r"no detector 'statik'; choose from watch, none, static, percentile"
    ):
        detector("statik", noisy([]))


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_a_second_training_forgets_the_incident_before(name):
    one = noisy([(10, 0.1)] * 2 + [(3000, 3.0)] * 6)
    made = detector(name, one)
    first, second = (judge(made, one).verdicts for _ in range(2))
    assert first[-1].incidents
    assert first == second


def test_static_has_the_limit_of_a_service_that_was_not_in_the_training():
    one = recording({"cpu_cores": [math.nan] * 10 + [0.17] * 4}, train=10, cpu_limits={"a": 0.2})
    assert fired(detector("static", one), one) == [(1, 3, "a")]


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_a_deviation_does_not_last_over_a_time_without_snapshots(name):
    one = noisy([(3000, 3.0)] * 3)
    made = detector(name, one)
    made.fit(*one.training())
    first, second, third = one.testing()[0]
    context = one.contexts[0]
    assert made.step(first, context).state == "normal"
    assert made.step(replace(second, time_s=second.time_s + 600), context).state == "normal"
    assert made.step(replace(third, time_s=third.time_s + 600), context).state == "anomalous"
