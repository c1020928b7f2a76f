"""Reads a server's settings from all sources.

Later sources win: the defaults of `schema.py` < `hopline.toml` < variables of a platform (Vertex AI) <
environment `HOPLINE__SECTION__KEY` < command-line flags.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopline.config.schema import Config, check_tls
from hopline.config.setting import bounds_text, type_name
from hopline.config.values import apply, fields, flags, flatten
from hopline.errors import ConfigError
from hopline.toml import TOMLDecodeError, parse_toml

#: Variable of Vertex AI -> the setting.
VERTEX = {
    "AIP_HTTP_PORT": "server.http_port",
    "AIP_HEALTH_ROUTE": "server.health_route",
    "AIP_PREDICT_ROUTE": "server.predict_route",
}


def platform_settings(env: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """path -> (value, variable): what Vertex AI states; nothing where it does not run this container."""
    return {path: (env[name], name) for name, path in VERTEX.items() if name in env}


ENV_PREFIX = "HOPLINE__"
#: The setting whose value "auto" is replaced by a number of CPUs.
_WORKERS = "server.workers"
#: Ends of variables such as HOPLINE_SERVER_SERVICE_HOST and HOPLINE_SERVER_PORT_8700_TCP_ADDR.
_SERVICE_LINK = re.compile(
    r"_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT(_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?)?$"
)


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """One row of the settings table.

    Attributes:
        path: "section.key" as in hopline.toml.
        type: name of the type.
        default: the default value.
        env: the environment variable.
        help: one line of text.
        bounds: of a number; "" if it has none.
    """

    path: str
    type: str
    default: Any
    env: str
    help: str
    bounds: str


def config_table() -> list[ConfigRow]:
    """Every setting in declaration order, for the docs and `hopline config show`."""
    return [
        ConfigRow(
            path, type_name(kind), item.default, _env_name(path), item.metadata["help"], bounds_text(item)
        )
        for path, (item, kind) in fields(Config).items()
        if not item.metadata["hidden"]
    ]


def load_config(
    file: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    memory_bytes: int | None = None,
    cpus: int | None = None,
) -> Config:
    """Resolve all sources into one config.

    Args:
        file: a hopline.toml; None reads none.
        env: environment variables; None reads none (pass `os.environ` to take the process's own).
        overrides: "section.key" -> value, from flags; None values are ignored.
        memory_bytes: memory that the process may use, which bounds some defaults; None bounds none.
        cpus: that the process can keep busy, for `server.workers = "auto"`; None for those of the machine.

    Raises:
        ConfigError: an unknown key (with the closest known one) or a bad value, named by its path.
    """
    config = Config() if memory_bytes is None else apply(Config(), _bounded(memory_bytes))
    automatic = False

    def applied(values: Mapping[str, tuple[Any, str]]) -> Config:
        nonlocal automatic
        values = dict(_check_public(values))
        if _WORKERS in values:
            automatic = str(values[_WORKERS][0]).strip().lower() == "auto"
            if automatic:
                del values[_WORKERS]
        return apply(config, values)

    if file is not None:
        config = applied(flatten(read_toml(Path(file)), str(file)))
    if env is not None:
        _check_spelling(env)
        config = apply(config, platform_settings(env))
        values = {
            name.removeprefix(ENV_PREFIX).lower().replace("__", "."): (value, name)
            for name, value in env.items()
            if name.startswith(ENV_PREFIX)
        }
        config = applied(values)
    if overrides is not None:
        config = applied(flags(overrides))
    if automatic:  # after the last source: it may set compute.threads
        workers = (cpus or os.cpu_count() or 1) // config.compute.threads
        config = config.replace(server__workers=min(max(1, workers), 1024))
    check_tls(config)
    return config


def show_config(config: Config) -> Iterator[tuple[str, Any]]:
    """("section.key", value) of every visible setting."""
    for row in config_table():
        section, key = row.path.split(".")
        yield row.path, getattr(getattr(config, section), key)


def _bounded(memory_bytes: int) -> dict[str, tuple[Any, str]]:
    """Defaults that the memory of the process makes smaller."""
    found = {}
    for path, (item, _) in fields(Config).items():
        most = int(item.metadata["memory_share"] * memory_bytes)
        if item.metadata["memory_share"] and most < int(item.default):  # type: ignore[arg-type]
            found[path] = (max(most, int(item.metadata["minimum"])), "the memory of this process")
    return found


def _check_spelling(env: Mapping[str, str]) -> None:
    """Refuse variables that are meant for a setting and would be ignored, such as HOPLINE_SERVER_HTTP_PORT.

    Raises: ConfigError: naming the variable that is right, or the closest settings.
    """
    known = {_plain(_env_name(path)): _env_name(path) for path in fields(Config)}
    sections = tuple({f"HOPLINE_{path.partition('.')[0].upper()}_" for path in fields(Config)})
    for name, value in env.items():
        plain = _plain(name)
        if name.startswith(ENV_PREFIX) or not plain.startswith(sections) or _is_service_link(plain, value):
            continue
        right = known.get(plain)
        if right is None:
            close = difflib.get_close_matches(plain, known, n=1, cutoff=0.8)
            hint = f"; did you mean {known[close[0]]}?" if close else " (`hopline config show`)"
            raise ConfigError(f"{name}: is not a setting{hint}")
        raise ConfigError(f"{name}: write {right}; the parts of a setting are separated by two underscores")


def _plain(name: str) -> str:
    return re.sub("_+", "_", name.upper())


def _is_service_link(name: str, value: str) -> bool:
    """True if Kubernetes set it for a Service, such as one that is named `hopline-server`."""
    return bool(_SERVICE_LINK.search(name)) and ("_SERVICE_" in name or "://" in value or "_PORT_" in name)


def _env_name(path: str) -> str:
    return ENV_PREFIX + path.replace(".", "__").upper()


def read_toml(file: Path) -> dict[str, Any]:
    """Read a settings file.

    Raises: ConfigError: it cannot be read, or is not TOML.
    """
    try:
        return parse_toml(file.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file") from None
    except (TOMLDecodeError, UnicodeDecodeError) as error:
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
