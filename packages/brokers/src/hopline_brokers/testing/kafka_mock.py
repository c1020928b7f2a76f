"""librdkafka's mock cluster of one broker in a separate process, so that it can be stopped and killed.

    python -m hopline.testing.kafka_mock --port 9092

prints the address once it listens, and runs until its standard input ends. It stores messages in memory,
about 5 MB for each of the 4 partitions of a topic. The mock chooses its own port. To have the same port
again after a kill, it is reached through a proxy, which replaces the port in the mock's metadata by its
own.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import sys

from confluent_kafka import cimpl

_CHUNK_BYTES = 2**18
_HOST = "127.0.0.1"
#: Time that a new group waits for members. The mock's default of 3 s would dominate the time of tests.
_GATHER_MS = 50


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
    inner_address, outer_address = host + mock_port.to_bytes(4, "big"), host + port.to_bytes(4, "big")

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(_HOST, mock_port)
        await asyncio.gather(
            _forward(reader, inner_writer), _forward(inner_reader, writer, inner_address, outer_address)
        )

    server = await asyncio.start_server(accept, _HOST, port)
    print(f"{_HOST}:{port}", flush=True)
    async with server:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        server.close()


def _mock() -> int:
    """Start the cluster, which runs as long as the process; return its port.

    Uses librdkafka's functions (rdkafka_mock.h), since the driver's settings omit most of them.
    """
    rdkafka = ctypes.CDLL(cimpl.__file__)  # resolves the symbols of linked libraries
    new, cluster_new, bootstraps, gather = (
        rdkafka.rd_kafka_new,
        rdkafka.rd_kafka_mock_cluster_new,
        rdkafka.rd_kafka_mock_cluster_bootstraps,
        rdkafka.rd_kafka_mock_group_initial_rebalance_delay_ms,
    )
    new.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
    cluster_new.argtypes = (ctypes.c_void_p, ctypes.c_int)
    bootstraps.argtypes = (ctypes.c_void_p,)
    gather.argtypes = (ctypes.c_void_p, ctypes.c_int32)
    new.restype = cluster_new.restype = ctypes.c_void_p
    bootstraps.restype = ctypes.c_char_p
    cluster = cluster_new(new(0, None, None, 0), 1)
    gather(cluster, _GATHER_MS)
    address: bytes = bootstraps(cluster)
    return int(address.rpartition(b":")[2])


def main() -> None:
    """Run the cluster."""
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, required=True)
    args = options.parse_args()
    asyncio.run(_serve(args.port, _mock()))


if __name__ == "__main__":
    main()
