"""Serves until a signal: in this process, or in several on one port.

With several workers, or a live graph, this process is their supervisor: it holds the ports and the shared
memory, keeps the workers and the graph's writer alive, kills workers that hang, and serves nothing itself.
SIGTERM ends all of them in order. SIGHUP replaces the workers one at a time, each when the one before is
ready.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from hopline.config.folders import needed_folder
from hopline.config.schema import Config
from hopline.errors import ConfigError, HoplineError
from hopline.files import temporary_root
from hopline.ingress.exposure import check_exposure
from hopline.live.orders import writer_orders
from hopline.process.cgroup import overcommitted
from hopline.process.child import Child
from hopline.process.listeners import reserve
from hopline.process.parent import on_parent_end, read_orders, say_ready
from hopline.process.supervisor import Slot, Supervisor, beat_s
from hopline.remote_address import is_address
from hopline.server import DEFAULT_SERVICE, Server, announce, main_error, open_gate, ready_line, run_process

log = logging.getLogger(__name__)

_WORKER, _WRITER = "hopline.serve:worker_main", "hopline.live.process:main"
#: Beyond the drain, until a worker that does not end is killed, in seconds.
_GRACE_S = 10.0


def run(config: Config, *, service: str = DEFAULT_SERVICE) -> int:
    """Serve until SIGTERM or SIGINT.

    Args:
        config: resolved.
        service: "module:attribute" of a class taking the config, with the methods of `Service`.

    Returns: the process's exit code, 0 after an orderly end.
    Raises: HoplineError: it could not start.
    """
    from hopline.observe.logs import configure_logs

    faulthandler.enable(2)  # as in all children: a signal ends no process without a word
    configure_logs(config.log)
    check_exposure(config)
    if config.live.stream and not config.live.enabled:
        raise ConfigError("live.stream: only a live graph follows a stream; set live.enabled (--live)")
    if config.live.stream:
        from hopline.brokers.registry import open_source, reader

        open_source(config.live.stream, "live.stream")  # raises an error for a wrong address
        reader("stream", config.live.stream, "live.stream")
    if config.live.snapshots and not config.live.stream:
        raise ConfigError(
            "live.snapshots: only hosts that follow a stream share snapshots; set live.stream"
        )
    for problem in overcommitted(config):
        log.warning("%s", problem)
    if config.server.workers == 1 and not config.live.enabled:
        return run_process(config, service, announce)
    if service == DEFAULT_SERVICE:  # logged once, here, rather than by every worker
        from hopline.models.host_snapshots import HostSnapshots
        from hopline.models.repositories import configured_repository
        from hopline.observe.metrics import Metrics

        if config.graph.path is not None:  # a repository of tables needs none
            if is_address(config.graph.path):
                HostSnapshots(config, Metrics()).check()
            else:
                needed_folder(config, "graph.path")
        configured_repository(config)
    open_gate(config)
    return _run_workers(config, service)


def _run_workers(config: Config, service: str) -> int:
    """Supervise `config.server.workers` processes; ports of 0 are made real here.

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
        with tempfile.TemporaryDirectory(prefix="hopline-metrics-", dir=temporary_root()) as folder:
            shared = config.replace(
                **changes,
                worker__count=settings.workers,
                worker__metrics_dir=folder,
                worker__state_cache_fd=tables,
                worker__rows_fd=rows,
            )
            return asyncio.run(_supervise(shared, service, (tables, rows), live))
    finally:
        for descriptor in (tables, rows, live):
            if descriptor >= 0:
                os.close(descriptor)
        http.close()
        if grpc is not None:
            grpc.close()


async def _supervise(config: Config, service: str, shared: Sequence[int], live: int) -> int:
    """Keep workers, and the writer of a live graph, alive until a signal; returns the exit code."""
    settings, were_ready = config.server, asyncio.Event()
    slots = [
        Slot(_name_of(index), partial(_start_worker, config, service, index, shared, were_ready))
        for index in range(settings.workers)
    ]
    if live >= 0:
        start_writer = partial(_start_writer, config, live)
        slots.insert(0, Slot("the writer of the live graph", start_writer, is_replaced=False))
        if config.live.stream:
            start_stream = partial(_start_stream, config)
            slots.append(Slot("the stream of the live graph", start_stream, is_replaced=False))

    def on_ready(said: Mapping[str, str]) -> None:
        were_ready.set()
        grpc_port = settings.grpc_port if settings.grpc_port >= 0 else None
        print(ready_line(config, said[_name_of(0)], settings.http_port, grpc_port), flush=True)

    grace_s = settings.drain_delay_s + settings.drain_timeout_s + _GRACE_S
    supervisor = Supervisor(slots, grace_s, on_ready, settings.worker_hang_s)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    loop.add_signal_handler(signal.SIGHUP, supervisor.replace_all)
    return 0 if await supervisor.run() else 1


def _name_of(index: int) -> str:
    return f"worker {index}"


async def _start_worker(
    config: Config, service: str, index: int, shared: Sequence[int], were_ready: asyncio.Event
) -> Child:
    own = config.replace(worker__index=index, worker__replaces=were_ready.is_set())
    orders = {"config": own.to_json(), "service": service}
    return await Child.start(_WORKER, orders, name=_name_of(index), pass_fds=shared)


async def _start_writer(config: Config, live: int) -> Child:
    orders = writer_orders(config, "hopline serve", memory_fd=live)
    return await Child.start(_WRITER, orders, name="the writer of the live graph", pass_fds=(live,))


async def _start_stream(config: Config) -> Child:
    from hopline.brokers.registry import reader

    entry: str = reader("stream", config.live.stream, "live.stream").value
    return await Child.start(entry, {"config": config.to_json()}, name="the stream of the live graph")


def worker_main() -> None:
    """Entry of a worker process."""
    from hopline.observe.logs import configure_logs

    orders = json.loads(read_orders())
    config = Config.from_json(orders["config"])
    configure_logs(config.log)
    if config.worker.index:  # one of them says that kernels are compiled
        logging.getLogger("hopline.kernels.jit").setLevel(logging.WARNING)

    def on_ready(server: Server) -> None:
        say_ready(orders["ready"], server.serving(), beat_s=beat_s(config.server.worker_hang_s))

    try:
        sys.exit(run_process(config, orders["service"], on_ready, lambda own: on_parent_end(own.stop)))
    except HoplineError as error:
        sys.exit(main_error(error))
