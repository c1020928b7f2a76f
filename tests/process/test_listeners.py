"""Listening sockets: what waits to be accepted."""

import asyncio
import socket
import sys
from contextlib import ExitStack

import pytest

from hopline.process.listeners import hold_new_connections, num_unaccepted, read_new_connection


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say")
@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_connections_count_until_they_are_accepted(family: socket.AddressFamily, host: str) -> None:
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket(family))
        listening.bind((host, 0))
        listening.listen(8)
        assert num_unaccepted(listening) == 0
        for count in (1, 2, 3):
            client = stack.enter_context(socket.socket(family))
            client.connect(listening.getsockname())
            assert num_unaccepted(listening) == count
        for count in (2, 1, 0):
            stack.enter_context(listening.accept()[0])
            assert num_unaccepted(listening) == count


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot")
@pytest.mark.parametrize(
    ("bound", "host"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")]
)
def test_a_held_socket_finishes_its_connections_and_begins_no_further_ones(bound: str, host: str) -> None:
    with ExitStack() as stack:
        family = socket.AF_INET6 if ":" in bound else socket.AF_INET
        listening = stack.enter_context(
            socket.create_server((bound, 0), family=family, dualstack_ipv6=bound == "::")
        )
        address = host, listening.getsockname()[1]
        before = stack.enter_context(socket.create_connection(address))
        hold_new_connections(listening)
        with pytest.raises(TimeoutError):
            socket.create_connection(address, timeout=0.2)
        accepted = stack.enter_context(listening.accept()[0])
        before.sendall(b"request")
        assert accepted.recv(10) == b"request"


async def test_a_connection_that_began_before_and_is_made_after_is_read() -> None:
    received = asyncio.get_running_loop().create_future()

    class Late(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            hold_new_connections(transport.get_extra_info("socket"))  # as it has it from its listener
            read_new_connection(transport)

        def data_received(self, data: bytes) -> None:
            received.set_result(data)

    async with await asyncio.get_running_loop().create_server(Late, "127.0.0.1", 0) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"request")
        assert await asyncio.wait_for(received, 10) == b"request"
        writer.close()
