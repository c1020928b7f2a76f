from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.servers import RunningServer, running
from tests.transports.http_rig import Host, listening


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    with running(server__max_body_bytes=1_000_000) as started:
        yield started


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with listening() as made:
        yield made
