from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import RunningServer, running


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    with running(server__max_body_bytes=1_000_000) as started:
        yield started
