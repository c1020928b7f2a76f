import contextlib
import re
import signal

import pytest

from tests.records.conftest import config, places  # noqa: F401
from tests.warm_start import start


@pytest.fixture
def serve(tmp_path):
    """`hopline serve` with these words, as a context: its address."""

    @contextlib.contextmanager
    def running(*words):
        words += ("--port=0", "--grpc-port=-1", "--set", "server.drain_delay_s=0")
        words += ("--set", f"models.state={tmp_path / 'served'}")
        with (tmp_path / "server.txt").open("w") as said:
            server = start(["-m", "hopline.cli", "serve", *map(str, words)], stderr=said)
        try:
            found = re.search(r"(http://\S+)", server.stdout.readline())
            assert found, (tmp_path / "server.txt").read_text()
            yield found[1]
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=20)

    return running


@pytest.fixture
def serving(places, serve):  # noqa: F811
    """Address of a running server of the models."""
    with serve("--graph", places / "graph", "--repository", places / "models") as url:
        yield url
