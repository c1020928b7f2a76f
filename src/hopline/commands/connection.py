"""Options by which commands reach a running server, and how they answer in tables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer

from hopline.client.admin import Admin
from hopline.client.sync import Client

Url = Annotated[str, typer.Option(help="Address of the server.")]
ApiKey = Annotated[
    str | None,
    typer.Option(
        help="API key, where the server asks for one; better in the environment: HOPLINE_API_KEY.",
        envvar="HOPLINE_API_KEY",
        show_default=False,
        show_envvar=False,
    ),
]
Token = Annotated[str | None, typer.Option(help="JSON Web Token instead of a key.", show_default=False)]

DEFAULT_URL = "http://127.0.0.1:8700"
#: Seconds that a change may take: loading a large model does.
_PATIENCE_S = 600.0


@contextlib.contextmanager
def admin_of(url: str, api_key: str | None, token: str | None) -> Iterator[Admin]:
    """A connection to a server; a token goes before a key of the environment."""
    with Client(url, timeout=_PATIENCE_S, api_key=None if token else api_key, token=token) as client:
        yield Admin(client)
