"""`hopline config`: every setting, its value and how to change it."""

from __future__ import annotations

import json

import typer
from rich.markup import escape
from rich.table import Table

from hopline.commands.options import AsJson, ConfigFile
from hopline.commands.screen import Screen, whole
from hopline.commands.serve_flags import resolve_config
from hopline.config.reader import config_table, show_config

_CAPTION = "hopline.toml, HOPLINE__SECTION__KEY in the environment, or --set section.key=value"

app = typer.Typer(help="Show all settings and their values.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Show all settings and their values."""


@app.command()
def show(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Resolve defaults, file and environment, and print every setting."""
    values = dict(show_config(resolve_config(config, {}, [])))
    if as_json:
        typer.echo(json.dumps(values, indent=1, default=str))
        return
    table = Table("setting", "value", "type", "what it does", caption=_CAPTION)
    for row in config_table():
        value = values[row.path]
        text = escape(str(value))
        shown = f"[bold]{text}[/bold]" if value != row.default else text
        table.add_row(row.path, shown, escape(row.type), escape(row.help))
    Screen().print(whole(table, "setting"))
