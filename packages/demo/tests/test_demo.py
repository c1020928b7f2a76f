"""`hopline demo` as people run it: in a process of its own, its output piped."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from hopline_demo.recipe import Recipe, finished
from tests.thorough import thorough

UTF8 = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
#: Eight epochs reach what `--check` asks for, with less to spare.
EPOCHS = thorough(8, 20)
TRAINING = ["--accounts", "8000", "--epochs", str(EPOCHS)]


def demo(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hopline.cli", "demo", *arguments]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def checked(folder: Path) -> "subprocess.CompletedProcess[str]":
    """A finished `hopline demo --check`, its work files in `folder`."""
    command = demo("--check", *TRAINING, "--dir", str(folder))
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=UTF8)


@pytest.mark.release
def test_check_passes_and_explains_itself(checked: "subprocess.CompletedProcess[str]") -> None:
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "All checks passed" in checked.stdout
    assert checked.stdout.count("curl -s http://127.0.0.1:") == 2
    assert checked.stderr == ""


def test_piped_output_has_no_control_codes(checked: "subprocess.CompletedProcess[str]") -> None:
    assert not re.findall(r"[\x00-\x09\x0b-\x1f\x7f]", checked.stdout)
    assert len(checked.stdout.splitlines()) < 40


def test_finished_folder_is_served_until_interrupted(
    folder: Path, checked: "subprocess.CompletedProcess[str]"
) -> None:
    # A shell without job control has what it starts with & ignore Ctrl-C, and tests may run so.
    command = ["env", "--default-signal=INT", *demo(*TRAINING, "--port", "0", "--dir", str(folder))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=UTF8)
    assert process.stdout is not None
    try:
        shown = ""
        for line in process.stdout:
            shown += line
            if "Ctrl-C" in line:
                break
        assert "by an earlier run in" in shown
        assert "training" not in shown.split("On ")[0]
        pasted = re.search(r"curl -s (\S+) -d '(.*)'", shown)
        assert pasted is not None
        # what curl -d sends
        form = {"content-type": "application/x-www-form-urlencoded"}
        answer = httpx.post(pasted[1], content=pasted[2], headers=form)
        assert answer.status_code == 200
        assert 0.0 <= answer.json()["outputs"]["probabilities"][0] <= 1.0
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=90)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "Stopped." in rest
    assert "hopline serve --graph " in rest
    assert not _reachable(pasted[1])


def test_only_the_same_recipe_is_reused(folder: Path, checked: "subprocess.CompletedProcess[str]") -> None:
    recipe = Recipe.of(8_000, 80_000, EPOCHS)
    assert finished(folder, recipe) is not None
    assert finished(folder, Recipe.of(8_000, 80_000, EPOCHS + 1)) is None
    assert finished(folder, Recipe.of(8_000, 80_000, EPOCHS, seed=9)) is None
    assert finished(folder / "elsewhere", recipe) is None


def test_bad_sizes_are_one_clear_line(tmp_path: Path) -> None:
    command = demo("--accounts", "10", "--port", "0", "--dir", str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "use at least 500" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_reported_before_any_work(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = demo("--port", port, "--dir", str(tmp_path))
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert port in done.stderr
    assert list(tmp_path.iterdir()) == []


def _reachable(url: str) -> bool:
    try:
        httpx.get(url, timeout=2)
    except httpx.TransportError:
        return False
    return True
