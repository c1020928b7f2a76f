"""A real service whose loads of version 2 wait until a file says that they may go on."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hopline.answering.unit import Unit
from hopline.models.load import Load
from hopline.service import Service

ALLOWED = "loads-are-allowed"


class HeldLoads(Service):
    async def start(self) -> None:
        await super().start()
        assert self._loader is not None
        load = self._loader.load
        allowed = Path(str(self.config.models.repository)).parent / ALLOWED

        async def held(model: str, unit: Unit) -> Load:
            while unit.version == "2" and not allowed.exists():  # noqa: ASYNC110 - another process says so
                await asyncio.sleep(0.02)
            return await load(model, unit)

        self._loader.load = held  # type: ignore[method-assign]
