"""The physics: what is sent arrives, Little's law, and what each fault does to whom."""

from dataclasses import replace
from math import factorial

import numpy as np
import pytest

from hopline_mesh.simulate.flow import Conditions, Flow, advance, start
from hopline_mesh.simulate.lognormal import Latencies, normal_cdf
from hopline_mesh.simulate.topology import Topology, build

RATE = 300.0


@pytest.fixture(scope="module")
def topology() -> Topology:
    return build(24, 2, RATE, np.random.default_rng(3))


def usual(topology: Topology) -> Conditions:
    s, e = len(topology.names), len(topology.src)
    return Conditions(
        entering=topology.entry_share * RATE,
        calls=topology.calls * (topology.spare_of[topology.dst] < 0),
        ready=topology.replicas.astype(float),
        slow_mean=np.ones(s),
        slow_square=np.ones(s),
        own_ms=topology.own_ms,
        own_errors=np.zeros(s),
        loss=np.zeros(e),
        delay_ms=np.zeros(e),
        resend=np.ones(e),
    )


def settled(topology: Topology, now: Conditions) -> Flow:
    """After some moments under the same conditions."""
    flow = start(topology)
    for _ in range(12):
        flow = advance(topology, now, flow)
    return flow


def busiest_path(topology: Topology, flow: Flow) -> int:
    """A path between services that are no entries, so that there is somebody above."""
    return int(np.argmax(np.where(topology.layer[topology.src] > 0, flow.sent, 0.0)))


def callers_of(topology: Topology, service: int) -> set[int]:
    """Everybody from whom requests get there."""
    found: set[int] = set()
    todo = [service]
    while todo:
        at = todo.pop()
        above = set(topology.src[topology.dst == at].tolist()) - found
        found |= above
        todo += above
    return found


def changed(topology: Topology, base: Conditions, name: str, at: int, value: float) -> Conditions:
    values = getattr(base, name).copy()
    values[at] = value
    return replace(base, **{name: values})


def test_what_callers_send_is_what_callees_get(topology):
    flow = settled(topology, usual(topology))
    s = len(topology.names)
    from_callers = np.bincount(topology.dst, flow.received, s)
    np.testing.assert_allclose(flow.arrived, topology.entry_share * RATE + from_callers)
    np.testing.assert_allclose(flow.sent, flow.received)
    np.testing.assert_allclose(flow.served, flow.arrived)


def test_rates_are_those_of_a_matrix_equation(topology):
    """Oracle: r = entering + C'r, solved at once rather than layer by layer."""
    now = usual(topology)
    s = len(topology.names)
    calls = np.zeros((s, s))
    np.add.at(calls, (topology.dst, topology.src), now.calls)
    expected = np.linalg.solve(np.eye(s) - calls, now.entering)
    np.testing.assert_allclose(settled(topology, now).arrived, expected, rtol=1e-9)


def test_requests_in_flight_follow_littles_law(topology):
    flow = settled(topology, usual(topology))
    np.testing.assert_allclose(
        flow.in_flight, flow.arrived * flow.server.mean_ms / 1000.0, rtol=1e-3, atol=1e-6
    )


def test_a_caller_takes_longer_than_its_own_work(topology):
    flow = settled(topology, usual(topology))
    assert (flow.server.mean_ms >= topology.own_ms).all()
    calls_others = np.isin(np.arange(len(topology.names)), topology.src)
    assert (flow.server.mean_ms[calls_others] > topology.own_ms[calls_others]).all()


def test_load_that_rises_takes_longer(topology):
    now = usual(topology)
    waits = [
        settled(topology, replace(now, entering=now.entering * factor)).server.mean_ms.mean()
        for factor in (0.3, 1.0, 1.8, 2.2)
    ]
    assert waits == sorted(waits)
    assert waits[-1] > 1.1 * waits[1]


@pytest.mark.parametrize("workers", [1, 2, 4, 16])
@pytest.mark.parametrize("busy", [0.3, 0.6, 0.8, 0.9])
def test_waits_are_about_those_of_erlangs_formula(workers, busy):
    """Oracle: the exact wait of M/M/c, where the queue is long enough to matter."""
    one = build(3, 0, 1.0, np.random.default_rng(0))
    s = len(one.names)
    one = replace(one, workers=np.full(s, workers))
    capacity = workers * one.replicas * 1000.0 / one.own_ms
    base = usual(one)
    nobody = replace(base, entering=capacity * busy, calls=np.zeros(len(one.src)))
    flow = advance(one, nobody, start(one))
    offered = busy * workers
    tail = offered**workers / factorial(workers) / (1 - busy)
    erlang = tail / (sum(offered**k / factorial(k) for k in range(workers)) + tail)
    expected = one.own_ms * erlang / (workers * (1 - busy))
    np.testing.assert_allclose(
        flow.server.mean_ms - one.own_ms, expected, rtol=0.25, atol=0.02 * one.own_ms.max()
    )


def test_what_is_too_much_is_turned_away(topology):
    now = usual(topology)
    flow = settled(topology, replace(now, entering=now.entering * 6))
    over = flow.served < 0.999 * flow.arrived
    assert over.any()
    assert (flow.errors[over] > 0.0).all()
    assert (flow.served <= flow.arrived + 1e-9).all()


def test_a_slow_network_is_seen_by_the_client_alone(topology):
    now = usual(topology)
    before = settled(topology, now)
    edge = busiest_path(topology, before)
    after = settled(topology, changed(topology, now, "delay_ms", edge, 200.0))
    assert after.client.mean_ms[edge] == pytest.approx(before.client.mean_ms[edge] + 200.0, rel=1e-6)
    callee, caller = topology.dst[edge], topology.src[edge]
    assert after.server.mean_ms[callee] == pytest.approx(before.server.mean_ms[callee])
    assert after.server.mean_ms[caller] > before.server.mean_ms[caller] + 10.0
    elsewhere = ~np.isin(np.arange(len(topology.names)), [*callers_of(topology, int(caller)), caller])
    np.testing.assert_allclose(after.server.mean_ms[elsewhere], before.server.mean_ms[elsewhere], rtol=1e-9)


def test_a_retry_storm_loads_all_that_are_below(topology):
    now = usual(topology)
    before = settled(topology, now)
    edge = busiest_path(topology, before)
    after = settled(topology, changed(topology, now, "resend", edge, 4.0))
    assert after.sent[edge] == pytest.approx(4.0 * before.sent[edge], rel=0.05)
    callee = topology.dst[edge]
    assert after.arrived[callee] > before.arrived[callee] * 1.2
    below = np.flatnonzero(topology.src == callee)
    assert (after.sent[below] >= before.sent[below]).all()
    assert after.sent[below].sum() == 0.0 or after.sent[below].sum() > before.sent[below].sum()


def test_errors_make_retries_and_retries_make_load(topology):
    now = usual(topology)
    before = settled(topology, now)
    edge = busiest_path(topology, before)
    retrying = replace(topology, retries=np.full(len(topology.src), 2))
    after = settled(retrying, changed(topology, now, "own_errors", int(topology.dst[edge]), 0.5))
    # One, and half of them once more, and a quarter of them again.
    assert after.sent[edge] == pytest.approx(before.sent[edge] * 1.75, rel=0.05)


def test_a_partition_loses_requests_that_the_callee_never_sees(topology):
    now = usual(topology)
    before = settled(topology, now)
    edge = busiest_path(topology, before)
    after = settled(topology, changed(topology, now, "loss", edge, 0.4))
    assert after.received[edge] == pytest.approx(0.6 * after.sent[edge])
    assert after.failed[edge] == pytest.approx(0.4, abs=0.02)
    assert after.client.stuck[edge] == pytest.approx(0.4, abs=0.02)
    assert after.client.stuck_ms[edge] == pytest.approx(topology.timeout_ms[edge], rel=0.02)
    assert after.errors[topology.dst[edge]] == pytest.approx(before.errors[topology.dst[edge]], abs=1e-9)


def test_a_service_without_pods_answers_nothing_and_its_callers_fail_at_once(topology):
    now = usual(topology)
    before = settled(topology, now)
    edge = busiest_path(topology, before)
    service = int(topology.dst[edge])
    after = settled(topology, changed(topology, now, "ready", service, 0.0))
    assert after.arrived[service] == 0.0
    assert after.in_flight[service] == 0.0
    assert after.failed[edge] == 1.0
    assert after.client.mean_ms[edge] <= 1.0


@pytest.mark.parametrize("field", ["own_ms", "own_errors"])
def test_what_befalls_a_service_reaches_its_callers(topology, field):
    now = usual(topology)
    before = settled(topology, now)
    edge = busiest_path(topology, before)
    service = int(topology.dst[edge])
    value = 20 * topology.own_ms[service] if field == "own_ms" else 0.3
    after = settled(topology, changed(topology, now, field, service, value))
    if field == "own_ms":
        assert after.server.mean_ms[topology.src[edge]] > before.server.mean_ms[topology.src[edge]]
    assert after.errors[service] >= before.errors[service]
    assert after.failed[edge] >= before.failed[edge]


def test_nothing_is_negative_or_unknown_under_any_conditions(topology):
    rng = np.random.default_rng(0)
    flow = start(topology)
    s, e = len(topology.names), len(topology.src)
    for _ in range(60):
        base = usual(topology)
        now = replace(
            base,
            entering=base.entering * rng.choice([0.0, 0.1, 1.0, 30.0]),
            ready=np.floor(base.ready * rng.choice([0.0, 0.5, 1.0], s)),
            own_ms=base.own_ms * rng.choice([1.0, 50.0, 1e4], s),
            own_errors=rng.choice([0.0, 0.5, 1.0], s),
            loss=rng.choice([0.0, 0.5, 1.0], e),
            delay_ms=rng.choice([0.0, 1e5], e),
            resend=rng.choice([1.0, 10.0], e),
        )
        flow = advance(topology, now, flow)
        for name in Flow.__slots__:
            values = np.asarray(getattr(flow, name))
            assert np.isfinite(values).all(), name
            assert (values >= 0.0).all(), name
        for share in (flow.errors, flow.failed, flow.server.stuck, flow.client.stuck):
            assert (share <= 1.0).all()


def test_quantiles_of_latency_are_those_of_a_sample():
    rng = np.random.default_rng(1)
    sample = np.where(rng.random(200_000) < 0.03, 2000.0, rng.lognormal(3.0, 0.5, 200_000))
    fast = sample[sample != 2000.0]
    latencies = Latencies(*(np.array([value]) for value in (fast.mean(), fast.var(), 0.03, 2000.0)))
    for share in (0.5, 0.9, 0.95):
        assert latencies.quantile(share)[0] == pytest.approx(np.quantile(sample, share), rel=0.02)
    assert latencies.quantile(0.99)[0] == 2000.0


def test_the_normal_distribution_is_that_of_the_error_function():
    from math import erf, sqrt

    z = np.linspace(-6, 6, 241)
    np.testing.assert_allclose(normal_cdf(z), [0.5 * (1 + erf(x / sqrt(2))) for x in z], atol=1e-7)
