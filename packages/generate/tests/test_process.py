"""The process of a generative model, as a worker's socket sees it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import uvloop

from hopline.scheduling.policy import NORMAL
from hopline_generate import wire
from hopline_generate.engine import EngineSettings, Produced
from hopline_generate.naive_engine import NaiveEngine
from hopline_generate.process import Server
from hopline_generate.request import Prompt, Sampling
from hopline_generate.runner import Runner, RunnerSettings
from packages.generate.tests.models import naive


class Watching(NaiveEngine):
    """Has the worker's end of the socket, and looks at it as each step begins."""

    worker: socket.socket

    def __init__(self, model: Path) -> None:
        super().__init__(model, EngineSettings())
        self.parts: list[list[wire.Part]] = []
        self.running: list[int] = []
        self.is_done = asyncio.Event()

    def step(self) -> list[Produced]:
        """As `Engine.step`."""
        self.running.append(len(self._running))
        frames = wire.WIRE.frames()
        messages = [wire.to_worker.decode(frame) for frame in frames.feed(unread(self.worker))]
        self.parts.append(
            [part for message in messages if isinstance(message, wire.Parts) for part in message.parts]
        )
        if len(self.running) == 1:
            self.worker.sendall(begin(2))
        if len(self.running) == 4:
            self.is_done.set()
        return super().step()


def unread(worker: socket.socket) -> bytes:
    """What has come, without waiting."""
    try:
        return worker.recv(1 << 20, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""


def begin(number: int) -> bytes:
    prompt = Prompt("abc", "", Sampling(temperature=0.0, max_tokens=3))
    return wire.WIRE.frame(wire.Begin(number, prompt, NORMAL, 60.0))


def test_tokens_are_sent_and_prompts_taken_between_two_steps(tmp_path: Path) -> None:
    """An engine may hold the interpreter's lock in a step: what is not sent before it waits for its end."""
    engine = Watching(naive(tmp_path))

    async def steps() -> None:
        server = Server(Runner(engine, RunnerSettings()))
        path = tmp_path / "process.sock"
        listener = await asyncio.start_unix_server(server.talk, path)
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as worker:
            worker.setblocking(False)
            await loop.sock_connect(worker, str(path))
            engine.worker = worker
            await loop.sock_sendall(worker, wire.WIRE.frame(wire.Hello(wire.WIRE.protocol)) + begin(1))
            await asyncio.wait_for(engine.is_done.wait(), 20)
        listener.close()
        await server.close()

    # the loop of the process: asyncio's own writes at once
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(steps())
    assert [[(part.number, part.text) for part in parts] for parts in engine.parts] == [
        [],
        [(1, ""), (1, "a")],  # the first part of a text is empty
        [(2, ""), (1, "b"), (2, "a")],
        [(1, "c"), (2, "b")],
    ]
    assert engine.running == [1, 2, 2, 1]
