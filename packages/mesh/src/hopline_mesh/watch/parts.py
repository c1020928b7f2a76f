"""Creates the parts of a watch from its settings."""

from __future__ import annotations

import logging
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hopline.errors import ConfigError
from hopline_mesh.collect import CollectOptions, Collector, Prometheus, QuerySet, queries_for
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.server_access import warn_of_token
from hopline_mesh.settings import MeshSettings
from hopline_mesh.state import StateFolder
from hopline_mesh.state.folder import only_writer

logger = logging.getLogger("hopline_mesh")


def prometheus_of(settings: MeshSettings) -> Prometheus:
    """Create the client of Prometheus.

    Raises:
        ConfigError: the address or a file is invalid.
    """
    source = settings.source
    if source.prometheus_token_file is not None:
        warn_of_token("prometheus_token_file", source.prometheus_url)
    return Prometheus(
        source.prometheus_url, token_file=source.prometheus_token_file, ca_file=source.ca_file
    )


def queries_of(settings: MeshSettings) -> QuerySet:
    """Create the queries.

    Raises:
        ConfigError: see `queries_for`.
    """
    source = settings.source
    return queries_for(
        source.mesh, source.query_file, window_s=source.rate_window_s, matchers=source.matchers
    )


def collector_of(
    settings: MeshSettings, client: Prometheus, queries: QuerySet, roster: Roster, **other: Any
) -> Collector:
    """Create the collector.

    Args:
        other: further arguments of `Collector`.
    """
    options, matchers = options_of(settings), settings.source.matchers
    return Collector(client, queries, roster=roster, options=options, matchers=matchers, **other)


def options_of(settings: MeshSettings) -> CollectOptions:
    """Return the options of the collector."""
    source = settings.source
    return CollectOptions(
        deadline_s=deadline_s(settings),
        delay_s=source.delay_s,
        namespaces=source.namespaces,
        exclude_namespaces=source.exclude_namespaces,
        max_services=source.max_services,
        max_edges=source.max_edges,
        keep_missing_s=max(3600.0, 2 * settings.detector.window_size * source.interval_s),
        stale_s=max(source.rate_window_s, 4 * source.interval_s),
    )


def deadline_s(settings: MeshSettings) -> float:
    """Return the maximum time of the queries of one interval, so that the next one is not late."""
    source = settings.source
    return min(source.timeout_s, 0.8 * source.interval_s)


def shape_of(settings: MeshSettings, schema: Schema) -> dict[str, Any]:
    """Return what saved state must match: the columns, and the settings that define its numbers."""
    return {
        "nodes": list(schema.node_features),
        "edges": list(schema.edge_features),
        "mesh": settings.source.mesh,
        "interval_s": settings.source.interval_s,
        "window_size": settings.detector.window_size,
    }


def folder_of(settings: MeshSettings, stack: ExitStack) -> tuple[StateFolder, str]:
    """Return the state folder, and the reason if it is temporary (else "").

    If state_dir cannot be written, or another process writes to it, a temporary folder has the history for
    trainings. The stack holds the lock of the folder.

    Raises:
        ConfigError: the temporary folder cannot be written either.
    """
    state_dir = settings.state.state_dir
    try:
        stack.enter_context(only_writer(state_dir))
        return state_folder(settings, state_dir), ""
    except OSError as error:
        why = f"state_dir: {state_dir}: {error.strerror}; state is not saved"
    try:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hopline-mesh-")))
        return state_folder(settings, folder), why
    except OSError as error:
        raise ConfigError(f"{why}; and no temporary folder: {error.strerror}") from None


def state_folder(settings: MeshSettings, folder: Path) -> StateFolder:
    """Return a folder with the limits of the settings.

    Raises:
        OSError: it cannot be written.
    """
    return StateFolder(folder, settings.state.state_bytes, 3600 * settings.detector.fine_tune_hours)
