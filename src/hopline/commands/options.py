"""Options that several commands share: the graph, the repository, settings, `--json`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopline.commands.serve_flags import resolve_config
from hopline.config.schema import Config
from hopline.errors import BadRequest, ConfigError, HoplineError

GraphFolder = Annotated[Path | None, typer.Option(help="Graph folder.")]
GraphVersion = Annotated[
    Path | None, typer.Option(help="Graph folder, live folder, or one version of a live graph: FOLDER@+N.")
]
Repository = Annotated[
    str | None, typer.Option(help="Folder of <model>/<version> artifacts, or a URL of one.")
]
Models = Annotated[list[str] | None, typer.Option(help="Model to load; repeatable. Default: all.")]
ConfigFile = Annotated[
    Path | None, typer.Option(help="Settings file. Default: hopline.toml, if it exists.")
]
AnySetting = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting: --set section.key=value; repeatable.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def pair(text: str, option: str, form: str, error: type[HoplineError] = BadRequest) -> tuple[str, str]:
    """Split NAME=VALUE. Raises: `error`: another form; names the option and the form."""
    name, _, value = text.partition("=")
    if not (name and value):
        raise error(f"{option} {text}: write {form}")
    return name, value


def folder_config(
    file: Path | None, graph: Path | None, repository: str | None, settings: list[str] | None, reader: str
) -> Config:
    """The config of a command that reads a graph folder and a repository.

    Args:
        reader: what reads features, such as "a batch run reads".

    Raises: ConfigError: as `resolve_config`; `features.store` is set, whose rows are not in the folder.
    """
    config = resolve_config(file, {"graph.path": graph, "models.repository": repository}, settings or [])
    if config.features.store:
        raise ConfigError(
            f"features.store: {reader} features from the graph folder; build the graph "
            'with them and run with --set features.store=""'
        )
    return config
