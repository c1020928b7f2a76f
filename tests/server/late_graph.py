"""A service whose graph is current some time after its start, as one whose writer answers late."""

import time

from tests.fake_service import FakeService


class LateGraph(FakeService):
    """Its graph is its own; see the module."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.graph_updates = self

    async def start(self):
        await super().start()
        self.current_at = time.monotonic() + 1.0

    @property
    def is_current(self):
        return time.monotonic() >= self.current_at

    def ready(self):
        return super().ready() and self.is_current
