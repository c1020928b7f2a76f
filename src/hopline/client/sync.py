"""The blocking client."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Mapping
from typing import Any, Self, Unpack

import httpx2

from hopline.client import wire
from hopline.client.exchange import POLL_S, PROBE_S, Exchange, OnePerProcess, trust
from hopline.client.graph import EVENTS_PATH, GRAPH_PATH, EventsOutcome, events_body
from hopline.client.wire import Edges, ScoreOptions
from hopline.errors import HoplineError, Unavailable
from hopline.types import ExternalId, ExternalIds, GraphState, InlineNode, ModelInfo, ScoreResult


class Client:
    """A blocking client for scores; safe to share between threads.

    Answers are `ScoreResult` with NumPy arrays; the server's errors are raised as the same classes.

    Args:
        url: "http://127.0.0.1:8700".
        timeout: seconds for one call including all its attempts; None means no limit.
        retries: further attempts after Overloaded, Unavailable and broken connections; see `send`.
        verify: TLS verification; see `ssl.create_default_context(cafile=...)`. True: the usual authorities,
            which the first client of a process reads for all.
        api_key: created with `hopline auth new-key`, if the server requires one.
        token: a JSON Web Token instead.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8700",
        *,
        timeout: float | None = 30.0,
        retries: int = 2,
        verify: ssl.SSLContext | bool = True,
        api_key: str | None = None,
        token: str | None = None,
    ) -> None:
        self._timeout = timeout
        self._retries = retries
        headers = wire.credentials(api_key, token)
        self._origin = wire.origin(url)
        self._http = OnePerProcess(
            lambda: httpx2.Client(base_url=url, verify=trust(url, verify), headers=headers)
        )

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
        retries = self._retries if may_repeat else 0
        content = self.send("POST", EVENTS_PATH, body, timeout=timeout, retries=retries)
        return wire.read_json(content, EventsOutcome)  # type: ignore[no-any-return]

    def graph_state(self) -> GraphState:
        """Return the live graph's version, size and age. Raises: BadRequest: the graph is not live."""
        return wire.read_json(self.send("GET", GRAPH_PATH), GraphState)  # type: ignore[no-any-return]

    def models(self) -> list[ModelInfo]:
        """Return the served models."""
        return wire.read_models(self.send("GET", "/v1/models"))

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
        if retries is None:
            retries = self._retries if method == "GET" else 0
        exchange = Exchange(body, self._timeout if timeout is None else timeout, retries)
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
