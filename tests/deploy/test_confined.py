"""A server as containers run it: a user without a home, a read-only root, half a CPU, little memory."""

import contextlib
import os
import re
import subprocess
import sys

import httpx
import pytest

from tests.containers import confined, entering, is_root, limited, run_confined

#: Where a developer's kernels are compiled already, in this checkout or in NUMBA_CACHE_DIR.
ENVIRONMENT = {"PATH": "/usr/bin:/bin"} | {
    name: os.environ[name] for name in ("NUMBA_CACHE_DIR", "PYTHONPATH") if name in os.environ
}


def serve(packaged, *flags):
    folders = ["--graph", packaged / "graph", "--repository", packaged / "models"]
    return [sys.executable, "-m", "hopline", "serve", *folders, "--port", "0", "--grpc-port", "0", *flags]


@contextlib.contextmanager
def running(command):
    """A server once it is ready: its base URL and its process."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found, process.communicate(timeout=60)[1]
        yield found[0], process
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.sample(1)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_answers_on_a_read_only_root_with_a_folder_for_temporary_files(
    packaged, workers, tmp_path
):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    command = confined(
        serve(packaged, "--workers", str(workers)),
        writable=[tmp_path / "tmp"],
        environment=ENVIRONMENT | {"TMPDIR": f"{tmp_path / 'tmp'}"},
    )
    with running(command) as (url, process):
        answer = httpx.post(f"{url}/v1/models/sage/score", json={"nodes": ["n3"]}, timeout=60)
        assert answer.status_code == 200
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in said
    assert "rollouts will not survive a restart" in said


def test_without_any_folder_for_temporary_files_one_line_says_what_is_missing(packaged):
    done = run_confined(["timeout", "20", *serve(packaged)], environment=ENVIRONMENT)
    assert "Traceback" not in done.stderr
    if is_root():  # else the folders are still there
        assert done.returncode == 1, done.stderr
        assert done.stderr.splitlines()[-1].startswith(
            "error: no folder for temporary files can be written"
        )


@pytest.mark.release
def test_a_server_of_half_a_cpu_and_little_memory_bounds_its_caches_by_them(packaged):
    with limited(cpus=0.5, memory_bytes=1 << 30) as files:
        shown = subprocess.run(
            entering(files, [sys.executable, "-m", "hopline", "config", "show", "--json"]),
            env={**os.environ, "HOPLINE__SERVER__WORKERS": "auto"},
            capture_output=True,
            text=True,
            check=True,
        )
        with running(entering(files, serve(packaged))) as (url, _):
            answer = httpx.post(f"{url}/v1/models/sage/score", json={"nodes": ["n3"]}, timeout=60)
            assert answer.status_code == 200
    if files:  # tests may make groups here
        assert f'"features.memory_bytes": {128 << 20}' in shown.stdout
        assert f'"limits.max_request_bytes": {256 << 20}' in shown.stdout
        assert '"server.workers": 1,' in shown.stdout
