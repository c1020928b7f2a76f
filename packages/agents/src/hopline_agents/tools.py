"""Tools for agents, over the Model Context Protocol: a client of a server, with its key and limits.

Uses the official SDK. A tool's error has the server's message, so that an agent can correct its call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import orjson
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from pydantic import ConfigDict

from hopline import __version__
from hopline.client.aio import AsyncClient
from hopline.errors import HoplineError
from hopline.graph import Graph

_INSTRUCTIONS = (
    "Scores nodes of a graph, pairs of nodes and table rows with the models of a Hopline server. Call "
    "list_models first: it says what each model takes."
)
#: Neighbours that one call lists.
_MOST_NEIGHBOURS = 200


def _strict(function: Callable[..., Awaitable[Any]]) -> Tool:
    """A tool that refuses arguments that it does not have; the SDK's own ignores them."""
    tool = Tool.from_function(function)
    arguments = tool.fn_metadata.arg_model
    strict = type(arguments.__name__, (arguments,), {"model_config": ConfigDict(extra="forbid")})
    metadata = tool.fn_metadata.model_copy(update={"arg_model": strict})
    parameters = {**tool.parameters, "additionalProperties": False}
    changed: Tool = tool.model_copy(update={"fn_metadata": metadata, "parameters": parameters})
    return changed


class AgentTools:
    """Tools that agents may call.

    Args:
        client: of the server.
        graph: whose neighbourhoods can be read; None offers no such tool.
    """

    def __init__(self, client: AsyncClient, graph: Graph | None = None) -> None:
        self._client = client
        self._graph = graph

    def server(self) -> MCPServer[Any]:
        """The tools as a server of the protocol."""
        tools: list[Callable[..., Awaitable[Any]]] = [self.list_models, self.score, self.generate]
        if self._graph is not None:
            tools.append(self.read_neighbourhood)
        return MCPServer(
            "hopline",
            instructions=_INSTRUCTIONS,
            version=__version__,
            tools=[_strict(tool) for tool in tools],
            log_level="WARNING",  # an agent shows what its tools log
        )

    async def list_models(self) -> dict[str, Any]:
        """List the models with their inputs, outputs, versions and kinds."""
        found = await self._send("GET", "/v1/models")
        return {"models": found["models"]}

    async def score(
        self,
        model: str,
        nodes: list[int | str] | None = None,
        pairs: list[list[int | str]] | None = None,
        rows: list[dict[str, Any]] | None = None,
        outputs: list[str] | None = None,
    ) -> dict[str, Any]:
        """Score nodes by their ids, pairs of nodes, or rows of a table; a model takes one of these.

        Args:
            model: name of the model.
            nodes: ids of nodes.
            pairs: [source id, destination id] of each pair.
            rows: column to value, for tabular and generative models.
            outputs: names of outputs; the model's default if left out.
        """
        given = {"nodes": nodes, "pairs": pairs, "rows": rows, "outputs": outputs}
        body = {name: value for name, value in given.items() if value is not None}
        return await self._send("POST", f"/v1/models/{quote(model, safe='')}/score", body)

    async def generate(self, model: str, prompt: str, max_tokens: int = 128) -> dict[str, Any]:
        """Have a generative model answer a prompt.

        Args:
            model: name of a model of kind generative.
            prompt: what a user would say.
            max_tokens: longest answer.
        """
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
        }
        found = await self._send("POST", "/v1/chat/completions", body)
        choice = found["choices"][0]
        return {"text": choice["message"]["content"], "finish_reason": choice["finish_reason"]}

    async def read_neighbourhood(
        self, node: int | str, edge_type: str | None = None, limit: int = 50
    ) -> dict[str, Any]:
        """List the in-neighbours of a node: the nodes whose edges lead to it.

        Args:
            node: its id.
            edge_type: source__relation__destination; may be left out if there is only one.
            limit: neighbours to list, at most 200; the last ones by time where edges have times.
        """
        graph = self._graph
        assert graph is not None
        if not 1 <= limit <= _MOST_NEIGHBOURS:
            raise ToolError(f"limit: 1 to {_MOST_NEIGHBOURS}, not {limit}")
        try:
            edges = graph.edge(edge_type)
            (row,) = graph.node(edges.dst).ids.lookup([node])  # type: ignore[arg-type]
        except (HoplineError, ValueError) as error:
            raise ToolError(str(error)) from None
        if row < 0:
            raise ToolError(f"node {node!r} is not in the graph")
        begin, end = int(edges.indptr[row]), int(edges.indptr[row + 1])
        rows = edges.indices[max(begin, end - limit) : end]
        ids = graph.node(edges.src).ids.external(rows.astype("int64"))
        return {
            "node": node,
            "edge_type": f"{edges.src}__{edges.relation}__{edges.dst}",
            "degree": end - begin,
            "neighbours": ids if isinstance(ids, list) else ids.tolist(),
        }

    async def _send(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        try:
            found: dict[str, Any] = orjson.loads(await self._client.send(method, path, body))
        except HoplineError as error:
            raise ToolError(f"{error.code}: {error}") from None
        return found
