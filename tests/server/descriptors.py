"""A service that reads what its supervisor shared."""

from __future__ import annotations

import os
from pathlib import Path

from hopline.testing.service import FakeService


class Reads(FakeService):
    async def start(self) -> None:
        data = os.pread(self.config.worker.table_fd, 100, 0)
        (Path(os.environ["HOPLINE_TEST_OUT"]) / str(self.config.worker.index)).write_bytes(data)
        await super().start()
