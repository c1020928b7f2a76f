"""`hopline models`: list, load and unload versions on a running server."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from hopline.commands.connection import ApiKey, Token, Url, open_admin, server_url
from hopline.commands.import_mlflow import import_model
from hopline.commands.screen import Screen, whole

app = typer.Typer(no_args_is_help=True, help="List, load and unload versions of models.")

app.command("import")(import_model)

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
    version: Annotated[
        str | None, typer.Option(help="Version to load. Default: the newest.", show_default=False)
    ] = None,
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
    Screen().print(f"{model}: serving {found['serving']}; loaded: {units}", highlight=False, markup=False)


@app.command()
def unload(
    model: Model,
    version: Annotated[
        str | None, typer.Option(help="Version to unload. Default: all.", show_default=False)
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    token: Token = None,
) -> None:
    """Unload a version, or all versions of a model."""
    with open_admin(url, api_key, token) as admin:
        admin.unload(model, version)
    what = f"{model}/{version}" if version else model
    Screen().print(f"unloaded {what}", highlight=False, markup=False)
