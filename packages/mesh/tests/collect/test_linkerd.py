"""Linkerd's metrics in a real Prometheus, with the labels of its own."""

import time

import pytest

from hopline_mesh.collect import Collector, Prometheus, queries_for
from packages.mesh.tests.collect.history import History
from packages.mesh.tests.collect.test_real_prometheus import close, edge, node
from packages.mesh.tests.prometheus_server import prometheus


def call(history, caller, callee, rate, failed=0.0, kind="deployment"):
    """Calls as both proxies count them."""
    source = {"namespace": "shop", "deployment": caller, "direction": "outbound"}
    source |= {f"dst_{kind}": callee, "dst_namespace": "shop", "dst_service": callee}
    target = {"namespace": "shop", kind: callee, "direction": "inbound", "route_name": "default"}
    for labels in (source, target):
        for outcome, share in (("success", rate - failed), ("failure", failed)):
            history.counter("response_total", share, classification=outcome, **labels)
        history.histogram("response_latency_ms", (0.0, rate), **labels)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    history = History(int(time.time()))
    call(history, "web", "api", 10.0, failed=2.0)
    call(history, "api", "db", 4.0, kind="statefulset")
    # calls that never got anywhere: the callee's workload is not known
    lost = {"namespace": "shop", "deployment": "web", "direction": "outbound", "dst_namespace": "shop"}
    history.counter("response_total", 1.0, classification="failure", dst_service="api", **lost)
    # the kubelet's probes
    probe = {"namespace": "shop", "deployment": "api", "direction": "inbound", "route_name": "probe"}
    history.counter("response_total", 50.0, classification="success", **probe)
    sides = {"namespace": "shop", "deployment": "api", "direction": "inbound"}
    history.gauge("tcp_open_connections", 3.0, peer="src", **sides)
    history.gauge("tcp_open_connections", 3.0, peer="dst", **sides)
    data = history.write(tmp_path_factory.mktemp("linkerd"))
    with prometheus(data) as address:
        yield address


async def test_linkerd_is_read_from_the_side_that_knows(url):
    async with Prometheus(url) as client:
        snapshot = await Collector(client, queries_for("linkerd")).collect(time.time())
    snapshot.check()
    assert {snapshot.roster.name(slot) for slot in snapshot.nodes} == {"shop/web", "shop/api", "shop/db"}
    api = node(snapshot, "shop/api")
    assert api["request_rate"] == close(10.0)
    assert api["error_share"] == close(0.2)
    assert api["p50_ms"] == close(3.0)
    assert api["connections"] == close(3.0)
    path = edge(snapshot, "shop/web", "shop/api")
    assert path["request_rate"] == close(11.0)
    assert path["error_share"] == close(3 / 11)
    assert path["client_ms"] == close(4.96)
    assert edge(snapshot, "shop/api", "shop/db")["request_rate"] == close(4.0)
    # of containers nothing was scraped here
    assert {gap.what for gap in snapshot.gaps} == {"node.cpu_cores", "node.memory_bytes"}
    assert {gap.reason for gap in snapshot.gaps} == {"no series"}
