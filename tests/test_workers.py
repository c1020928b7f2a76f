"""Workers run what one process would run and report it as that does. A death fails the test that ran."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

OUTCOMES = """
import os
import pytest

@pytest.fixture(scope="module")
def shared():
    yield os.getpid()
    print("the fixture's end")
    raise ValueError("the fixture ends badly")

@pytest.fixture(scope="session")
def long():
    yield
    open(f"ended-{os.getpid()}", "a").close()

def test_passes(long):
    assert True

def test_fails(capsys):
    print("said before")
    os.write(1, b"written before\\n")
    assert "left" == "right"

@pytest.mark.skip(reason="for a reason")
def test_is_skipped():
    pass

@pytest.mark.xfail(strict=True)
def test_is_known_to_fail():
    raise ValueError

@pytest.mark.parametrize("number", range(3))
def test_of_one_process(shared, number, record_property):
    record_property("number", number)
    assert shared == os.getpid()
"""
DIES = """
import os, signal
import pytest

def test_before():
    pass

def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)

def test_ends():
    os._exit(0)

def test_after(tmp_path):
    (tmp_path / "file").touch()
"""
PLACES = """
from pathlib import Path
import random, time

def test_has_a_place(tmp_path):
    places = Path("places")
    with places.open("a") as file:
        file.write(f"{tmp_path.parent} {random.random()}\\n")
    end = time.monotonic() + 60
    while len(places.read_text().splitlines()) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)

def test_passes():
    pass
"""
UNTIL = """
import os, time
from pathlib import Path

PARENT = os.getpid()

def until(name):
    end = time.monotonic() + 60
    while not Path(name).exists():
        assert time.monotonic() < end
        time.sleep(0.01)
"""
AT_THE_END = """
def pytest_runtest_logfinish(nodeid):
    if os.getpid() == PARENT:
        Path(nodeid.partition("::")[2]).touch()
"""
FAILS = (
    UNTIL
    + """
def test_fails():
    until("begun")
    raise ValueError

def test_not_wanted():
    Path("later").touch()
"""
)
BEGUN = (
    UNTIL
    + """
def test_of_the_other_worker():
    Path("begun").touch()
    until("test_fails")

def test_later():
    Path("later").touch()
"""
)
LATER = """
def test_later():
    open("later", "w").close()
"""
WAITS = """
import time
import pytest

@pytest.fixture(scope="session")
def fixture():
    open("begun", "x").close()
    yield
    open("ended", "x").close()

def test_waits(fixture):
    time.sleep(100)
"""


HANGS = """
import ctypes

def test_hangs_where_no_signal_is_handled():
    ctypes.PyDLL(None).sleep(100)

def test_after():
    pass
"""


def write(folder: Path, **files: str) -> None:
    (folder / "pytest.ini").touch()
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)


def command(*arguments: str) -> list[str]:
    unused = ("anyio", "cloudcoil", "schemathesis", "asyncio", "hypothesispytest", "randomly")
    plugins = [word for name in unused for word in ("-p", f"no:{name}")]
    return [sys.executable, "-m", "pytest", "-q", "-p", "tests.workers", *plugins, *arguments]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments, f"--junitxml={folder / 'junit.xml'}"),
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def outcomes(folder: Path) -> list[tuple[str, ...]]:
    """Of each case of the junit file: its names, what happened, its texts."""
    found = []
    for case in ElementTree.parse(folder / "junit.xml").iter("testcase"):
        parts = [(each.tag, each.attrib.get("message", "")[:50], each.text or "") for each in case]
        properties = [str(each.attrib) for each in case.iter("property")]
        text = re.sub("0x[0-9a-f]+", "an address", repr(parts)).replace(str(folder), "the folder")
        found.append((case.attrib["classname"], case.attrib["name"], text, *properties))
    return sorted(found)


def last_failed(folder: Path) -> set[str]:
    return set(json.loads((folder / ".pytest_cache/v/cache/lastfailed").read_text()))


def test_workers_report_what_one_process_reports(tmp_path: Path) -> None:
    found = []
    for processes in (0, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        write(folder, one=OUTCOMES, two=OUTCOMES, three=OUTCOMES)
        done = run(folder, "-n", str(processes))
        assert done.returncode == 1, done.stdout + done.stderr
        assert "3 failed, 12 passed, 3 skipped, 3 xfailed, 9 warnings, 3 errors" in done.stdout
        assert done.stdout.count("\nwritten before\n") == 3
        found.append((outcomes(folder), last_failed(folder)))
        assert len(list(folder.glob("ended-*"))) == max(1, processes)
    assert found[0] == found[1]
    assert len(found[0][1]) == 6


def test_tests_wait_for_the_end_of_a_pipe(tmp_path: Path) -> None:
    write(tmp_path, one="from pathlib import Path\ndef test_there(): assert Path('there').exists()")
    line = f"sleep 1; touch {tmp_path}/there; echo compiled"
    words = " ".join(map(shlex.quote, command("-n", "1", "--after", "/dev/fd/9")))
    script = f"exec 9< <({line}); {words}"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    text = subprocess.check_output(["bash", "-c", script], cwd=tmp_path, env=environment, text=True)
    assert text.startswith("compiled\n1 tests\n")


def test_a_worker_that_dies_fails_its_test_and_no_other(tmp_path: Path) -> None:
    write(tmp_path, dies=DIES, later=LATER, rest=LATER)
    done = run(tmp_path, "-n", "2")
    assert done.returncode == 1
    assert "2 failed, 4 passed" in done.stdout, done.stdout + done.stderr
    assert "The process of this test ended, with exit code -9." in done.stdout
    assert "The process of this test ended, with exit code 0." in done.stdout
    assert last_failed(tmp_path) == {"test_dies.py::test_dies", "test_dies.py::test_ends"}


def test_workers_have_places_and_random_numbers_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, a=PLACES, b=PLACES)
    assert run(tmp_path, "-n", "2", f"--basetemp={tmp_path / 'base'}").returncode == 0
    first, second = sorted(line.split() for line in (tmp_path / "places").read_text().splitlines())
    assert [first[0], second[0]] == [str(tmp_path / "base" / name) for name in ("w0", "w1")]
    assert first[1] != second[1]


def test_no_test_begins_after_the_first_failure_if_one_is_enough(tmp_path: Path) -> None:
    write(tmp_path, one=FAILS, two=BEGUN, z=LATER)
    (tmp_path / "conftest.py").write_text(UNTIL + AT_THE_END)
    done = run(tmp_path, "-n", "2", "-x")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert not (tmp_path / "later").exists()


def test_interrupted_workers_end_their_fixtures(tmp_path: Path) -> None:
    write(tmp_path, one=WAITS)
    process = subprocess.Popen(
        command("-n", "2"),
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    end = time.monotonic() + 60
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, text
    assert (tmp_path / "ended").exists()


def test_a_worker_that_hangs_within_c_ends_with_its_stack_and_another_goes_on(tmp_path: Path) -> None:
    write(tmp_path, one=HANGS)
    done = run(tmp_path, "-n", "1", "--hang-s", "1")
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "The process of this test ended, with exit code 1." in done.stdout
    assert "in test_hangs_where_no_signal_is_handled" in done.stderr
