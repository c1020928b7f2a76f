"""The blocking client."""

from __future__ import annotations

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


class Client(Connected[httpx2.Client]):
    """A blocking client for scores; safe to share between threads.

    Answers are `ScoreResult` with NumPy arrays; the server's errors are raised as the same classes.
    The arguments are those of `hopline.client.exchange.Connected`.
    """

    _connections = httpx2.Client

    def score(
        self,
        model: str,
        nodes: ExternalIds = (),
        *,
        rows: Iterable[Mapping[str, Any]] | None = None,
        columns: Mapping[str, Any] | None = None,
        **options: Unpack[ScoreOptions],
    ) -> ScoreResult:
        """Score nodes of the graph, or rows of a table, in order. Options: `ScoreOptions`.

        Args:
            nodes: ids, for graph models.
            rows: mappings of column name -> value, for tabular models; None and NaN are missing values.
            columns: the same rows as column name -> values.
        """
        return self._score(model, wire.score_body(nodes, rows, columns, **options), options)

    def score_inline(
        self,
        model: str,
        inline: Iterable[InlineNode | Mapping[str, Any]],
        nodes: ExternalIds = (),
        **options: Unpack[ScoreOptions],
    ) -> ScoreResult:
        """Score nodes that are not in the graph (their rows follow those of `nodes`)."""
        return self._score(model, wire.inline_body(inline, nodes, **options), options)

    def score_pairs(
        self, model: str, pairs: Iterable[tuple[ExternalId, ExternalId]], **options: Unpack[ScoreOptions]
    ) -> ScoreResult:
        """Score links (source, destination); one row per pair."""
        return self._score(model, wire.pairs_body(pairs, **options), options)

    def score_edges(self, model: str, edges: Edges, **options: Unpack[ScoreOptions]) -> ScoreResult:
        """Score edges with their own rows, such as {"from": 1, "to": 9, "columns": {"amount": 5}}."""
        return self._score(model, wire.edges_body(edges, **options), options)

    def send_events(
        self, events: Iterable[Mapping[str, Any]] | bytes, *, timeout: float | None = None
    ) -> EventsOutcome:
        """Change the live graph; returns when the change is durable and all workers of the host use it.

        An event that cannot be applied is listed in the outcome's `refused`; the others are applied. If all
        events have an `id`, they are sent again after a lost response: applied ids are skipped.

        Args:
            events: for example {"id": "e1", "op": "add_edge", "src": 1, "dst": 2}, in order; or the bytes
                of a body: JSON, one event per line, or an Arrow IPC stream.
            timeout: seconds for this call; default: the client's.
        Raises:
            BadRequest: the body cannot be read, or the server's graph is read-only.
            WriterUnavailable, LogFull, LogFailed: the message says what happened to the change.
        """
        body, may_repeat = events_body(events)
        content = self.send("POST", EVENTS_PATH, body, timeout, self._retries if may_repeat else 0)
        return wire.read_json(content, EventsOutcome)  # type: ignore[no-any-return]

    def remove_node(
        self, node: ExternalId, node_type: str = "node", *, timeout: float | None = None
    ) -> EventsOutcome:
        """Remove a node of the live graph, with all its edges; otherwise as `send_events`.

        Raises:
            NodeNotFound: there is none; also of a removal that is sent again after its answer was lost.
            BadRequest: the type is unknown, no path can have the id, or the graph is read-only.
        """
        content = self.send("DELETE", node_path(node, node_type), timeout=timeout)
        return wire.read_json(content, EventsOutcome)  # type: ignore[no-any-return]

    def graph_state(self) -> GraphState:
        """Return the live graph's version, size and age. Raises: BadRequest: the graph is not live."""
        return wire.read_json(self.send("GET", GRAPH_PATH), GraphState)  # type: ignore[no-any-return]

    def models(self) -> list[ModelInfo]:
        """Return the served models."""
        return wire.read_json(self.send("GET", "/v1/models"), wire.Models).models  # type: ignore[no-any-return]

    def ready(self) -> bool:
        """Return True if the server accepts requests; False also if it cannot be reached."""
        try:
            self.send("GET", "/readyz", timeout=PROBE_S, retries=0)
        except HoplineError:
            return False
        return True

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until the server accepts requests.

        Raises: Unavailable: it does not within `timeout` seconds.
        """
        end = time.monotonic() + timeout
        while not self.ready():
            if time.monotonic() > end:
                raise Unavailable(f"{self._origin} was not ready within {timeout} s")
            time.sleep(POLL_S)

    def close(self) -> None:
        """Close the connections."""
        self._http.get().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _score(self, model: str, body: dict[str, Any], options: ScoreOptions) -> ScoreResult:
        timeout, path = options.get("timeout"), wire.score_path(model)
        retries = 0 if options.get("keep") and not options.get("key") else self._retries
        return wire.read_result(self.send("POST", path, body, timeout, retries))

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> bytes:
        """Send any request; return the response body. Raises the server's errors as the same classes.

        Args:
            retries: default: the client's for GET; 0 for other methods, whose effect could be doubled.
        """
        exchange = self._begin(method, body, timeout, retries)
        while True:
            try:
                with self._http.get().stream(method, path, **exchange.arguments()) as response:
                    content = b"".join(exchange.in_time(response.iter_bytes()))
            except httpx2.TransportError as error:
                wait_s: float | None = exchange.broken(error, self._origin)
            else:
                wait_s = exchange.answered(response, content)
            if wait_s is None:
                return content
            time.sleep(wait_s)
