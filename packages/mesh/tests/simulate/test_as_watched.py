"""What the watch's own reader of Kubernetes makes of a simulated cluster."""

import msgspec
import pytest

from hopline_mesh.kubernetes.feed import ChangeFeed
from hopline_mesh.kubernetes.resources import RESOURCES
from hopline_mesh.simulate import Fault, MeshPlan, Operation
from hopline_mesh.simulate.cluster.web import selected
from hopline_mesh.simulate.live import Live
from packages.mesh.tests.kubernetes.things import services

START_S = 1_790_000_000.0
PLAN = MeshPlan(services=8, rate=100.0, daily=0.0, bursts_per_hour=0.0, autoscale=False, warm_up_s=30.0)


class Watched:
    """A live mesh and a feed that is told of it, by a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = START_S
        self.live = Live(PLAN, 3, clock=lambda: self.now_s)
        self.feed = ChangeFeed()
        self.version = self.live.log.version
        for resource in RESOURCES:
            self.feed.replaced(resource, None, self._read(resource), self.now_s)
        self.changes: set[tuple[str, str]] = set()
        self.troubles: set[tuple[str, str]] = set()
        self.after(60.0)
        assert self.changes == set()
        assert self.troubles == set()

    def after(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.now_s += 1.0
            self.live.catch_up()
            for happening in self.live.log.since(self.version):
                self.version = happening.version
                for resource in RESOURCES:
                    fits = selected(",".join(resource.fields), "")(happening.body)
                    if resource.plural == happening.key[0] and fits:
                        raw = msgspec.json.encode(happening.body)
                        body = msgspec.json.decode(raw, type=resource.type)
                        what = "ADDED" if happening.before is None else "MODIFIED"
                        what = "DELETED" if happening.deleted else what
                        self.feed.changed(resource, what, body, self.now_s)
            context = self.feed.context(self.now_s)
            self.changes |= {(change.kind, change.service) for change in context.changes}
            self.troubles |= {(trouble.kind, trouble.service) for trouble in context.troubles}

    def under_way(self) -> list[tuple[str, str]]:
        context = self.feed.context(self.now_s)
        return [(each.kind, each.service) for each in context.changes if each.end_s is None]

    def _read(self, resource):
        fits = selected(",".join(resource.fields), "")
        return [
            msgspec.json.decode(msgspec.json.encode(body), type=resource.type)
            for body in self.live.log.listing(resource.plural)[1]
            if fits(body)
        ]


@pytest.fixture(scope="module")
def service() -> str:
    live = Live(PLAN, 3, clock=lambda: START_S)
    return max(live.state()["services"], key=lambda each: each["request_rate"])["service"]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("kind", "told"),
    [("scale", "scale"), ("rollout", "rollout"), ("drain", "drain"), ("shift", "rollout")],
)
def test_planned_changes_are_recognised_and_end(service, kind, told):
    watched = Watched()
    watched.live.operate(Operation(kind, 0.0, service, 7 if kind == "scale" else 0))
    watched.after(300.0)
    assert {change for change in watched.changes if change[1] == service} == {(told, service)}
    assert watched.under_way() == []
    assert watched.troubles == set()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "trouble"),
    [("crash_loop", "crash_loop"), ("memory_leak", "oom_kill"), ("stuck_rollout", "stuck_rollout")],
)
def test_troubles_are_recognised_and_belong_to_their_service(service, kind, trouble):
    watched = Watched()
    watched.live.begin(Fault(kind, 0.0, 400.0, service, severity=1.0))
    watched.after(320.0)
    assert watched.troubles == {(trouble, service)}


def test_a_service_that_is_added_and_removed_is_recognised():
    watched = Watched()
    spare = watched.live.operate(Operation("add", 0.0)).service
    watched.after(90.0)
    assert ("added", spare) in watched.changes
    watched.live.operate(Operation("remove", 0.0, spare))
    watched.after(90.0)
    assert ("removed", spare) in watched.changes
    assert spare not in services(watched.feed)
