"""A repository on Ray Serve, on a local cluster of two nodes: the same answers, whatever dies meanwhile."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import httpx
import numpy as np
import pytest

from hopline.config.reader import load_config
from hopline.errors import ConfigError, ModelNotFound, NodeNotFound
from hopline.service import Service
from hopline.types import ScoreRequest
from hopline_ray import RetryingHandle, application, build
from tests.engine import zoo
from tests.packaged import package

pytestmark = [
    # two nodes of a cluster start, and die, for a minute
    pytest.mark.release,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

N = zoo.N
STORE_BYTES = 80 << 20
#: A node that is gone is missed after a second, not after half a minute.
QUICK = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("ray-serve")
    graph = zoo.homogeneous(1).save(root / "graph")
    zoo.torch.set_num_threads(1)
    options = {"name": "plain", "fanouts": [4, 3, 5], "task": "multiclass"}
    for version in ("1", "2"):
        zoo.torch.manual_seed(int(version))
        package(zoo.Plain().eval(), graph, root / "models", version=version, **options)
    return root


@pytest.fixture(scope="module")
def expected(places):
    """Version -> answers of every node, of a service in this process."""

    async def answers():
        service = Service(
            load_config(
                overrides={
                    "graph.path": places / "graph",
                    "models.repository": places / "models",
                    "models.state": places / "state",
                }
            )
        )
        await service.start()
        found = {}
        for version in ("1", "2"):
            await service.load("plain", version)
            asked = [
                ScoreRequest("plain", nodes=[f"n{i}"], outputs=("logits",), version=version)
                for i in range(N)
            ]
            results = [await service.score(request) for request in asked]
            found[version] = np.concatenate([result.outputs["logits"] for result in results])
        service.begin_drain()
        await service.drain(5)
        await service.close()
        return found

    return asyncio.run(answers())


@pytest.fixture(scope="module")
def cluster():
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # sockets have short paths
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_TMPDIR", str(folder))
        patch.setenv("RAY_worker_niceness", "0")  # as the test itself
        patch.setenv("OMP_NUM_THREADS", "1")
        (folder / "ray").mkdir()
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        patch.delenv("RAY_ADDRESS", raising=False)
        node = {"num_cpus": 2, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        started = Cluster(
            initialize_head=True,
            head_node_args={**node, "temp_dir": str(folder), "_system_config": QUICK},
        )
        try:
            ray.init(address=started.address, log_to_driver=False, logging_level="warning")
            port = _free_port()
            serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
            yield started, node, f"http://127.0.0.1:{port}"
            serve.shutdown()
            ray.shutdown()
        finally:
            started.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def _free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def deployed(places, **options):
    from ray import serve

    app = application(places / "models", places / "graph", **options)
    return RetryingHandle(serve.run(app, name="hopline", route_prefix="/"), timeout_s=300.0)


def score(handle, *nodes, **kwargs):
    nodes = [f"n{i}" for i in nodes]
    return handle.score(ScoreRequest("plain", nodes=nodes, outputs=("logits",), **kwargs))


class Load:
    """Requests through the handle and over HTTP, until `stop`; every one gets an answer, or it is lost."""

    def __init__(self, handle, url, expected):
        self.handle, self.url, self.expected = handle, url, expected
        self.num_answers, self.lost, self.stopping = 0, [], False
        self.versions = set()
        self.tasks = []

    def start(self):
        self.tasks = [
            *(asyncio.ensure_future(self._handle(i)) for i in range(4)),
            *(asyncio.ensure_future(self._http(i)) for i in range(4)),
        ]

    async def stop(self):
        self.stopping = True
        await asyncio.gather(*self.tasks)

    async def after(self, count):
        """Wait for so many more answers."""
        until = self.num_answers + count
        while self.num_answers < until:
            assert not any(task.done() for task in self.tasks), self.tasks
            await asyncio.sleep(0.02)

    def _take(self, node, version, logits):
        self.versions.add(version)
        self.num_answers += 1
        if not np.array_equal(np.float32(logits), self.expected[version][node]):
            self.lost.append((node, version, "another answer"))

    async def _handle(self, seed):
        node = seed
        while not self.stopping:
            node = (node + 7) % N
            try:
                result = await score(self.handle, node)
            except Exception as error:
                self.lost.append(error)
            else:
                self._take(node, result.version, result.outputs["logits"][0])

    async def _http(self, seed):
        """The documented retry: 5xx and broken connections are repeated, since scoring changes nothing."""
        node = seed
        async with httpx.AsyncClient(timeout=300.0) as client:
            while not self.stopping:
                node = (node + 11) % N
                body = {"nodes": [f"n{node}"], "outputs": ["logits"]}
                for pause in (0.05, 0.1, 0.2, 0.5, *[1.0] * 120):
                    try:
                        answer = await client.post(f"{self.url}/v1/models/plain/score", json=body)
                    except httpx.TransportError:
                        answer = None
                    if answer is not None and answer.status_code < 500:
                        break
                    await asyncio.sleep(pause)
                if answer is None or answer.status_code != 200:
                    self.lost.append(answer)
                else:
                    found = answer.json()
                    self._take(node, found["version"], found["outputs"]["logits"][0])


async def test_answers_batches_and_errors_are_those_of_the_server(places, cluster, expected):
    _, _, url = cluster
    handle = deployed(places, versions={"plain": "1"})
    result = await score(handle, 3, 50)
    assert np.array_equal(result.outputs["logits"], expected["1"][[3, 50]])
    requests = [ScoreRequest("plain", nodes=[f"n{i}"], outputs=("logits",)) for i in range(20)]
    requests.append(ScoreRequest("plain", nodes=["nobody"]))
    *good, bad = await handle.score_many(requests)
    assert np.array_equal(np.concatenate([r.outputs["logits"] for r in good]), expected["1"][:20])
    assert isinstance(bad, NodeNotFound)
    assert bad.missing == ("nobody",)
    with pytest.raises(ModelNotFound, match="no model 'other'"):
        await handle.score(ScoreRequest("other", nodes=["n1"]))
    async with httpx.AsyncClient(timeout=60.0) as client:
        answer = await client.post(
            f"{url}/v1/models/plain/score", json={"nodes": ["n3"], "outputs": ["logits"]}
        )
        assert answer.status_code == 200
        assert np.array_equal(np.float32(answer.json()["outputs"]["logits"]), expected["1"][[3]])
        wrong = await client.post(f"{url}/v1/models/plain/score", json={"nodes": ["nobody"]})
        assert wrong.status_code == 404
        assert wrong.json()["error"]["code"] == "node_not_found"
        assert (await client.get(f"{url}/readyz")).json()["ready"] is True
        assert "hopline_requests_total" in (await client.get(f"{url}/metrics")).text


async def test_no_request_is_lost_when_replicas_and_nodes_die_and_versions_change(
    places, cluster, expected
):
    from ray import serve

    started, node, url = cluster
    other = started.add_node(**node)
    started.wait_for_nodes()
    handle = deployed(places, replicas=2, versions={"plain": "1"})
    load = Load(handle, url, expected)
    load.start()
    await load.after(50)

    replicas = _replicas()
    assert len(replicas) == 2
    os.kill(replicas[0], signal.SIGKILL)
    await load.after(100)

    await asyncio.to_thread(started.remove_node, other, allow_graceful=False)
    await load.after(100)

    await asyncio.to_thread(deployed, places, replicas=2, versions={"plain": "2"})
    await load.after(200)
    await load.stop()
    assert load.lost == []
    assert load.versions == {"1", "2"}
    assert (await score(handle, 5)).version == "2"
    assert serve.status().applications["hopline"].status == "RUNNING"


def _replicas():
    """Processes of the replicas that are alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(b"ray::ServeReplica:hopline:"):
                found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "repository: not given"),
        ({"repository": "m", "replicas": "many"}, "replicas: 'many'"),
        ({"repository": "m", "replica": "2"}, "replica: unknown"),
        ({"repository": "m", "replicas": "0"}, "replicas: 0"),
        ({"repository": "m", "target_requests": "-1"}, "target_requests: -1"),
    ],
)
def test_wrong_arguments_say_what_is_right(arguments, text):
    with pytest.raises(ConfigError, match=text):
        build(arguments)


def test_replicas_are_scaled_by_the_requests_that_they_have():
    app = build({"repository": "m", "graph": "g", "replicas": "2-8", "target_requests": "16"})
    scaling = app._bound_deployment._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (2, 8)
    assert scaling.get_target_ongoing_requests() == 16
