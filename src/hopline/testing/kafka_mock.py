"""librdkafka's mock cluster of one broker in a process of its own, so that it can be stopped and killed.

    python -m hopline.testing.kafka_mock --port 9092

prints the address once it listens, and lives until its standard input ends. It keeps messages in memory,
some 5 MB of each of the 4 partitions that a topic has. The mock chooses its own port; to come back at the
old one after a kill it is reached through a proxy, which writes its own port into what the mock tells of
where it is.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from confluent_kafka import Producer

_CHUNK_BYTES = 2**18
_HOST = "127.0.0.1"


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, old: bytes = b"", new: bytes = b""
) -> None:
    try:
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data.replace(old, new) if old else data)
            await writer.drain()
    except ConnectionError:
        return
    finally:
        writer.close()


async def _serve(port: int, mock_port: int) -> None:
    host = _HOST.encode()
    told, wanted = host + mock_port.to_bytes(4, "big"), host + port.to_bytes(4, "big")

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(_HOST, mock_port)
        await asyncio.gather(_forward(reader, inner_writer), _forward(inner_reader, writer, told, wanted))

    server = await asyncio.start_server(accept, _HOST, port)
    print(f"{_HOST}:{port}", flush=True)
    async with server:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        server.close()


def main() -> None:
    """Run the cluster."""
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, required=True)
    args = options.parse_args()
    owner: Any = Producer({"bootstrap.servers": "mock:1", "test.mock.num.brokers": 1, "log_level": 2})
    (broker,) = owner.list_topics(timeout=10).brokers.values()
    asyncio.run(_serve(args.port, broker.port))


if __name__ == "__main__":
    main()
