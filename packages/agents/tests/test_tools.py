"""The official client of the Model Context Protocol calls a server of ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcp import Client, StdioServerParameters, stdio_client

from hopline import Graph
from hopline.client import AsyncClient
from hopline_agents.tools import AgentTools
from packages.generate.tests.models import naive_version
from tests.servers import RunningServer, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("repository")
    naive_version(repository)
    with running("hopline.service:Service", **{"models.repository": str(repository)}) as server:
        yield server


def graph() -> Graph:
    # 0 ─► 2 ◄─ 1, 2 ─► 3
    edges = np.array([[0, 1, 2], [2, 2, 3]])
    return Graph.from_edges(edges, np.zeros((4, 1), np.float32))


async def call(tools: AgentTools, name: str, **arguments: Any) -> Any:
    async with Client(tools.server()) as client:
        return await client.call_tool(name, arguments)


def content(result: Any) -> Any:
    assert not result.is_error, result
    return json.loads(result.content[0].text)


@pytest.mark.release
async def test_an_agent_lists_models_generates_and_scores(server: RunningServer) -> None:
    async with AsyncClient(server.url) as client:
        tools = AgentTools(client)
        models = content(await call(tools, "list_models"))["models"]
        assert [(model["name"], model["kind"]) for model in models] == [("echo", "generative")]
        answer = content(await call(tools, "generate", model="echo", prompt="hello"))
        assert answer == {"text": "hello", "finish_reason": "stop"}
        scored = content(await call(tools, "score", model="echo", rows=[{"prompt": "abc"}]))
        assert scored["outputs"]["text"] == ["abc"]


async def test_an_error_is_reported_to_the_agent(server: RunningServer) -> None:
    async with AsyncClient(server.url) as client:
        result = await call(AgentTools(client), "score", model="none", nodes=[1])
    assert result.is_error
    assert "model_not_found" in result.content[0].text


async def test_neighbourhoods_only_with_a_graph() -> None:
    async with AsyncClient("http://127.0.0.1:1") as client:
        tools = AgentTools(client, graph())
        found = content(await call(tools, "read_neighbourhood", node=2))
        assert (found["degree"], found["neighbours"]) == (2, [0, 1])
        assert content(await call(tools, "read_neighbourhood", node=2, limit=1))["neighbours"] == [1]
        for wrong in ({"node": 9}, {"node": "x"}, {"node": 2, "limit": 0}, {"node": 2, "edge_type": "no"}):
            assert (await call(tools, "read_neighbourhood", **wrong)).is_error
        async with Client(AgentTools(client).server()) as plain:
            names = {tool.name for tool in (await plain.list_tools()).tools}
    assert names == {"list_models", "score", "generate"}


async def test_the_command_speaks_on_stdin_and_stdout(server: RunningServer, tmp_path: Path) -> None:
    graph().save(tmp_path / "graph")
    words = ["-m", "hopline", "mcp", "--url", server.url, "--graph", str(tmp_path / "graph")]
    command = stdio_client(StdioServerParameters(command=sys.executable, args=words), sys.__stderr__)
    async with Client(command) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == {"list_models", "score", "generate", "read_neighbourhood"}
        answer = content(await client.call_tool("generate", {"model": "echo", "prompt": "hi"}))
    assert answer["text"] == "hi"


async def test_an_argument_that_a_tool_lacks_is_refused_before_anything_is_sent() -> None:
    async with AsyncClient("http://127.0.0.1:1") as client, Client(AgentTools(client).server()) as agent:
        result = await agent.call_tool("generate", {"model": "echo", "prompt": "x", "temperature": 0})
        (listed,) = [tool for tool in (await agent.list_tools()).tools if tool.name == "generate"]
    assert result.is_error
    assert "temperature" in result.content[0].text
    assert "cannot be reached" not in result.content[0].text
    assert listed.input_schema["additionalProperties"] is False


async def test_a_models_name_stays_in_its_place_of_the_path(server: RunningServer) -> None:
    async with AsyncClient(server.url) as client:
        result = await call(AgentTools(client), "score", model="echo/load?x=", rows=[{"prompt": "a"}])
    assert "one spelling" in result.content[0].text
