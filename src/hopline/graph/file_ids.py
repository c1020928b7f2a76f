"""Ids of one node type over all files: one kind for all, and the nodes of types without a file.

Text has no types: a column of digits holds strings if the type's other ids are strings.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hopline.errors import GraphError
from hopline.graph.cells import NEAR_NUMBER, FileTable
from hopline.graph.tables import EdgeTable, EdgeType, Encoded, NodeTable, as_array
from hopline.graph.typed_table import TYPED

_LOG = logging.getLogger("hopline.graph")
_DIGITS, _ODD = re.compile("-?[0-9]+"), re.compile(NEAR_NUMBER)
#: A column with one other cell and at least this many integers below it is integers with a header.
_FEWEST = 3
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")


def unify_ids(
    name: str,
    nodes: MutableMapping[str, NodeTable],
    edges: MutableMapping[EdgeType, EdgeTable],
    files: Mapping[EdgeType, Any],
) -> None:
    """Give a node type's ids one kind; the nodes of a type without a file are the ids of its edges.

    Args:
        nodes, edges: changed in place. files: edge type -> `EdgeFile`.
    Raises: GraphError: integers and strings are mixed.
    """
    ends = {
        (edge_type, place): table.edges[place]
        for edge_type, table in edges.items()
        for place in (0, 1)
        if edge_type[2 * place] == name
    }
    known = nodes[name].ids if name in nodes else None
    if name in nodes and known is None:
        return  # its row numbers are the ids
    strings = _is_strings(known) if name in nodes else any(map(_is_strings, ends.values()))
    for (edge_type, place), end in ends.items():
        file = files[edge_type]
        if strings and not _is_strings(end) and _is_text(path := file.path):
            distinct, codes = np.unique(end, return_inverse=True)
            where: Any = f"{path}, row {{}}".format
            if isinstance(path, FileTable):
                where = partial(path.place, name=file.dst if place else file.src)
            ends[edge_type, place] = Encoded(list(map(str, distinct.tolist())), codes, where)
        elif strings != _is_strings(end) and len(end):
            raise _mixed(name, end, what_of(file.path))
    if name not in nodes:
        for end in ends.values():
            _check_written_as_ids(end)
        nodes[name] = NodeTable(ids=_distinct(list(ends.values()), strings))
        count, kind = len(nodes[name].ids), "strings" if strings else "integers"
        _LOG.warning(
            "node type %r has no file: its nodes are the %d ids (%s) of its edges", name, count, kind
        )
    for (edge_type, place), end in ends.items():
        both = list(edges[edge_type].edges)
        both[place] = end
        edges[edge_type] = dataclasses.replace(edges[edge_type], edges=tuple(both))


def _check_written_as_ids(end: Any) -> None:
    """Refuse non-integers and markers of missing values: no file says that these are ids."""
    if not isinstance(end, Encoded) or not len(end):
        return
    counts = np.bincount(end.codes, minlength=len(end.distinct))
    integers = np.array([_DIGITS.fullmatch(text) is not None for text in end.distinct])
    odd = np.array([_ODD.fullmatch(text) is not None for text in end.distinct]) & ~integers
    num_integers, num_odd = int(counts[integers].sum()), int(counts[odd].sum())
    if num_integers == len(end) - 1 >= _FEWEST and not integers[end.codes[0]]:
        place = end.place(0) if end.place else "edge 0"
        raise GraphError(
            f"{place}: {end[0]!r} is the only one of {len(end)} cells that is not an integer. If it is a "
            "column's name, omit --no-header, or delete the line; if it is an id, add a node file that "
            "lists the ids"
        )
    if num_odd and (2 * num_integers >= len(end) or num_odd + num_integers == len(end)):
        row = int(odd[end.codes].argmax())
        place = end.place(row) if end.place else f"edge {row}"
        raise GraphError(
            f"{place}: {end[row]!r} cannot be an id: ids are integers or text ({num_odd} of {len(end)} "
            f"cells are like it, {num_integers} are integers); write all ids in one form, delete such "
            "lines, or add a node file that lists the ids"
        )


def _is_strings(ids: Any) -> bool:
    return isinstance(ids, Encoded) and len(ids.distinct) > 0


def _is_text(path: Any) -> bool:
    is_text = isinstance(path, str | Path) and not str(path).lower().endswith(TYPED)
    return bool(getattr(path, "is_text", is_text))


def what_of(source: Any) -> str:
    """A file or frame, for messages."""
    if isinstance(source, FileTable):
        return source.what
    return str(source) if isinstance(source, str | Path) else f"the {type(source).__name__}"


def _mixed(name: str, end: Any, what: str) -> GraphError:
    if not isinstance(end, Encoded):
        return GraphError(
            f"node type {name!r} has string ids, and the edges of {what} hold integers, such as {end[0]}; "
            "use ids of one kind in both files"
        )
    odd = {code for code, text in enumerate(end.distinct) if not _INTEGER.fullmatch(str(text))}
    row = next((row for row, code in enumerate(end.codes.tolist()) if code in odd), 0)
    place = end.place(row) if end.place else f"edge {row}"
    return GraphError(f"{place}: {end[row]!r} is not an integer, and node type {name!r} has integer ids")


def _distinct(ends: list[Any], strings: bool) -> Any:
    if strings:
        used = {end.distinct[code] for end in ends if len(end) for code in np.unique(end.codes).tolist()}
        return sorted(used)
    return np.unique(np.concatenate([np.asarray(as_array(end, "edges"), np.int64) for end in ends]))
