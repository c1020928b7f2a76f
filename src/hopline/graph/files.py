"""Node and edge tables from files: Parquet, CSV, .npy and .npz, told apart by their ending."""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hopline.errors import GraphError
from hopline.graph import delimited, parquet
from hopline.graph.progress import Progress, silent
from hopline.graph.tables import EdgeTable, EdgeType, Encoded, NodeTable
from hopline.types import AnyArray

_ENDINGS = (".parquet", ".csv", ".npy", ".npz")


@dataclass(frozen=True, slots=True)
class NodeFile:
    """Where one node type's table is.

    Attributes:
        path: .parquet and .csv have named columns; .npy is the feature matrix; .npz may hold `features`
            (or `x`) and `ids`.
        id: column of the ids; None means that row numbers are the ids.
        features: columns of the features, in order; None means every numeric one but `id`. In Parquet
            one column of lists is the whole matrix.
    """

    path: str | Path
    id: str | None = None
    features: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class EdgeFile:
    """Where one edge type's table is.

    Attributes:
        path: .parquet and .csv have named columns; .npy is [2, E] or [E, 2]; .npz holds `edges` (or
            `edge_index`) and may hold `edge_attr`, `edge_time`, `edge_weight`.
        src, dst: columns of the ends.
        attr, time, weight: columns of the attributes, the time and the weight.
        undirected: as in `EdgeTable`.
    """

    path: str | Path
    src: str = "src"
    dst: str = "dst"
    attr: Sequence[str] = ()
    time: str | None = None
    weight: str | None = None
    undirected: bool = False


def read_tables(
    node_files: Mapping[str, NodeFile] | None,
    edge_files: Mapping[EdgeType, EdgeFile],
    progress: Progress = silent,
) -> tuple[dict[str, NodeTable], dict[EdgeType, EdgeTable]]:
    """Read all tables of a graph.

    Raises: GraphError: a file or column is absent or cannot be read.
    """
    edges = {edge_type: read_edges(file, progress) for edge_type, file in edge_files.items()}
    if node_files is None:
        return {name: NodeTable() for end in edges for name in (end[0], end[2])}, edges
    nodes = {name: read_nodes(file, progress) for name, file in node_files.items()}
    for edge_type, file in edge_files.items():
        if Path(file.path).suffix.lower() == ".csv":
            # CSV has no types: a column of digits names strings where the nodes' ids are strings.
            ends = tuple(
                _as_strings(end) if name in nodes and isinstance(nodes[name].ids, Encoded) else end
                for name, end in zip(edge_type[::2], edges[edge_type].edges, strict=True)
            )
            edges[edge_type] = dataclasses.replace(edges[edge_type], edges=ends)
    return nodes, edges


def read_nodes(file: NodeFile, progress: Progress = silent) -> NodeTable:
    """Read a node table. Raises: GraphError: it cannot be read, or a column is absent."""
    path = Path(file.path)
    ending = _ending(path)
    if ending == ".npy":
        return NodeTable(_npy(path))
    if ending == ".npz":
        arrays = _npz(path)
        return NodeTable(_one_of(arrays, "features", "x"), ids=arrays.get("ids"))
    columns = parquet if ending == ".parquet" else delimited
    names = columns.numeric_names(path) if file.features is None else list(file.features)
    names = [name for name in names if name != file.id]
    ids_of = [file.id] if file.id else []
    table = columns.read(path, [*names, *ids_of], ids=ids_of, progress=progress)
    values = [table[name] for name in names]
    if len(values) == 1 and getattr(values[0], "ndim", 1) == 2:
        features, names = values[0], []
    else:
        features = _side_by_side(values, names, path)
    ids = table[file.id] if file.id else None
    return NodeTable(features, ids=ids, feature_names=names)


def read_edges(file: EdgeFile, progress: Progress = silent) -> EdgeTable:
    """Read an edge table. Raises: GraphError: it cannot be read, or a column is absent."""
    path = Path(file.path)
    ending = _ending(path)
    if ending == ".npy":
        return EdgeTable(_two_rows(_npy(path)), undirected=file.undirected)
    if ending == ".npz":
        arrays = _npz(path)
        edges = _one_of(arrays, "edges", "edge_index")
        if edges is None:
            raise GraphError(f"{path}: no array `edges` or `edge_index`; it holds {', '.join(arrays)}")
        return EdgeTable(
            _two_rows(edges),
            attr=arrays.get("edge_attr"),
            time=arrays.get("edge_time"),
            weight=arrays.get("edge_weight"),
            undirected=file.undirected,
        )
    columns = parquet if ending == ".parquet" else delimited
    optional = [name for name in (file.time, file.weight) if name]
    ends = [file.src, file.dst]
    table = columns.read(path, [*ends, *file.attr, *optional], ids=ends, progress=progress)
    return EdgeTable(
        (table[file.src], table[file.dst]),
        attr=_side_by_side([table[name] for name in file.attr], file.attr, path) if file.attr else None,
        time=table[file.time] if file.time else None,
        weight=table[file.weight] if file.weight else None,
        attr_names=file.attr,
        undirected=file.undirected,
    )


def _as_strings(end: Any) -> Any:
    if isinstance(end, Encoded):
        return end
    distinct, codes = np.unique(end, return_inverse=True)
    return Encoded(list(map(str, distinct.tolist())), codes)


def _ending(path: Path) -> str:
    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        raise GraphError(f"{path}: files may end in {', '.join(_ENDINGS)}; not in {ending!r}")
    if not path.is_file():
        raise GraphError(f"{path}: there is no such file")
    return ending


def _npy(path: Path) -> AnyArray:
    try:
        array: AnyArray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise GraphError(f"{path} cannot be read as a .npy array: {error}") from None
    return array


def _npz(path: Path) -> dict[str, AnyArray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise GraphError(f"{path} cannot be read as .npz arrays: {error}") from None


def _one_of(arrays: Mapping[str, AnyArray], *names: str) -> AnyArray | None:
    return next((arrays[name] for name in names if name in arrays), None)


def _two_rows(edges: AnyArray) -> AnyArray:
    return edges.T if edges.ndim == 2 and edges.shape[1] == 2 and edges.shape[0] != 2 else edges


def _side_by_side(values: Sequence[Any], names: Sequence[str], path: Path) -> AnyArray | None:
    if not values:
        return None
    for value, name in zip(values, names, strict=True):
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub" or value.ndim != 1:
            raise GraphError(f"{path}: column {name!r} must hold numbers to be a feature or an attribute")
    # 64-bit integers become floats here rather than in one column's type for all.
    return np.stack(
        [np.asarray(value, np.float64 if value.dtype == np.float64 else np.float32) for value in values],
        axis=1,
    )
