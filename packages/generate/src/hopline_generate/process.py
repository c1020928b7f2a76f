"""The process of a generative model: a socket for the workers of one server, and a `Runner`.

The workers share it, so there is one copy of the weights, one KV cache and one running batch. It belongs to
no worker: a worker that ends takes only its own texts along. The process ends when no worker has been
connected for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from pathlib import Path
from typing import Any

import msgspec

from hopline.config.schema import Config
from hopline.errors import HoplineError
from hopline.process.listeners import listen_at
from hopline.process.parent import read_orders, say_ready
from hopline.process.time_slice import lower_priority
from hopline.process.wire import Refusal, WireError
from hopline_generate import wire
from hopline_generate.engine import EngineSettings, load_engine
from hopline_generate.runner import Runner, RunnerSettings, Text

log = logging.getLogger("hopline.generate")

#: For the first worker to connect, and for another one after the last has gone.
_FIRST_S, _LINGER_S = 60.0, 2.0
#: Bytes that a worker has not read; one that does not read any more is cut off.
_MOST_UNREAD_BYTES = 64 * 2**20
_STATS_S = 1.0
#: Exit code after the engine failed.
_ENGINE_FAILED = 3


class Orders(msgspec.Struct):
    """Orders to a process that a worker starts.

    Attributes:
        socket: where it listens.
        model: file or folder of the model.
        config: of the server, as JSON.
        ready: descriptor for `say_ready`.
        nice: is added to its niceness.
    """

    name: str
    socket: str
    engine: str
    model: str
    settings: EngineSettings
    limits: RunnerSettings
    config: str
    ready: int
    nice: int = 0


class Server:
    """The connections of workers.

    Args:
        runner: answers them.

    Attributes:
        is_left: set when the last worker has said that it needs no more.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._writers: set[asyncio.StreamWriter] = set()
        self.is_left = asyncio.Event()
        self._empty_since: float | None = None
        self._was_connected = False

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take the messages of one worker until it is gone."""
        texts: dict[int, Text] = {}
        try:
            hello = await wire.WIRE.receive(reader, wire.to_process)
            if not isinstance(hello, wire.Hello):
                return
            refusal = wire.WIRE.refusal(hello.protocol, "a worker", "the process of a generative model")
            if refusal:
                writer.write(wire.WIRE.frame(Refusal(refusal)))
                return
            writer.write(wire.WIRE.frame(wire.Welcome(self._runner.engine.info)))
            self._writers.add(writer)
            self._was_connected = True
            out = Outbox(writer, texts)
            while True:
                message = await wire.WIRE.receive(reader, wire.to_process)
                if isinstance(message, wire.Begin):
                    texts[message.number] = self._runner.begin(
                        message.number, message.prompt, message.lane, message.left_s, out.put
                    )
                elif isinstance(message, wire.Cancel):
                    text = texts.pop(message.number, None)
                    if text is not None:
                        self._runner.cancel(text)
                elif isinstance(message, wire.Bye):
                    if len(self._writers) == 1:
                        self.is_left.set()
                    return
        except asyncio.CancelledError:  # the process ends
            pass
        except (OSError, EOFError, WireError) as error:
            log.info("a worker has left (%s)", str(error) or type(error).__name__)
        finally:
            self._writers.discard(writer)
            for text in texts.values():
                self._runner.cancel(text)
            writer.close()

    async def close(self) -> None:
        """Write out what is written, and end the connections."""
        await asyncio.sleep(0)
        for writer in list(self._writers):
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await writer.wait_closed()

    async def report_stats(self) -> None:
        """Send the state to every worker, once a second; ends when there has been no worker for a while."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            frame = wire.WIRE.frame(self._runner.state())
            for writer in self._writers:
                writer.write(frame)
            now = loop.time()
            self._empty_since = None if self._writers else self._empty_since or now
            if self._empty_since is not None:
                allowed_s = _LINGER_S if self._was_connected else _FIRST_S
                if now - max(self._empty_since, began) > allowed_s:
                    return
            await asyncio.sleep(_STATS_S)


class Outbox:
    """Collects the parts of one turn of the loop for a worker: one message for each step."""

    def __init__(self, writer: asyncio.StreamWriter, texts: dict[int, Text]) -> None:
        self._writer = writer
        self._texts = texts
        self._parts: list[wire.Part] = []

    def put(self, part: wire.Part) -> None:
        """Send a part with the others of this turn."""
        if part.finish or part.error:
            self._texts.pop(part.number, None)
        if not self._parts:
            asyncio.get_running_loop().call_soon(self._send)
        self._parts.append(part)

    def _send(self) -> None:
        parts, self._parts = self._parts, []
        transport = self._writer.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            log.error("a worker does not read; its connection is closed")
            transport.abort()
            return
        self._writer.write(wire.WIRE.frame(wire.Parts(parts)))


async def serve(orders: Orders) -> int:
    """Load the model and serve workers; returns the exit code."""
    loop = asyncio.get_running_loop()
    try:
        engine = await asyncio.to_thread(load_engine, orders.engine, Path(orders.model), orders.settings)
    except HoplineError as error:
        say_ready(orders.ready, f"failed {error}".replace("\n", " "))
        return 1
    failed = asyncio.Event()
    stopping = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # a terminal's Ctrl-C is for the server
    runner = Runner(engine, orders.limits, failed.set)
    server = Server(runner)
    listener = await listen_at(
        Path(orders.socket), server.talk, "generate.socket_folder", "the process of another model"
    )
    gc.collect()
    gc.freeze()
    say_ready(orders.ready)
    waits: list[asyncio.Task[Any]] = [
        asyncio.ensure_future(wait)
        for wait in (server.report_stats(), server.is_left.wait(), failed.wait(), stopping.wait())
    ]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    listener.close()
    with contextlib.suppress(OSError):
        Path(orders.socket).unlink()
    if failed.is_set():
        await server.close()  # the errors of its texts are written
        return _ENGINE_FAILED
    for wait in waits:
        wait.cancel()
    await runner.close()
    return 0


def main() -> None:
    """The entry of the process; see `hopline.process.child`."""
    import uvloop

    from hopline.observe.logs import configure_logs

    orders = msgspec.json.decode(read_orders(), type=Orders)
    lower_priority(orders.nice)
    configure_logs(Config.from_json(orders.config).log)
    logging.getLogger().name = f"generate {orders.name}"
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(serve(orders))
    os._exit(code)  # engines keep threads, whose end is not waited for
