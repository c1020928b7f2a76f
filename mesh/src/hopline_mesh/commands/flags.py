"""Options that several commands share, and the settings that they give."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from hopline.errors import BadRequest
from hopline_mesh.settings import DEFAULT_FILE, MeshSettings, load_settings

PrometheusUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="URL of Prometheus.", show_default=False)
]
MeshKind = Annotated[
    str | None,
    typer.Option(
        help="Source of the metrics: istio, linkerd or file (see --query-file).", show_default=False
    ),
]
QueryFile = Annotated[
    Path | None,
    typer.Option(help="File with a query for each column, for --mesh file.", show_default=False),
]
SettingsFile = Annotated[
    Path | None, typer.Option(help="Settings file. Default: hopline-mesh.toml, if it exists.")
]
AnySetting = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Set any setting, such as --set window_size=60; repeatable.", show_default=False
    ),
]


def resolve_settings(
    file: Path | None, flags: dict[str, Any], settings: list[str] | None = None
) -> MeshSettings:
    """Return the settings of a command: file, environment, flags, and `--set key=value` above them.

    Args:
        file: None is hopline-mesh.toml, if it exists.
        flags: key -> value; None if a flag was not given.

    Raises:
        ConfigError: see `load_settings`.
        BadRequest: a `--set` without "=".
    """
    given = dict(flags)
    for item in settings or []:
        name, equals, value = item.partition("=")
        if not equals:
            raise BadRequest(f"--set {item}: must be key=value, such as window_size=60")
        given[name.rpartition(".")[2]] = value
    if file is None and DEFAULT_FILE.is_file():
        file = DEFAULT_FILE
    return load_settings(file, os.environ, given)
