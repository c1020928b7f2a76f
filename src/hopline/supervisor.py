"""Several server processes on one port.

The supervisor holds the ports, starts the workers as new processes (never by fork: threads and event
loops do not survive it), restarts one that dies, and passes SIGTERM on. It serves nothing itself. On SIGHUP
it replaces the workers one after another, each once the one before is ready.

A worker reads its orders as one JSON line from stdin, says on a pipe what it serves when it is ready, and
ends in order when stdin closes: so no worker outlives its supervisor.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from hopline.config.schema import Config
from hopline.errors import HoplineError
from hopline.live.orders import writer_orders
from hopline.process.listeners import reserve
from hopline.server import DEFAULT_SERVICE, Server, main_error, ready_line, run_process

logger = logging.getLogger(__name__)

#: Seconds before a worker that died is started again: doubled at each death up to the last one, and back
#: to the first once a worker has lived for `_STEADY_S`.
_FIRST_BACKOFF_S, _LAST_BACKOFF_S, _STEADY_S = 0.1, 10.0, 30.0
#: Bytes in which a worker says what it serves; a pipe takes as many at once.
_MOST_SAID_BYTES = 4096
#: Number of the process that changes the live graph; it is kept alive as workers are.
_WRITER = -1
_WORKER = (sys.executable, "-P", "-c", "from hopline.supervisor import worker_main; worker_main()")
_WRITER_COMMAND = (sys.executable, "-P", "-c", "from hopline.live.process import main; main()")


def run_workers(config: Config, *, service: str = DEFAULT_SERVICE) -> int:
    """Supervise `config.server.workers` processes until SIGTERM or SIGINT.

    Args:
        config: for all workers; ports of 0 are made real here.
        service: as for `server.run`.

    Returns: 0 after an orderly end, 1 when the workers could not start.
    Raises: ConfigError: a port is taken.
    """
    settings = config.server
    http = reserve(settings.host, settings.http_port, "server.http_port")
    changes: dict[str, Any] = {"server__http_port": http.getsockname()[1]}
    grpc = None
    if settings.grpc_port >= 0:
        grpc = reserve(settings.host, settings.grpc_port, "server.grpc_port")
        changes["server__grpc_port"] = grpc.getsockname()[1]
    # Empty: the first worker that knows how much it takes makes it so large.
    tables = os.memfd_create("hopline-tables", 0)
    rows = os.memfd_create("hopline-rows", 0)
    live = -1
    if config.live.enabled:
        # Its writer makes it so large. Named by path, so that processes of processes can open it.
        live = os.memfd_create("hopline-live", os.MFD_CLOEXEC)
        changes["worker__live_memory"] = f"/proc/{os.getpid()}/fd/{live}"
    try:
        with tempfile.TemporaryDirectory(prefix="hopline-metrics-") as folder:
            shared = config.replace(
                **changes,
                worker__count=settings.workers,
                worker__metrics_dir=folder,
                worker__table_fd=tables,
                worker__rows_fd=rows,
            )
            return asyncio.run(Supervisor(shared, service, (tables, rows), live).run())
    finally:
        for descriptor in (tables, rows, live):
            if descriptor >= 0:
                os.close(descriptor)
        http.close()
        if grpc is not None:
            grpc.close()


class Supervisor:
    """Keeps the workers alive."""

    def __init__(self, config: Config, service: str, descriptors: Sequence[int], live: int = -1) -> None:
        self._live = live
        self._config = config
        self._service = service
        self._descriptors = tuple(descriptors)
        self._workers: dict[int, asyncio.subprocess.Process] = {}
        self._ready: set[int] = set()
        self._announced = False
        self._serving = ""
        self._failed = False
        self._stopping = asyncio.Event()
        #: Set while every worker is ready.
        self._whole = asyncio.Event()
        self._replacing: set[int] = set()
        self._rolling: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Until told to stop; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._roll)
        slots = list(range(self._config.server.workers))
        if self._config.live.enabled:
            slots.insert(0, _WRITER)
        await asyncio.gather(*(self._keep(slot) for slot in slots))
        return 1 if self._failed else 0

    def _stop(self) -> None:
        self._stopping.set()
        for worker in self._workers.values():
            if worker.returncode is None:
                worker.terminate()

    def _roll(self) -> None:
        """Replace all workers, unless that is under way."""
        if self._rolling is None or self._rolling.done():
            self._rolling = asyncio.ensure_future(self._replace_all())

    async def _replace_all(self) -> None:
        """One after another: a worker's part of the shared tables has one writer, so it ends first."""
        for slot in range(self._config.server.workers):
            await self._whole.wait()
            if self._stopping.is_set():
                return
            self._replacing.add(slot)
            self._ready.discard(slot)
            self._whole.clear()
            self._workers[slot].terminate()
        await self._whole.wait()
        logger.info("replaced %d workers", self._config.server.workers)

    async def _keep(self, slot: int) -> None:
        """Run worker `slot`, again and again."""
        backoff_s = _FIRST_BACKOFF_S
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._run_one(slot)
            was_ready = slot in self._ready
            self._ready.discard(slot)
            self._whole.clear()
            if self._stopping.is_set():
                return
            if slot in self._replacing:
                self._replacing.discard(slot)
                continue
            if not self._announced and not was_ready:
                # Nothing has ever worked: a second try would only hide the reason.
                logger.error("%s could not start (exit code %s)", _named(slot), code)
                self._failed = True
                self._stop()
                return
            if time.monotonic() - started > _STEADY_S:
                backoff_s = _FIRST_BACKOFF_S
            logger.error("%s ended (exit code %s), restarting in %.1f s", _named(slot), code, backoff_s)
            try:
                await asyncio.wait_for(self._stopping.wait(), backoff_s)
            except TimeoutError:
                backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)

    async def _run_one(self, slot: int) -> int:
        """One life of a worker; returns its exit code."""
        read_end, write_end = os.pipe()
        if slot == _WRITER:
            orders = writer_orders(self._config, "hopline serve", memory_fd=self._live, ready=write_end)
            command: tuple[str, ...] = _WRITER_COMMAND
            descriptors: tuple[int, ...] = (self._live,)
        else:
            orders = {
                "config": self._config.replace(worker__index=slot).to_json(),
                "service": self._service,
                "ready": write_end,
            }
            command, descriptors = _WORKER, self._descriptors
        worker = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(write_end, *descriptors),
            # A terminal's Ctrl-C goes to the whole group; workers are told by the supervisor.
            start_new_session=True,
        )
        os.close(write_end)
        self._workers[slot] = worker
        assert worker.stdin is not None
        if self._stopping.is_set():
            worker.terminate()
        loop = asyncio.get_running_loop()
        loop.add_reader(read_end, self._on_ready, slot, read_end)
        try:
            worker.stdin.write(json.dumps(orders).encode() + b"\n")
            return await self._wait(worker)
        finally:
            loop.remove_reader(read_end)
            os.close(read_end)
            worker.stdin.close()

    async def _wait(self, worker: asyncio.subprocess.Process) -> int:
        """Until it ended; one that does not end within its drain timeout is killed."""
        ended = asyncio.ensure_future(worker.wait())
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ended.done():
            settings = self._config.server
            patience_s = settings.drain_delay_s + settings.drain_timeout_s + 10.0
            await asyncio.wait({ended}, timeout=patience_s)
            if not ended.done():
                logger.error("worker %d did not stop within %.0f s and is killed", worker.pid, patience_s)
                worker.kill()
        return await ended

    def _on_ready(self, slot: int, read_end: int) -> None:
        said = os.read(read_end, _MOST_SAID_BYTES)
        if not said:
            asyncio.get_running_loop().remove_reader(read_end)
            return
        if slot != _WRITER:
            self._serving = said.decode(errors="replace").strip()
        self._ready.add(slot)
        if len(self._ready) < self._config.server.workers + self._config.live.enabled:
            return
        self._whole.set()
        if not self._announced:
            self._announced = True
            settings = self._config.server
            grpc_port = settings.grpc_port if settings.grpc_port >= 0 else None
            print(ready_line(self._config, self._serving, settings.http_port, grpc_port), flush=True)


def _named(slot: int) -> str:
    return "the writer of the live graph" if slot == _WRITER else f"worker {slot}"


def worker_main() -> None:
    """Entry of a worker process."""
    from hopline.observe.logs import configure_logs

    # Unbuffered, since the rest of stdin is watched.
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        orders = json.loads(stdin.readline())
    config = Config.from_json(orders["config"])
    configure_logs(config.log)
    if config.worker.index:  # one of them says that kernels are compiled
        logging.getLogger("hopline.jit").setLevel(logging.WARNING)
    ready: int = orders["ready"]

    def on_ready(server: Server) -> None:
        os.write(ready, server.serving().encode()[: _MOST_SAID_BYTES - 1] + b"\n")
        os.close(ready)

    def on_loop(server: Server) -> None:
        asyncio.get_running_loop().add_reader(0, _on_stdin, server)

    try:
        sys.exit(run_process(config, orders["service"], on_ready, on_loop))
    except HoplineError as error:
        sys.exit(main_error(error))


def _on_stdin(server: Server) -> None:
    """Stdin only ever ends: the supervisor is gone."""
    if not os.read(0, 64):
        asyncio.get_running_loop().remove_reader(0)
        server.stop()
