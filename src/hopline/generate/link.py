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
import logging
import os
import signal
import socket
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from hopline.config.schema import Config
from hopline.errors import ArtifactError, ConfigError, HoplineError, ModelNotReady, RuntimeFailure
from hopline.files import lock
from hopline.generate import wire
from hopline.generate.engine import EngineInfo
from hopline.generate.process import Orders
from hopline.generate.request import Prompt
from hopline.process.child import Child, exit_reason
from hopline.process.silence import Silence
from hopline.process.wire import Refusal, WireError
from hopline.retry import Backoff

log = logging.getLogger(__name__)

_READY_S = 600.0
#: Until a process must have greeted a worker: it may be in a long step.
_WELCOME_S = 60.0
#: For the process to end after its last worker has gone.
_END_S = 15.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 30.0
#: Longest path of a Unix socket on Linux.
_LONGEST_PATH = 107


class Generator(Protocol):
    """The generator of one version's texts: a process of this host, or another server.

    Attributes:
        engine: what generates.
        state: as last reported; None where it reports nothing.
        reason: why it generates nothing now; "" while it does.
    """

    engine: EngineInfo
    state: wire.Stats | None
    reason: str

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


class _Open(NamedTuple):
    """A text that has not ended.

    Attributes:
        deadline: on the loop's clock.
    """

    on_part: Callable[[wire.Part], object]
    deadline: float


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
        self.engine: EngineInfo
        self.state: wire.Stats | None = None
        self.reason = "its process starts"
        self._path = socket_path(orders, config)
        self._orders = msgspec.structs.replace(orders, socket=str(self._path))
        self._numbers = 0
        self._open: dict[int, _Open] = {}
        self._hang_s = hang_s
        self._on_replaced = on_replaced
        self._silence: Silence | None = None
        #: Why the last process is missing: "died" or "hung"; "" while there is one.
        self._lost_by = ""
        self._writer: asyncio.StreamWriter | None = None
        self._child: Child | None = None
        self._pid = 0
        self._keeper: asyncio.Task[None] | None = None
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, spread=0.0)

    @property
    def pid(self) -> int:
        """Of the process that was connected last; 0 before the first."""
        return self._pid

    async def start(self) -> None:
        """Connect to the process, or start it.

        Raises: ArtifactError, ConfigError, RuntimeFailure: the model does not load.
        """
        reader = await self._connected()
        self._keeper = asyncio.ensure_future(self._keep(reader))

    def begin(
        self, prompt: Prompt, lane: int, left_s: float, on_part: Callable[[wire.Part], object]
    ) -> int:
        """As `Generator.begin`."""
        if self._writer is None:
            raise ModelNotReady(f"{self._orders.name}: {self.reason}", 1.0)
        self._numbers += 1
        self._open[self._numbers] = _Open(on_part, asyncio.get_running_loop().time() + left_s)
        self._writer.write(wire.WIRE.frame(wire.Begin(self._numbers, prompt, lane, left_s)))
        return self._numbers

    def cancel(self, number: int) -> None:
        """As `Generator.cancel`."""
        if self._open.pop(number, None) is not None and self._writer is not None:
            self._writer.write(wire.WIRE.frame(wire.Cancel(number)))

    async def close(self) -> None:
        """Leave the process, and reap it if this worker started it and no other one uses it."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        if self._writer is not None:
            self._writer.write(wire.WIRE.frame(wire.Bye()))
        self._lost("the model is unloaded")
        if self._child is not None:
            if not self._child.ready.is_set():  # still loads: no worker uses it
                self._child.kill()
            try:
                async with asyncio.timeout(_END_S):
                    await self._child.wait()
            except TimeoutError:  # other workers still finish their texts
                await self._child.end(_END_S)

    # Connection

    async def _keep(self, reader: asyncio.StreamReader) -> None:
        while True:
            watch = asyncio.ensure_future(self._watch())
            try:
                await self._listen(reader)
            except (OSError, EOFError, WireError) as error:
                self._lost(await self._how_ended(error))
            finally:
                watch.cancel()
            log.error("%s: %s", self._orders.name, self.reason)
            while True:
                await asyncio.sleep(self._backoff.next())
                try:
                    reader = await self._connected()
                    break
                except (HoplineError, OSError) as error:
                    self.reason = f"its process does not start: {error}"
                    log.error("%s: %s", self._orders.name, self.reason)

    async def _how_ended(self, error: BaseException) -> str:
        how = str(error) or type(error).__name__
        if self._child is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    how = exit_reason(await self._child.wait())
                    self._child = None
        doing = "gave no answer and was killed" if self._lost_by == "hung" else "ended"
        return f"its process {doing} ({how}); another one is started"

    async def _watch(self) -> None:
        """Kill the process if it hangs."""
        silence, loop = self._silence, asyncio.get_running_loop()
        assert silence is not None
        while True:
            await asyncio.sleep(silence.period_s)
            if silence.look((text.deadline for text in self._open.values()), loop.time()):
                self._kill(self._pid)
                self._lost("its process gives no answer and is killed; another one is started")

    def _kill(self, pid: int) -> None:
        log.error("%s: process %d gives no answer and is killed", self._orders.name, pid)
        self._lost_by = "hung"
        with contextlib.suppress(ProcessLookupError):  # another worker was faster
            os.kill(pid, signal.SIGKILL)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        self._backoff.reset()
        while True:
            message = await wire.WIRE.receive(reader, wire.to_worker)
            if self._silence is not None:
                self._silence.reset()
            if isinstance(message, wire.Parts):
                for part in message.parts:
                    is_last = part.finish or part.error
                    text = self._open.pop(part.number, None) if is_last else self._open.get(part.number)
                    if text is not None:
                        text.on_part(part)
            elif isinstance(message, wire.Stats):
                self.state = message

    def _lost(self, reason: str) -> None:
        self.reason = reason
        self.state = None
        silence, self._silence = self._silence, None
        if silence is not None and not self._lost_by:
            self._lost_by = "hung" if silence.is_long else "died"  # another worker may have killed it
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        texts, self._open = self._open, {}
        packed = wire.pack_error(ModelNotReady(f"{self._orders.name}: {reason}", 1.0))
        for number, text in texts.items():
            text.on_part(wire.Part(number, "", 0, error=packed))

    async def _connected(self) -> asyncio.StreamReader:
        """Connect, and start the process first where there is none."""
        reader = await self._connect()
        if reader is not None:
            return reader
        with self._path.with_suffix(".lock").open("w") as file:
            await asyncio.to_thread(lock, file.fileno())
            reader = await self._connect()  # another worker may have started it meanwhile
            if reader is None:
                await self._start_process()
                reader = await self._connect()
        if reader is None:
            raise RuntimeFailure(f"{self._orders.name}: its process started and does not answer")
        return reader

    async def _connect(self) -> asyncio.StreamReader | None:
        try:
            reader, writer = await asyncio.open_unix_connection(self._path)
            silence = Silence(_peer(writer), self._hang_s)
            writer.write(wire.WIRE.frame(wire.Hello(wire.WIRE.protocol, os.getpid())))
            welcome = await self._welcome(reader, silence)
        except (FileNotFoundError, ConnectionError, EOFError):
            return None
        if isinstance(welcome, Refusal):
            writer.close()
            raise RuntimeFailure(f"{self._orders.name}: {welcome.text}")
        assert isinstance(welcome, wire.Welcome)
        self.engine, self._pid = welcome.engine, welcome.pid
        self._writer, self.reason = writer, ""
        self._silence, self._lost_by = silence, ""
        return reader

    async def _welcome(self, reader: asyncio.StreamReader, silence: Silence) -> object:
        """The first message of a process, which is killed if it hangs. Raises: EOFError: it has ended."""
        loop = asyncio.get_running_loop()
        due = loop.time() + _WELCOME_S
        receiving = asyncio.ensure_future(wire.WIRE.receive(reader, wire.to_worker))
        try:
            while not (await asyncio.wait({receiving}, timeout=silence.period_s))[0]:
                if silence.look((due,), loop.time()):
                    self._kill(silence.pid)
            return receiving.result()
        finally:
            receiving.cancel()

    async def _start_process(self) -> None:
        if self._child is not None and self._child.code is None:
            self._child.kill()  # it does not answer
            await self._child.wait()
        if self._lost_by:
            self._on_replaced(self._lost_by)
        orders = msgspec.to_builtins(self._orders)
        child = await Child.start("hopline.generate.process:main", orders, name=self._orders.name)
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
