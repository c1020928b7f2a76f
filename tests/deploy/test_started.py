"""Every container of the manifests is started: its arguments, its environment, its folders, its user.

Folders that a pod mounts are folders of the test, on a read-only root. Ports are free ones, and the stores
and brokers that manifests name are a Redis of the test.
"""

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest
import yaml

from tests.containers import confined
from tests.deploy.test_confined import ENVIRONMENT
from tests.deploy.test_manifests import OVERLAYS, SERVER, built, container_of, pod_of
from tests.redis_servers import redis_process


class Container:
    """A started container: its lines, and its base URL once it is ready."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines = []
        self._readers = [
            threading.Thread(target=self.lines.extend, args=(pipe,))
            for pipe in (self.process.stdout, self.process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def wait_for(self, pattern, seconds=120):
        """The match of a pattern in its output."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, "".join(self.lines))):
            assert self.process.poll() is None, "".join(self.lines)
            assert time.monotonic() < end, "".join(self.lines)
            time.sleep(0.02)
        return found

    def url(self):
        return f"http://127.0.0.1:{self.wait_for(r'at http://[^:]+:([0-9]+)')[1]}"

    def end(self, number=signal.SIGTERM):
        """Exit code after a signal."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(60)
        for reader in self._readers:
            reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return code


class Pod:
    """The folders of a pod, and commands of its containers.

    Args:
        replaced: text -> text, in arguments and settings, such as the address of a store.
    """

    def __init__(self, folder, packaged, volumes, replaced):
        self.volumes = {}
        for volume in volumes:
            place = self.volumes[volume["name"]] = folder / volume["name"]
            place.mkdir()
            place.chmod(0o1777)
        models = self.volumes.setdefault("models", folder / "models")
        shutil.copytree(packaged / "graph", models / "graph")
        shutil.copytree(packaged / "models", models / "repository")
        self.replaced = replaced

    def command(self, container, env, *more):
        places = {mount["mountPath"]: self.volumes[mount["name"]] for mount in container["volumeMounts"]}
        places.setdefault("/mnt/models", self.volumes["models"])  # KServe's own
        texts = {place: str(folder) for place, folder in places.items() if place != "/tmp"} | self.replaced

        def here(text):
            for old, new in texts.items():
                text = text.replace(old, new)
            return text

        writable = {
            self.volumes[mount["name"]] for mount in container["volumeMounts"] if not mount.get("readOnly")
        }
        environment = ENVIRONMENT | {name: here(value) for name, value in env.items()}
        environment["TMPDIR"] = str(places["/tmp"])
        words = [sys.executable, "-m", "hopline", *map(here, container["args"]), *more]
        return confined(words, writable=sorted(writable), environment=environment)


@contextlib.contextmanager
def started(*commands):
    running = [Container(command) for command in commands]
    try:
        yield running
    finally:
        for each in running:
            each.end()


def score(url, node="n3"):
    answer = httpx.post(f"{url}/v1/models/sage/score", json={"nodes": [node]}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def of_redis(redis):
    """The address of the manifests -> that of a Redis of the test."""
    return {"redis://redis:6379/0": redis.url}


FREE = ("--port", "0", "--grpc-port", "0")


def env_of(objects):
    return objects["ConfigMap", "hopline"]["data"] | {"HOPLINE__SERVER__DRAIN_DELAY_S": "0.05"}


@pytest.mark.sample(2)
@pytest.mark.parametrize("overlay", [each for each in OVERLAYS if each not in ("live", "prefetcher")])
def test_the_server_of_an_overlay_starts_answers_and_ends(overlay, packaged, tmp_path):
    objects = built(overlay)
    container = container_of(objects)
    with redis_process() as redis:
        pod = Pod(tmp_path, packaged, pod_of(objects)["volumes"], of_redis(redis))
        with started(pod.command(container, env_of(objects), *FREE)) as (server,):
            url = server.url()
            score(url)
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert httpx.get(url + container[probe]["httpGet"]["path"]).status_code == 200
            assert "hopline_queue_age_seconds" in httpx.get(f"{url}/metrics").text
            assert server.end() == 0
        assert bool(redis.call("KEYS", "hopline:*").strip(b"*0\r\n")) == (overlay != "single")


@pytest.mark.release
def test_a_new_pod_of_a_fleet_serves_what_the_fleet_serves(packaged, tmp_path):
    """Not the newest version that it finds in the repository."""
    objects = built("fleet")
    container, env = container_of(objects), env_of(objects)
    with redis_process() as redis:
        pod = Pod(tmp_path, packaged, pod_of(objects)["volumes"], of_redis(redis))
        with started(pod.command(container, env, *FREE)) as (first,):
            assert score(first.url())["version"] == "1"
            models = tmp_path / "models" / "repository" / "sage"
            shutil.copytree(models / "1", models / "2")
            with started(pod.command(container, env, *FREE)) as (second,):
                assert score(second.url())["version"] == "1"
                loaded = httpx.post(f"{second.url()}/v2/repository/models/sage/load", json={}, timeout=60)
                assert loaded.status_code == 200, loaded.text
                assert {score(each.url())["version"] for each in (first, second)} == {"2"}
                assert (second.end(), first.end()) == (0, 0)


def kserve():
    """Container, environment and volumes of KServe's runtime."""
    spec = yaml.safe_load((SERVER / "kserve/servingruntime.yaml").read_text())["spec"]
    (container,) = spec["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    env |= {"HOPLINE__SERVER__DRAIN_DELAY_S": "0.05", "HOPLINE__SERVER__HOST": "0.0.0.0"}  # of the image
    return container, env, spec["volumes"]


@pytest.mark.release
def test_kserves_runtime_starts_and_speaks_its_protocol(packaged, tmp_path):
    container, env, volumes = kserve()
    with redis_process() as redis:
        pod = Pod(tmp_path, packaged, volumes, of_redis(redis))
        with started(pod.command(container, env, *FREE)) as (server,):
            url = server.url()
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert httpx.get(url + container[probe]["httpGet"]["path"]).status_code == 200
            tensor = {"name": "node_ids", "datatype": "BYTES", "shape": [1], "data": ["n3"]}
            answer = httpx.post(f"{url}/v2/models/sage/infer", json={"inputs": [tensor]}, timeout=60)
            assert answer.status_code == 200, answer.text
            assert server.end() == 0


@pytest.mark.sample(2)
@pytest.mark.parametrize("place", ["single", "live", "fleet", "kserve"])
def test_a_version_that_was_rolled_back_does_not_return_with_a_rescheduled_pod(place, packaged, tmp_path):
    """The pod loses its process and its emptyDirs; its volumes and the Redis stay."""
    if place == "kserve":
        container, env, volumes = kserve()
    else:
        objects = built(place)
        container, env, volumes = container_of(objects), env_of(objects), pod_of(objects)["volumes"]
    with redis_process() as redis:
        pod = Pod(tmp_path, packaged, volumes, of_redis(redis))
        models = pod.volumes["models"] / "repository" / "sage"
        with started(pod.command(container, env, *FREE)) as (server,):
            url = server.url()
            shutil.copytree(models / "1", models / "2")
            for path, body in (
                ("/v2/repository/models/sage/load", {"parameters": {"version": "2"}}),
                ("/v1/rollouts/sage/rollback", {}),
            ):
                answer = httpx.post(url + path, json=body, timeout=60)
                assert answer.status_code == 200, answer.text
            assert score(url)["version"] == "1"
            assert server.end() == 0
        for volume in volumes:
            if "emptyDir" in volume:
                folder = pod.volumes[volume["name"]]
                shutil.rmtree(folder)
                folder.mkdir()
                folder.chmod(0o1777)
        with started(pod.command(container, env, *FREE)) as (server,):
            assert score(server.url())["version"] == "1"
            assert server.end() == 0


@pytest.mark.release
def test_the_live_pod_applies_events_of_its_stream(packaged, tmp_path):
    objects = built("live")
    container, stream = container_of(objects), container_of(objects, "stream")
    with redis_process() as redis:
        broker = f"redis://127.0.0.1:{redis.port}/0?stream=edges&group=hopline"
        replaced = {
            "kafka://kafka.example.com:9092/edges?group=hopline": broker,
            "kafka://kafka.example.com:9092/edges-rejected": f"redis://127.0.0.1:{redis.port}/0?stream=bad",
            "--metrics-host=0.0.0.0": "--metrics-host=127.0.0.1",
            "--metrics-port=8702": "--metrics-port=0",
        }
        pod = Pod(tmp_path, packaged, pod_of(objects)["volumes"], replaced)
        env = env_of(objects)
        with started(pod.command(container, env, *FREE)) as (server,):
            url = server.url()
            score(url)
            with started(pod.command(stream, env)) as (follower,):
                follower.wait_for("connected after")
                event = {
                    "op": "add_edge",
                    "src": "n1",
                    "dst": "n3",
                    "time": 5,
                    "weight": 1.0,
                    "attr": [0.1, 0.2],
                }
                redis.call("XADD", "edges", "*", "payload", json.dumps(event))
                end = time.monotonic() + 60
                while "\nhopline_graph_sequence 1\n" not in httpx.get(f"{url}/metrics").text:
                    left = redis.call("XRANGE", "bad", "-", "+")
                    assert time.monotonic() < end, "".join(follower.lines) + left.decode()
                    time.sleep(0.05)
                assert follower.end() == 0
            assert server.end() == 0
        assert list((tmp_path / "live").iterdir())


@pytest.mark.release
def test_the_prefetcher_fetches_for_the_server_beside_it(packaged, tmp_path):
    objects = built("prefetcher")
    container, prefetcher = container_of(objects), container_of(objects, "prefetcher")
    with redis_process() as redis:
        load = ["features", "load", "--store", redis.url, "--graph", packaged / "graph"]
        subprocess.run([sys.executable, "-m", "hopline", *load], check=True, capture_output=True)
        pod = Pod(tmp_path, packaged, pod_of(objects)["volumes"], of_redis(redis))
        env = env_of(objects)
        with started(
            pod.command(container, env, *FREE, "--workers", "1"),
            pod.command(prefetcher, env, "--workers", "1"),
        ) as (server, fetcher):
            url = server.url()
            end = time.monotonic() + 60
            while "\nhopline_prefetch_up 1" not in httpx.get(f"{url}/metrics").text:
                assert time.monotonic() < end, "".join(fetcher.lines)
                time.sleep(0.05)
            score(url)
            assert fetcher.end() == 0
            assert server.end() == 0


@pytest.mark.release
def test_a_spot_pod_drains_within_the_notice_and_loses_no_request(packaged, tmp_path):
    """The notice becomes SIGTERM, and the grace ends in SIGKILL. Callers come until they are refused."""
    objects = built("spot")
    env = objects["ConfigMap", "hopline"]["data"]  # with its real drain
    grace_s = pod_of(objects)["terminationGracePeriodSeconds"]
    with (
        redis_process() as redis,
        started(
            Pod(tmp_path, packaged, pod_of(objects)["volumes"], of_redis(redis)).command(
                container_of(objects), env, *FREE
            )
        ) as (server,),
    ):
        url = server.url()
        score(url)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for('draining|"message"')
        num_answered = 0
        with contextlib.suppress(httpx.ConnectError):  # by then an endpoint list has heard of the end
            while True:
                score(url)  # over a connection of its own
                assert httpx.get(f"{url}/readyz").status_code in (200, 503)
                num_answered += 1
        assert server.process.wait(grace_s) == 0
        assert time.monotonic() - began < grace_s
        assert num_answered > 0
