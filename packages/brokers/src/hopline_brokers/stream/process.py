"""The process of a server that follows the stream of its fleet; the supervisor keeps it alive.

Its orders come as one line of JSON on stdin. It reports that it is ready when the graph has everything that
the stream has, or after `live.catch_up_s`. It stops in order on SIGTERM, or when stdin ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys

from hopline.config.schema import Config
from hopline.errors import HoplineError
from hopline.observe.logs import configure_logs
from hopline.process.parent import read_orders, say_ready
from hopline_brokers.stream.consumer import StreamOptions
from hopline_brokers.stream.follow import Stream, follow, run

logger = logging.getLogger("hopline.stream")

_MAX_BATCH, _MAX_WAIT_MS = 10_000, 20.0


def main() -> None:
    """Entry point of the process."""
    orders = json.loads(read_orders())
    config = Config.from_json(orders["config"])
    configure_logs(config.log)
    try:
        run(_follow(config, orders["ready"]), config.live.nice)
    except HoplineError as error:
        logger.error("the stream of the live graph stopped: %s", error)
        sys.exit(1)


async def _follow(config: Config, ready: int) -> None:
    said: list[int] = [ready]

    def say() -> None:
        if said:
            say_ready(said.pop())

    asyncio.get_running_loop().call_later(config.live.catch_up_s, say)
    stream = Stream(
        config.live.stream,
        config,
        config.live.dead_letters or "discard",
        quiet=True,
        setting="live.stream",
        options=StreamOptions(
            max_batch=_MAX_BATCH,
            max_wait_ms=_MAX_WAIT_MS,
            names_versions=True,
            features_elsewhere=bool(config.features.store),
        ),
    )
    await follow(stream, on_current=say)
