"""A snapshot on disk: a folder of `graph.json` and one `.npy` file for each array.

    graph.json
    nodes/<type>/features.npy         [N, d]; uint16 where they are bfloat16
    nodes/<type>/scale.npy, offset.npy  float32 [d], where features are int8
    nodes/<type>/columns.npy          uint8: an Arrow IPC file (`stored_columns.py`)
    nodes/<type>/labels.arrow         the same for training only: graph.json does not list it
    nodes/<type>/ids/values.npy       int ids; blob.npy and offsets.npy for string ids
    nodes/<type>/ids/slots.npy        the hash table over them
    nodes/<type>/ids/removed.npy      int64, rows of removed nodes; the other files have none of them
    nodes/<type>/history/offsets.npy, times.npy, features.npy, columns.npy    see `history.py`
    edges/<key>/indptr.npy, indices.npy, time.npy, attr.npy, weight.npy, cumweight.npy
    edges/<key>/indptr_*.npy, packed_*.npy, weight_*.npy    instead of these, where compressed (`codec.py`)
    edges/<key>/columns.npy           as of nodes, in the order of the lists
    edges/<key>/id_slots.npy          the hash table over the column of ids

Type names are quoted as in URLs. Opening maps the files and compares each one's size, dtype and
shape with graph.json, and checks the contents that compiled code indexes by (`integrity.py`). Hashes are
compared by `verify`, and by servers (`file_watch.py`).
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hopline.errors import GraphError
from hopline.files import check_regular, draft_of, publish_folder, sync
from hopline.graph import codec, digest, integrity, narrow
from hopline.graph.columns import read_only
from hopline.graph.edge_ids import EdgeIds
from hopline.graph.history import History, wrong_places
from hopline.graph.ids import IdIndex
from hopline.graph.parts import Adjacency, Nodes
from hopline.graph.schema import GraphSchema, check_name, quoted
from hopline.graph.stored_columns import StoredColumns
from hopline.types import UNREADABLE, AnyArray, Progress, silent

#: 2: features may be codes of fewer bits (`narrow.py`). 3: edges may be packed. 4: times may have a unit.
#: 5: weights may be negative. 6: columns whose integers may be rounded are listed. 7: types may be derived.
#: 8: nodes may have columns. 9: edges may. 10: edges may have ids. 11: rows may be of removed nodes.
#: 12: nodes may have a history.
FORMAT_VERSION = 12
#: The oldest format whose packed edges can be read.
_PACKED_FORMAT = 3
MANIFEST, _LABELS = "graph.json", "nodes/{}/labels.arrow"
_CHUNK_BYTES = 32 << 20
#: Arrays that compiled code indexes by or adds up, by name: dtype and number of dimensions.
_KINDS = {
    "indptr": ("int64", 1),
    "indices": ("int32", 1),
    "time": ("int64", 1),
    "times": ("int64", 1),
    "attr": ("float32", 2),
    "weight": ("float32", 1),
    "cumweight": ("float64", 1),
    "values": ("int64", 1),
    "slots": ("int32", 1),
    "id_slots": ("int32", 1),
    "blob": ("uint8", 1),
    "offsets": ("int64", 1),
    "removed": ("int64", 1),
    "columns": ("uint8", 1),
}
#: Files whose numbers are only computed with.
_NOT_INDEXED_BY = ("/features", "/scale", "/offset", "/attr", "/columns")


class StoredArray(msgspec.Struct, frozen=True):
    """One file: dtype and shape of its array, size of the file, and the array's digest (`digest.py`)."""

    dtype: str
    shape: tuple[int, ...]
    file_bytes: int
    blake2b: str


class StoredEdges(msgspec.Struct, frozen=True):
    """Properties of an edge type that are known without reading its arrays."""

    num_edges: int
    max_degree: int
    has_self_loops: bool
    time_range: tuple[int, int] | None = None
    has_repeated_edges: bool | None = None


class Manifest(msgspec.Struct, frozen=True):
    """The content of graph.json.

    Attributes:
        version: the snapshot id.
        num_nodes: node type -> count.
        edges: edge type key -> counts.
        arrays: file below the folder, without ".npy" -> its array.
        producer: library -> version that wrote it.
        left_out: as in `Graph`.
        lineage: the snapshot id that it had before nodes of it were forgotten; "" for none.
    """

    version: str
    graph_schema: GraphSchema = msgspec.field(name="schema")
    num_nodes: dict[str, int]
    edges: dict[str, StoredEdges]
    arrays: dict[str, StoredArray]
    format: int = FORMAT_VERSION
    producer: dict[str, str] = {}
    left_out: dict[str, tuple[str, ...]] = {}
    lineage: str = ""


def arrays_of(nodes: Mapping[str, Nodes], edges: Mapping[str, Adjacency]) -> dict[str, AnyArray]:
    """Every stored array by its path below the folder, without ".npy"."""
    arrays: dict[str, AnyArray] = {}
    for name, part in nodes.items():
        arrays |= {f"nodes/{quoted(name)}/{field}": a for field, a in narrow.stored(part.features).items()}
        arrays |= {f"nodes/{quoted(name)}/ids/{field}": a for field, a in part.ids.arrays().items()}
        if part.columns is not None:
            arrays[f"nodes/{quoted(name)}/columns"] = part.columns.stored
        past = {} if part.history is None else part.history.arrays()
        arrays |= {f"nodes/{quoted(name)}/history/{field}": a for field, a in past.items()}
    for key, adjacency in edges.items():
        named = codec.stored(adjacency)
        arrays |= {f"edges/{quoted(key)}/{field}": a for field, a in named.items()}
    return arrays


def save(
    folder: Path,
    schema: GraphSchema,
    nodes: Mapping[str, Nodes],
    edges: Mapping[str, Adjacency],
    array_digests: Mapping[str, str],
    *,
    left_out: Mapping[str, tuple[str, ...]] | None = None,
    overwrite: bool,
    progress: Progress = silent,
) -> None:
    """Write a folder completely or not at all.

    The folder is written under a temporary name next to its path, synced, then renamed. An existing graph
    is exchanged in one step; processes that have it open continue to read the old one.

    Raises: GraphError: the folder exists (and is not a graph, or `overwrite` is off), or cannot be written.
    """
    folder = Path(os.path.abspath(folder))
    if folder.exists() and not (overwrite and (folder / MANIFEST).is_file()):
        what = (
            "a graph; pass overwrite=True to replace it" if (folder / MANIFEST).is_file() else "not a graph"
        )
        raise GraphError(f"{folder} exists and is {what}; or choose another folder")
    arrays = arrays_of(nodes, edges)
    scratch = draft_of(folder)
    try:
        scratch.mkdir(parents=True)
        stored = _write_arrays(scratch, arrays, array_digests, progress)
        for name, part in nodes.items():
            if part.labels is not None:
                (scratch / _LABELS.format(quoted(name))).write_bytes(part.labels.stored.tobytes())
        manifest = Manifest(
            version=digest.version_of(schema, array_digests),
            graph_schema=schema,
            num_nodes={name: part.num_nodes for name, part in nodes.items()},
            edges={
                key: StoredEdges(
                    part.num_edges,
                    part.max_degree,
                    part.has_self_loops,
                    part.time_range,
                    part.has_repeated_edges,
                )
                for key, part in edges.items()
            },
            arrays=stored,
            format=_format_of(schema, nodes, edges),
            producer={"numpy": np.__version__},
            left_out=dict(left_out or {}),
        )
        (scratch / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        publish_folder(scratch, folder, durable=True)
    except OSError as error:
        raise GraphError(f"{folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _format_of(schema: GraphSchema, nodes: Mapping[str, Nodes], edges: Mapping[str, Adjacency]) -> int:
    """The oldest format with all features of a graph: older readers must not misread codes."""
    kinds = {node_type.feature_dtype for node_type in schema.node_types.values()}
    if any(node_type.history for node_type in schema.node_types.values()):
        return 12
    if any(len(part.ids.removed) for part in nodes.values()):
        return 11
    if any(edge.id_column for edge in schema.edge_types.values()):
        return 10
    if any(edge.columns for edge in schema.edge_types.values()):
        return 9
    if any(node_type.columns for node_type in schema.node_types.values()):
        return 8
    if schema.both_directions:  # an older writer of a live graph would not change the derived types
        return 7
    packed = any(codec.is_compressed(part) for part in edges.values())
    if any(node.rounded for node in schema.node_types.values()) or any(
        edge.rounded or edge.rounded_weight for edge in schema.edge_types.values()
    ):
        return 6
    if any(part.signed_weight for part in edges.values()):
        return 5
    return 4 if schema.time_unit else 3 if packed else 2 if kinds & narrow.CODES.keys() else 1


def read(folder: Path) -> Manifest:
    """Read graph.json.

    Raises: GraphError: it is missing, malformed, of a newer format, or was changed.
    """
    path = folder / MANIFEST
    try:
        check_regular(folder)
        content = path.read_bytes()
    except FileNotFoundError:
        raise GraphError(f"{folder}: no {MANIFEST}; is this the folder of a graph?") from None
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error}") from error
    try:
        written = msgspec.json.decode(content, type=_FormatOnly).format
        if written > FORMAT_VERSION:
            raise GraphError(
                f"{path}: format {written} is newer than {FORMAT_VERSION}, which this Hopline reads; "
                "upgrade hopline"
            )
        manifest = msgspec.json.decode(content, type=Manifest)
    except UNREADABLE as error:
        raise GraphError(f"{path} is damaged: {error}; build the graph again") from None
    for name in manifest.graph_schema.node_types:
        check_name(name, f"{path}: a node type's name")
    for key, edge in manifest.graph_schema.edge_types.items():
        if not {edge.src, edge.dst} <= manifest.graph_schema.node_types.keys():
            raise GraphError(f"{path} is damaged: edge type {key!r} joins unknown node types")
        check_name(edge.relation, f"{path}: a relation's name")
        if key != edge.key:
            raise GraphError(f"{path} is damaged: edge type {edge.key!r} is stored under {key!r}")
    actual = digest.version_of(
        manifest.graph_schema, {name: array.blake2b for name, array in manifest.arrays.items()}
    )
    if actual != manifest.version:
        raise GraphError(
            f"{path} is damaged: its version is {manifest.version} but its contents hash to {actual}; "
            "copy or build the graph again"
        )
    return manifest


def load(
    folder: Path, manifest: Manifest, *, verify: bool
) -> tuple[dict[str, Nodes], dict[str, Adjacency]]:
    """Map the arrays of a graph.

    Args:
        verify: also read all of them and compare their digests.
    Raises: GraphError: a file is missing, truncated, of another dtype or shape, or (verify) changed;
        numbers in it lie outside the graph, or are not what graph.json says of them.
    """
    arrays = {name: map_array(folder, name, stored) for name, stored in manifest.arrays.items()}
    if verify:
        for name, actual in digest.digests(arrays).items():
            if actual != manifest.arrays[name].blake2b:
                raise GraphError(changed(folder / f"{name}.npy", actual, manifest.arrays[name]))
    try:
        nodes, edges = _nodes(folder / MANIFEST, manifest, arrays), _edges(folder, manifest, arrays)
    except KeyError as error:
        raise GraphError(f"{folder / MANIFEST} is damaged: it does not list {error}") from None
    _check_shapes(folder / MANIFEST, manifest, nodes, edges)
    _check_contents(folder, manifest, arrays, edges)
    return nodes, edges


def changed(path: Path, actual: str, stored: StoredArray) -> str:
    """The error in a file whose digest is another one."""
    return (
        f"{path} is damaged: its hash is {actual[:12]}…, {MANIFEST} says {stored.blake2b[:12]}…; copy or "
        "build the graph again"
    )


class _FormatOnly(msgspec.Struct):
    format: int


def _nodes(path: Path, manifest: Manifest, arrays: Mapping[str, AnyArray]) -> dict[str, Nodes]:
    nodes = {}
    for name, schema in manifest.graph_schema.node_types.items():
        own = below(f"nodes/{quoted(name)}/", arrays)
        index = IdIndex.from_arrays(schema.id_kind, manifest.num_nodes[name], below("ids/", own))
        history = None
        try:
            features = narrow.from_arrays(schema.feature_dtype, own)
            if schema.history is not None:
                past = below("history/", own)
                rows = narrow.from_arrays(schema.feature_dtype, {**own, "features": past["features"]})
                columns = StoredColumns(past["columns"]) if schema.columns else None
                history = History(past["offsets"], past["times"], rows, columns, schema.history.since)
        except ValueError as error:
            raise GraphError(
                f"{path} is damaged: node type {name!r}: {error}; build the graph again"
            ) from None
        columns = StoredColumns(own["columns"]) if schema.columns else None
        there = path.parent / _LABELS.format(quoted(name))
        labels = StoredColumns(np.fromfile(there, np.uint8)) if there.is_file() else None
        nodes[name] = Nodes(features, index, columns, labels, history)
    return nodes


def _edges(folder: Path, manifest: Manifest, arrays: Mapping[str, AnyArray]) -> dict[str, Adjacency]:
    edges = {}
    for key, schema in manifest.graph_schema.edge_types.items():
        own = below(f"edges/{quoted(key)}/", arrays)
        known = manifest.edges[key]
        arrays_of_lists: Any
        if codec.is_stored(own):
            counts = known.num_edges, manifest.num_nodes[schema.src], manifest.num_nodes[schema.dst]
            where = folder / "edges" / quoted(key)
            if manifest.format < _PACKED_FORMAT:
                raise GraphError(
                    f"{where}: its edges are packed in format {manifest.format}, which this Hopline "
                    "cannot read; build the graph again"
                )
            arrays_of_lists = codec.columns_of(own, *counts, schema, where)
        else:
            names = ("indptr", "indices", *(("weight", "cumweight") if schema.has_weight else ()))
            arrays_of_lists = {"weight": None, "cumweight": None} | {name: own[name] for name in names}
        columns, ids = StoredColumns(own["columns"]) if schema.columns else None, schema.id_column
        edges[key] = Adjacency(
            src=schema.src,
            relation=schema.relation,
            dst=schema.dst,
            time=own["time"] if schema.has_time else None,
            attr=own["attr"] if schema.attr_dim else None,
            **arrays_of_lists,
            has_self_loops=known.has_self_loops,
            has_repeated_edges=known.has_repeated_edges,
            max_degree=known.max_degree,
            stored_time_range=known.time_range,
            signed_weight=schema.signed_weight,
            columns=columns,
            ids=None if not ids or columns is None else EdgeIds(columns, ids, own["id_slots"]),
        )
    return edges


def _check_shapes(
    path: Path, manifest: Manifest, nodes: Mapping[str, Nodes], edges: Mapping[str, Adjacency]
) -> None:
    """Refuse arrays that disagree: compiled code would read beyond their ends."""
    wrong = []
    for name, stored in manifest.arrays.items():
        dtype, ndim = _KINDS.get(name.rpartition("/")[2], (None, 0))
        if dtype and (np.dtype(stored.dtype) != dtype or len(stored.shape) != ndim):
            wrong.append(f"{name} is {stored.dtype} {stored.shape}, not {dtype} of {ndim} dimensions")
    if wrong:
        raise GraphError(f"{path} is damaged: {'; '.join(wrong)}; build the graph again")
    for name, part in nodes.items():
        wanted = (manifest.num_nodes[name], manifest.graph_schema.node_types[name].feature_dim)
        if part.features.shape != wanted or len(part.ids) != wanted[0]:
            wrong.append(
                f"features {part.features.shape} or {len(part.ids)} ids of {name!r} are not {wanted}"
            )
        if part.history is not None and part.history.features.shape != (len(part.history.times), wanted[1]):
            wrong.append(f"the history of {name!r} has other rows of features than times, or columns")
    for key, adjacency in edges.items():
        num_dst, num_edges = nodes[adjacency.dst].num_nodes, manifest.edges[key].num_edges
        columns = {name: len(a) for name, a in adjacency.arrays().items()}
        columns = {
            name: rows for name, rows in columns.items() if name not in ("indptr", "columns", "id_slots")
        }
        if adjacency.indptr.shape != (num_dst + 1,) or adjacency.indptr[-1] != num_edges:
            wrong.append(f"indptr of {key!r} is not of {num_dst} destinations and {num_edges} edges")
        wrong += [
            f"{n} of {key!r} has {rows} rows, not {num_edges}"
            for n, rows in columns.items()
            if rows != num_edges
        ]
        dim = manifest.graph_schema.edge_types[key].attr_dim
        if adjacency.attr is not None and adjacency.attr.shape[1] != dim:
            wrong.append(f"attr of {key!r} has {adjacency.attr.shape[1]} columns, not {dim}")
    if wrong:
        raise GraphError(f"{path} is damaged: {'; '.join(wrong)}; build the graph again")


def _check_contents(
    folder: Path, manifest: Manifest, arrays: Mapping[str, AnyArray], edges: Mapping[str, Adjacency]
) -> None:
    """Refuse numbers that compiled code would follow out of the graph, and what graph.json says wrongly."""
    paths = [folder / f"{name}.npy" for name in arrays if not name.endswith(_NOT_INDEXED_BY)]
    note = integrity.CheckNote(paths, msgspec.json.encode(manifest))
    if note.read() == "":
        return
    counts = manifest.num_nodes
    for name in manifest.graph_schema.node_types:
        place = f"nodes/{quoted(name)}/"
        if wrong := integrity.wrong_ids(below(f"{place}ids/", arrays), counts[name]):
            raise GraphError(f"{folder / place}ids is damaged: {wrong}; build the graph again")
        past = below(f"{place}history/", arrays)
        if past and (wrong := wrong_places(past, counts[name])):
            raise GraphError(f"{folder / place}history is damaged: {wrong}; build the graph again")
    for key, part in edges.items():
        wrong = integrity.wrong_lists(part, counts[part.dst], manifest.edges[key].num_edges)
        if part.ids is not None:
            slots = {"slots": part.ids.slots}
            wrong = wrong or integrity.wrong_ids(slots, manifest.edges[key].num_edges)
        if wrong := wrong or integrity.wrong_edges(part, counts[part.dst], counts[part.src]):
            raise GraphError(f"{folder / 'edges' / quoted(key)} is damaged: {wrong}; build the graph again")
    note.write()


def below(prefix: str, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """The arrays whose names begin with a prefix, by the rest of their names."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


def _write_arrays(
    folder: Path, arrays: Mapping[str, AnyArray], array_digests: Mapping[str, str], progress: Progress
) -> dict[str, StoredArray]:
    total = max(1, sum(array.nbytes for array in arrays.values()))
    done = 0
    stored = {}
    for name, array in arrays.items():
        path = folder / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(header(array.dtype.str, array.shape))
            content = digest.bytes_of(array)
            for begin in range(0, len(content), _CHUNK_BYTES):
                done += file.write(content[begin : begin + _CHUNK_BYTES])
                progress("writing", done / total)
            stored[name] = StoredArray(array.dtype.str, array.shape, file.tell(), array_digests[name])
        sync(path)  # now, so that progress includes the disk's time
    return stored


def map_array(folder: Path, name: str, stored: StoredArray) -> AnyArray:
    """Map one array. Raises: GraphError: its file is missing, cut, or of another dtype or shape."""
    path = folder / f"{name}.npy"
    again = "copy or build the graph again"
    head = header(stored.dtype, stored.shape)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != stored.file_bytes:
                raise GraphError(f"{path} has {size} bytes, {MANIFEST} says {stored.file_bytes}; {again}")
            if file.read(len(head)) != head:
                raise GraphError(
                    f"{path} does not have the header of {stored.dtype} {list(stored.shape)}, as "
                    f"{MANIFEST} requires; {again}"
                )
            if 0 in stored.shape:  # nothing to map
                empty: AnyArray = read_only(np.empty(stored.shape, stored.dtype))
                return empty
            # A plain array over the map: np.memmap is slow to index and to pass to Numba.
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return np.frombuffer(pages, stored.dtype, offset=len(head)).reshape(stored.shape)
    except FileNotFoundError:
        raise GraphError(f"{path} is missing though {MANIFEST} lists it; {again}") from None
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error}; {again}") from error
    except (TypeError, ValueError) as error:
        if isinstance(error, GraphError):
            raise
        raise GraphError(f"{folder / MANIFEST} is damaged: {name}: {error}; {again}") from None


def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The header of a .npy file, version 1.0, with the data at a multiple of 64 bytes.

    Written here so that it is the same with every NumPy: opening compares bytes and parses nothing.
    """
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    before = len(b"\x93NUMPY\x01\x00") + 2
    length = -(-(before + len(text) + 1) // 64) * 64 - before
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + f"{text:<{length - 1}}\n".encode("latin-1")
