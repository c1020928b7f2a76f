"""A service that tells what its supervisor shared."""

from __future__ import annotations

import os
from pathlib import Path

from tests.fake_service import FakeService


class Reads(FakeService):
    async def start(self) -> None:
        told = os.fstat(self.config.worker.state_cache_fd)
        (Path(os.environ["HOPLINE_TEST_OUT"]) / str(self.config.worker.index)).write_text(str(told.st_ino))
        await super().start()
