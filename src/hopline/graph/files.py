"""Reads node and edge tables from files and frames; the ending of a file name decides its format."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hopline.errors import GraphError
from hopline.graph import cells, file_ids
from hopline.graph.cells import FileTable, Missing
from hopline.graph.columns import matrix
from hopline.graph.list_columns import KIND
from hopline.graph.stored_columns import is_label
from hopline.graph.tables import EdgeTable, EdgeType, NodeTable, check_by_type
from hopline.graph.text_stream import PACKED
from hopline.graph.text_table import TextFormat, TextTable
from hopline.graph.typed_columns import typed_columns
from hopline.graph.typed_table import TYPED, TypedTable
from hopline.types import AnyArray, Progress, silent

_TEXT = (".csv", ".tsv", ".txt")
_ARRAYS = (".npy", ".npz")
_LOG = logging.getLogger("hopline.graph")
_OF_ONE_FILE = "to name a column of one file only, write TYPE=COLUMN"
#: Names that pandas gives to the index of a frame when it writes CSV, when it reads that, and in Parquet.
_INDEX = re.compile(r"\s*|Unnamed: [0-9]+|__index_level_[0-9]+__").fullmatch


@dataclass(frozen=True, slots=True)
class NodeFile:
    """The source of one node type's table.

    Attributes:
        path: text (.csv, .tsv, .txt, also packed: .gz, .bz2, .xz, .zst), .parquet, .feather or .arrow. Or a
            pandas or polars DataFrame or a `pyarrow.Table`.
        id: column of the ids; None means that row numbers are the ids.
        features: columns of the features, in order; None means every numeric column but `id`, or, with
            `columns`, none. A single column of lists is the whole matrix.
        exclude: columns that are neither features nor `columns`.
        columns: columns that are kept unchanged, for the preprocessing of models: NAME, NAME:TYPE (as in
            `NodeTable.column_types`), or "*" for all others. A missing cell stays missing.
        time, history: columns, as in `NodeTable`; history_since, time_unit: as there.
        rounded: columns whose numbers may be rounded to float32.
        text: the format of a text file.
        missing: which cells are missing values, and what replaces them.
    """

    path: Any
    id: str | None = None
    features: Sequence[str] | None = None
    exclude: Sequence[str] = ()
    rounded: Sequence[str] = ()
    text: TextFormat = field(default_factory=TextFormat)
    missing: Missing = field(default_factory=Missing)
    columns: Sequence[str] = ()
    time: str | None = None
    time_unit: str = ""
    history: str | None = None
    history_since: Any = None

    def __post_init__(self) -> None:
        _one_name_is_a_list(self, "features", "exclude", "rounded", "columns")


@dataclass(frozen=True, slots=True)
class EdgeFile:
    """The source of one edge type's table.

    Attributes:
        path: as in `NodeFile`.
        src, dst: columns of the ends; in a text file without a header these are also names of the first
            two columns.
        attr, time, weight: columns of the attributes, the time and the weight.
        undirected, time_unit, signed_weight: as in `EdgeTable`.
        rounded, text, missing: as in `NodeFile`.
        columns, exclude: as in `NodeFile`, in place of `attr`; "*" means those without another role.
        id: column of the edges' ids, as `EdgeTable.id`.
    """

    path: Any
    src: str = "src"
    dst: str = "dst"
    attr: Sequence[str] = ()
    time: str | None = None
    weight: str | None = None
    undirected: bool = False
    time_unit: str = ""
    rounded: Sequence[str] = ()
    text: TextFormat = field(default_factory=TextFormat)
    missing: Missing = field(default_factory=Missing)
    signed_weight: bool = False
    columns: Sequence[str] = ()
    exclude: Sequence[str] = ()
    id: str | None = None

    def __post_init__(self) -> None:
        _one_name_is_a_list(self, "attr", "rounded", "columns", "exclude")


def _one_name_is_a_list(file: Any, *fields: str) -> None:
    """Convert a string to a list of one name, so that it is not read as a list of letters."""
    for name in fields:
        if isinstance(getattr(file, name), str):
            object.__setattr__(file, name, (getattr(file, name),))


def read_tables(
    node_files: Mapping[str, NodeFile] | None,
    edge_files: Mapping[EdgeType, EdgeFile],
    *,
    ids_are_rows: bool = False,
    num_nodes: Mapping[str, int] | None = None,
    progress: Progress = silent,
) -> tuple[dict[str, NodeTable], dict[EdgeType, EdgeTable]]:
    """Read all tables of a graph. Omitted columns, and nodes that no file lists, are logged.

    Args:
        ids_are_rows: edges hold row numbers, also of node types without a file. Otherwise the nodes of
            such a type are the distinct ids in the edge files, sorted.
        num_nodes: of node types whose ids are rows and that have no file.
    Raises: GraphError: a file or column is missing or cannot be read; a node file is of a type that no edge
        file uses.
    """
    node_files = {} if node_files is None else node_files
    for files, kind in ((node_files, NodeFile), (edge_files, EdgeFile)):
        check_by_type(files, kind, "A path or frame is its first argument")
    names = {name for edge_type in edge_files for name in (edge_type[0], edge_type[2])}
    counts = num_nodes or {}
    for name, node_file in node_files.items():
        what = file_ids.what_of(node_file.path)
        if name not in names:
            known = f"edges join {', '.join(map(repr, sorted(names)))}" if names else "there are no edges"
            raise GraphError(f"{what}: no edge file uses its node type, {name!r}; {known}")
        if name in counts:
            raise GraphError(
                f"{what} already defines the number of nodes of type {name!r}; omit --num-nodes"
            )
    of_nodes = {name: read_nodes(file, progress) for name, file in node_files.items()}
    sources = [id(file.path) for file in node_files.values()]  # whose other columns are of nodes
    of_edges = {
        edge_type: read_edges(file, progress, report=id(file.path) not in sources)
        for edge_type, file in edge_files.items()
    }
    numbers = [name for each in (*of_nodes.values(), *of_edges.values()) for name in each[1]]
    _check_named([*node_files.values(), *edge_files.values()], numbers)
    nodes = {name: table for name, (table, _) in of_nodes.items()}
    edges = {edge_type: table for edge_type, (table, _) in of_edges.items()}
    if ids_are_rows:
        nodes |= {name: NodeTable(num_nodes=counts.get(name)) for name in sorted(names - nodes.keys())}
        return nodes, {name: replace(table, by_row=True) for name, table in edges.items()}
    if num_nodes:
        raise GraphError(
            "the ids in the files define the number of nodes; if they are row numbers, pass --ids-are-rows"
        )
    for name in sorted(names | nodes.keys()):
        file_ids.unify_ids(name, nodes, edges, edge_files)
    return nodes, edges


def _check_named(files: Sequence[NodeFile | EdgeFile], columns: Sequence[str]) -> None:
    """Refuse names of columns in `rounded` and `missing.fill` that no file has."""
    fills = [file.missing.fill for file in files if isinstance(file.missing.fill, Mapping)]
    for what, option, names in (
        ("rounded", "--round", [name for file in files for name in file.rounded]),
        ("filled", "--fill", [name for fill in fills for name in fill]),
    ):
        unknown = [name for name in dict.fromkeys(names) if name not in columns]
        if unknown:
            known = list(dict.fromkeys(columns))
            more = f" and {len(known) - 30} more" if len(known) > 30 else ""
            raise GraphError(
                f"no numbers are read from {', '.join(map(repr, unknown))}, which should be {what} "
                f"({option}); the columns with numbers are "
                f"{', '.join(map(repr, known[:30])) or 'none'}{more}"
            )


def read_nodes(file: NodeFile, progress: Progress = silent) -> tuple[NodeTable, list[str]]:
    """Read a node table; and the names of its columns with numbers.

    Raises: GraphError: it cannot be read, or a column is missing.
    """
    roles = {role: name for role, name in (("time", file.time), ("history", file.history)) if name}
    id_of, time = [file.id] if file.id else [], [*roles.values()]
    table = open_table(
        file.path, file.text, [*id_of, *time, *(file.features or ()), *file.exclude], progress
    )
    id_of, time = _found(table, *id_of), _found(table, *time)
    excluded = _found(table, *file.exclude)
    left_out = []
    rest = [name for name in table.names if name not in (*id_of, *time, *excluded)]
    usual = [name for name in rest if not _INDEX(name)]
    kept = _kept_columns(table, file.columns, usual)
    if file.features is not None:
        names = _found(table, *file.features)
        _check_features(table, names, excluded)
    elif file.columns:
        names = []
    else:
        numbers = [name for name in rest if _INDEX(name)]
        left_out = [f"{name.strip() or 'a column without a name'} (a row number)" for name in numbers]
        names = usual
    table.load([*names, *id_of, *time, *kept])
    own: dict[str, Any] = {"time_unit": file.time_unit, "history_since": file.history_since}
    own |= {role: cells.times(table, name, file.missing) for role, name in zip(roles, time, strict=True)}
    ids = cells.ids(table, id_of[0], file.missing) if id_of else None
    values: dict[str, AnyArray] = {}
    for name in names:
        value = cells.numbers(table, name, file.missing, named=file.features is not None)
        if isinstance(value, str):
            left_out.append(f"{name} ({value})")
        else:
            values[name] = value
    if left_out:
        _LOG.warning("%s: left out: %s", table.what, ", ".join(left_out))
    if file.features is None:
        _refuse_labels(table, values, "name all features with --feature")
    if len(values) == 1 and next(iter(values.values())).ndim == 2:
        ((name, value),) = values.items()
        every = range(value.shape[1]) if name in file.rounded else ()
        return NodeTable(value, ids=ids, rounded=every, **own), [name]
    features, rounded = _side_by_side(values, table, file.rounded)
    of_ids = features is not None or file.history
    rows = None if of_ids else len(table.column([*id_of, *names, *time, *kept][0]))
    nodes = NodeTable(features, num_nodes=rows, ids=ids, feature_names=list(values), rounded=rounded, **own)
    if kept:
        nodes = replace(nodes, **_read_columns(table, kept, file.missing))
    return nodes, list(values)


def _read_columns(table: FileTable, kept: Mapping[str, str], missing: Missing) -> dict[str, Any]:
    read = typed_columns(table, kept, missing)
    return {"columns": read, "column_types": dict.fromkeys(read.column_names, "")}


def _kept_columns(table: FileTable, given: Sequence[str], rest: Sequence[str]) -> dict[str, str]:
    """Column -> its type, or "" to detect it; `rest`: the columns that "*" means."""
    found = {}
    for text in given:
        typed = re.fullmatch(f"(.+?):({KIND})", text, re.DOTALL)
        if text not in table.names and typed:
            found[_found(table, typed[1])[0]] = typed[2]
        elif text != "*":
            found[_found(table, text)[0]] = ""
    if "*" in given:
        _refuse_labels(table, [name for name in rest if name not in found], "keep it with --column {}")
        found = {name: found.get(name, "") for name in (*rest, *found)}
    return found


def _refuse_labels(table: FileTable, names: Iterable[str], otherwise: str) -> None:
    if labels := [name for name in names if is_label(name)]:
        raise GraphError(
            f"{table.what}: {', '.join(labels)}: by name what a model predicts; leave it out with "
            f"--exclude {labels[0]}, or {otherwise.format(labels[0])}"
        )


def read_edges(
    file: EdgeFile, progress: Progress = silent, *, report: bool = True
) -> tuple[EdgeTable, list[str]]:
    """Read an edge table; and the names of its columns with numbers.

    Args:
        report: log the columns that are left out.
    Raises: GraphError: it cannot be read, or a column is missing.
    """
    optional = [name for name in (file.time, file.weight) if name]
    table = open_table(file.path, file.text, [file.src, file.dst, *file.attr, *optional], progress)
    src, dst, *found = _found(table, file.src, file.dst, *file.attr, *optional)
    attr = found[: len(file.attr)]
    rest = found[len(file.attr) :]
    time = rest[0] if file.time else None
    weight = rest[-1] if file.weight else None
    used = [src, dst, *found, *_found(table, *file.exclude)]
    others = [name for name in table.names if name not in used and not _INDEX(name)]
    kept = _kept_columns(table, file.columns, others)
    id_of = _found(table, *([file.id] if file.id else []))
    kept |= dict.fromkeys(id_of, "text")
    if report and (left_out := [name for name in others if name not in kept]):
        _LOG.warning("%s: left out: %s; columns= (--column) keeps them", table.what, ", ".join(left_out))
    table.load([src, dst, *found, *kept])
    columns: dict[str, Any] = {
        name: cells.numbers(table, name, file.missing, named=True) for name in (*attr, weight) if name
    }
    values, rounded = _side_by_side({name: columns[name] for name in attr}, table, file.rounded)
    edges = EdgeTable(
        (cells.ids(table, src, file.missing), cells.ids(table, dst, file.missing)),
        attr=values,
        time=cells.times(table, time, file.missing) if time else None,
        weight=columns[weight] if weight else None,
        attr_names=file.attr,
        undirected=file.undirected,
        time_unit=file.time_unit,
        signed_weight=file.signed_weight,
        rounded=rounded,
        rounded_weight=weight in file.rounded,
        id="".join(id_of),
        **(_read_columns(table, kept, file.missing) if kept else {}),
    )
    return edges, list(columns)


def _check_features(table: FileTable, names: Sequence[str], excluded: Sequence[str]) -> None:
    for place, name in enumerate(names):
        if name in names[:place]:
            raise GraphError(f"{table.what}: feature {name!r} is repeated")
        if name in excluded:
            raise GraphError(f"{table.what}: column {name!r} is named as a feature, and excluded")


def _checked(path: Any) -> Any:
    """The checked path, or the frame unchanged."""
    if not isinstance(path, str | Path):
        return path
    path = Path(path)
    if path.is_dir():
        raise GraphError(f"{path} is a folder; pass one file (join the files of the folder)")
    ending = _ending(path)
    if ending in _ARRAYS:
        shape = "edges are [2, E], the sources first, also where [2, 2] could be either"
        raise GraphError(f"{path} holds arrays: pass np.load({path.name!r}) to Graph.from_edges; {shape}")
    if ending not in (*_TEXT, *TYPED):
        raise GraphError(
            f"{path}: files may end in {', '.join((*_TEXT, *TYPED))}, text also in {', '.join(PACKED)}; "
            f"not in {path.suffix!r}"
        )
    if not path.is_file():
        raise GraphError(f"{path}: no such file")
    return path


def _ending(path: Path) -> str:
    ending = path.suffix.lower()
    inner = path.with_suffix("").suffix.lower()
    return inner if ending in PACKED and inner in _TEXT else ending


def open_table(source: Any, options: TextFormat, wanted: Sequence[str], progress: Progress) -> FileTable:
    """Open a file or a frame, as in `NodeFile`; see `TextTable`. Raises: GraphError."""
    if isinstance(source, FileTable):  # opened before
        return source
    path = _checked(source)
    if isinstance(path, Path) and _ending(path) in _TEXT:
        return TextTable(path, options, wanted, lambda done: progress(f"reading {path}", done))
    return TypedTable(path, lambda done: progress("reading", done))


def _found(table: FileTable, *names: str) -> list[str]:
    """The columns with these names. Raises: GraphError: one is missing."""
    found = [table.find(name) for name in names]
    absent = [name for name, column in zip(names, found, strict=True) if column is None]
    if absent:
        with_header = table.is_text and table.has_header
        hint = "; if its first line is not a header, pass --no-header" if with_header else ""
        if table.is_text and len(table.names) == 1:
            hint = (
                "; its lines are not divided into cells: set --delimiter, or, if it is another format "
                "(GraphML, GML, Pajek, DIMACS), read it in Python, such as with networkx, and pass its "
                "edges to Graph.from_edges"
            )
        hint += f"; {_OF_ONE_FILE}"
        raise GraphError(
            f"{table.what}: no column {', '.join(map(repr, absent))}; there are "
            f"{', '.join(map(repr, table.names[:30]))}{hint}"
        )
    return [column for column in found if column is not None]


def _side_by_side(
    values: Mapping[str, Any], table: FileTable, rounded: Sequence[str]
) -> tuple[AnyArray | None, list[int]]:
    """The columns as a matrix; and those that may be rounded."""
    if not values:
        return None, []
    if any(value.ndim != 1 for value in values.values()):
        wide = next(name for name, value in values.items() if value.ndim != 1)
        raise GraphError(f"{table.what}: column {wide!r} holds lists, which must be the only column")
    result = np.empty((len(next(iter(values.values()))), len(values)), np.float32)
    accepted = []
    for at, (name, value) in enumerate(values.items()):
        column, may_round = matrix(
            value, table.what, names=[name], rounded=[name] if name in rounded else ()
        )
        result[:, at] = column[:, 0]
        accepted += [at] if may_round else []
    return result, accepted
