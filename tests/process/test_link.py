"""A link connects, is welcomed, and comes back after a loss; each problem is logged once."""

import asyncio
import logging

import msgspec
import pytest

from hopline.errors import ConfigError
from hopline.process.link import Handshake, Link, LinkLog
from hopline.process.listeners import listen_at
from hopline.process.wire import Refusal, Wire, WireError


class Hello(msgspec.Struct, tag="hello"):
    protocol: int


class Welcome(msgspec.Struct, tag="welcome"):
    pass


class Note(msgspec.Struct, tag="note"):
    text: str


WIRE = Wire(3)
FROM_SERVER = msgspec.msgpack.Decoder(Welcome | Refusal | Note)
FROM_LINK = msgspec.msgpack.Decoder(Hello | Note)


class User:
    def __init__(self):
        self.events = []
        self.writer = None

    def connected(self, welcome, writer):
        assert isinstance(welcome, Welcome)
        self.writer = writer
        self.events.append("connected")

    def receive(self, message):
        if message.text == "bad":
            raise WireError("not what may be sent")
        self.events.append(message.text)

    def lost(self):
        self.events.append("lost")

    async def until(self, *events):
        async with asyncio.timeout(20):
            while self.events != list(events):  # noqa: ASYNC110 - the events of a socket
                await asyncio.sleep(0.002)


class Ends:
    def __init__(self, path):
        self.path = path
        self.user = User()
        self.answer: msgspec.Struct = Welcome()
        self.talks: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        self.server: asyncio.Server | None = None
        self.link = Link(
            path,
            WIRE,
            Handshake(Hello(WIRE.protocol), Welcome, FROM_SERVER, timeout_s=5.0),
            self.user,
            LinkLog(logging.getLogger("test.link"), "the server", "this end goes on alone"),
            first_pause_s=0.01,
        )

    async def listen(self):
        self.server = await listen_at(self.path, self.talk, "some.setting", "server")

    async def talk(self, reader, writer):
        assert await WIRE.receive(reader, FROM_LINK) == Hello(3)
        writer.write(WIRE.frame(self.answer))
        self.talks.put_nowait(writer)

    async def until_problem(self, text):
        async with asyncio.timeout(20):
            while text not in self.link.problem:  # noqa: ASYNC110 - the events of a socket
                await asyncio.sleep(0.002)

    async def close(self):
        await self.link.close()
        if self.server is not None:
            self.server.close()
        while not self.talks.empty():
            self.talks.get_nowait().close()


@pytest.fixture
async def ends(tmp_path):
    found = Ends(tmp_path / "socket")
    yield found
    await found.close()


async def test_messages_are_received_and_a_lost_connection_is_made_again(ends, caplog):
    await ends.listen()
    ends.link.start()
    writer = await ends.talks.get()
    writer.write(WIRE.frame(Note("one")) + WIRE.frame(Note("two")))
    await ends.user.until("connected", "one", "two")
    assert ends.link.problem == ""
    writer.close()
    second = await ends.talks.get()
    await ends.user.until("connected", "one", "two", "lost", "connected")
    assert "the server at" in caplog.text
    assert "is gone (0 bytes read on a total of 4 expected bytes); this end goes on alone" in caplog.text
    second.close()


async def test_a_message_that_may_not_be_sent_ends_the_connection(ends):
    await ends.listen()
    ends.link.start()
    writer = await ends.talks.get()
    writer.write(WIRE.frame(Note("bad")))
    again = await ends.talks.get()
    await ends.user.until("connected", "lost", "connected")
    writer.close()
    again.close()


async def test_an_absent_server_is_reported_once_and_found_when_it_comes(ends, caplog, monkeypatch):
    connect, tried = asyncio.open_unix_connection, asyncio.Semaphore(0)

    async def counted(path):
        tried.release()
        return await connect(path)

    monkeypatch.setattr(asyncio, "open_unix_connection", counted)
    ends.link.start()
    for _ in range(4):
        await asyncio.wait_for(tried.acquire(), 20)
    assert caplog.text.count("is unreachable") == 1
    await ends.listen()
    (await ends.talks.get()).close()
    await ends.user.until("connected", "lost")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Refusal("it speaks version 3, the server 4: upgrade both"), "it refuses this process: it speaks"),
        (Note("hello"), "it answered Note to a hello"),
    ],
)
async def test_a_link_that_is_not_welcomed_says_why(ends, answer, problem):
    ends.answer = answer
    await ends.listen()
    ends.link.start()
    await ends.until_problem(problem)
    assert ends.user.events == []


async def test_a_socket_is_its_users_own_and_a_dead_ones_place_is_taken(tmp_path):
    path = tmp_path / "socket"

    async def talk(reader, writer):
        writer.close()

    first = await listen_at(path, talk, "some.setting", "server")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match=r"some.setting: another server listens at .*socket"):
        await listen_at(path, talk, "some.setting", "server")
    first.close()
    (await listen_at(path, talk, "some.setting", "server")).close()
    path.unlink(missing_ok=True)
    path.write_text("a file")
    with pytest.raises(ConfigError, match="is there and is no socket; name another path"):
        await listen_at(path, talk, "some.setting", "server")
