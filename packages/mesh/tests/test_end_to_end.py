"""Unkind simulated mesh, real Prometheus, the watch, real Alertmanager, webhook: one fault is one incident.

The processes are those of the benchmark's phase `end_to_end`, which plays all faults.
"""

import pytest

from packages.mesh.benchmarks import end_to_end
from packages.mesh.benchmarks.stand import StandPlan, stand


@pytest.mark.release
def test_a_fault_is_reported_once_and_a_killed_watch_goes_on_with_it(tmp_path):
    # Without a trained model: training takes longer than all the rest.
    plan = StandPlan(services=6, train_at=10_000, settings=(("min_duration_s", 5), ("clean_s", 5)))
    with stand(tmp_path, plan) as one:
        one.wait(
            "the first verdict", lambda: one.ask("/v1/mesh/verdict")["verdict"]["state"] == "normal", 60
        )
        # Ten intervals after the start it is told as well, but who comes first is still half chance.
        one.simulated(600)
        assert end_to_end.fired(one) == []
        service = end_to_end._busy(one)[1]
        one.order("/faults", kind="error_burst", service=service, severity=1.0)
        one.wait("the alert", lambda: end_to_end.fired(one), 40)
        one.kill_watch()
        one.simulated(30)
        one.start_watch()
        one.simulated(90)
        (incident,) = (each for each in one.incidents() if each["end_s"] is None)
        assert end_to_end.fired(one) == [incident["id"]]
        assert end_to_end.rank(incident, end_to_end.target(one, service)) in (1, 2)
        one.end_faults()
        one.wait("the end", lambda: end_to_end.over(one), 60)
        assert end_to_end.over(one) == end_to_end.fired(one) == [incident["id"]]
