"""Erases nodes from the files that are not the live folder: graph folder, prediction log, precomputed rows.

Each function may be repeated. A file is replaced as a whole, or bytes of it are overwritten where they are.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hopline.engine.precomputed_file import PrecomputedFile
from hopline.engine.precomputed_file.identity import id_hashes
from hopline.engine.precomputed_file.writer import PrecomputedWriter
from hopline.errors import GraphError
from hopline.files import draft_of, publish_file, publish_folder
from hopline.graph import Graph
from hopline.graph.live.changes import Changes, Ids, NodeChanges
from hopline.graph.live.history import fill, make_writer
from hopline.graph.live.home import Start
from hopline.graph.live.state import State
from hopline.graph.parts import Nodes
from hopline.graph.stored_columns import StoredColumns
from hopline.types import ExternalId

#: Shorter texts are not searched for.
_SHORT = 8
#: In place of an entry of the prediction log.
_ENTRY = {"request_id": "", "time": 0.0, "model": "", "version": "", "outcome": "forgotten"}


def removal(graph: Graph, node_type: str, ids: Sequence[ExternalId], name: str = "") -> Changes:
    """The removal of nodes of a graph, as a batch; its events have ids if they get a name."""
    schema, count = graph.schema.node_types[node_type], len(ids)
    external: Ids = [str(each) for each in ids] if schema.id_kind == "string" else np.array(ids, np.int64)
    nodes = NodeChanges.removals(external, np.arange(count), schema)
    return Changes({}, {node_type: nodes}, count, [f"{name}-{at}" for at in range(count)] if name else ())


def erase_from_graph(folder: Path, node_type: str, ids: Sequence[ExternalId]) -> bool:
    """Replace a graph folder by one without nodes; False if it has none of them.

    An empty row of each stays without id and edges. A live folder of the graph belongs to the new one too.

    Raises: GraphError: it cannot be written, or has features of 8 bits, or narrow ones and a history.
    """
    base = Graph.open(folder, verify=True)
    known = [each for each in ids if _row_of(base.nodes[node_type], each) >= 0]
    if not known:
        return False
    dtypes = {name: each.feature_dtype for name, each in base.schema.node_types.items()}
    narrow = {*dtypes.values()} - {"float32"}
    if "int8" in narrow or (narrow and any(each.history for each in base.schema.node_types.values())):
        raise GraphError(f"{folder} has features of {min(narrow)}: build it again without the nodes")
    room = {"spare_nodes": 4, "spare_edges": 16, "num_levels": 1, "reads_degrees": False}
    start = Start(base, State(base.version, 0))
    writer, view = make_writer(start, base.version, None, lambda: 0, **room)
    fill(writer, start)
    applied = writer.apply(removal(base, node_type, known))
    if applied.num_applied != len(known):
        raise GraphError(f"{folder}: {applied.rejected[0].reason}")
    found = view().snapshot()
    nodes = {
        name: dataclasses.replace(part, labels=_labels(base.nodes[name].labels, part.ids.removed))
        for name, part in found.nodes.items()
    }
    graph = Graph(found.schema, nodes, found.edges, left_out=base.left_out)
    for dtype in narrow:
        graph = graph.with_features_as(dtype)
    draft = draft_of(folder)
    try:
        (graph.compressed() if base.is_compressed else graph).save(draft)
        manifest = draft / "graph.json"
        named = json.loads(manifest.read_bytes()) | {"lineage": base.lineage}
        manifest.write_text(json.dumps(named, indent=1))
        publish_folder(draft, folder, durable=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def _row_of(nodes: Nodes, name: ExternalId) -> int:
    one: Any = [name]
    return int(nodes.ids.lookup(one)[0])


def _labels(labels: StoredColumns | None, removed: Any) -> StoredColumns | None:
    if labels is None:
        return None
    import pyarrow as pa

    rows = np.arange(len(labels.table))
    return StoredColumns.of(labels.table.take(pa.array(rows, mask=np.isin(rows, removed))))


def erase_rows(path: Path, node_type: str, ids: Sequence[ExternalId]) -> int:
    """Replace a precomputed file by one with zeros in the rows of nodes; returns the number of rows."""
    file = PrecomputedFile.open(path)
    if file.header.plan.node_type != node_type:
        return 0
    external: Any = np.array(ids, np.int64) if isinstance(ids[0], int) else list(ids)
    rows = np.flatnonzero(np.isin(file.ids, id_hashes(external)))
    if not len(rows):
        return 0
    writer = PrecomputedWriter(path, file.header.plan)
    writer.copy(file)
    for row in rows.tolist():
        logits = None if file.logits is None else np.zeros_like(file.logits[:1])
        own = np.zeros_like(file.state[:1]), logits
        writer.write(row, *own, ids=np.zeros(1, np.uint64), computed_at=int(file.computed_at[row]))
    writer.commit()
    return len(rows)


def erase_entries(folder: Path, ids: Sequence[ExternalId]) -> int:
    """Overwrite the entries of a prediction log that name nodes; returns their number.

    A file that a server writes now is overwritten too: its whole lines do not change any more.
    """
    names, count = _names(ids), 0
    for path in sorted(folder.rglob("*")):
        if path.name.endswith((".jsonl", ".jsonl.part")):
            count += _erase_lines(path, names)
        elif path.suffix == ".parquet":
            count += _erase_table(path, names)
    return count


def _names(ids: Iterable[ExternalId]) -> Callable[[bytes], bool]:
    """True for a text of JSON that has one of the ids as a value."""
    words = sorted(
        re.escape(json.dumps(each, ensure_ascii=ascii)) for each in ids for ascii in (True, False)
    )
    found = re.compile(rb"(?<![\w.+-])(?:" + "|".join(words).encode() + rb")(?![\w.])")
    return lambda text: found.search(text) is not None


def _erase_lines(path: Path, names: Callable[[bytes], bool]) -> int:
    count = 0
    with path.open("r+b") as file:
        at = 0
        for line in iter(file.readline, b""):
            begin, at = at, at + len(line)
            if not line.endswith(b"\n") or not names(_inputs(line)):
                continue
            time = json.loads(line).get("time", 0.0)
            entry = json.dumps({**_ENTRY, "time": time}).encode()
            entry = entry if len(entry) < len(line) else b""
            os.pwrite(file.fileno(), entry.ljust(len(line) - 1), begin)
            count += 1
        if count:
            os.fsync(file.fileno())
    return count


def _inputs(line: bytes) -> bytes:
    """The inputs and the key of a line."""
    try:
        entry = json.loads(line)
    except ValueError:
        return b""
    return json.dumps([entry.get("inputs"), entry.get("key")], ensure_ascii=False).encode()


def _erase_table(path: Path, names: Callable[[bytes], bool]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    table = parquet.read_table(path)
    pairs = zip(table.column("inputs").to_pylist(), table.column("key").to_pylist(), strict=True)
    kept = [
        not names(f"{inputs or ''} {json.dumps(key, ensure_ascii=False)}".encode()) for inputs, key in pairs
    ]
    if all(kept):
        return 0
    draft = draft_of(path)
    try:
        parquet.write_table(table.filter(pa.array(kept)), draft)
        publish_file(draft, path, durable=True)
    finally:
        draft.unlink(missing_ok=True)
    return len(kept) - sum(kept)


def is_searched(name: ExternalId) -> bool:
    """False for an id that files have by chance: a small number, or a text that is a part of others."""
    return abs(name) >= 2**40 if isinstance(name, int) else len(name) >= _SHORT


def patterns_of(ids: Sequence[ExternalId], nodes: Nodes) -> list[bytes]:
    """Bytes to search files for: ids and feature rows."""
    found = [
        each.to_bytes(8, "little", signed=True) if isinstance(each, int) else each.encode()
        for each in ids
        if is_searched(each)
    ]
    for each in ids:
        row, past = _row_of(nodes, each), nodes.history
        rows = list(np.asarray(nodes.features[row : row + 1], np.float32)) if row >= 0 else []
        if rows and past is not None:
            own = slice(*past.offsets[row : row + 2].tolist())
            rows += list(np.asarray(past.features[own], np.float32))
        for values in rows:
            if len(np.unique(values)) > 3:  # a row that others may have too is no proof
                found.append(values.astype("<f4").tobytes())
    return found


def search(paths: Iterable[Path], patterns: Sequence[bytes]) -> Iterator[Path]:
    """The files, also of folders, that have one of the patterns."""
    for path in paths:
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if not file.is_file() or not file.stat().st_size or file.suffix in (".sock", ".lock"):
                continue
            with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as pages:
                if any(pages.find(each) >= 0 for each in patterns):
                    yield file
