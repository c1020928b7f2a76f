"""A worker's side of a generative model's process: finds or starts it, and passes prompts and parts.

    connect ── there ──────────────────────────────► serves ── hangs: killed
       │ not there                                      │ lost: its texts fail, then again
       └─► lock file ─► still not there ─► start ─► ready ┘

The worker that starts the process only reaps it in the end. The process serves all workers of the server,
and ends when the last of them has closed its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from hopline.config.schema import Config
from hopline.errors import ArtifactError, ConfigError, ModelNotReady, RuntimeFailure
from hopline.files import lock
from hopline.process.child import Child, exit_reason
from hopline.process.keeper import Keeper
from hopline.process.silence import Silence
from hopline.process.wire import Refusal, WireError, pack_error, unpack_error
from hopline_generate import wire
from hopline_generate.engine import EngineInfo
from hopline_generate.process import Orders
from hopline_generate.request import Prompt

_READY_S = 600.0
#: Until a process must have greeted a worker: it may be in a long step.
_WELCOME_S = 60.0
_TRY_S = 120.0
#: For the process to end after its last worker has gone.
_END_S = 15.0
#: Longest path of a Unix socket on Linux.
_LONGEST_PATH = 107


class Generator(Protocol):
    """The generator of one version's texts: a process of this host, or another server."""

    @property
    def engine(self) -> EngineInfo:
        """The engine that generates."""

    @property
    def state(self) -> wire.Stats | None:
        """As last reported; None where it reports nothing."""

    @property
    def reason(self) -> str:
        """Why it generates nothing now; "" while it does."""

    async def start(self) -> None:
        """Be ready. Raises: HoplineError."""
        ...

    def begin(
        self, prompt: Prompt, lane: int, left_s: float, on_part: Callable[[wire.Part], object]
    ) -> int:
        """Generate a text; returns its number. The last part has a finish or an error.

        Raises: ModelNotReady: not now.
        """
        ...

    def cancel(self, number: int) -> None:
        """Nothing more is wanted of a text."""
        ...

    async def close(self) -> None:
        """Release what it holds."""
        ...


async def try_once(generator: Generator, prompt: Prompt) -> None:
    """Generate one text. Raises: HoplineError: it cannot be generated."""
    ended: asyncio.Future[wire.Part] = asyncio.get_running_loop().create_future()

    def on_part(part: wire.Part) -> None:
        if (part.finish or part.error) and not ended.done():
            ended.set_result(part)

    generator.begin(prompt, 0, _TRY_S, on_part)
    part = await ended
    if part.error is not None:
        raise unpack_error(part.error)


class _Text(NamedTuple):
    """A text that has not ended.

    Attributes:
        deadline: on the clock of `time.monotonic`.
    """

    on_part: Callable[[wire.Part], object]
    deadline: float


class _Connection:
    """A connection to the process; a `Kept`.

    Attributes:
        silence: decides whether the process hangs.
        engine: what generates.
        state: as last reported.
        texts: those that have not ended, by number.
        why: why the process was killed from here; "" where it was not.
        listening: task that takes its messages.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hang_s: float) -> None:
        self._reader = reader
        self._writer = writer
        self.silence = Silence(_peer(writer), hang_s)
        self.engine: EngineInfo
        self.state: wire.Stats | None = None
        self.texts: dict[int, _Text] = {}
        self.why = ""
        self.listening: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """True until the connection is lost."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    async def greet(self) -> Refusal | None:
        """Exchange the first messages; a process that hangs is killed. Raises: EOFError: it has ended."""
        self.send(wire.Hello(wire.WIRE.protocol))
        due = time.monotonic() + _WELCOME_S
        receiving = asyncio.ensure_future(wire.WIRE.receive(self._reader, wire.to_worker))
        try:
            while not (await asyncio.wait({receiving}, timeout=self.silence.period_s))[0]:
                if self.silence.look((due,), time.monotonic()):
                    self.kill("hung")
            welcome = receiving.result()
        finally:
            receiving.cancel()
        if isinstance(welcome, Refusal):
            self._writer.close()
            return welcome
        assert isinstance(welcome, wire.Welcome)
        self.engine = welcome.engine
        self.silence.reset()
        return None

    def send(self, message: msgspec.Struct) -> None:
        """Send a message."""
        self._writer.write(wire.WIRE.frame(message))

    async def listen(self) -> None:
        """Take messages. Raises: OSError, EOFError, WireError: the connection is lost."""
        while True:
            message = await wire.WIRE.receive(self._reader, wire.to_worker)
            self.silence.reset()
            if isinstance(message, wire.Parts):
                for part in message.parts:
                    is_last = part.finish or part.error
                    text = self.texts.pop(part.number, None) if is_last else self.texts.get(part.number)
                    if text is not None:
                        text.on_part(part)
            elif isinstance(message, wire.Stats):
                self.state = message

    def fail(self, reason: str) -> None:
        """Close it, and fail its texts."""
        self._writer.close()
        texts, self.texts = self.texts, {}
        packed = pack_error(ModelNotReady(reason, 1.0))
        for number, text in texts.items():
            text.on_part(wire.Part(number, "", 0, error=packed))

    # Kept

    def deadlines(self) -> Iterable[float]:
        """As `Kept.deadlines`."""
        return (text.deadline for text in self.texts.values())

    def kill(self, why: str) -> None:
        """As `Kept.kill`."""
        self.why = why
        with contextlib.suppress(ProcessLookupError):  # another worker was faster
            os.kill(self.silence.pid, signal.SIGKILL)

    async def retire(self) -> None:
        """As `Kept.retire`."""
        await self.end()

    async def end(self) -> None:
        """As `Kept.end`: leave the process, which ends with its last worker."""
        if self.listening is not None:
            self.listening.cancel()
        if self.is_up:
            self.send(wire.Bye())


class ProcessLink:
    """See the module; a `Generator`.

    Args:
        orders: for the process; its socket is set here.
        config: of the server.
        hang_s: as for `Silence`.
        on_replaced: called when this worker starts another process; with "died" or "hung".
    """

    def __init__(
        self,
        orders: Orders,
        config: Config,
        hang_s: float = 5.0,
        on_replaced: Callable[[str], object] = lambda reason: None,
    ) -> None:
        self._path = socket_path(orders, config)
        self._orders = msgspec.structs.replace(orders, socket=str(self._path))
        self._numbers = 0
        self._hang_s = hang_s
        self._on_replaced = on_replaced
        #: Why the last process is missing, until another one is started.
        self._lost_by = ""
        self._child: Child | None = None
        self._keeper = Keeper(orders.name, self._open, hang_s)
        self._last: _Connection

    @property
    def engine(self) -> EngineInfo:
        """As `Generator.engine`."""
        return self._last.engine

    @property
    def state(self) -> wire.Stats | None:
        """As `Generator.state`."""
        return None if self._keeper.process is None else self._keeper.process.state

    @property
    def reason(self) -> str:
        """As `Generator.reason`."""
        return self._keeper.reason

    @property
    def pid(self) -> int:
        """Of the process that was connected last."""
        return self._last.silence.pid

    async def start(self) -> None:
        """Connect to the process, or start it.

        Raises: ArtifactError, ConfigError, RuntimeFailure: the model does not load.
        """
        await self._keeper.start()

    def begin(
        self, prompt: Prompt, lane: int, left_s: float, on_part: Callable[[wire.Part], object]
    ) -> int:
        """As `Generator.begin`."""
        connection = self._keeper.process
        if connection is None or not connection.is_up:
            raise ModelNotReady(f"{self._orders.name}: {self.reason or 'its process ends'}", 1.0)
        self._numbers += 1
        connection.texts[self._numbers] = _Text(on_part, time.monotonic() + left_s)
        connection.send(wire.Begin(self._numbers, prompt, lane, left_s))
        return self._numbers

    def cancel(self, number: int) -> None:
        """As `Generator.cancel`."""
        connection = self._keeper.process
        if connection is not None and connection.texts.pop(number, None) is not None and connection.is_up:
            connection.send(wire.Cancel(number))

    async def close(self) -> None:
        """Leave the process, and reap it if this worker started it and no other one uses it."""
        connection = self._keeper.process
        await self._keeper.stop()
        if connection is not None:
            connection.fail(f"{self._orders.name}: the model is unloaded")
        if self._child is not None:
            if not self._child.ready.is_set():  # still loads: no worker uses it
                self._child.kill()
            try:
                async with asyncio.timeout(_END_S):
                    await self._child.wait()
            except TimeoutError:  # other workers still finish their texts
                await self._child.end(_END_S)

    async def _listen(self, connection: _Connection) -> None:
        try:
            await connection.listen()
        except (OSError, EOFError, WireError) as error:
            how = str(error) or type(error).__name__
        if self._child is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    how = exit_reason(await self._child.wait())
                    self._child = None
        if connection.silence.is_long:  # another worker may have killed it
            connection.why = connection.why or "hung"
        self._keeper.lost(connection, how)
        connection.fail(f"{self._orders.name}: {self.reason}")

    # Connection

    async def _open(self, why: str) -> _Connection:
        """Connect, and start the process first where there is none."""
        self._lost_by = why
        connection = await self._connect()
        if connection is None:
            with self._path.with_suffix(".lock").open("w") as file:
                await asyncio.to_thread(lock, file.fileno())
                connection = await self._connect()  # another worker may have started it meanwhile
                if connection is None:
                    await self._start_process()
                    connection = await self._connect()
        if connection is None:
            raise RuntimeFailure(f"{self._orders.name}: its process started and does not answer")
        connection.listening = asyncio.ensure_future(self._listen(connection))
        self._last = connection
        return connection

    async def _connect(self) -> _Connection | None:
        try:
            connection = _Connection(*await asyncio.open_unix_connection(self._path), self._hang_s)
        except (FileNotFoundError, ConnectionError):
            return None
        try:
            refusal = await connection.greet()
        except (ConnectionError, EOFError):
            self._lost_by = connection.why or self._lost_by
            return None
        if refusal is not None:
            raise RuntimeFailure(f"{self._orders.name}: {refusal.text}")
        return connection

    async def _start_process(self) -> None:
        if self._child is not None and self._child.code is None:
            self._child.kill()  # it does not answer
            await self._child.wait()
        if self._lost_by:
            self._on_replaced(self._lost_by)
            self._lost_by = ""
        orders = msgspec.to_builtins(self._orders)
        child = await Child.start("hopline_generate.process:main", orders, name=self._orders.name)
        self._child = child
        async with asyncio.timeout(_READY_S):
            code = await child.wait_ready()
        if child.said.startswith("failed "):
            await child.wait()
            self._child = None
            raise ArtifactError(f"{self._orders.name}: {child.said.removeprefix('failed ')}")
        if code is not None:
            self._child = None
            raise RuntimeFailure(f"{self._orders.name}: its process ended ({exit_reason(code)})")


def socket_path(orders: Orders, config: Config) -> Path:
    """Path at which a version's process listens: the same for all workers of one server, and for no other.

    Raises: ConfigError: the folder cannot be used.
    """
    server = config.worker.metrics_dir or str(os.getpid())
    named = msgspec.json.encode(msgspec.structs.replace(orders, ready=0, socket="", config=""))
    digest = hashlib.sha256(named + server.encode()).hexdigest()[:20]
    folder = config.generate.socket_folder or Path(tempfile.gettempdir()) / f"hopline-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise ConfigError(f"generate.socket_folder: {folder}: {error}") from None
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise ConfigError(
            f"generate.socket_folder: {folder} can be written by other users; set a folder of your own"
        )
    path = folder / f"generate-{digest}.sock"
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ConfigError(f"generate.socket_folder: {folder} is too long for the path of a Unix socket")
    return path


def _peer(writer: asyncio.StreamWriter) -> int:
    """The id of the process that listens at the other end (unix(7))."""
    form = "iII"
    packed = writer.get_extra_info("socket").getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form)
    )
    pid: int = struct.unpack(form, packed)[0]
    return pid
