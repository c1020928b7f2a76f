"""The command as a process: what it says at its start, and how it ends."""

import json
import os
import re
import signal
import subprocess
import sys

import httpx
import pytest


@pytest.fixture
def environment(tmp_path):
    mine = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TAGAE_", "HOPLINE_MESH__"))
    }
    return mine | {
        "HOPLINE_MESH__SOURCE__PROMETHEUS_URL": "http://127.0.0.1:9",  # nobody is there
        "HOPLINE_MESH__STATE__STATE_DIR": str(tmp_path / "state"),
        "HOPLINE_MESH__SERVE__HTTP_PORT": "0",
        "HOPLINE_MESH__SERVE__GRPC_PORT": "-1",
        "HOPLINE_MESH__SOURCE__INTERVAL_S": "0.5",
        "HOPLINE_MESH__KUBERNETES__KUBERNETES": "never",
    }


def start(environment, cwd):
    return subprocess.Popen(
        [sys.executable, "-m", "hopline.cli", "mesh", "watch"],
        env=environment,
        cwd=cwd,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_says_where_its_page_is_goes_on_without_prometheus_and_ends_at_sigterm(environment, tmp_path):
    process = start(environment, tmp_path)
    try:
        said = [process.stderr.readline() for _ in range(5)]
        assert said[0] == "watching istio in all namespaces of http://127.0.0.1:9, every 0.5 s\n"
        page = said[1].split()[1]
        verdict = None
        while verdict is None:
            verdict = httpx.get(f"{page}/v1/mesh/verdict").json()["verdict"]
        assert verdict["state"] in ("learning", "blind")
        assert verdict["incidents"] == []
        assert any(gap["what"] == "prometheus" for gap in verdict["gaps"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_an_outage_is_one_line_of_the_log_in_the_configured_format(environment, tmp_path):
    process = start(environment | {"HOPLINE_MESH__LOG__LOG_FORMAT": "json"}, tmp_path)
    try:
        line = json.loads(next(text for text in process.stderr if text.startswith("{")))
        assert (line["logger"], line["level"]) == ("hopline_mesh", "warning")
        # a busy machine may take longer to refuse a connection than the watch waits
        said = r"prometheus: Prometheus (at http://127\.0\.0\.1:9 is unavailable|did not respond)"
        assert re.search(said, line["message"])
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_bad_setting_is_one_line_and_ends_the_start(environment, tmp_path):
    process = start(environment | {"TAGAE_WINDOWSIZE": "3"}, tmp_path)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.splitlines() == [
        "error: TAGAE_WINDOWSIZE: unknown setting; did you mean 'TAGAE_WINDOW_SIZE'?"
    ]
