"""A worker's connection to the prefetcher, which quickly detects that the prefetcher does not respond.

    down ── connected, welcome ──► up ── no message after a ping ────────► silent
     ▲                             │ ▲                                     │
     └──────── connection lost ────┘ └──────────── any message ────────────┘

Requests are sent only in state up. When it becomes down or silent, all pending requests return immediately,
and the callers fetch the rows directly in the remaining time. A slow response alone is no failure, since
the store may be slow: a ping distinguishes a slow store from a stopped prefetcher.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hopline.config.schema import Config
from hopline.features.prefetcher import PrefetchResponse, Wanted
from hopline.observe.metrics import Metrics
from hopline.process.link import Handshake, Link, LinkLog
from hopline.types import IdArray
from hopline_stores.prefetch import wire

log = logging.getLogger("hopline.prefetch")

#: Limit of unanswered messages; later requests wait, and are sent together.
_MAX_PENDING = 64
#: Share of a caller's timeout until a ping, and then until the prefetcher counts as silent.
_SHARE = 0.25
#: With more missing rows per seed than this, the message has seeds instead of rows. With fewer, a state
#: cache or the L1 feature cache has most of the neighbourhood, and the prefetcher must not fetch the other
#: rows.
_ROWS_PER_SEED = 32
_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


class _Request:
    """One caller's request.

    Attributes:
        answer: the result; None if the prefetcher cannot help.
        patience_s: the caller's timeout, seconds.
    """

    __slots__ = ("absent", "answer", "patience_s", "wanted")

    def __init__(
        self,
        absent: Mapping[str, IdArray],
        wanted: Wanted | None,
        patience_s: float,
        answer: asyncio.Future[PrefetchResponse | None],
    ) -> None:
        self.absent = absent
        self.wanted = wanted
        self.patience_s = patience_s
        self.answer = answer

    @property
    def num_ids(self) -> int:
        """Number of ids to send."""
        if self.wanted is not None:
            return self.wanted.num_seeds
        return sum(ids.shape[0] for ids in self.absent.values())

    def end(self, result: PrefetchResponse | None) -> None:
        """Set the result, unless the caller has gone."""
        if not self.answer.done():
            self.answer.set_result(result)


@dataclass(slots=True)
class _Sent:
    """A message that waits for its response."""

    requests: list[_Request]
    at: float
    timer: asyncio.TimerHandle | None = field(default=None)


def connect(
    path: Path, graph_version: str, rows: tuple[int, int], config: Config, metrics: Metrics
) -> PrefetcherClient:
    """A started client, as `features.prefetcher.open_prefetcher` describes it."""
    identity = wire.Identity(graph_version, rows)
    timeout_s = config.features.fetch_timeout_ms / 1e3
    client = PrefetcherClient(path, identity, config.worker.index, timeout_s, metrics)
    client.start()
    return client


class PrefetcherClient:
    """Sends requests to the prefetcher; implements `features.prefetcher.Prefetcher`. For one event loop.

    Args:
        path: path of the socket.
        identity: identity of this worker's graph and L1 feature cache.
        worker: worker number, for logs.
        timeout_s: for this time after a loss, claims of the lost prefetcher may remain.
        metrics: registry of its metrics.
    """

    def __init__(
        self, path: Path, identity: wire.Identity, worker: int, timeout_s: float, metrics: Metrics
    ) -> None:
        self._path = path
        self._link = Link(
            path,
            wire.WIRE,
            Handshake(
                wire.Hello(wire.PROTOCOL, identity, worker),
                wire.Welcome,
                wire.from_prefetcher,
                timeout_s=1.0,
            ),
            self,
            LinkLog(log, "the prefetcher", "this worker fetches rows itself"),
            first_pause_s=0.05,
        )
        self._timeout_s = timeout_s
        self._writer: asyncio.StreamWriter | None = None
        self._silent = False
        self._lost_at = float("-inf")
        self._num_received = 0
        self._next_number = 1
        self._outbox: deque[_Request] = deque()
        self._scheduled: asyncio.Handle | None = None
        self._sent: dict[int, _Sent] = {}
        self._outcomes = metrics.counter(
            "hopline_prefetch_requests_total", "Requests to the prefetcher, by outcome.", ("outcome",)
        )
        self._rows = metrics.counter("hopline_prefetch_rows_total", "Rows that the prefetcher fetched.")()
        self._calls = metrics.counter(
            "hopline_prefetch_calls_total", "Calls to feature stores (round trips) of the prefetcher."
        )()
        self._seconds = metrics.histogram(
            "hopline_prefetch_seconds", "Time from a prefetcher message to its response.", (), _SECONDS
        )()
        self._up = metrics.gauge("hopline_prefetch_up", "Workers whose prefetcher responds.")()

    @property
    def is_up(self) -> bool:
        """True if the prefetcher accepts requests."""
        return self._writer is not None and not self._silent

    @property
    def was_lost(self) -> bool:
        """See `Prefetcher.was_lost`."""
        return time.monotonic() - self._lost_at < self._timeout_s

    def start(self) -> None:
        """Connect, and connect again whenever the connection is lost."""
        self._link.start()

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    async def fetch(
        self, absent: Mapping[str, IdArray], wanted: Wanted | None, timeout_s: float
    ) -> PrefetchResponse | None:
        """See `Prefetcher.fetch`."""
        if not self.is_up:
            self._outcomes("down").inc()
            return None
        num_absent = sum(ids.shape[0] for ids in absent.values())
        if wanted is not None and num_absent <= _ROWS_PER_SEED * wanted.num_seeds:
            wanted = None
        loop = asyncio.get_running_loop()
        request = _Request(absent, wanted, timeout_s, loop.create_future())
        if request.num_ids > wire.MAX_IDS:
            self._outcomes("too_large").inc()
            return None
        self._outbox.append(request)
        if self._scheduled is None:
            # Requests of the same turn of the loop share a message.
            self._scheduled = loop.call_soon(self._flush)
        timer = loop.call_later(timeout_s, self._mark_late, request)
        try:
            return await request.answer
        finally:
            timer.cancel()

    def _mark_late(self, request: _Request) -> None:
        if not request.answer.done():
            self._outcomes("late").inc()
            request.end(PrefetchResponse(None, "timeout"))

    def _flush(self) -> None:
        self._scheduled = None
        while self._outbox and len(self._sent) < _MAX_PENDING:
            requests, num_ids = [], 0
            while self._outbox and num_ids + self._outbox[0].num_ids <= wire.MAX_IDS:
                request = self._outbox.popleft()
                if not request.answer.done():
                    requests.append(request)
                    num_ids += request.num_ids
            if requests:
                self._send(requests)

    def _send(self, requests: list[_Request]) -> None:
        assert self._writer is not None
        number, self._next_number = self._next_number, self._next_number + 1
        patience_s = min(request.patience_s for request in requests)
        self._writer.write(wire.frame(_message(number, patience_s, requests)))
        sent = self._sent[number] = _Sent(requests, time.monotonic())
        loop = asyncio.get_running_loop()
        sent.timer = loop.call_later(_SHARE * patience_s, self._suspect, number, _SHARE * patience_s)

    def _suspect(self, number: int, pause_s: float) -> None:
        """Send a ping, since a response is late."""
        if self._writer is None:
            return
        self._writer.write(wire.frame(wire.Ping()))
        loop = asyncio.get_running_loop()
        self._sent[number].timer = loop.call_later(
            pause_s, self._judge, number, self._num_received, loop.time()
        )

    def _judge(self, number: int, num_received: int, began: float) -> None:
        """Mark the prefetcher as silent if no message came since the ping."""
        if self._num_received != num_received:
            return
        self._silent = True
        self._link.problem = ""
        log.warning("the prefetcher at %s is silent; this worker fetches rows itself", self._path)
        self._give_up("silent")

    def _give_up(self, outcome: str) -> None:
        """Return all pending requests, so that their callers fetch the rows directly."""
        self._lost_at = time.monotonic()
        self._up.set(0)
        sent, self._sent = self._sent, {}
        unsent, self._outbox = self._outbox, deque()
        for message in sent.values():
            if message.timer is not None:
                message.timer.cancel()
        for request in (*(request for message in sent.values() for request in message.requests), *unsent):
            if not request.answer.done():
                self._outcomes(outcome).inc()
                request.end(None)

    # LinkUser

    def connected(self, welcome: wire.Welcome, writer: asyncio.StreamWriter) -> None:
        """Accept requests for the prefetcher."""
        self._writer, self._silent = writer, False
        self._up.set(1)

    def lost(self) -> None:
        """Stop sending requests."""
        self._writer = None
        self._give_up("lost")

    def receive(self, message: wire.FromPrefetcher) -> None:
        """Handle a message of the prefetcher, which may be a response."""
        self._num_received += 1
        if self._silent:
            self._silent = False
            self._up.set(1)
            log.info("the prefetcher at %s responds again", self._path)
        if not isinstance(message, wire.Done):
            return
        sent = self._sent.pop(message.number, None)
        if sent is None:  # already returned
            return
        if sent.timer is not None:
            sent.timer.cancel()
        self._seconds.observe(time.monotonic() - sent.at)
        self._rows.inc(message.num_rows)
        self._calls.inc(message.num_calls)
        result = None
        if message.problem:
            self._link.report(f"cannot help: {message.problem}")
        else:
            lacking = {name: wire.unpack(data, 2**62) for name, data in message.lacking.items()}
            result = PrefetchResponse(lacking, message.reason)
        for request in sent.requests:
            if not request.answer.done():
                self._outcomes("problem" if result is None else "done").inc()
                request.end(result)
        if self._outbox and self._scheduled is None:
            self._flush()


def _message(number: int, patience_s: float, requests: list[_Request]) -> wire.FetchRequest:
    """Combine all requests in one message."""
    seeds: dict[tuple[str, str, int], dict[str, list[bytes]]] = {}
    rows: dict[str, list[bytes]] = {}
    for request in requests:
        wanted = request.wanted
        if wanted is None:
            for node_type, ids in request.absent.items():
                rows.setdefault(node_type, []).append(wire.pack(ids))
        else:
            group = seeds.setdefault((wanted.model, wanted.version, wanted.as_of), {})
            for node_type, ids in wanted.seeds.items():
                group.setdefault(node_type, []).append(wire.pack(ids))
    return wire.FetchRequest(
        number,
        patience_s,
        [
            wire.Seeds(*key, {node_type: b"".join(parts) for node_type, parts in group.items()})
            for key, group in seeds.items()
        ],
        {node_type: b"".join(parts) for node_type, parts in rows.items()},
    )
