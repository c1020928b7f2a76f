"""Checks of a request to load: a unit, or a clear refusal. Blocks: it reads folders."""

from __future__ import annotations

import os
from pathlib import Path

from hopline.answering.unit import Unit
from hopline.config.schema import Config
from hopline.errors import BadRequest, quoted
from hopline.remote_address import is_address

#: Of one unit: a graph has a few node types.
MAX_GROUPS = 64
_MAX_GROUP_CHARACTERS = 200
#: Bytes of a path that Linux takes (PATH_MAX, less the final NUL).
_MAX_PATH_BYTES = 4095


def requested_unit(
    version: str, graph: str, groups: tuple[str, ...], config: Config, *, shadow: bool = False
) -> Unit:
    """The unit of a version that is in the repository.

    Args:
        version: folder in the repository.
        graph: folder of a graph snapshot, or the address of one with its id; "" is the server's own graph.
        groups: "<node type>=<group>", in any order.
        config: of the server.
        shadow: as in `Unit`.

    Raises: BadRequest: no such folder, or not groups that this server could read.
    """
    if graph and not is_address(graph):
        graph = _folder(graph)
    return Unit(version, graph, _checked(groups, config), shadow)


def _folder(graph: str) -> str:
    named = quoted(graph)
    try:
        if "\0" in graph:
            raise BadRequest(f"graph: {named} holds a NUL character; send the path of a graph snapshot")
        if len(os.fsencode(graph)) > _MAX_PATH_BYTES:
            raise BadRequest(
                f"graph: {named} is longer than {_MAX_PATH_BYTES} bytes; send the path of a graph snapshot"
            )
        folder = Path(graph).resolve()
        if not folder.is_dir():
            raise BadRequest(f"graph: {named} is not a folder; send the path of a graph snapshot")
    except BadRequest:
        raise
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # names that are too long, loops of links, encodings
        why = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise BadRequest(f"graph: {named} cannot be opened: {why}") from None
    return str(folder)


def _checked(groups: tuple[str, ...], config: Config) -> tuple[str, ...]:
    if not groups:
        return ()
    if not config.features.store:
        raise BadRequest(
            "groups: this server reads no feature store (features.store is not set), so it has no groups; "
            "leave groups out"
        )
    if len(groups) > MAX_GROUPS:
        raise BadRequest(f"groups: {len(groups)} of them; at most {MAX_GROUPS}, one for a node type")
    seen = set()
    for group in groups:
        node_type, equals, name = group.partition("=")
        if (
            not (node_type and equals and name)
            or len(group) > _MAX_GROUP_CHARACTERS
            or not group.isprintable()
        ):
            raise BadRequest(
                f'groups: {quoted(group)} is not of the form "<node type>=<group>", of at most '
                f"{_MAX_GROUP_CHARACTERS} printable characters"
            )
        if node_type in seen:
            raise BadRequest(f"groups: node type {node_type!r} is repeated; send one group for it")
        seen.add(node_type)
    return tuple(sorted(groups))  # in another order they are the same unit
