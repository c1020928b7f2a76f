"""Long work says where it is: on a terminal, in a notebook, or on request; never to who did not ask."""

import contextlib
import io
import os
import pty
import subprocess
import sys

import pytest

from hopline.observe.progress import shown


def work(progress, file=None):
    """What is written on stderr meanwhile."""
    file = file or io.StringIO()
    with contextlib.redirect_stderr(file), shown(progress, "packaging risk") as told:
        for step in ("tracing", "comparing"):
            told(step, 0.0)
            told(step, 1.0)
    return file.getvalue()


def test_nothing_is_drawn_from_the_caller_s_random_numbers():
    """Rich draws a number when it is imported, by the first work of a process."""
    code = (
        "import random, sys; before = random.getstate(); sys.stderr.isatty = lambda: True\n"
        "from hopline.observe.progress import shown\n"
        "with shown(None): pass\n"
        "assert 'rich.style' in sys.modules; assert random.getstate() == before"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_a_terminal_rich_is_not_imported():
    code = (
        "import sys; from hopline.observe.progress import shown\n"
        "with shown(True) as progress: progress('step', 0.0)\n"
        "assert 'rich' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr[:4]) == (0, "step"), done.stderr


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _no_notebook(monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)


def test_lines_are_written_where_steps_are_wanted_and_there_is_no_terminal():
    assert work(True) == "packaging risk: tracing (0.0 s)\npackaging risk: comparing (0.0 s)\n"


@pytest.mark.parametrize("progress", [False, None])
def test_nothing_is_written_where_nobody_watches(progress):
    assert work(progress) == ""


def test_a_notebook_is_watched(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", object())
    assert "tracing" in work(None)
    assert "\x1b" not in work(None)


def test_a_terminal_shows_each_step_and_how_long_it_took(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    said = work(None, Terminal())
    last = said.rpartition("tracing")[2]
    assert "0:00:00" in last
    assert "comparing" in last
    assert "✓" in said


def test_a_terminal_shows_nothing_to_who_wants_nothing():
    assert work(False, Terminal()) == ""


def test_a_function_gets_the_report_instead():
    heard = []
    assert work(lambda step, done: heard.append((step, done))) == ""
    assert heard == [("tracing", 0.0), ("tracing", 1.0), ("comparing", 0.0), ("comparing", 1.0)]


def test_what_a_model_prints_goes_to_stdout():
    code = """
from hopline.observe.progress import shown
with shown(None) as told:
    told("running", 0.0)
    print("from the model", flush=True)
    told("running", 1.0)
"""
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, env=os.environ, check=True
    )
    os.close(theirs)
    os.close(ours)
    assert done.stdout == b"from the model\n"
