import re
import signal
import subprocess
import sys

import pytest

from tests.records.conftest import config, places  # noqa: F401


@pytest.fixture
def serving(places, tmp_path):  # noqa: F811
    """Address of a running server of the models."""
    words = ("--graph", places / "graph", "--repository", places / "models", "--port=0", "--grpc-port=-1")
    words += ("--set", "server.drain_delay_s=0", "--set", f"models.state={tmp_path / 'served'}")
    with (tmp_path / "server.txt").open("w") as said:
        server = subprocess.Popen(
            [sys.executable, "-m", "hopline.cli", "serve", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
    try:
        found = re.search(r"(http://\S+)", server.stdout.readline())
        assert found, (tmp_path / "server.txt").read_text()
        yield found[1]
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=20)
