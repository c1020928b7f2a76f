"""How commands reach a running server: `--url`, `--api-key`, `--token`, and the environment."""

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

# `server_url` and `credentials` read the environment, not Typer: a flag that is given must win over
# a variable of another name, such as --api-key over HOPLINE_TOKEN.
Url = Annotated[
    str | None,
    typer.Option(
        help=f"Address of the server. Default: HOPLINE_URL in the environment, else {DEFAULT_URL}.",
        show_default=False,
    ),
]
#: Of commands that can also do without a server.
UrlOrNone = Annotated[
    str | None,
    typer.Option(
        help="Server to ask; else the models are loaded here. Default: HOPLINE_URL in the environment, "
        "where no flag says which models to load.",
        show_default=False,
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        help="API key, where the server asks for one. Default: HOPLINE_API_KEY in the environment.",
        show_default=False,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        help="JSON Web Token instead of a key. Default: HOPLINE_TOKEN in the environment.",
        show_default=False,
    ),
]

#: Seconds that a change may take: loading a large model does.
_PATIENCE_S = 600.0


def server_url(url: str | None) -> str:
    """The address of the flag, else of the environment, else this host's."""
    return url or os.environ.get("HOPLINE_URL") or DEFAULT_URL


def credentials(api_key: str | None, token: str | None) -> tuple[str | None, str | None]:
    """(API key, token), one of them or neither: of the flags, else of the environment.

    In the environment a token goes before a key.

    Raises: BadRequest: both flags are given.
    """
    if api_key and token:
        raise BadRequest("give --api-key or --token, not both: a client is one or the other")
    if not api_key and not token:
        token = os.environ.get("HOPLINE_TOKEN")
        api_key = None if token else os.environ.get("HOPLINE_API_KEY")
    return api_key or None, token or None


def open_client(
    url: str | None, api_key: str | None, token: str | None, *, timeout_s: float = 30.0
) -> Client:
    """A client of the server that the flags and the environment name."""
    key, token = credentials(api_key, token)
    return Client(server_url(url), timeout=timeout_s, api_key=key, token=token)


@contextlib.contextmanager
def open_admin(url: str | None, api_key: str | None, token: str | None) -> Iterator[Admin]:
    """As `open_client`, for changes."""
    with open_client(url, api_key, token, timeout_s=_PATIENCE_S) as client:
        yield Admin(client)
