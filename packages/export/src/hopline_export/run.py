"""Writes an export: a folder of ego-graphs in shards, and tables of rows and of scores."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from hopline.artifact import read_spec, sha256_of
from hopline.engine.answer import Answerer
from hopline.engine.model import Model, load_model
from hopline.errors import BadRequest, HoplineError
from hopline.files import draft_of, publish_folder
from hopline.graph import Graph
from hopline.graph.node_times import times_of
from hopline.sampling.keyed import NO_CUT
from hopline.types import AnyArray, ScoreRequest
from hopline_export.ego import batch_of, rows_then
from hopline_export.seeds import SeedColumns, Seeds, read_seeds

_FILE = "export.json"


class ExportReport(msgspec.Struct, frozen=True):
    """Contents of an export, in its folder as `export.json`.

    Attributes:
        model, version, model_hash: whose rows these are. graph_version: of the graph.
        num_seeds, num_shards: rows of the tables, and files of ego-graphs.
        num_nodes, num_edges: of all ego-graphs.
        fanouts: edge type -> neighbours for each layer, seed-outward. sampling: as of the package.
        outputs: columns of the scores.
    """

    model: str
    version: str
    model_hash: str
    graph_version: str
    num_seeds: int
    num_shards: int
    num_nodes: int
    num_edges: int
    fanouts: dict[str, list[int]]
    sampling: str
    outputs: list[str]


def export(
    model_folder: Path,
    graph: Graph,
    seeds: Path,
    out: Path,
    *,
    columns: SeedColumns | None = None,
    node_type: str = "",
    shard: int = 256,
    overwrite: bool = False,
    advance: Callable[[str, int, int], object] = lambda *step: None,
) -> ExportReport:
    """Write what the engine reads and computes for seeds at their times.

    Args:
        seeds: a table, see `read_seeds`. columns: its names of columns.
        node_type: of the seeds, for a model with heads of several types.
        shard: seeds in one file of ego-graphs.
        overwrite: replace an earlier export.
        advance: called with the step, seeds that are done, and their number.

    Raises: BadRequest, NodeNotFound, GraphError, ArtifactError: as the message says; nothing was written.
    """
    spec = read_spec(model_folder)
    if spec.head.kind != "node":
        raise BadRequest(f"{spec.name}/{spec.version} scores {spec.head.kind}s; an export is of nodes")
    if out.exists() and not (overwrite and (out / _FILE).is_file()):
        how = "pass overwrite=True to replace it" if (out / _FILE).is_file() else "it is no export"
        raise BadRequest(f"{out} exists; {how}, or choose another folder")
    every = load_model(model_folder, spec, graph)
    if (node_type or len(every.by_type) == 1) and (
        model := every.by_type.get(node_type or spec.head.node_type)
    ):
        found = read_seeds(seeds, model, columns or SeedColumns())
    else:
        raise BadRequest(f"node_type {node_type!r}: the model answers {', '.join(every.by_type)}; name one")
    names = tuple(name for name in model.offers if name != "state")
    answerer = Answerer(model, names, 0)
    num_nodes = num_edges = num_shards = 0
    with _draft(out) as draft, _tables(draft) as write:
        for begin in range(0, len(found.rows), shard):
            part = slice(begin, min(begin + shard, len(found.rows)))
            data = batch_of(model, found.rows[part], found.as_of[part])
            data[model.spec.head.node_type].input_id = torch.arange(part.start, part.stop)
            if found.labels is not None and not pa.types.is_string(found.labels.type):
                labels = found.labels.slice(begin, part.stop - begin)
                data[model.spec.head.node_type].y = torch.from_numpy(labels.to_numpy().copy())
            torch.save(data, draft / "graphs" / f"part-{num_shards:05d}.pt")
            write("rows", _rows(graph, model, found, part))
            write("scores", _scores(answerer, names, found, part))
            num_nodes, num_edges = num_nodes + data.num_nodes, num_edges + data.num_edges
            num_shards += 1
            advance("seeds", part.stop, len(found.rows))
        report = ExportReport(
            spec.name, spec.version, sha256_of(model_folder / "model.json"), graph.version, len(found.rows),
            num_shards, num_nodes, num_edges, {key: list(each) for key, each in spec.fanouts.items()},
            spec.sampling, list(names),
        )  # fmt: skip
        (draft / _FILE).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    return report


@contextmanager
def _draft(out: Path) -> Iterator[Path]:
    """A folder that becomes `out` at the end, or does not exist."""
    draft = draft_of(out.absolute())
    try:
        (draft / "graphs").mkdir(parents=True)
        yield draft
        publish_folder(draft, out.absolute(), durable=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _tables(draft: Path) -> Iterator[Callable[[str, Any], None]]:
    """Writes parts of Parquet tables, by name."""
    writers: dict[str, Any] = {}

    def write(name: str, table: Any) -> None:
        if name not in writers:
            writers[name] = pq.ParquetWriter(draft / f"{name}.parquet", table.schema)
        writers[name].write_table(table)

    try:
        yield write
    finally:
        for writer in writers.values():
            writer.close()


def _named(seeds: Seeds, part: slice) -> dict[str, Any]:
    found: dict[str, Any] = {"id": pa.array(list(seeds.ids[part]))}
    return found | ({"time": pa.array(seeds.as_of[part])} if seeds.has_times else {})


def _rows(graph: Graph, model: Model, seeds: Seeds, part: slice) -> Any:
    """Rows of the graph's table, and what exists of a node at its time."""
    name, rows, as_of = model.spec.head.node_type, seeds.rows[part], seeds.as_of[part]
    found, schema = _named(seeds, part), graph.schema.node_types[name]
    if seeds.labels is not None:
        found["label"] = seeds.labels.slice(part.start, part.stop - part.start).combine_chunks()
    stored_features, stored, places = rows_then(graph.nodes[name], rows, as_of)
    features = np.asarray(stored_features[places], np.float32)
    if (times := times_of(schema, features)) is not None:
        found["exists"] = pa.array(times <= as_of)
    for key in sorted(model.spec.fanouts):
        if (edges := graph.edges[key]).dst == name:
            starts, counts, last = edges.starts(rows), edges.degree(rows), np.full(len(rows), NO_CUT)
            for at, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
                if edges.time is not None:
                    counts[at] = np.searchsorted(edges.time[start : start + count], as_of[at], side="right")
                    last[at] = edges.time[start + counts[at] - 1] if counts[at] else NO_CUT
            found[f"degree.{key}"] = pa.array(counts)
            if edges.time is not None:
                found[f"last.{key}"] = pa.array(last, mask=counts == 0)
    if stored is not None:
        table = stored.table.take(places)
        columns = dict(zip(table.column_names, table.columns, strict=True))
    elif schema.feature_names:
        columns = {
            each: pa.array(column) for each, column in zip(schema.feature_names, features.T, strict=True)
        }
    else:
        columns = {"features": _listed(features)} if features.shape[1] else {}
    for column, values in columns.items():
        found[column if column not in found else f"column.{column}"] = values
    return pa.table(found)


def _scores(answerer: Answerer, names: tuple[str, ...], seeds: Seeds, part: slice) -> Any:
    """The served outputs: one request for each time, since a plan has one."""
    rows, as_of = seeds.rows[part], seeds.as_of[part]
    head, several = answerer.model.spec.head, bool(answerer.model.spec.heads)
    moments, at = np.unique(as_of, return_inverse=True)
    ids = answerer.model.graph.nodes[head.node_type].ids
    requests = [
        ScoreRequest(
            answerer.model.spec.name,
            nodes=ids.external(rows[at == number]),
            outputs=names,
            as_of=None if moment == NO_CUT else moment,
            node_type=head.node_type if several else "",
        )
        for number, moment in enumerate(moments.tolist())
    ]
    found = _named(seeds, part)
    outputs: dict[str, AnyArray] = {}
    for number, outcome in enumerate(answerer.answer(requests)):
        if isinstance(outcome, HoplineError):
            raise outcome
        for name, values in outcome.outputs.items():
            if name not in outputs:
                outputs[name] = np.empty((len(rows), *values.shape[1:]), values.dtype)
            outputs[name][at == number] = values
    return pa.table(found | {name: _listed(outputs[name]) for name in names})


def _listed(values: AnyArray) -> Any:
    """An Arrow column: numbers, or lists of one length."""
    if values.ndim == 1:
        return pa.array(values)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, int(np.prod(values.shape[1:])))
