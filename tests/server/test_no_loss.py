"""Under load, a stopping server answers every request that reached it."""

from __future__ import annotations

import asyncio
import signal

from tests.servers import RunningServer, running

REQUEST = b'POST /v1/models/sage/score HTTP/1.1\r\nhost: x\r\ncontent-length: 13\r\n\r\n{"nodes":[1]}'


async def ask_until_refused(server: RunningServer, lost: list[BaseException]) -> int:
    """Keep asking over kept connections, as a good client does; returns the number of answers."""
    host, port = server.address.split(":")
    answers = 0
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            return answers
        try:
            closing = False
            while not closing:
                writer.write(REQUEST)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200"), head
                length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                answers += 1
                closing = b"connection: close" in head
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            lost.append(error)
            return answers
        finally:
            writer.close()


async def test_no_request_is_lost_when_a_loaded_server_stops() -> None:
    with running(server__drain_delay_s=0.2, server__grpc_port=-1) as server:
        lost: list[BaseException] = []
        clients = [asyncio.create_task(ask_until_refused(server, lost)) for _ in range(16)]
        await asyncio.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        answers = await asyncio.gather(*clients)
        assert await asyncio.to_thread(server.process.wait, 10) == 0
    assert sum(answers) > 100
    assert not lost
