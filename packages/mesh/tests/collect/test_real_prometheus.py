"""Against a real Prometheus with ten minutes of samples in its store."""

import contextlib
import json
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from hopline.errors import ConfigError
from hopline_mesh import commands
from hopline_mesh.collect import CollectOptions, Collector, Prometheus, QuerySet, queries_for
from hopline_mesh.errors import SourceUnavailable
from packages.mesh.tests.collect.history import LE, History, istio_call
from packages.mesh.tests.prometheus_server import prometheus


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    now_s = int(time.time())
    history = History(now_s)
    # of what is scraped the target is known, and so how often
    history.gauge("up", 1)
    # an ordinary pair, a tenth of it failing
    istio_call(history, "frontend", "cart", 9.0, ms=(0, 0, 1.0))
    istio_call(history, "frontend", "cart", 1.0, code="503", ms=(0, 0, 1.0))
    # gRPC: failures with status 200; NOT_FOUND is an answer
    istio_call(history, "checkout", "cart", 6.0, grpc="0")
    istio_call(history, "checkout", "cart", 2.0, grpc="14")
    istio_call(history, "checkout", "cart", 2.0, grpc="5")
    # some calls are lost on the way
    istio_call(history, "frontend", "checkout", 3.0)
    istio_call(history, "frontend", "checkout", 1.0, code="503", reported=False)
    # outside of the mesh
    istio_call(history, "checkout", "api.bank.example", 0.5, reported=False, outside=True)
    # no call for minutes
    istio_call(history, "frontend", "idle", 0.0)
    # half of all answers take longer than the last bucket
    istio_call(history, "frontend", "slow", 2.0, ms=(0, 0.45, 0, 0, 0, 0, 0.55))
    # a restart in the middle
    labels = {
        "reporter": "destination",
        "response_code": "200",
        "grpc_response_status": "",
        "destination_workload": "restarted",
        "destination_workload_namespace": "shop",
    }
    history.series("istio_requests_total", lambda t: 7.0 * t if t < 580 else 7.0 * (t - 580), **labels)
    # gone for two minutes, and within the five in which Prometheus still answers
    gone = {**labels, "destination_workload": "gone"}
    history.series("istio_requests_total", lambda t: 5.0 * t, until_s=now_s - 120, **gone)
    tcp = {
        "reporter": "destination",
        "destination_workload": "cart",
        "destination_workload_namespace": "shop",
    }
    history.counter("istio_tcp_connections_opened_total", 0.1, start=12.0, **tcp)
    history.counter("istio_tcp_connections_closed_total", 0.1, start=5.0, **tcp)
    never_closed = {**tcp, "destination_workload": "checkout"}
    history.gauge("istio_tcp_connections_opened_total", 4.0, **never_closed)
    for pod, container, cores in (
        ("cart-7d9f8b6c5d-x2x4z", "app", 0.5),
        ("cart-7d9f8b6c5d-x2x4z", "istio-proxy", 0.25),
        ("cart-7d9f8b6c5d-x2x4z", "POD", 9.0),  # the pause container
        ("cart-7d9f8b6c5d-x2x4z", "", 9.0),  # sum of the pod
        ("cart-7d9f8b6c5d-b2b4b", "app", 1.0),
        ("oddly-named", "app", 0.125),
        ("checkout-5c6d7f8b9-abcde", "app", 2.0),  # not of letters that Kubernetes uses: the owner says
        ("elsewhere-5c6d7f8b9-x2x4z", "app", 3.0),
    ):
        where = {"namespace": "shop", "pod": pod, "container": container}
        history.counter("container_cpu_usage_seconds_total", cores, **where)
        history.gauge("container_memory_working_set_bytes", cores * 2**20, **where)
    history.gauge(
        "kube_pod_owner", 1, namespace="shop", pod="oddly-named", owner_kind="ReplicaSet", owner_name="fe-1"
    )
    history.gauge(
        "kube_replicaset_owner",
        1,
        namespace="shop",
        replicaset="fe-1",
        owner_kind="Deployment",
        owner_name="frontend",
    )
    history.gauge(
        "namespace_workload_pod:kube_pod_owner:relabel",
        1,
        namespace="shop",
        pod="checkout-5c6d7f8b9-abcde",
        workload="checkout",
    )
    data = history.write(tmp_path_factory.mktemp("prometheus"))
    with prometheus(data) as address:
        yield address


@contextlib.asynccontextmanager
async def collector(url, mesh="istio", **options):
    async with Prometheus(url) as client:
        yield Collector(client, queries_for(mesh), options=CollectOptions(**options))


def node(snapshot, name):
    """Its columns by name."""
    row = list(snapshot.nodes).index(snapshot.roster.find(name))
    return dict(zip(snapshot.schema.node_features, snapshot.node_features[row].tolist(), strict=True))


def edge(snapshot, caller, callee):
    ends = (snapshot.roster.find(caller), snapshot.roster.find(callee))
    row = list(zip(snapshot.edge_src.tolist(), snapshot.edge_dst.tolist(), strict=True)).index(ends)
    return dict(zip(snapshot.schema.edge_features, snapshot.edge_features[row].tolist(), strict=True))


@pytest.fixture
async def snapshot(url):
    async with collector(url) as one:
        taken = await one.collect(time.time())
        taken.check()
        return taken


def close(value):
    return pytest.approx(value, rel=1e-4)


async def test_rates_and_failures_are_those_of_each_side(snapshot):
    assert node(snapshot, "shop/cart")["request_rate"] == close(20.0)  # not 40: two proxies count each
    assert edge(snapshot, "shop/frontend", "shop/cart")["request_rate"] == close(10.0)
    assert edge(snapshot, "shop/frontend", "shop/cart")["error_share"] == close(0.1)


async def test_grpc_failures_count_though_their_status_is_200(snapshot):
    path = edge(snapshot, "shop/checkout", "shop/cart")
    assert path["request_rate"] == close(10.0)
    assert path["error_share"] == close(0.2)  # UNAVAILABLE, and not NOT_FOUND
    assert node(snapshot, "shop/cart")["error_share"] == close(0.15)


async def test_calls_that_never_arrive_belong_to_the_path_on_which_they_were_lost(snapshot):
    path = edge(snapshot, "shop/frontend", "shop/checkout")
    assert path["request_rate"] == close(4.0)
    assert path["error_share"] == close(0.25)
    assert node(snapshot, "shop/checkout")["request_rate"] == close(3.0)
    assert node(snapshot, "shop/checkout")["error_share"] == 0.0


async def test_a_service_outside_of_the_mesh_has_the_name_that_was_called(snapshot):
    assert edge(snapshot, "shop/checkout", "api.bank.example")["request_rate"] == close(0.5)
    assert np.isnan(list(node(snapshot, "api.bank.example").values())).all()


async def test_latency_is_that_of_the_histogram(snapshot):
    cart = node(snapshot, "shop/cart")
    assert cart["p50_ms"] == close(7.5)
    assert cart["p99_ms"] == close(9.95)
    path = edge(snapshot, "shop/frontend", "shop/cart")
    assert (path["client_ms"], path["server_ms"]) == (close(9.95), close(9.95))


async def test_an_idle_service_has_a_rate_and_no_latency(snapshot):
    idle = node(snapshot, "shop/idle")
    assert idle["request_rate"] == 0.0
    assert all(np.isnan(idle[name]) for name in ("error_share", "p50_ms", "p99_ms"))
    assert not any(gap.what == "node.p50_ms" and "idle" in gap.reason for gap in snapshot.gaps)


async def test_a_latency_above_the_last_bucket_is_a_lower_bound_and_said_to_be(snapshot):
    slow = node(snapshot, "shop/slow")
    assert (slow["p50_ms"], slow["p99_ms"]) == (close(LE[-1]), close(LE[-1]))
    said = {gap.what: gap.reason for gap in snapshot.gaps}
    for column in ("node.p50_ms", "node.p99_ms", "edge.client_ms", "edge.server_ms"):
        assert "lower bound" in said[column]
        assert "shop/slow" in said[column]
        assert "shop/cart" not in said[column]


async def test_a_counter_that_starts_anew_gives_no_negative_and_no_giant_rate(snapshot):
    # what was counted between the last sample before it and the first after is not known
    assert 3.0 < node(snapshot, "shop/restarted")["request_rate"] < 7.0


async def test_a_service_whose_samples_stopped_is_not_in_the_mesh(snapshot):
    gone = snapshot.roster.find("shop/gone")
    assert gone is None or gone not in snapshot.nodes


async def test_open_connections_are_opened_less_closed(snapshot):
    assert node(snapshot, "shop/cart")["connections"] == close(7.0)
    assert node(snapshot, "shop/checkout")["connections"] == close(4.0)
    assert np.isnan(node(snapshot, "shop/slow")["connections"])


async def test_containers_are_joined_through_the_owner_and_counted_once(snapshot):
    cart = node(snapshot, "shop/cart")  # two pods, by their names; with the proxy's container
    assert cart["cpu_cores"] == close(1.75)
    assert cart["memory_bytes"] == close(1.75 * 2**20)
    assert node(snapshot, "shop/frontend")["cpu_cores"] == close(0.125)  # pod to ReplicaSet to Deployment
    assert node(snapshot, "shop/checkout")["cpu_cores"] == close(2.0)  # by the recording rule
    elsewhere = snapshot.roster.find("shop/elsewhere")
    assert elsewhere is None or elsewhere not in snapshot.nodes  # it is no part of the mesh


async def test_each_interval_is_measured(url):
    async with collector(url) as one:
        taken = await one.collect(time.time())
        report = one.report
    assert report.failed == 0
    rates = next(query for query in report.queries if query.name == "edge.request_rate")
    assert rates.outcome == "ok"
    # one more series than paths: frontend to checkout has two, where its calls arrive and where not
    assert rates.series == rates.matched == len(taken.edge_src) + 1
    assert rates.duration_s > 0


async def test_namespaces_can_be_left_out(url):
    async with collector(url, exclude_namespaces=("sh.*",)) as one:
        taken = await one.collect(time.time())
    assert [taken.roster.name(slot) for slot in taken.nodes] == []
    assert [gap.what for gap in taken.gaps] == ["prometheus"]


async def test_limits_keep_what_was_there_and_say_what_is_left_out(url):
    async with collector(url, max_services=3, max_edges=1) as one:
        first = await one.collect(time.time())
        second = await one.collect(time.time())
        left_out = one.report.left_out
    first.check()
    second.check()
    assert len(first.nodes) == 3
    assert len(first.edge_src) <= 1
    assert first.nodes.tolist() == second.nodes.tolist()
    assert left_out > 0
    assert any("max_services" in gap.reason for gap in second.gaps)


async def test_a_prometheus_without_any_of_it_is_blind_and_no_mesh_that_vanished(url):
    steady = 0.0
    async with Prometheus(url) as client:
        one = Collector(client, queries_for("istio"), steady=lambda: steady)
        before = await one.collect(time.time())
        steady = 1000.0
        after = await one.collect(time.time() + 1000.0)
    after.check()
    assert after.nodes.tolist() == before.nodes.tolist()
    assert len(after.edge_src) == len(before.edge_src)
    assert np.isnan(after.node_features).all()
    assert np.isnan(after.edge_features).all()
    assert [gap.what for gap in after.gaps] == ["clock", "prometheus", "services"]


async def test_a_refused_query_costs_its_column_only(url):
    async with Prometheus(url) as client:
        queries = queries_for("istio")
        broken = [
            replace(query, promql="sum by (") if query.name == "node.p50_ms" else query
            for query in queries.queries
        ]
        taken = await Collector(client, QuerySet("broken", tuple(broken))).collect(time.time())
    assert np.isnan(node(taken, "shop/cart")["p50_ms"])
    assert node(taken, "shop/cart")["p99_ms"] == close(9.95)
    assert [gap.what for gap in taken.gaps if "parse error" in gap.reason] == ["node.p50_ms"]


def command(*arguments):
    """`hopline mesh queries`: what it prints, and how it ends."""
    result = CliRunner().invoke(commands.app, ["queries", *arguments], env={"COLUMNS": "250"})
    return result.stdout, result.exit_code


def test_the_command_says_what_comes_back(url):
    text, status = command("--url", url)
    assert status == 0
    assert re.search(r"edge.request_rate +7 +7 ", text)
    assert re.search(r"7 services \(shop/.*, …\), 6 call paths", text)
    assert "scraped every 15 s; window of rates 60 s" in text
    assert "lower bound" in text


def test_the_command_says_why_there_is_nothing(url):
    text, status = command("--url", url, "--mesh", "linkerd", "--json")
    found = json.loads(text)
    assert status == 1
    assert found["services"] == []
    hints = {row["name"]: row["hint"] for row in found["queries"]}
    assert hints["node.request_rate"] == "there is no metric response_total"
    assert "no service was found: there is nothing to watch" in found["notes"]


def test_the_command_says_which_label_has_no_such_value(url, tmp_path):
    file = tmp_path / "queries.toml"
    file.write_text(
        """
        [[node]]
        column = "request_rate"
        query = 'sum by (destination_workload) (rate(istio_requests_total{reporter="waypoint"}[$window]))'
        service = "destination_workload"

        [[node]]
        column = "memory_bytes"
        query = "container_memory_working_set_bytes{}"
        service = "app"
        """
    )
    text, status = command("--url", url, "--query-file", str(file), "--json")
    found = json.loads(text)
    assert status == 1
    assert found["queries"][0]["hint"] == 'istio_requests_total exists, but not with reporter="waypoint"'
    assert "has the label app" in found["queries"][1]["reason"]


def test_the_command_warns_of_a_window_that_holds_too_few_scrapes(url):
    text, _ = command("--url", url, "--set", "rate_window_s=30", "--json")
    assert any("set rate_window_s to 60" in note for note in json.loads(text)["notes"])


def test_the_command_says_once_that_nobody_is_there():
    result = CliRunner().invoke(commands.app, ["queries", "--url", "http://127.0.0.1:1"])
    assert isinstance(result.exception, SourceUnavailable)
    assert str(result.exception).startswith("Prometheus at http://127.0.0.1:1 is unavailable: ")
    assert result.stdout == ""


def test_the_command_prints_queries_without_asking():
    text, status = command("--mesh", "linkerd")
    assert status == 0
    assert "# edge.request_rate" in text
    assert 'direction="outbound"' in text


@pytest.mark.parametrize("setting", ["namespaces=[", "exclude_namespaces=("])
@pytest.mark.parametrize("more", [(), ("--url", "http://127.0.0.1:1")])
def test_the_command_refuses_an_invalid_namespace_with_and_without_a_url(setting, more):
    result = CliRunner().invoke(commands.app, ["queries", "--set", setting, *more])
    assert isinstance(result.exception, ConfigError)
    assert f"{setting.partition('=')[0]}: " in str(result.exception)
    assert result.stdout == ""
