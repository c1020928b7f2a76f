"""`hopline graph cut`: a graph as it was known at a time, as a separate folder.

Nodes keep their numbers, by which samples are drawn: those without a row yet are empty rows without an id,
as removed nodes are. So whatever reads the folder has the answers that `as_of` has of the whole graph.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import typer

from hopline.errors import BadRequest, GraphError
from hopline.graph import Adjacency, Graph, GraphSchema, Nodes
from hopline.graph.edge_ids import EdgeIds
from hopline.graph.edge_times import rough_range, time_cut
from hopline.graph.ids import IdIndex, RemainingIds
from hopline.types import IdArray


def graph_at(graph: Graph, as_of: int) -> Graph:
    """The rows and edges of a graph that were known at a time, without a history. In memory.

    Raises: GraphError: nothing has times, all rows of a history are known from a later time on only, or its
        features are stored in 8 bits, whose scales are those of all rows.
    """
    if rough_range(graph, graph.edges) is None:
        raise GraphError("nothing in the graph has times")
    nodes, types, there = dict(graph.nodes), dict(graph.schema.node_types), {}
    for name, part in graph.nodes.items():
        if (past := part.history) is None:
            continue
        if past.since is not None and as_of < past.since:
            raise GraphError(f"all rows of node type {name!r} are known only from {past.since} on")
        places = past.places(np.arange(part.num_nodes), as_of)
        there[name] = known = places >= 0
        known[part.ids.removed] = False
        if types[name].feature_dtype == "int8":
            raise GraphError(f"node type {name!r} has features of 8 bits and a history: build it again")
        features = np.zeros((part.num_nodes, types[name].feature_dim), np.float32)
        features[known] = past.features[places[known]]
        columns = past.columns and past.columns.taken(pa.array(places, mask=~known))
        nodes[name] = Nodes(features, _remaining(part.ids, known), columns)
        types[name] = msgspec.structs.replace(types[name], history=None, feature_dtype="float32")
    edges = {key: _until(edge, graph.schema.edge_types[key].id_column, as_of, there.get(edge.dst))
             for key, edge in graph.edges.items()}  # fmt: skip
    cut = Graph(GraphSchema(types, graph.schema.edge_types), nodes, edges, left_out=graph.left_out)
    (dtype, *_) = {each.feature_dtype for each in graph.schema.node_types.values()}
    return cut if dtype in ("float32", "int8") else cut.with_features_as(dtype)


def _remaining(ids: IdIndex, known: Any) -> IdIndex:
    removed, rows = np.flatnonzero(~known), np.flatnonzero(known)
    if not len(removed):
        return ids
    return RemainingIds(ids.select(rows, "ids of a cut graph"), removed)


def _until(edge: Adjacency, id_column: str, as_of: int, known: Any) -> Adjacency:
    """The edges up to a time into nodes that exist: a prefix of each list."""
    counts = np.diff(edge.indptr)
    owners = np.repeat(np.arange(len(counts)), counts)
    kept = np.ones(len(owners), bool) if edge.time is None else np.asarray(edge.time) <= as_of
    if known is not None:
        kept &= known[owners]
    at: IdArray = np.flatnonzero(kept)
    counts = np.bincount(owners[at], minlength=len(counts))
    columns = None if edge.columns is None else edge.columns.taken(at)
    given = {name: getattr(edge, name) for name in ("time", "attr", "weight", "cumweight")}
    arrays: Any = {name: None if each is None else np.asarray(each)[at] for name, each in given.items()}
    return replace(
        edge,
        indptr=np.append(0, np.cumsum(counts)),
        indices=np.asarray(edge.indices)[at],
        **arrays,
        columns=columns,
        ids=EdgeIds(columns, id_column) if columns and id_column else None,
        max_degree=int(counts.max(initial=0)),
        stored_time_range=None,
    )


def moment(graph: Graph, text: str) -> int:
    """A time in the graph's unit, of a number or of ISO 8601 text. Raises: BadRequest: it is neither."""
    try:
        given: int | datetime = int(text) if text.lstrip("-").isdigit() else datetime.fromisoformat(text)
    except ValueError:
        raise BadRequest(f"--as-of {text!r} is neither a number nor a date such as 2024-01-31") from None
    return time_cut(given, graph.schema.time_unit, rough_range(graph, graph.edges))


def cut(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Graph folder, live folder, or one version: FOLDER@+N."),
    ],
    as_of: Annotated[
        str, typer.Option(metavar="TIME", help="The time: a number in the graph's unit, or a date.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Graph folder to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a graph there.")] = False,
) -> None:
    """Write a graph as it was known at a time: its edges until then, and the rows that held."""
    from hopline.live.snapshots import open_graph

    graph = open_graph(folder, fresh=False)
    found = graph_at(graph, moment(graph, as_of)).save(out, overwrite=overwrite)
    typer.echo(
        f"{out}: {found.num_nodes:,} nodes and {found.num_edges:,} edges of {as_of}, {found.version}"
    )
    if found.clock is not None:
        typer.echo(
            f"Models that read times or windows are asked at {found.clock}, the latest time there is."
        )
