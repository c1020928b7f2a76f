"""A service for tests that waits for the live graph of its host, as a real one does."""

from __future__ import annotations

from hopline.answering.live_graph import open_live_graph
from tests.fake_service import FakeService


class Waits(FakeService):
    async def start(self) -> None:
        open_live_graph(self.config).close()
        await super().start()
