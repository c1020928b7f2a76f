"""The lifecycle of a prefetcher: startup, main loop until SIGTERM, drain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from hopline.answering.sources import Sources
from hopline.artifact import ModelSpec
from hopline.config.folders import needed_folder
from hopline.config.schema import Config
from hopline.errors import ConfigError
from hopline.graph import Graph
from hopline.observe.metrics import Metrics
from hopline_stores.prefetch import wire
from hopline_stores.prefetch.neighborhood import Neighborhood
from hopline_stores.prefetch.server import FetchCounts, PrefetchCounts, PrefetchServer

log = logging.getLogger("hopline.prefetch")

#: Seconds between two log lines of statistics.
_REPORT_EVERY_S = 60.0


def run(config: Config, models: Sequence[tuple[Path, ModelSpec]]) -> int:
    """Prefetch for the workers of a server with the same settings, until SIGTERM or SIGINT.

    Args:
        models: folder and spec of each version that the server has.

    Returns: the exit code, 0 after a normal end.
    Raises: HoplineError: it could not start.
    """
    import uvloop

    for name in ("store", "shared_file", "prefetcher"):
        if not getattr(config.features, name):
            raise ConfigError(f"features.{name}: not set; the prefetcher and the server need it")
    # The last writer of the L1 feature cache; see `Sources`.
    workers = config.server.workers
    config = config.replace(worker__count=workers, worker__index=workers)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_live(config, models))


async def _live(config: Config, models: Sequence[tuple[Path, ModelSpec]]) -> int:
    began = time.perf_counter()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    registry = Metrics()
    sources = Sources(config, registry)
    sources.metrics = fetch_counts = FetchCounts(registry)
    server: PrefetchServer | None = None
    try:
        graph = Graph.open(needed_folder(config, "graph.path"))
        await sources.open(graph)
        read = [(folder, spec, await sources.encoded(folder, spec, graph)) for folder, spec in models]
        server = _server(graph, sources, fetch_counts, read)
        path = config.features.prefetcher
        assert path is not None
        await server.listen(path)
        gc.collect()
        gc.freeze()
        log.info("started in %.2f s", time.perf_counter() - began)
        print(f"Hopline's prefetcher is ready at {path} ({len(models)} model versions)", flush=True)
        while not stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), _REPORT_EVERY_S)
            report(server)
        log.info("draining")
    finally:
        if server is not None:
            await server.drain(config.server.drain_timeout_s)
        await sources.close()
    return 0


def _server(
    graph: Graph,
    sources: Sources,
    fetch_counts: FetchCounts,
    models: Sequence[tuple[Path, ModelSpec, Sources]],
) -> PrefetchServer:
    assert sources.shared is not None
    rows, num_nodes = dict(sources.l1_rows), {name: each.num_nodes for name, each in graph.nodes.items()}
    for _, _, own in models:
        for name, each in own.l1_rows.items():
            rows[each.key or name] = each
            num_nodes[each.key or name] = num_nodes[name]
    neighborhoods = {
        (spec.name, spec.version): Neighborhood(folder, spec, graph, own.l1_rows)
        for folder, spec, own in models
    }
    identity = wire.Identity(graph.version, sources.shared.identity)
    return PrefetchServer(rows, neighborhoods, identity, num_nodes, fetch_counts)


def report(server: PrefetchServer) -> None:
    """Log the statistics since the last report, and reset them."""
    counts, server.counts = server.counts, PrefetchCounts()
    if not counts.messages:
        return
    log.info(
        "%d messages of %d workers in %.2f ms on average, %.1f ms at most: %d seeds, %d rows in %d "
        "calls, %d rows not available, %d messages not answered",
        counts.messages,
        server.num_workers,
        counts.seconds / counts.messages * 1e3,
        counts.longest_s * 1e3,
        counts.seeds,
        counts.rows,
        counts.calls,
        counts.lacking,
        counts.problems,
    )
