"""Folders and sockets of a server, as its settings name or imply them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hopline.config.schema import Config
from hopline.errors import ConfigError


def live_folder(config: Config) -> Path:
    """The folder that stores the changes of the configured graph."""
    if config.live.folder is not None:
        return config.live.folder
    graph = needed_folder(config, "graph.path")
    return graph.with_name(f"{graph.name}.live")


def live_socket(config: Config) -> Path:
    """The Unix socket on which the writer of the live graph listens."""
    return config.live.socket or live_folder(config) / "writer.sock"


def needed_folder(config: Config, path: Literal["graph.path", "models.repository"]) -> Path:
    """The folder of a required setting.

    Raises:
        ConfigError: the setting is missing, or its folder does not exist.
    """
    section, _, key = path.partition(".")
    folder: Path | str | None = getattr(getattr(config, section), key)
    flag = {"graph.path": "--graph", "models.repository": "--repository"}[path]
    if folder is None:
        raise ConfigError(f"{path}: not set; pass {flag} or set it in hopline.toml")
    if isinstance(folder, str) and path == "graph.path":
        raise ConfigError(
            f"graph.path: {folder} is an address; this needs a local folder: `hopline snapshot fetch` "
            "makes a copy and prints its path"
        )
    if isinstance(folder, str):
        raise ConfigError(f"{path}: {folder} is a URL; this command needs a local folder")
    if not folder.is_dir():
        raise ConfigError(f"{path}: {folder} is not a folder")
    return folder
