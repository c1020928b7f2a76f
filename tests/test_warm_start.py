"""Forks of the warm process do what fresh processes do, and have imported nothing that tests look for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.warm_start import WarmProcess, start

PARENT = """
import asyncio, signal, sys, tempfile, weakref
from pathlib import Path
from hopline.process.child import Child

async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, print)
    folder, file = tempfile.TemporaryDirectory(), open("/dev/null")
    for _ in range(2):  # from the second one on, a thread waits for the first
        child = await Child.start("tests.test_warm_start:child", {}, name="child", stdout=1)
        assert await asyncio.wait_for(child.wait_ready(), 60) is None
        said = child.said.split()
        assert said[0] == "warm", said
        assert int(said[1]) == child.pid
        assert str(file.fileno()) not in said[2:], said
        assert "tests.test_warm_start" in Path(f"/proc/{child.pid}/cmdline").read_text()
        child.stop()
        assert await child.wait() == -signal.SIGTERM
    child = await Child.start("tests.test_warm_start:ended", {}, name="child", says_ready=False)
    assert await child.wait() == 3
    assert Path(folder.name).exists()

asyncio.run(main())
"""


def child() -> None:
    """Say what this process has, and wait for a signal."""
    import json

    from hopline.process.parent import read_orders, say_ready

    orders = json.loads(read_orders())
    files = sorted(map(int, os.listdir("/proc/self/fd")))
    is_warm = "warm" if "hopline.service" in sys.modules else "fresh"
    say_ready(orders["ready"], " ".join(map(str, [is_warm, os.getpid(), *files])))
    signal.pause()


def ended() -> None:
    """End with a code."""
    sys.exit(3)


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "import os, sys; print(sys.argv, os.getcwd(), os.environ['SAID'], __name__)", "a", "b"],
        ["-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"],
        ["-c", "import sys; sys.exit('what was wrong')"],
        ["-c", "import atexit; atexit.register(print, 'at the end')"],
        ["-c", "import threading, time; threading.Timer(0.05, print, ['later']).start()"],
        ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"],
        ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"],
        ["-m", "hopline.cli", "config", "shw"],
    ],
)
def test_output_and_exit_code_are_those_of_a_fresh_process(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAID", "so")
    found = start(words, os.environ)
    assert isinstance(found, WarmProcess)
    texts = found.communicate(timeout=60)
    fresh = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert (found.wait(), *texts) == (fresh.returncode, fresh.stdout, fresh.stderr)


def test_an_exception_is_an_exit_code_and_a_traceback():
    found = start(["-c", "1 / 0"], os.environ)
    assert "ZeroDivisionError" in found.communicate(timeout=60)[1]
    assert found.returncode == 1


def test_a_fork_is_waited_for_and_killed_as_a_child():
    with start(["-c", "import time; print('up', flush=True); time.sleep(600)"], os.environ) as found:
        assert found.stdout.readline() == "up\n"
        assert found.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            found.wait(0.01)
        found.kill()
        assert found.wait(60) == -signal.SIGKILL
        assert found.poll() == -signal.SIGKILL


def test_what_tests_look_for_is_not_there_before_a_server_imports_it():
    """`test_live_limits` looks for pyarrow; no server may need torch."""
    code = "import os, sys; print({'torch', 'pyarrow', 'pandas'} & {*sys.modules})"
    code += "; print(len(os.listdir('/proc/self/task')))"
    assert start(["-c", code], os.environ).communicate(timeout=60) == ("set()\n1\n", "")


def test_an_environment_that_imports_read_needs_a_fresh_process():
    found = start(
        ["-c", "import sys; print('numba' in sys.modules)"], os.environ | {"NUMBA_DISABLE_JIT": "1"}
    )
    assert not isinstance(found, WarmProcess)
    assert found.communicate(timeout=60) == ("False\n", "")


def test_children_of_a_fork_are_forks_that_have_nothing_else_of_it():
    found = start(["-c", PARENT], os.environ)
    assert found.communicate(timeout=120) == ("", "")
    assert found.returncode == 0
