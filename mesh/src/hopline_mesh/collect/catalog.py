"""The sets of queries by name. Knows the values of settings, and not the content of a set."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hopline.errors import ConfigError
from hopline_mesh.collect.containers import containers
from hopline_mesh.collect.istio import istio
from hopline_mesh.collect.linkerd import linkerd
from hopline_mesh.collect.query import QuerySet
from hopline_mesh.collect.query_file import read_query_file


def queries_for(
    mesh: Literal["istio", "linkerd", "file"],
    query_file: Path | None = None,
    *,
    window_s: float = 60.0,
    matchers: str = "",
) -> QuerySet:
    """Return the queries for a mesh.

    For Istio and Linkerd, CPU and memory of containers are included, for services of the mesh; a file
    has only its own queries.

    Args:
        mesh: source of the metrics; "file": queries of `query_file`.
        query_file: of the user.
        window_s: of rates; at least four scrapes.
        matchers: added to every selector, such as `cluster="eu-1"`.

    Raises:
        ConfigError: an unknown mesh, a missing file, or an invalid file.
    """
    if mesh == "file":
        if query_file is None:
            raise ConfigError("query_file: not set, but mesh = file needs a file of queries")
        return read_query_file(query_file, window_s, matchers)
    if mesh not in ("istio", "linkerd"):
        raise ConfigError(f"mesh: {mesh!r} is not one of istio, linkerd, file")
    found = istio(window_s, matchers) if mesh == "istio" else linkerd(window_s, matchers)
    return found.plus(containers(window_s, matchers), reveal=False)
