"""Opening the live graph of a host: what a worker does that waits for its writer."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from hopline.answering.live_graph import open_live_graph
from hopline.config.schema import Config
from hopline.errors import GraphError


def test_a_worker_does_not_wait_for_the_writer_of_a_supervisor_that_is_gone():
    """kill -9 of a supervisor while its workers start: nobody is left to tell them to end."""
    memory = os.memfd_create("live")
    with subprocess.Popen(
        [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(600)"],
        pass_fds=(memory,),
        stdout=subprocess.PIPE,
    ) as supervisor:
        assert supervisor.stdout.readline() == b"ready\n"
        config = Config().replace(worker__live_memory=f"/proc/{supervisor.pid}/fd/{memory}")
        found = []

        def wait():
            with pytest.raises(GraphError, match="supervisor has ended") as raised:
                open_live_graph(config)
            found.append(raised)

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
        waiting.join(5)
        assert found
    os.close(memory)
