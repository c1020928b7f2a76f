"""One server process: startup, main loop, drain, shutdown.

Wires the service to its transports. What answers is named as "module:attribute" and imported here, so
that this module itself imports neither NumPy nor gRPC nor any model runtime.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hopline.config.schema import Config
from hopline.doors import imported
from hopline.ingress.certificates import TlsFiles
from hopline.process.cgroup import usable_cpus
from hopline.process.listeners import (
    Listener,
    hold_new_connections,
    join,
    listen,
    num_unaccepted,
    read_new_connection,
    reserve,
    url_host,
)
from hopline.process.open_files import OpenFiles
from hopline.process.time_slice import SHORT_S, want_slices
from turnserve.budget import Budget

if TYPE_CHECKING:
    from hopline.ingress.gatekeeper import Gatekeeper
    from hopline.transports.grpc import GrpcApp
    from hopline.transports.http import HttpApp
    from turnserve.grpc.endpoint import GrpcEndpoint
    from turnserve.http1.endpoint import HttpEndpoint

logger = logging.getLogger(__name__)

DEFAULT_SERVICE = "hopline.service:Service"
#: Models that the line of a ready server names.
_SHOWN_MODELS = 5
#: Seconds between looks at idle connections, the date and shared metrics.
_TICK_S = 1.0
#: How often a drain looks whether the last answer is out, in seconds.
_POLL_S = 0.005
#: From the last accepted connection to its first request, in seconds: a round trip and some.
_SETTLE_S = 0.1
#: What does not end by then, such as a load whose disk does not answer, is not waited for: after the drain,
#: and after a second signal, in seconds.
_END_S = 5.0
_CUT_S = 1.0
#: A client that has not confirmed the end, or not sent its request, by then is not waited for, in seconds.
_CONFIRM_S = 2.0


def run_process(
    config: Config,
    service: str,
    on_ready: Callable[[Server], None],
    on_loop: Callable[[Server], None] | None = None,
) -> int:
    """Serve in this process; `on_loop` is called inside the loop before startup."""
    import uvloop

    import hopline.kernels.jit  # noqa: F401 - before anything else imports Numba

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end_at_once)

    async def main() -> int:
        server = Server(config, service, on_ready)
        server.end_within = _end_within
        if on_loop is not None:
            on_loop(server)
        return await server.serve()

    want_slices(SHORT_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def _end_at_once(number: int, frame: object) -> None:
    """Exit immediately: a load may block the loop for long, and no request was accepted yet."""
    os._exit(0)


def _end_within(seconds: float) -> None:
    """End the process by then, whatever its threads do: Python waits for all of them."""

    def end() -> None:
        logger.warning("a thread did not end, and is not waited for")
        os._exit(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def announce(server: Server) -> None:
    """Print where the server is and what it serves, for people and for scripts that wait for it."""
    print(ready_line(server.config, server.serving(), server.http_port, server.grpc_port), flush=True)


def ready_line(config: Config, serving: str, http_port: int, grpc_port: int | None) -> str:
    """The line that says a server is ready, with the real ports; `serving` is of `Server.serving`."""
    from hopline import __version__

    host, secure = url_host(config.server.host), "s" if config.tls.enabled else ""
    grpc = "" if grpc_port is None else f" grpc{secure}://{host}:{grpc_port}"
    workers = f" with {config.server.workers} workers" if config.server.workers > 1 else ""
    return (
        f"Hopline {__version__} is ready{workers}: serving {serving} at "
        f"http{secure}://{host}:{http_port}{grpc}"
    )


class Server:
    """The life of one process.

    Attributes:
        http_port, grpc_port: real ports, once started; grpc_port is None where gRPC is off.
        end_within: ends the process after some seconds, whatever still runs; does nothing by default.
    """

    def __init__(self, config: Config, service: str, on_ready: Callable[[Server], None]) -> None:
        self.config = config
        self.http_port = 0
        self.grpc_port: int | None = None
        self.end_within: Callable[[float], None] = lambda seconds: None
        self._service_name = service
        self._on_ready = on_ready
        self._signals = 0
        self._open_files = OpenFiles()
        self._stopping = asyncio.Event()
        self._cut = asyncio.Event()
        self._service: Any = None
        self._listener: Listener | None = None
        self._http_socket: socket.socket | None = None
        self._grpc_listener: Listener | None = None
        self._grpc_socket: socket.socket | None = None
        self._http_app: HttpApp | None = None
        self._grpc_app: GrpcApp | None = None
        self._endpoint: HttpEndpoint | None = None
        self._grpc_endpoint: GrpcEndpoint | None = None
        self._gate: Gatekeeper | None = None
        self._tls = TlsFiles(config.tls)
        server = config.server
        #: For the large requests of all listeners together.
        pending = server.max_pending_bytes
        self._budget = Budget(pending) if pending else Budget.for_bodies(server.max_body_bytes)
        #: Answers requests of a message broker; see `brokers/registry.py`.
        self._queue: Any = None

    async def serve(self) -> int:
        """The whole life; returns the exit code."""
        try:
            await self._startup()
            await self._main_loop()
            drained = await self._drain()
            self.end_within(_END_S)
        finally:
            await self._shutdown()
        if not drained:
            logger.warning("stopped with requests unanswered: server.drain_timeout_s passed")
        return 0

    def serving(self) -> str:
        """Version of each model that answers requests that name none: "risk version 3"."""
        service = self._service
        names = service.model_names()
        shown = [f"{name} version {service.describe(name).version}" for name in names[:_SHOWN_MODELS]]
        more = len(names) - len(shown)
        return ", ".join(shown) + (f" and {more} more models" if more else "") or "no models"

    def stop(self) -> None:
        """Begin an orderly end; a second call cuts the drain short, and the end."""
        self._signals += 1
        self._stopping.set()
        if self._signals > 1:
            self._cut.set()
            self.end_within(_CUT_S)

    async def _startup(self) -> None:
        # Ports first: a taken one must be reported before a graph is opened.
        http_socket = self._bind(self.config.server.http_port, "server.http_port")
        grpc_socket = None
        if self.config.server.grpc_port >= 0:
            grpc_socket = self._bind(self.config.server.grpc_port, "server.grpc_port")
        tls = self._tls.contexts("http/1.1")
        self._gate = open_gate(self.config)
        self._service = imported(self._service_name)(self.config)
        if self.config.queues.requests:
            from hopline.brokers.registry import reader

            found = reader("requests", self.config.queues.requests, "queues.requests")
            self._queue = found.load()(self._service, self.config)
        await self._service.start()
        if self._gate is not None:
            self._gate.limit_tokens(self._service.token_rates)
        # From here on requests may be answered: until now a signal ended the process immediately.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)
        await self._open_http(http_socket, tls)
        assert self._http_app is not None
        if grpc_socket is not None:
            # HTTP is answered meanwhile: gRPC takes a tenth of a second to import.
            await asyncio.to_thread(importlib.import_module, "hopline.transports.grpc")
            await self._open_grpc(grpc_socket, self._tls.contexts("h2"))
        from hopline.transports.body_threads import load_kernels
        from hopline.transports.preflight import preflight

        with self._service.preflight() as examples:
            await preflight(self._service, self.config, examples)
        await asyncio.wrap_future(load_kernels())
        # Everything loaded lives for ever: a full collection need never look at it again. (One now would
        # stop the loop for 40 ms and find nothing.)
        gc.freeze()
        self._http_app.opening = False
        if self._queue is not None:
            await self._queue.start()
        updates = self._service.graph_updates
        while updates is not None and not (updates.is_current or self._stopping.is_set()):
            self._on_tick(asyncio.get_running_loop().time())
            await _wait_for(self._stopping, _POLL_S)
        if not self._stopping.is_set():
            self._on_ready(self)

    def _bind(self, port: int, setting: str) -> socket.socket:
        bind = join if self.config.worker.count > 1 else reserve
        return bind(self.config.server.host, port, setting)

    async def _open_http(self, bound: socket.socket, tls: Any) -> None:
        from hopline.transports.http import HttpApp
        from turnserve.http1.endpoint import HttpEndpoint, Timeouts

        settings = self.config.server
        self._http_app = HttpApp(self._service, self.config, self._gate)
        self._http_app.opening, self._http_app.budget = True, self._budget
        self._endpoint = HttpEndpoint(
            self._http_app,
            self._http_app.refuse,
            max_body_bytes=settings.max_body_bytes,
            timeouts=Timeouts(settings.keep_alive_timeout_s, settings.read_timeout_s),
            screen=None if self._gate is None else self._http_app.screen,
            spin_s=settings.spin_us * 1e-6 if usable_cpus() > 1 else 0.0,
            is_pressed=self._service.is_pressed,
            budget=self._budget,
        )
        loop = asyncio.get_running_loop()
        self._endpoint.tick(loop.time())
        self._http_socket = bound
        self.http_port = bound.getsockname()[1]
        self._listener = await self._listen(self._endpoint, bound, tls)

    async def _open_grpc(self, bound: socket.socket, tls: Any) -> None:
        from hopline.transports.grpc import GrpcApp
        from turnserve.grpc.endpoint import GrpcEndpoint

        settings = self.config.server
        self._grpc_app = GrpcApp(
            self._service,
            self._gate,
            traces=bool(self.config.tracing.endpoint),
            max_nodes=self.config.limits.max_nodes_per_request,
        )
        self._grpc_endpoint = GrpcEndpoint(
            self._grpc_app.methods(),
            self._grpc_app.fail,
            max_message_bytes=settings.max_body_bytes,
            connection_age_s=settings.grpc_connection_age_s,
            read_timeout_s=settings.read_timeout_s,
            is_pressed=self._service.is_pressed,
            budget=self._budget,
        )
        loop = asyncio.get_running_loop()
        self._grpc_endpoint.tick(loop.time())
        self._grpc_socket = bound
        self.grpc_port = bound.getsockname()[1]
        self._grpc_listener = await self._listen(self._grpc_endpoint, bound, tls)

    async def _listen(self, endpoint: Any, bound: socket.socket, tls: Any) -> Listener:
        settings = self.config.server
        if tls is not None:
            from turnserve.tls_handshakes import TlsHandshakes

            endpoint = TlsHandshakes(endpoint, tls, settings.read_timeout_s)
        return await listen(endpoint, bound, settings.backlog)

    async def _main_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            self._on_tick(loop.time())
            await _wait_for(self._stopping, _TICK_S)

    def _on_tick(self, now: float) -> None:
        assert self._endpoint is not None
        self._endpoint.tick(now)
        if self._grpc_endpoint is not None:
            self._grpc_endpoint.tick(now)
        if self._gate is not None:
            self._gate.tick()
        self._tls.tick()
        self._open_files.tick(now)
        self._service.metrics.flush()

    async def _drain(self) -> bool:
        """Finish what was admitted; whether all of it was answered."""
        assert self._endpoint is not None
        assert self._listener is not None
        assert self._http_app is not None
        settings = self.config.server
        logger.info("draining")
        # First be unready and close connections while still serving: balancers and clients move on.
        self._http_app.draining = True
        queue = self._queue and asyncio.ensure_future(self._queue.drain(settings.drain_timeout_s))
        if self._grpc_app is not None:
            self._grpc_app.begin_drain()
        self._endpoint.begin_close()
        await _wait_for(self._cut, settings.drain_delay_s)
        await self._settle()
        self._listener.close()
        if self._grpc_listener is not None:
            self._grpc_listener.close()
        self._endpoint.close_idle()
        queue_drained = queue is None or bool(await self._unless_cut(queue))
        self._service.begin_drain()
        end = time.monotonic() + settings.drain_timeout_s
        drained = bool(await self._unless_cut(self._service.drain(settings.drain_timeout_s)))
        # Until the last byte of the last answer is sent: closed connections leave the set only then.
        ways: list[Any] = [each for each in (self._endpoint, self._grpc_endpoint) if each is not None]
        while any(each.connections for each in ways) and time.monotonic() < end and not self._cut.is_set():
            self._endpoint.close_idle()
            if self._grpc_endpoint is not None:  # closes clients that do not
                self._grpc_endpoint.tick(asyncio.get_running_loop().time())
            await asyncio.sleep(_POLL_S)
        grpc_waiting = self._grpc_endpoint.num_waiting if self._grpc_endpoint else 0
        return drained and queue_drained and not (self._endpoint.num_waiting + grpc_waiting)

    async def _settle(self) -> None:
        """Begin no further connections, and wait for the requests of those that the kernel has accepted.

        Clients of HTTP cannot know of the end; those of gRPC are sent elsewhere, and confirm it.
        """
        assert self._endpoint is not None
        sockets = [each for each in (self._http_socket, self._grpc_socket) if each is not None]
        for listening in sockets:
            hold_new_connections(listening)
        self._endpoint.on_late = read_new_connection
        grpc, loop = self._grpc_endpoint, asyncio.get_running_loop()
        if grpc is not None:
            grpc.on_late = read_new_connection
            grpc.tick(loop.time())
            grpc.begin_close()
        began, num_coming = loop.time(), 1
        while not self._cut.is_set() and loop.time() < began + (_CONFIRM_S if num_coming else _SETTLE_S):
            await _wait_for(self._cut, _POLL_S)  # a turn of the loop, which reads what has come
            num_coming = sum(map(num_unaccepted, sockets)) + self._endpoint.num_unheard
            if grpc is not None:
                grpc.tick(loop.time())
                num_coming += grpc.num_unaware + grpc.num_unheard

    async def _unless_cut(self, work: Any) -> Any:
        """The result of `work`, or None when a second signal comes first."""
        task, cut = asyncio.ensure_future(work), asyncio.ensure_future(self._cut.wait())
        await asyncio.wait({task, cut}, return_when=asyncio.FIRST_COMPLETED)
        cut.cancel()
        if task.done():
            return task.result()
        task.cancel()
        return None

    async def _shutdown(self) -> None:
        for listener in filter(None, (self._listener, self._grpc_listener)):
            listener.close()
        if self._endpoint is not None:
            self._endpoint.abort()
        if self._grpc_endpoint is not None:
            self._grpc_endpoint.abort()
        if self._queue is not None:
            await self._queue.close()
        if self._service is not None:
            self._service.metrics.flush()
            await self._service.close()


def open_gate(config: Config) -> Gatekeeper | None:
    """The object that authenticates callers; None where authentication is off.

    Raises: ConfigError: files of clients or keys that cannot be used.
    """
    if not config.authenticates:
        return None
    from hopline.ingress.gatekeeper import Gatekeeper

    return Gatekeeper(config)


def main_error(error: Exception) -> int:
    """Say why a server could not start; returns the exit code."""
    print(f"hopline: {error}", file=sys.stderr, flush=True)
    return 1


async def _wait_for(event: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return
