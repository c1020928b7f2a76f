"""Every shipped manifest starts: its command with its settings, and only what a pod provides replaced."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from packages.mesh.tests.deploy import kustomize
from packages.mesh.tests.deploy.test_manifests import DEPLOY, OVERLAYS, built, watch_of


def pod_of(overlay, tmp_path):
    """The command, and the environment, of the watch's container."""
    objects = built(overlay)
    container, _ = watch_of(objects)
    (source,) = container["envFrom"]
    env = dict(objects["ConfigMap", source["configMapRef"]["name"]]["data"])
    outside = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TAGAE_", "HOPLINE_MESH__"))
    }
    # The pod provides a volume at each mount, its own ports, and the service account.
    env["HOPLINE_MESH__STATE__STATE_DIR"] = str(tmp_path / "state")
    if "HOPLINE_MESH__SERVE__SOCKET" in env:
        env["HOPLINE_MESH__SERVE__SOCKET"] = str(tmp_path / "mesh.sock")
    for port in ("HOPLINE_MESH__SERVE__HTTP_PORT", "HOPLINE_MESH__SERVE__GRPC_PORT"):
        if int(env[port]) > 0:
            env[port] = "0"
    env |= {
        "HOPLINE_MESH__KUBERNETES__KUBERNETES_URL": "http://127.0.0.1:9",
        "HOPLINE_MESH__SOURCE__PROMETHEUS_URL": "http://127.0.0.1:9",
        "HOPLINE_MESH__ALERTS__ALERTMANAGER_URLS": "http://127.0.0.1:9",
    }
    return [sys.executable, "-m", "hopline.cli", *container["args"]], outside | env, container


@pytest.mark.sample(1)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_watch_of_a_manifest_starts_and_its_probes_succeed(overlay, tmp_path):
    command, env, container = pod_of(overlay, tmp_path)
    process = subprocess.Popen(command, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        page = None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("page"):
                page = line.split()[1]
                break
        assert page, "".join(lines)
        for probe in ("startupProbe", "livenessProbe"):
            assert httpx.get(page + container[probe]["httpGet"]["path"]).status_code == 200
        if "readinessProbe" in container:
            # Ready only after a snapshot; there is no Prometheus here.
            assert httpx.get(page + container["readinessProbe"]["httpGet"]["path"]).status_code == 503
        assert httpx.get(f"{page}/metrics").status_code == 200
        if "HOPLINE_MESH__SERVE__SOCKET" in env:
            assert Path(env["HOPLINE_MESH__SERVE__SOCKET"]).is_socket()
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_every_overlay_is_tried():
    assert sorted(OVERLAYS) == sorted(each.name for each in (DEPLOY / "overlays").iterdir())
    assert all(kustomize.build(DEPLOY / "overlays" / each) for each in OVERLAYS)
