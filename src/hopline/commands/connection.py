"""Connection of commands to a running server: `--url`, `--api-key`, `--token`, and the environment."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Annotated

import typer

from hopline.client.admin import Admin
from hopline.client.sync import Client
from hopline.errors import BadRequest

DEFAULT_URL = "http://127.0.0.1:8700"

# Not Typer but `server_url` and `credentials` read the environment: a given flag must win over a variable
# of another name, such as --api-key over HOPLINE_TOKEN.
Url = Annotated[
    str | None,
    typer.Option(
        help=f"Address of the server. Default: HOPLINE_URL in the environment, else {DEFAULT_URL}."
    ),
]
#: For commands that also work without a server.
UrlOrNone = Annotated[
    str | None,
    typer.Option(
        help="Address of a server. Default: HOPLINE_URL in the environment, if no flag names models "
        "to load here."
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        help="API key, if the server requires authentication. Default: HOPLINE_API_KEY in the environment."
    ),
]
Token = Annotated[
    str | None,
    typer.Option(help="JSON Web Token instead of an API key. Default: HOPLINE_TOKEN in the environment."),
]

#: Seconds; loading a large model can take minutes.
_PATIENCE_S = 600.0


def server_url(url: str | None) -> str:
    """The server's address: of the flag, else of the environment, else on this host."""
    return url or os.environ.get("HOPLINE_URL") or DEFAULT_URL


def credentials(api_key: str | None, token: str | None) -> tuple[str | None, str | None]:
    """(API key, token) of the flags, else of the environment; at most one of them is set.

    In the environment a token has precedence over a key.

    Raises: BadRequest: both flags are given.
    """
    if api_key and token:
        raise BadRequest("pass --api-key or --token, not both")
    if not api_key and not token:
        token = os.environ.get("HOPLINE_TOKEN")
        api_key = None if token else os.environ.get("HOPLINE_API_KEY")
    return api_key or None, token or None


def open_client(
    url: str | None, api_key: str | None, token: str | None, *, timeout_s: float = 30.0
) -> Client:
    """A client of the server named by flags and environment."""
    key, token = credentials(api_key, token)
    return Client(server_url(url), timeout=timeout_s, api_key=key, token=token)


@contextlib.contextmanager
def open_admin(url: str | None, api_key: str | None, token: str | None) -> Iterator[Admin]:
    """As `open_client`, with a longer timeout, for changes."""
    with open_client(url, api_key, token, timeout_s=_PATIENCE_S) as client:
        yield Admin(client)
