"""The settings of a function: a part of the server's, from the same environment variables.

Read here and not by `hopline.config`, which has a hundred other settings and takes a tenth of a cold start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hopline.errors import ConfigError
from hopline.files import expanded

_STALE = ("refuse", "compute", "serve")


@dataclass(frozen=True)
class Settings:
    """Settings of a function, each with the server's section and key.

    Attributes:
        repository: models.repository, a folder of <model>/<version>.
        names: models.names; empty for all.
        graph: graph.path; None without a graph: ids are then looked up in the precomputed files.
        tables: precomputed.file.
        stale: precomputed.stale; under "compute" the student answers.
        ttl_s: precomputed.ttl_s.
        max_nodes: limits.max_nodes_per_request.
        max_body_bytes: server.max_body_bytes.
    """

    repository: Path
    names: tuple[str, ...] = ()
    graph: Path | None = None
    tables: tuple[Path, ...] = ()
    stale: Literal["refuse", "compute", "serve"] = "refuse"
    ttl_s: float = 0.0
    max_nodes: int = 4096
    max_body_bytes: int = 64 * 2**20


def read_settings(env: Mapping[str, str]) -> Settings:
    """Read `HOPLINE__SECTION__KEY` variables.

    Raises:
        ConfigError: a variable is invalid, or models.repository is not a folder.
    """
    repository = expanded(env.get("HOPLINE__MODELS__REPOSITORY", ""), "models.repository")
    if not env.get("HOPLINE__MODELS__REPOSITORY") or not repository.is_dir():
        raise ConfigError(
            f"models.repository: {str(repository)!r} is not a folder; set HOPLINE__MODELS__REPOSITORY to a "
            "local folder of <model>/<version>"
        )
    graph = env.get("HOPLINE__GRAPH__PATH")
    stale = env.get("HOPLINE__PRECOMPUTED__STALE", "refuse")
    if stale not in _STALE:
        raise ConfigError(
            f"precomputed.stale: {stale!r} from HOPLINE__PRECOMPUTED__STALE must be one of {_STALE}"
        )
    return Settings(
        repository,
        _names(env.get("HOPLINE__MODELS__NAMES", "")),
        expanded(graph, "graph.path") if graph else None,
        tuple(
            expanded(name, "precomputed.file") for name in _names(env.get("HOPLINE__PRECOMPUTED__FILE", ""))
        ),
        stale,  # type: ignore[arg-type]
        _number(env, "precomputed.ttl_s", Settings.ttl_s, 0.0),
        int(_number(env, "limits.max_nodes_per_request", Settings.max_nodes, 1)),
        int(_number(env, "server.max_body_bytes", Settings.max_body_bytes, 1)),
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _number(env: Mapping[str, str], path: str, default: float, minimum: float) -> float:
    name = "HOPLINE__" + path.upper().replace(".", "__")
    try:
        value = float(env.get(name, default))
    except ValueError:
        raise ConfigError(f"{path}: {env[name]!r} from {name} is not a number") from None
    if not minimum <= value < float("inf"):
        raise ConfigError(f"{path}: {value} from {name} must be at least {minimum}")
    return value
