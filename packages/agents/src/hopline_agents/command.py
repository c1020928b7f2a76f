"""`hopline mcp`: tools for agents, over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopline.commands.connection import ApiKey, Token, Url, credentials, server_url


def mcp(
    graph: Annotated[
        Path | None, typer.Option(help="Folder of a graph whose neighbourhoods agents may read.")
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    token: Token = None,
) -> None:
    """Offer a server's models to an agent, on stdin and stdout."""
    # imported here because they take a second
    from hopline.client import AsyncClient
    from hopline.graph import Graph
    from hopline_agents.tools import AgentTools

    key, jwt = credentials(api_key, token)
    client = AsyncClient(server_url(url), api_key=key, token=jwt)
    AgentTools(client, None if graph is None else Graph.open(graph)).server().run("stdio")
