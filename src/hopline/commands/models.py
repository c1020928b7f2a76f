"""`hopline models`: list, load and unload versions on a running server; import versions from MLflow."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from hopline.commands.connection import ApiKey, Token, Url, open_admin, server_url
from hopline.commands.screen import Screen, whole
from hopline.doors import NAMES

app = typer.Typer(no_args_is_help=True, help="List, load and unload versions of models.")


def _not_installed(context: typer.Context) -> None:
    """Import a model version from MLflow."""
    NAMES.require("models.import_model")


_ANY = {"ignore_unknown_options": True, "allow_extra_args": True}
_import = NAMES.find("models.import_model")
app.command("import", context_settings=None if _import else _ANY)(_import or _not_installed)

Model = Annotated[str, typer.Argument(help="Model name.")]


@app.command("list")
def list_models(url: Url = None, api_key: ApiKey = None, token: Token = None) -> None:
    """Show every version of every model with its state."""
    with open_admin(url, api_key, token) as admin:
        index = admin.index()
        serving = {found["model"]: found["serving"] for found in admin.rollouts()}
    table = Table(title=server_url(url), title_justify="left")
    for name in ("model", "version", "state", ""):
        table.add_column(name)
    for row in index:
        serves = "serves" if serving.get(row["name"]) == row["version"] else ""
        colour = "green" if row["state"] == "READY" else "red" if row["reason"] != "not loaded" else "dim"
        table.add_row(row["name"], row["version"], f"[{colour}]{row['state']}[/]", serves or row["reason"])
    Screen().print(whole(table, "model", "version", "state"))


@app.command()
def load(
    model: Model,
    version: Annotated[str | None, typer.Option(help="Version to load. Default: the newest.")] = None,
    graph: Annotated[
        str,
        typer.Option(
            help="Snapshot: a folder on the server, or an address. Default: the server's own graph."
        ),
    ] = "",
    serve: Annotated[
        bool, typer.Option(help="Serve all requests with it immediately; else only requests that name it.")
    ] = True,
    force: Annotated[
        bool, typer.Option("--force", help="Serve it though it refuses requests that callers send now.")
    ] = False,
    url: Url = None,
    api_key: ApiKey = None,
    token: Token = None,
) -> None:
    """Load a version; running requests finish on the version with which they began."""
    with open_admin(url, api_key, token) as admin:
        admin.load(model, version, graph=graph, serve=serve, force=force)
        found = admin.rollout(model)
    units = ", ".join(unit["id"] for unit in found["units"])
    Screen().say(f"{model}: serving {found['serving']}; loaded: {units}")


@app.command()
def unload(
    model: Model,
    version: Annotated[str | None, typer.Option(help="Version to unload. Default: all.")] = None,
    url: Url = None,
    api_key: ApiKey = None,
    token: Token = None,
) -> None:
    """Unload a version, or all versions of a model."""
    with open_admin(url, api_key, token) as admin:
        admin.unload(model, version)
    what = f"{model}/{version}" if version else model
    Screen().say(f"unloaded {what}")
