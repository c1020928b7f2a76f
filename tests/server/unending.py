"""A service whose end waits for a thread that never ends, as a load whose disk does not answer."""

import asyncio
import threading

from tests.fake_service import FakeService


class Unending(FakeService):
    """See the module."""

    async def close(self) -> None:
        await asyncio.to_thread(threading.Event().wait)
