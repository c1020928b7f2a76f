"""Parses the flags of `hopline serve` without Typer, whose import is a tenth of the start time.

Parses only well-formed command lines; Typer handles everything else (help, an unknown flag, an invalid
number) and reports errors. A test compares the flags with the command's signature.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hopline.config.reader import load_config
from hopline.config.schema import Config
from hopline.errors import ConfigError
from hopline.process.cgroup import memory_bytes, usable_cpus

_DEFAULT_FILE = Path("hopline.toml")

#: Flag -> setting, and the function that converts the flag's value; None for a flag without a value.
FLAGS: dict[str, tuple[str, Callable[[str], Any] | None]] = {
    "--graph": ("graph.path", str),
    "--repository": ("models.repository", str),
    "--model": ("models.names", str),
    "--precomputed": ("precomputed.file", str),
    "--live": ("live.enabled", None),
    "--queue": ("queues.requests", str),
    "--host": ("server.host", str),
    "--port": ("server.http_port", int),
    "--grpc-port": ("server.grpc_port", int),
    "--workers": ("server.workers", str),
    "--config": ("config", Path),
    "--set": ("set", str),
}
#: Settings of repeatable flags; of other flags the last one is used.
REPEATABLE = frozenset({"models.names", "precomputed.file", "set"})


def config_of(arguments: Sequence[str]) -> Config | None:
    """The config of `hopline serve` with these arguments; None if Typer must parse them.

    Raises: ConfigError: see `resolve_config`.
    """
    found: dict[str, Any] = {}
    rest = iter(arguments)
    for word in rest:
        name, equals, value = word.partition("=")
        setting, make = FLAGS.get(name, ("", None))
        if not setting or (make is None and equals):
            return None
        if make is None:
            found[setting] = True
            continue
        text = value if equals else next(rest, None)
        try:
            made = None if text is None else make(text)
        except ValueError:
            return None
        if made is None:
            return None
        found[setting] = (*found.get(setting, ()), made) if setting in REPEATABLE else made
    file, settings = found.pop("config", None), found.pop("set", ())
    return resolve_config(file, found, settings)


def resolve_config(file: Path | None, overrides: dict[str, Any], settings: Sequence[str]) -> Config:
    """The config of a command: its file, the environment, its flags, and last `--set`.

    Raises: ConfigError: see `load_config`; or a `--set` without "=".
    """
    if file is None and _DEFAULT_FILE.is_file():
        file = _DEFAULT_FILE
    for item in settings:
        path, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"--set {item}: write section.key=value")
        overrides = {**overrides, path.strip(): value}
    return load_config(file, os.environ, overrides, memory_bytes(), usable_cpus())
