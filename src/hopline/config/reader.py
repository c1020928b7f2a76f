"""Reads a server's settings from all sources.

Later sources win: the defaults of `schema.py` < `hopline.toml` < environment `HOPLINE__SECTION__KEY` <
command-line flags.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopline.config.schema import Config, check_tls
from hopline.config.setting import type_name
from hopline.config.values import apply, fields, flags, flatten
from hopline.errors import ConfigError

ENV_PREFIX = "HOPLINE__"


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """One row of the settings table.

    Attributes:
        path: "section.key" as in hopline.toml.
        type: name of the type.
        default: the default value.
        env: the environment variable.
        help: one line of text.
    """

    path: str
    type: str
    default: Any
    env: str
    help: str


def config_table() -> list[ConfigRow]:
    """Every setting in declaration order, for the docs and `hopline config show`."""
    return [
        ConfigRow(path, type_name(annotation), item.default, _env_name(path), item.metadata["help"])
        for path, (item, annotation) in fields(Config).items()
        if not item.metadata["hidden"]
    ]


def load_config(
    file: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Resolve all sources into one config.

    Args:
        file: a hopline.toml; None reads none.
        env: environment variables; None reads none (pass `os.environ` to take the process's own).
        overrides: "section.key" -> value, from flags; None values are ignored.

    Raises:
        ConfigError: an unknown key (with the closest known one) or a bad value, named by its path.
    """
    config = Config()
    if file is not None:
        config = apply(config, _check_public(flatten(_read_toml(Path(file)), str(file))))
    if env is not None:
        values = {
            name.removeprefix(ENV_PREFIX).lower().replace("__", "."): (value, name)
            for name, value in env.items()
            if name.startswith(ENV_PREFIX)
        }
        config = apply(config, _check_public(values))
    if overrides is not None:
        config = apply(config, _check_public(flags(overrides)))
    check_tls(config)
    return config


def process_env() -> Mapping[str, str]:
    """This process's environment, for `load_config(env=...)`."""
    return os.environ


def show_config(config: Config) -> Iterator[tuple[str, Any]]:
    """("section.key", value) of every visible setting."""
    for row in config_table():
        section, key = row.path.split(".")
        yield row.path, getattr(getattr(config, section), key)


def _env_name(path: str) -> str:
    return ENV_PREFIX + path.replace(".", "__").upper()


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None


def _check_public(values: Mapping[str, tuple[Any, str]]) -> Mapping[str, tuple[Any, str]]:
    """Return the values unchanged.

    Raises: ConfigError: a setting is internal to Hopline.
    """
    known = fields(Config)
    for path, (_, source) in values.items():
        if path in known and known[path][0].metadata["internal"]:
            text = f"{path}: internal setting, set by a server for its own processes ({source})"
            raise ConfigError(text + ("; did you mean 'server.workers'?" if path == "worker.count" else ""))
    return values
