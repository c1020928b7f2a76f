"""Servers on real sockets that do not behave."""

import asyncio
import contextlib
import time

import numpy as np
import pytest

from hopline_mesh.collect import CollectOptions, Collector, Prometheus, queries_for
from packages.mesh.tests.collect.fake import NOW, QUERIES
from packages.mesh.tests.collect.history import History, istio_call
from packages.mesh.tests.prometheus_server import prometheus


async def silent(reader, writer):
    await reader.read()


async def cut_short(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{"status":"succ')


async def no_http(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"\x16\x03\x01 hello\r\n")


async def hangs_up(reader, writer):
    await reader.readuntil(b"\r\n\r\n")


async def drips(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def serving(behaviour):
    """The URL of a server that behaves like this."""

    tasks = []

    async def handle(reader, writer):
        tasks.append(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await behaviour(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*tasks)  # the client has let go by now


@pytest.mark.parametrize("behaviour", [silent, cut_short, no_http, hangs_up, drips])
async def test_a_server_that_does_not_behave_costs_the_deadline_at_most(behaviour):
    async with serving(behaviour) as url, Prometheus(url) as client:
        late = behaviour in (silent, drips)
        deadline_s = 0.2 if late else 20.0
        one = Collector(client, QUERIES, options=CollectOptions(deadline_s=deadline_s))
        begin = time.monotonic()
        snapshot = await one.collect(NOW)
        assert time.monotonic() - begin < 10.0
        snapshot.check()
    assert [gap.what for gap in snapshot.gaps] == ["prometheus"]
    assert {query.outcome for query in one.report.queries} == {"late" if late else "unavailable"}
    assert ("did not respond within 0.2 s" if late else "is unavailable") in snapshot.gaps[0].reason


async def test_a_real_prometheus_that_ends_leaves_the_mesh_unmeasured(tmp_path):
    history = History(int(time.time()))
    istio_call(history, "web", "cart", 2.0)
    with prometheus(history.write(tmp_path)) as url:
        client = Prometheus(url)
        one = Collector(client, queries_for("istio"))
        before = await one.collect(time.time())
    after = await one.collect(time.time())
    await client.close()
    after.check()
    assert before.nodes.tolist() == after.nodes.tolist() != []
    assert np.isnan(after.node_features).all()
    assert "is unavailable" in after.gaps[0].reason
    assert [gap.what for gap in after.gaps] == ["prometheus", "services"]
