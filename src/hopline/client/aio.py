"""The asynchronous client, with the same calls as `Client`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Self, Unpack

import httpx2

from hopline.client import wire
from hopline.client.exchange import POLL_S, PROBE_S, Connected
from hopline.client.graph import EVENTS_PATH, GRAPH_PATH, EventsOutcome, events_body, node_path
from hopline.client.wire import Edges, ScoreOptions
from hopline.errors import HoplineError, Unavailable
from hopline.types import ExternalId, ExternalIds, GraphState, InlineNode, ModelInfo, ScoreResult


class AsyncClient(Connected[httpx2.AsyncClient]):
    """An asynchronous client for scores. Cancelling a call withdraws it from the server's queue."""

    _connections = httpx2.AsyncClient

    async def score(
        self,
        model: str,
        nodes: ExternalIds = (),
        *,
        rows: Iterable[Mapping[str, Any]] | None = None,
        columns: Mapping[str, Any] | None = None,
        **options: Unpack[ScoreOptions],
    ) -> ScoreResult:
        """See `Client.score`."""
        return await self._score(model, wire.score_body(nodes, rows, columns, **options), options)

    async def score_inline(
        self,
        model: str,
        inline: Iterable[InlineNode | Mapping[str, Any]],
        nodes: ExternalIds = (),
        **options: Unpack[ScoreOptions],
    ) -> ScoreResult:
        """See `Client.score_inline`."""
        return await self._score(model, wire.inline_body(inline, nodes, **options), options)

    async def score_pairs(
        self, model: str, pairs: Iterable[tuple[ExternalId, ExternalId]], **options: Unpack[ScoreOptions]
    ) -> ScoreResult:
        """See `Client.score_pairs`."""
        return await self._score(model, wire.pairs_body(pairs, **options), options)

    async def score_edges(self, model: str, edges: Edges, **options: Unpack[ScoreOptions]) -> ScoreResult:
        """See `Client.score_edges`."""
        return await self._score(model, wire.edges_body(edges, **options), options)

    async def send_events(
        self, events: Iterable[Mapping[str, Any]] | bytes, *, timeout: float | None = None
    ) -> EventsOutcome:
        """See `Client.send_events`."""
        body, may_repeat = events_body(events)
        content = await self.send("POST", EVENTS_PATH, body, timeout, self._retries if may_repeat else 0)
        return wire.read_json(content, EventsOutcome)  # type: ignore[no-any-return]

    async def remove_node(
        self, node: ExternalId, node_type: str = "node", *, timeout: float | None = None
    ) -> EventsOutcome:
        """See `Client.remove_node`."""
        content = await self.send("DELETE", node_path(node, node_type), timeout=timeout)
        return wire.read_json(content, EventsOutcome)  # type: ignore[no-any-return]

    async def graph_state(self) -> GraphState:
        """See `Client.graph_state`."""
        return wire.read_json(await self.send("GET", GRAPH_PATH), GraphState)  # type: ignore[no-any-return]

    async def models(self) -> list[ModelInfo]:
        """See `Client.models`."""
        return wire.read_json(await self.send("GET", "/v1/models"), wire.Models).models  # type: ignore[no-any-return]

    async def ready(self) -> bool:
        """See `Client.ready`."""
        try:
            await self.send("GET", "/readyz", timeout=PROBE_S, retries=0)
        except HoplineError:
            return False
        return True

    async def wait_ready(self, timeout: float = 60.0) -> None:
        """See `Client.wait_ready`."""
        end = time.monotonic() + timeout
        while not await self.ready():
            if time.monotonic() > end:
                raise Unavailable(f"{self._origin} was not ready within {timeout} s")
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.get().aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _score(self, model: str, body: dict[str, Any], options: ScoreOptions) -> ScoreResult:
        timeout, path = options.get("timeout"), wire.score_path(model)
        retries = 0 if options.get("keep") and not options.get("key") else self._retries
        return wire.read_result(await self.send("POST", path, body, timeout, retries))

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> bytes:
        """See `Client.send`."""
        exchange = self._begin(method, body, timeout, retries)
        while True:
            try:
                arguments = exchange.arguments()
                async with asyncio.timeout(arguments["timeout"]):
                    response = await self._http.get().request(method, path, **arguments)
            except (httpx2.TransportError, TimeoutError) as error:
                wait_s: float | None = exchange.broken(error, self._origin)
            else:
                wait_s = exchange.answered(response, response.content)
            if wait_s is None:
                return response.content
            await asyncio.sleep(wait_s)
