"""`hopline auth`: create, list and revoke API keys in a clients file."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from hopline.commands.screen import Screen, whole
from hopline.errors import BadRequest
from hopline.ingress.clients_edit import add_key, remove_key
from hopline.ingress.clients_file import Grant, KeyEntry, read_clients
from hopline.ingress.keys import new_key

app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)

File = Annotated[Path, typer.Option(help="Clients file (setting auth.clients_file).")]
_FILE = Path("clients.toml")


@app.command("new-key")
def new(
    client: Annotated[str, typer.Argument(help="Client that gets the key: new, or in the file already.")],
    file: File = _FILE,
    score: Annotated[
        list[str] | None, typer.Option(help="New client: models that it may score, as a glob; repeatable.")
    ] = None,
    read: Annotated[
        bool, typer.Option(help="New client: permission to read metadata and metrics.")
    ] = False,
    admin: Annotated[
        bool, typer.Option(help="New client: permission to change what the server serves.")
    ] = False,
    rate: Annotated[float | None, typer.Option(help="New client: requests per second.")] = None,
    burst: Annotated[int | None, typer.Option(help="New client: most requests in one burst.")] = None,
    tokens_per_minute: Annotated[
        int | None,
        typer.Option(
            help="New client: tokens of generative models per minute, of prompts and answers together."
        ),
    ] = None,
    priority: Annotated[
        str, typer.Option(help="New client: highest priority of its requests: high, normal or low.")
    ] = "normal",
    days: Annotated[
        int | None, typer.Option(help="Days until the key expires. Default: never.", min=1)
    ] = None,
) -> None:
    """Create a key, print it once, and write its digest to the clients file."""
    options: dict[str, Any] = {
        "score": score,
        "read": read,
        "admin": admin,
        "rate_per_s": rate,
        "burst": burst,
        "tokens_per_minute": tokens_per_minute,
    }
    given = {name: value for name, value in options.items() if value not in (None, False, [])}
    if priority != "normal":
        given["priority"] = priority
    if burst is not None and rate is None:
        raise BadRequest("--burst needs --rate")
    try:
        grant = msgspec.convert(given, Grant) if given else None
    except msgspec.ValidationError as error:
        raise BadRequest(f"invalid options of a client: {error}") from None
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    key = new_key()
    expires = None if days is None else now + datetime.timedelta(days=days)
    add_key(file, client, KeyEntry(key.id, key.sha256, now.date(), expires), grant)
    typer.echo(key.text)
    typer.echo(f"Key {key.id} of client {client}: shown once; {file} stores its digest.", err=True)


@app.command("list")
def show(file: File = _FILE) -> None:
    """Show the clients of a file with their permissions and keys."""
    table = Table("client", "score", "read", "admin", "rate", "tokens", "priority", "keys")
    for name, entry in read_clients(file).items():
        rate = entry.rate
        table.add_row(
            name,
            *(_globs(getattr(entry, permission)) for permission in ("score", "read", "admin")),
            "–" if rate is None else f"{rate.per_s:g}/s, burst {rate.burst}",
            "–" if entry.tokens_per_minute is None else f"{entry.tokens_per_minute}/min",
            entry.priority,
            "\n".join(_key(key) for key in entry.keys) or "–",
        )
    Screen().print(whole(table, "client", "keys"))


@app.command()
def revoke(
    client: Annotated[str, typer.Argument(help="Client that owns the key.")],
    key: Annotated[
        str | None, typer.Argument(help="Id of the key; may be left out if the client has one key.")
    ] = None,
    file: File = _FILE,
) -> None:
    """Remove a key from the clients file; servers refuse it within a second."""
    removed = remove_key(file, client, key)
    typer.echo(f"Key {removed.id} of client {client} was revoked.")


def _globs(value: Any) -> str:
    if isinstance(value, bool):
        return "all" if value else "–"
    return ", ".join(value) or "–"


def _key(key: KeyEntry) -> str:
    until = "" if key.expires is None else f" until {key.expires:%Y-%m-%d %H:%M %Z}"
    return f"{key.id}{until}"
