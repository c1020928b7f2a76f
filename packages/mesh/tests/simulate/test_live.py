"""A mesh that runs: its counters, its page of metrics, its objects, and orders over HTTP."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hopline.errors import BadRequest
from hopline_mesh.simulate import Fault, MeshPlan, Operation, control
from hopline_mesh.simulate.exposition import prometheus_config
from hopline_mesh.simulate.http_server import Server
from hopline_mesh.simulate.live import Live
from packages.mesh.tests.prometheus_server import prometheus

START_S = 1_790_000_000.0
PLAN = MeshPlan(
    services=6, rate=200.0, daily=0.0, bursts_per_hour=0.0, missing=0.0, autoscale=False, warm_up_s=30.0
)  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now_s = START_S

    def __call__(self) -> float:
        return self.now_s


class Mesh:
    """A live mesh whose clock is moved by hand."""

    def __init__(self, plan: MeshPlan = PLAN, speed: float = 1.0) -> None:
        self.clock = Clock()
        self.live = Live(plan, 7, speed, clock=self.clock)
        self.after(5.0)

    def after(self, seconds: float) -> None:
        """Let time pass, as it would in steps."""
        for _ in range(max(1, round(seconds))):
            self.clock.now_s += seconds / max(1, round(seconds))
            self.live.catch_up()

    def page(self) -> str:
        found = self.live.metrics()
        assert found is not None
        return found.decode()

    def samples(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        # The parser is slow: it is given the lines that are asked for.
        lines = [line for line in self.page().split("\n") if line.startswith(f"{name}{{")]
        families = text_string_to_metric_families("\n".join(lines) + "\n")
        return [
            (sample.labels, sample.value)
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def total(self, name: str, **labels: str) -> float:
        return sum(value for _, value in self.samples(name, **labels))

    def objects(self, plural: str) -> list[dict]:
        return self.live.log.listing(plural)[1]


@pytest.fixture(scope="module")
def still() -> Mesh:
    """A mesh to which nothing happens; tests only look."""
    mesh = Mesh()
    mesh.after(120.0)
    return mesh


def test_the_page_is_read_by_prometheus_own_parser():
    mesh = Mesh(MeshPlan(services=4, rate=20.0, missing=0.0, warm_up_s=5.0))
    families = {
        family.name: family.type
        for family in text_string_to_metric_families((mesh.live.metrics() or b"").decode())
    }
    assert families["istio_requests"] == "counter"
    assert families["istio_request_duration_milliseconds"] == "histogram"
    assert families["container_memory_working_set_bytes"] == "gauge"
    assert {"kube_pod_owner", "kube_replicaset_owner", "kube_deployment_status_replicas"} <= set(families)


def test_every_request_between_services_is_counted_by_both_sides(still):
    by_path = {reporter: Counter() for reporter in ("source", "destination")}
    for reporter, counts in by_path.items():
        for labels, value in still.samples("istio_requests_total", reporter=reporter):
            counts[labels["source_workload"], labels["destination_workload"]] += value
    outside = {pair for pair in by_path["destination"] if pair[0] == "unknown"}
    assert outside
    for pair in outside:
        del by_path["destination"][pair]
    assert by_path["source"] == by_path["destination"]
    assert sum(by_path["source"].values()) > 10_000


def test_durations_are_as_many_as_requests_and_in_istios_buckets(still):
    name = "istio_request_duration_milliseconds"
    for reporter in ("source", "destination"):
        requests = still.total("istio_requests_total", reporter=reporter)
        assert still.total(f"{name}_count", reporter=reporter) == requests
        assert still.total(f"{name}_bucket", reporter=reporter, le="+Inf") == requests
    bounds = {labels["le"] for labels, _ in still.samples(f"{name}_bucket")}
    assert {"0.5", "1", "5", "10", "25", "2500", "3600000", "+Inf"} <= bounds
    assert len(bounds) == 20
    series: dict[tuple, list[tuple[float, float]]] = {}
    for labels, value in still.samples(f"{name}_bucket"):
        key = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
        series.setdefault(key, []).append((float(labels["le"]), value))
    for points in series.values():
        values = [value for _, value in sorted(points)]
        assert values == sorted(values)


def test_the_mean_of_the_durations_is_that_of_the_simulation(still):
    name = "istio_request_duration_milliseconds"
    service = max(still.live.state()["services"], key=lambda each: each["request_rate"])
    labels = {"reporter": "destination", "destination_workload": service["service"].split("/")[1]}
    mean = still.total(f"{name}_sum", **labels) / still.total(f"{name}_count", **labels)
    assert mean == pytest.approx(service["mean_ms"], rel=0.3)


def test_failures_of_grpc_come_with_status_200():
    mesh = Mesh()
    grpc = {labels["destination_workload"] for labels, _ in mesh.samples(
        "istio_requests_total", request_protocol="grpc", reporter="source")}  # fmt: skip
    full = next(
        each["service"] for each in mesh.live.state()["services"] if each["service"].split("/")[1] in grpc
    )
    mesh.live.begin(Fault("error_burst", 0.0, 600.0, full, severity=1.0))
    mesh.after(20.0)
    name = full.split("/")[1]
    failed = mesh.samples("istio_requests_total", destination_workload=name, grpc_response_status="13")
    assert sum(value for _, value in failed) > 0
    assert {labels["response_code"] for labels, _ in failed} == {"200"}


def test_processors_and_memory_are_counted_by_container_and_pod(still):
    cpu = still.samples("container_cpu_usage_seconds_total")
    pods = {labels["pod"] for labels, _ in cpu}
    assert {labels["container"] for labels, _ in cpu} == {"app", "istio-proxy", ""}
    for pod in sorted(pods)[:5]:
        parts = {labels["container"]: value for labels, value in cpu if labels["pod"] == pod}
        assert parts["app"] + parts["istio-proxy"] == pytest.approx(parts[""], abs=1e-3)
    used = sum(each["cpu_cores"] for each in still.live.state()["services"])
    total = sum(value for labels, value in cpu if labels["container"] == "")
    assert total == pytest.approx(used * 125.0, rel=0.3)
    assert still.total("container_memory_working_set_bytes", container="app") > 1e8


def test_every_pod_of_the_metrics_has_an_owner_and_an_object(still):
    pods = {labels["pod"] for labels, _ in still.samples("container_cpu_usage_seconds_total")}
    owners = {labels["pod"]: labels["owner_name"] for labels, _ in still.samples("kube_pod_owner")}
    sets = {
        labels["replicaset"]: labels["owner_name"] for labels, _ in still.samples("kube_replicaset_owner")
    }
    assert pods == set(owners)
    assert set(owners.values()) == set(sets)
    assert pods == {pod["metadata"]["name"] for pod in still.objects("pods")}
    assert {each["metadata"]["name"] for each in still.objects("deployments")} == set(sets.values())
    counters = {labels["pod"] for labels, _ in still.samples("istio_requests_total")}
    assert counters <= pods


def test_requests_are_counted_by_service_where_that_is_requested(still):
    clock = Clock()
    live = Live(PLAN, 7, clock=clock, per_pod=False)
    for _ in range(60):
        clock.now_s += 1.0
        live.catch_up()
    before = (live.metrics() or b"").decode()
    assert 'reporter="source"' in before
    requests = [line for line in before.split("\n") if line.startswith("istio_requests_total{")]
    assert not any("pod=" in line for line in requests)
    assert len(requests) < len(still.samples("istio_requests_total")) / 2
    live.operate(Operation("rollout", 0.0))
    for _ in range(90):
        clock.now_s += 1.0
        live.catch_up()
    names = {line.rpartition(" ")[0] for line in requests}
    assert names <= {line.rpartition(" ")[0] for line in (live.metrics() or b"").decode().split("\n")}


def test_new_pods_begin_at_zero_and_old_ones_vanish():
    mesh = Mesh()
    mesh.after(30.0)
    before = {labels["pod"] for labels, _ in mesh.samples("istio_requests_total")}
    done = mesh.live.operate(Operation("rollout", 0.0))
    mesh.after(180.0)
    after = mesh.samples("istio_requests_total")
    pods = {labels["pod"] for labels, _ in after}
    name = done.service.split("/")[1]
    old, new = before - pods, pods - before
    assert old
    assert new
    assert all(pod.startswith(f"{name}-") for pod in old | new)


def test_a_loss_on_the_way_is_seen_by_the_caller_alone():
    mesh = Mesh()
    _, fault = mesh.live.begin(Fault("partition", 0.0, 600.0, severity=1.0))
    mesh.after(30.0)
    path = {
        "source_workload": fault.caller.split("/")[1],
        "destination_workload": fault.service.split("/")[1],
    }
    sent = mesh.total("istio_requests_total", reporter="source", **path)
    got = mesh.total("istio_requests_total", reporter="destination", **path)
    lost = mesh.total("istio_requests_total", reporter="source", response_flags="UT", **path)
    assert 0.1 * sent < got < 0.6 * sent
    assert lost == pytest.approx(sent - got, rel=0.15)


def test_a_crash_loop_is_one_in_kubernetes_eyes():
    mesh = Mesh()
    number, fault = mesh.live.begin(Fault("crash_loop", 0.0, 900.0, severity=1.0))
    mesh.after(150.0)
    name = fault.service.split("/")[1]
    mine = [pod for pod in mesh.objects("pods") if pod["metadata"]["labels"]["app"] == name]
    statuses = [pod["status"]["containerStatuses"][0] for pod in mine]
    assert any("waiting" in status["state"] for status in statuses)
    assert max(status["restartCount"] for status in statuses) >= 2
    ended = [status["lastState"]["terminated"] for status in statuses if status["restartCount"]]
    assert {each["reason"] for each in ended} == {"Error"}
    mesh.live.end(number)
    mesh.after(40.0)
    slices = [
        each
        for each in mesh.objects("endpointslices")
        if each["metadata"]["name"].startswith(f"{name}-abcde")
    ]
    assert all(endpoint["conditions"]["ready"] for endpoint in slices[0]["endpoints"])


def test_a_drain_evicts_pods_and_cordons_the_machine():
    mesh = Mesh()
    done = mesh.live.operate(Operation("drain", 0.0))
    mesh.after(2.0)
    conditions = [
        condition
        for pod in mesh.objects("pods")
        if "deletionTimestamp" in pod["metadata"]
        for condition in pod["status"]["conditions"]
        if condition["type"] == "DisruptionTarget"
    ]
    assert {condition["reason"] for condition in conditions} == {"EvictionByEvictionAPI"}
    assert "NodeNotSchedulable" in {event["reason"] for event in mesh.objects("events")}
    assert done.service


def test_a_deployment_says_how_far_its_rollout_is():
    mesh = Mesh()
    full = mesh.live.state()["services"][0]["service"]
    mesh.live.operate(Operation("rollout", 0.0, full))

    def deployment():
        return next(
            each for each in mesh.objects("deployments") if each["metadata"]["name"] == full.split("/")[1]
        )

    first = deployment()
    assert first["metadata"]["generation"] == 2
    assert first["status"]["updatedReplicas"] < first["spec"]["replicas"]
    progressing = first["status"]["conditions"][1]
    assert (progressing["type"], progressing["reason"]) == ("Progressing", "ReplicaSetUpdated")
    mesh.after(240.0)
    last = deployment()["status"]
    assert last["updatedReplicas"] == last["replicas"] == last["readyReplicas"]
    assert last["conditions"][1]["reason"] == "NewReplicaSetAvailable"


def test_a_rollout_that_fails_exceeds_its_deadline():
    mesh = Mesh()
    _, fault = mesh.live.begin(Fault("stuck_rollout", 0.0, 900.0))
    mesh.after(150.0)
    found = next(
        each
        for each in mesh.objects("deployments")
        if each["metadata"]["name"] == fault.service.split("/")[1]
    )
    assert found["status"]["conditions"][1]["reason"] == "ProgressDeadlineExceeded"
    assert mesh.live.state()["troubles"][0]["kind"] == "stuck_rollout"


def test_spare_services_are_added_one_after_the_other_and_removed_again():
    mesh = Mesh(replace(PLAN, services=12, spares=2))
    added = {mesh.live.operate(Operation("add", 0.0)).service for _ in range(2)}
    assert len(added) == 2
    with pytest.raises(BadRequest, match="runs already"):
        mesh.live.operate(Operation("add", 0.0))
    mesh.after(30.0)
    assert mesh.live.operate(Operation("remove", 0.0)).service in added
    assert mesh.live.operate(Operation("add", 0.0)).service in added


def test_faults_of_the_plan_come_and_go_by_themselves():
    plan = MeshPlan(services=8, rate=50.0, warm_up_s=5.0, faults=(Fault("cpu_hog", 10.0, 20.0),))
    mesh = Mesh(plan)
    assert mesh.live.state()["faults"] == []
    mesh.after(10.0)
    assert [fault["kind"] for fault in mesh.live.state()["faults"]] == ["cpu_hog"]
    mesh.after(25.0)
    assert mesh.live.state()["faults"] == []


def test_two_equal_faults_end_one_after_the_other():
    mesh = Mesh()
    full = mesh.live.state()["services"][0]["service"]
    fault = Fault("error_burst", 0.0, 600.0, full, severity=1.0)
    (first, _), (second, _) = (mesh.live.begin(fault) for _ in range(2))
    shares = []
    for number in (first, second):
        mesh.live.end(number)
        mesh.after(5.0)
        shares.append(mesh.live.state()["services"][0]["error_share"])
    assert shares[0] > 0.3
    assert shares[1] < 0.1
    assert mesh.live.state()["faults"] == []


def test_a_faster_mesh_lives_more_in_the_same_time():
    slow, fast = Mesh(), Mesh(speed=10.0)
    assert fast.live.state()["simulated_s"] == pytest.approx(10 * slow.live.state()["simulated_s"])
    assert fast.live.state()["time_s"] == pytest.approx(slow.live.state()["time_s"])


def test_open_connections_are_those_in_flight(still):
    opened = still.total("istio_tcp_connections_opened_total")
    closed = still.total("istio_tcp_connections_closed_total")
    flying = sum(each["in_flight"] for each in still.live.state()["services"])
    assert opened - closed == pytest.approx(flying, abs=4 * np.sqrt(flying) + 3)


@pytest.fixture
def served() -> Iterator[tuple[Mesh, str]]:
    mesh = Mesh()
    server = Server("127.0.0.1", 0, control.handler(mesh.live))
    yield mesh, f"http://127.0.0.1:{server.port}"
    server.close()
    mesh.live.close()


def test_two_meshes_with_one_seed_show_the_same():
    assert Mesh().page() == Mesh().page()


def test_scrapes_fail_as_often_as_they_are_to():
    mesh = Mesh(replace(PLAN, missing=0.5))
    server = Server("127.0.0.1", 0, control.handler(mesh.live))
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
            codes = Counter(client.get("/metrics").status_code for _ in range(60))
        assert set(codes) == {200, 503}
        assert 10 < codes[503] < 50
    finally:
        server.close()


def test_orders_come_over_http(served):
    mesh, url = served
    made = httpx.post(f"{url}/faults", json={"kind": "slow_service", "severity": 1.0})
    assert made.status_code == 201
    assert httpx.get(f"{url}/faults").json()["faults"][0]["id"] == made.json()["id"]
    assert httpx.delete(f"{url}/faults/{made.json()['id']}").json() == {"ended": ["slow_service"]}
    httpx.post(f"{url}/faults", json={"kind": "error_burst"})
    assert httpx.delete(f"{url}/faults").json() == {"ended": ["error_burst"]}
    service = made.json()["service"]
    assert httpx.post(f"{url}/scale", json={"service": service, "replicas": 7}).json()["replicas"] == 7
    mesh.after(60.0)
    state = httpx.get(f"{url}/state").json()
    assert next(each for each in state["services"] if each["service"] == service)["ready"] == 7
    for order in ("rollout", "drain", "shift", "add"):
        assert httpx.post(f"{url}/{order}", json={}).status_code == 200, order
    metrics = httpx.get(f"{url}/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    before = mesh.live.log.version
    assert httpx.post(f"{url}/kubernetes/compact").json() == {"resource_version": before}


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("method", "path", "content", "code", "says"),
    [
        ("POST", "/faults", b'{"kind": "nonsense"}', 400, "kind"),
        ("POST", "/faults", b'{"kind": "cpu_hog", "service": "who"}', 400, "no service 'who'"),
        ("POST", "/faults", b'{"kind": "cpu_hog", "severity": 7}', 400, "severity"),
        ("POST", "/faults", b'{"kind": "cpu_hog", "what": 7}', 400, "what"),
        ("POST", "/faults", b'{"kind": "cpu_hog", "duration_s": -1}', 400, "duration"),
        ("POST", "/faults", b"{", 400, "not JSON"),
        ("POST", "/faults", b"[]", 400, "object"),
        ("POST", "/faults", b" " * 70_000, 400, "65536"),
        ("POST", "/scale", b'{"replicas": -3}', 400, "replicas"),
        ("POST", "/drain", iter([b"{}"]), 400, "chunks"),
        ("POST", "/remove", b"{}", 400, "no service was added"),
        ("POST", "/nothing", b"{}", 404, "nothing"),
        ("GET", "/nothing", b"", 404, "nothing"),
        ("DELETE", "/faults/99", b"", 404, "no fault 99"),
        ("DELETE", f"/faults/{'9' * 5000}", b"", 404, "unknown path"),
        ("DELETE", "/everything", b"", 404, "unknown path"),
    ],
)
def test_orders_that_cannot_be_are_refused_with_a_reason(served, method, path, content, code, says):
    _, url = served
    answer = httpx.request(method, f"{url}{path}", content=content)
    assert answer.status_code == code
    assert says in answer.json()["error"]


def test_a_body_that_nobody_needs_does_not_disturb_the_next_request(served):
    _, url = served
    with httpx.Client(base_url=url) as client:
        for method, path, code in (
            ("DELETE", "/faults", 200),
            ("POST", "/no", 404),
            ("GET", "/state", 200),
        ):
            assert client.request(method, path, content=b'{"a": 1}').status_code == code
            assert client.get("/faults").json() == {"faults": []}


def test_a_real_prometheus_scrapes_a_real_process(tmp_path):
    """The command with its configuration file, and queries as a user would ask them."""
    config = tmp_path / "prometheus.yml"
    process = subprocess.Popen(
        [
            sys.executable, "-m", "hopline.cli", "mesh", "simulate", "--services", "6", "--port", "0",
            "--kubernetes-port", "0", "--json", "--prometheus-config", str(config),
            "--scrape-interval", "0.25",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert httpx.get(f"{told['kubernetes']}/api/v1/pods").json()["items"]
        with prometheus(tmp_path / "data", config.read_text()) as url:

            def asked(query):
                found = httpx.get(f"{url}/api/v1/query", params={"query": query}).json()
                return [float(result["value"][1]) for result in found["data"]["result"]]

            end = time.monotonic() + 20
            while not (rates := asked('sum(rate(istio_requests_total{reporter="source"}[2s])) > 0')):
                assert time.monotonic() < end, asked("up")
                time.sleep(0.2)
            assert rates[0] > 10.0
            assert asked("up") == [1.0]
            owned = "on (namespace, pod) group_left (owner_name) kube_pod_owner"
            assert asked(f"count(container_cpu_usage_seconds_total * {owned})")[0] > 10
            buckets = 'istio_request_duration_milliseconds_bucket{reporter="destination"}'
            median = asked(f"histogram_quantile(0.5, sum by (le) (rate({buckets}[2s])))")
            assert 0.0 < median[0] < 1000.0
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)
        process.stdout.close()


def test_a_configuration_names_port_and_interval():
    text = prometheus_config(9400, 0.5)
    assert '"127.0.0.1:9400"' in text
    assert "scrape_interval: 500ms" in text


def test_nothing_grows_while_pods_come_and_go():
    mesh = Mesh(speed=5.0)
    sizes = []
    for _ in range(4):
        for name in [each["service"] for each in mesh.live.state()["services"] if each["running"]]:
            mesh.live.operate(Operation("rollout", 0.0, name))
        mesh.after(48.0)
        plurals = ("pods", "replicasets", "endpointslices", "deployments")
        sizes.append([len(mesh.objects(plural)) for plural in plurals] + [mesh.page().count("\n")])
    assert sizes[-1][:4] == sizes[1][:4]
    assert sizes[-1][4] < 1.2 * sizes[1][4]
