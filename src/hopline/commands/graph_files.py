"""Node and edge files from the options of `hopline graph build`.

Most options name a column for all files, or as TYPE=COLUMN for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hopline.doors import Door
from hopline.errors import GraphError
from hopline.graph import EdgeFile, NodeFile
from hopline.graph.cells import Missing
from hopline.graph.schema import EDGE_TYPE, GRAPH_TYPE, MEMBER_OF, NODE_TYPE
from hopline.graph.tables import EdgeType
from hopline.graph.text_table import TextFormat

#: The beginning of a source that is not a file, and what reads it: (text, database) -> table.
TABLES = Door("hopline.tables", packages={"sql": "'hopline[sql]'"})


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Options that apply to all files.

    Attributes:
        text, missing, rounded: as in `NodeFile`.
        database: address of the one that queries read.
    """

    text: TextFormat
    missing: Missing
    rounded: Sequence[str]
    database: str = ""

    def node_files(
        self,
        files: Sequence[str],
        ids: Sequence[str],
        features: Sequence[str],
        exclude: Sequence[str],
        columns: Sequence[str],
        ids_are_rows: bool,
        edges: Sequence[str],
        times: tuple[Sequence[str], Sequence[str]],
        history: tuple[Sequence[str], Sequence[str]] = ((), ()),
    ) -> dict[str, NodeFile]:
        """Node type -> file.

        Args:
            edges: edge files, whose types `exclude` and `columns` may name.
            times: columns, their units; history: columns, since when; texts that name the type count.
        Raises: GraphError: no option names the id column of a file.
        """
        paths = self._by_type(files, NODE_TYPE)
        types = {*paths, *(text.partition("=")[0] for text in edges), ":".join(EDGE_TYPE)}
        found = {}
        for name, path in paths.items():
            id_of = _only(_for(ids, name, types), "--id", name)
            if id_of is None and not ids_are_rows:
                raise GraphError(
                    f"{path}: say which column holds the ids of node type {name!r}: --id COLUMN (for one "
                    f"of several files --id {name}=COLUMN), or --ids-are-rows if row numbers are the ids"
                )
            chosen = _for(features, name, paths)
            found[name] = NodeFile(
                path,
                id_of,
                tuple(chosen) if chosen else None,
                tuple(_for(exclude, name, types)),
                self.rounded,
                self.text,
                self.missing,
                tuple(_for(columns, name, types, add=True)),
                _only(_named(times[0], name), "--time", name),
                _only(_named(times[1], name), "--time-unit", name) or "",
                _only(_for(history[0], name, types), "--history", name),
                _only(_for(history[1], name, types), "--history-since", name),
            )
        return found

    def edge_files(
        self,
        files: Sequence[str],
        columns: Mapping[str, Sequence[str] | None],
        attr: Sequence[str],
        undirected: bool,
        signed_weights: bool,
        kept: Sequence[str],
        exclude: Sequence[str],
        ids: Sequence[str],
    ) -> dict[EdgeType, EdgeFile]:
        """Edge type -> file.

        Args:
            columns: attribute of `EdgeFile` -> texts of its options.
            kept, exclude, ids: columns, those that are not, and ids, of all files: the texts that name the
                type count.
            undirected, signed_weights: apply to all files.
        Raises: GraphError: an invalid edge type, or several columns where one is allowed.
        """
        paths = self._by_type(files, ":".join(EDGE_TYPE))
        found: dict[EdgeType, EdgeFile] = {}
        types = {*paths, *(part for name in paths for part in name.split(":")[::2])}
        for name, path in paths.items():
            parts = name.split(":")
            if len(parts) != 3:
                raise GraphError(f"an edge type is SRC:RELATION:DST; got {name!r}")
            options = {
                option: _only(_for(values or (), name, types), f"--{option.replace('_', '-')}", name)
                for option, values in columns.items()
            }
            found[parts[0], parts[1], parts[2]] = EdgeFile(
                path,
                options["src"] or "src",
                options["dst"] or "dst",
                tuple(_for(attr, name, paths)),
                options["time"],
                options["weight"],
                undirected,
                options["time_unit"] or "",
                self.rounded,
                self.text,
                self.missing,
                signed_weights,
                _named(kept, name),
                _named(exclude, name),
                _only(_named(ids, name), "--id", name),
            )
        return found

    def memberships(
        self, node_files: dict[str, NodeFile], edge_files: dict[EdgeType, EdgeFile], columns: Sequence[str]
    ) -> None:
        """Add the edges from nodes to their graphs, of the columns that name these."""
        for name, file in list(node_files.items()):
            if column := _only(_for(columns, name, node_files), "--graph-column", name):
                ends = EdgeFile(file.path, file.id or "", column, text=self.text, missing=self.missing)
                edge_files[name, MEMBER_OF, GRAPH_TYPE] = ends
                node_files[name] = replace(file, exclude=(*file.exclude, column))

    def _by_type(self, files: Sequence[str], default: str) -> dict[str, Any]:
        """Split NAME=FILE or NAME=QUERY; a file or query alone is of the default type."""
        found: dict[str, Any] = {}
        for text in files:
            name, equals, source = text.partition("=")
            if _scheme(text) or not (equals and (_scheme(source) or not Path(text).exists())):
                name, source = default, text
            if name in found:
                why = "two files have the same type; name each file's type"
                raise GraphError(f"{why}: TYPE=FILE or SRC:RELATION:DST=FILE")
            scheme = _scheme(source)
            query = source[len(scheme) + 1 :]
            found[name] = TABLES.require(scheme)(query, self.database) if scheme else Path(source)
        return found


def _scheme(source: str) -> str:
    scheme, colon, _ = source.partition(":")
    return scheme if colon and scheme in TABLES.packages else ""


def missing(na: Sequence[str], fill: Sequence[str]) -> Missing:
    """Marks and fill of missing values. Raises: GraphError: `fill` is not a number."""
    every = [text for text in fill if "=" not in text]
    if not every and not fill:
        return Missing(tuple(na))
    named = dict(text.rsplit("=", 1) for text in fill if "=" in text)
    if every and named:
        raise GraphError("--fill is one number for all columns, or COLUMN=NUMBER for each; not both")
    if every:
        return Missing(tuple(na), _number(_only(every, "--fill", "all columns") or ""))
    return Missing(tuple(na), {name: _number(text) for name, text in named.items()})


def counts(given: Sequence[str], edge_files: Iterable[EdgeType]) -> dict[str, int] | None:
    """Node type -> number of nodes. Raises: GraphError: not a number, or no such type."""
    if not given:
        return None
    names = {name for edge_type in edge_files for name in (edge_type[0], edge_type[2])}
    found = {}
    for text in given:
        name, equals, number = text.rpartition("=")
        if not equals and len(names) > 1:
            raise GraphError(f"--num-nodes {text}: name the type: TYPE={text}")
        name = name if equals else next(iter(names))
        if name not in names or not number.isdecimal():
            raise GraphError(
                f"--num-nodes is NUMBER or TYPE=NUMBER of {', '.join(sorted(names))}; got {text!r}"
            )
        found[name] = int(number)
    return found


def _for(values: Sequence[str], name: str, types: Iterable[str], *, add: bool = False) -> list[str]:
    """The values for one type: those that name it, else (`add`: after) those without a type."""
    types, own = set(types), _named(values, name)
    others = [text for text in values if "=" not in text or text.partition("=")[0] not in types]
    return others + own if add else own or others


def _named(values: Sequence[str], name: str) -> list[str]:
    return [text.removeprefix(f"{name}=") for text in values if text.startswith(f"{name}=")]


def _only(values: Sequence[str], option: str, name: str) -> str | None:
    if len(values) > 1:
        raise GraphError(f"{option} is given {len(values)} times for {name}: {', '.join(values)}; give one")
    return values[0] if values else None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise GraphError(f"--fill is a number, or COLUMN=NUMBER; got {text!r}") from None
