"""`hopline graph`: build a snapshot from files, describe one, and change a server's live graph."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import TimeElapsedColumn
from rich.table import Table

from hopline.commands import graph_live
from hopline.commands.graph_files import FileOptions, counts, missing
from hopline.commands.options import AsJson
from hopline.commands.progress import Advance, progress_bars
from hopline.commands.screen import Screen
from hopline.doors import Door
from hopline.errors import ConfigError
from hopline.graph import Graph, Nodes
from hopline.graph.codec import is_compressed
from hopline.graph.edge_times import iso, likely_unit
from hopline.graph.text_table import TextFormat

app = typer.Typer(help="Build, inspect and change graphs.", no_args_is_help=True)
app.command("events")(graph_live.events)
app.command("status")(graph_live.status)
#: Other packages add subcommands; and "build", what builds from a description: (path, context, progress).
SUBCOMMANDS = Door(
    "hopline.graph_commands",
    packages={"describe": "'hopline[sql]'", "build": "'hopline[sql]'", "push": "'hopline[redis]'"}
    | {"forget": "'hopline[drift]'", "cut": "'hopline[export]'"},
)


def _absent(name: str) -> Any:
    def command(words: list[str]) -> None:
        raise ConfigError(f"`hopline graph {name}` is not installed: {SUBCOMMANDS.how_to_install(name)}")

    return command


for _name in sorted({*SUBCOMMANDS.packages, *SUBCOMMANDS.installed()} - {"build"}):
    app.command(_name)(SUBCOMMANDS.find(_name) or _absent(_name))

_ANSWERS = {True: "yes", False: "no", None: "unknown"}
_FLAGS = ("has_time", "has_weight", "has_self_loops", "has_repeated_edges")
#: Bytes of features of which `info` reads all, for their ranges.
_MOST_READ = 1 << 30
Database = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="Database of queries ('sql:SELECT ...' in place of a file): postgres://..., or a DuckDB "
        "file. Without one, queries read files.",
    ),
]
_QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0)


@app.command()
def build(
    edges: Annotated[
        list[str],
        typer.Argument(
            help="Edge files: one FILE, or SRC:RELATION:DST=FILE each (.csv, .tsv, .txt, also compressed "
            "as .gz, .bz2, .xz or .zst; .parquet, .feather, .arrow). Or the description of a graph: one "
            "FILE.toml."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write the graph to.")],
    context: typer.Context,
    features: Annotated[
        list[str] | None,
        typer.Option(help="Node files with ids and features: one FILE, or TYPE=FILE for each node type."),
    ] = None,
    database: Database = "",
    id: Annotated[
        list[str] | None,
        typer.Option(
            help="Column of ids in the node files; TYPE=COLUMN for one file. SRC:RELATION:DST=COLUMN "
            "is for the ids of edges, by which they are scored."
        ),
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option(
            help="Feature column, in order (repeatable): COLUMN or TYPE=COLUMN. Default: all numeric ones."
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            help="Column that is not a feature (repeatable): COLUMN of the node files, or TYPE=COLUMN."
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="Column of the node files that is kept unchanged, for the preprocessing of models "
            "(repeatable): COLUMN, COLUMN:TYPE (float, integer, boolean, text, timestamp, vector, codes), "
            "or '*' for all; COLUMN:codes=a|b for lists of some codes, codes-only=a|b to refuse others. "
            "NODE_TYPE=COLUMN for one file, added to '*'. A file with such columns has no other features. "
            "SRC:RELATION:DST=COLUMN is for an edge file."
        ),
    ] = None,
    graph_column: Annotated[
        list[str] | None,
        typer.Option(help="Column of the node files that names the graph of each node, if there are many."),
    ] = None,
    src: Annotated[
        list[str] | None,
        typer.Option(
            help="Column of the source in the edge files: COLUMN or SRC:RELATION:DST=COLUMN (all edge "
            "column options accept both forms). Default: src, or without a header the first column."
        ),
    ] = None,
    dst: Annotated[
        list[str] | None,
        typer.Option(
            help="Column of the destination. Default: dst, or without a header the second column."
        ),
    ] = None,
    attr: Annotated[list[str] | None, typer.Option(help="Edge attribute column (repeatable).")] = None,
    time: Annotated[
        list[str] | None,
        typer.Option(
            help="Column of the edge times: integers, or ISO 8601 dates and times. NODE_TYPE=COLUMN: the "
            "nodes of a file exist from these times on."
        ),
    ] = None,
    time_unit: Annotated[
        list[str] | None,
        typer.Option(
            help="Unit of integer times since 1970: s, ms, us or ns; UNIT or SRC:RELATION:DST=UNIT."
        ),
    ] = None,
    history: Annotated[
        list[str] | None,
        typer.Option(
            help="Column of times from which rows of nodes hold, several for each id; or TYPE=COLUMN."
        ),
    ] = None,
    history_since: Annotated[
        list[str] | None, typer.Option(help="Time from which all these rows are known; or TYPE=TIME.")
    ] = None,
    weight: Annotated[list[str] | None, typer.Option(help="Column of the edge weights.")] = None,
    signed_weights: Annotated[
        bool,
        typer.Option(
            "--signed-weights",
            help="Allow negative weights in live updates. Not needed if the file has negative weights.",
        ),
    ] = False,
    undirected: Annotated[
        bool, typer.Option("--undirected", help="Add the reverse of every edge.")
    ] = False,
    both_directions: Annotated[
        bool,
        typer.Option(
            "--both-directions",
            help="For models that read edges against their direction: add the edge type "
            "DST:rev_RELATION:SRC to each SRC:RELATION:DST.",
        ),
    ] = False,
    no_header: Annotated[
        bool,
        typer.Option(
            "--no-header",
            help="Text files have no header: columns are named 0, 1, … (A first line that contains the "
            "column names of the options is still a header.)",
        ),
    ] = False,
    delimiter: Annotated[
        str | None,
        typer.Option(
            help="Delimiter of text files; ' ' is any white space. Default: detected from the first lines."
        ),
    ] = None,
    encoding: Annotated[str, typer.Option(help="Encoding of text files, such as latin-1.")] = "utf-8",
    comment: Annotated[
        str | None, typer.Option(help="Lines of text files that begin with this text are ignored.")
    ] = None,
    na: Annotated[
        list[str] | None,
        typer.Option(help="Cell text that means a missing value (repeatable); empty cells always do."),
    ] = None,
    fill: Annotated[
        list[str] | None,
        typer.Option(help="Number that replaces missing values: NUMBER, or COLUMN=NUMBER (repeatable)."),
    ] = None,
    round_: Annotated[
        list[str] | None,
        typer.Option("--round", help="Column whose numbers may be rounded to float32 (repeatable)."),
    ] = None,
    ids_are_rows: Annotated[
        bool, typer.Option("--ids-are-rows", help="Edges contain row numbers of nodes instead of ids.")
    ] = False,
    num_nodes: Annotated[
        list[str] | None,
        typer.Option(
            help="With --ids-are-rows: node count of a type without a file; NUMBER or TYPE=NUMBER."
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            "--feature-dtype",
            "--dtype",
            help="Store features as float32, float16, bfloat16 or int8 (with one scale per column).",
        ),
    ] = "float32",
    compress_edges: Annotated[
        bool,
        typer.Option("--compress-edges", help="Compress in-neighbours, and round edge weights to 8 bits."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the graph at --out.")] = False,
) -> None:
    """Build a graph from files of edges and node features."""
    with _warnings(), progress_bars(TimeElapsedColumn()) as progress:
        if len(edges) == 1 and edges[0].endswith(".toml"):
            graph = SUBCOMMANDS.require("build")(edges[0], context, progress)
            _finish(graph, out, compress_edges, overwrite, progress)
            return
        options = FileOptions(
            text=TextFormat(not no_header, delimiter, encoding, comment),
            missing=missing(na or (), fill or ()),
            rounded=tuple(round_ or ()),
            database=database,
        )
        node_files = options.node_files(
            features or (),
            id or (),
            feature or (),
            exclude or (),
            column or (),
            ids_are_rows,
            edges,
            (time or (), time_unit or ()),
            (history or (), history_since or ()),
        )
        edge_files = options.edge_files(
            edges,
            {"src": src, "dst": dst, "time": time, "time_unit": time_unit, "weight": weight},
            attr or (),
            undirected,
            signed_weights,
            column or (),
            exclude or (),
            id or (),
        )
        options.memberships(node_files, edge_files, graph_column or ())
        graph = Graph.from_parquet(
            node_files or None,
            edge_files,
            ids_are_rows=ids_are_rows,
            num_nodes=counts(num_nodes or (), edge_files),
            feature_dtype=dtype,
            both_directions=both_directions,
            progress=progress,
        )
        _finish(graph, out, compress_edges, overwrite, progress)


def _finish(graph: Graph, out: Path, compress_edges: bool, overwrite: bool, progress: Advance) -> None:
    if compress_edges:
        graph = graph.compressed(progress)
    _show(_described(graph.save(out, overwrite=overwrite, progress=progress)))


@app.command()
def info(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Graph folder, live folder, or one version of a live graph: FOLDER@+N."
        ),
    ],
    as_json: AsJson = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file and check its hash.")] = False,
) -> None:
    """Show what a graph contains: types, counts, degrees, bytes, version."""
    from hopline.graph.live.history import is_versions
    from hopline.live.snapshots import open_present

    at_version = is_versions(folder)
    described = _described(open_present(folder) if at_version else Graph.open(folder, verify=verify))
    described["path"] = str(folder) if at_version else described["path"]
    if as_json:
        typer.echo(json.dumps(described, indent=1))
    else:
        _show(described)


def _described(graph: Graph) -> dict[str, Any]:
    nodes = {}
    for name, schema in graph.schema.node_types.items():
        part, past = graph.nodes[name], graph.nodes[name].history
        nodes[name] = msgspec.to_builtins(schema) | {
            "num_nodes": part.ids.num_nodes,
            "feature_bytes": part.features.nbytes,
            "columns": _columns(part, schema.feature_names),
            "history": past
            and {"rows": len(past.times), "since": past.since, "time": _time(graph, past.time_range)},
        }
    edges = {}
    for key, edge in graph.schema.edge_types.items():
        adjacency = graph.edges[key]
        degrees = np.diff(adjacency.indptr)
        quantiles = np.quantile(degrees, _QUANTILES, method="lower").tolist() if len(degrees) else []
        edges[key] = msgspec.to_builtins(edge) | {
            "num_edges": adjacency.num_edges,
            "compressed": is_compressed(adjacency),
            "time_range": adjacency.time_range,
            "has_self_loops": adjacency.has_self_loops,
            "has_repeated_edges": adjacency.has_repeated_edges,
            "columns": [] if adjacency.columns is None else adjacency.columns.described(),
            "in_degree": {f"{q:g}": d for q, d in zip(_QUANTILES, quantiles, strict=False)},
        }
    return {
        "path": str(graph.path),
        "version": graph.version,
        "schema_hash": graph.schema.hash,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "num_bytes": graph.num_bytes,
        "time": _time(graph, graph.time_range),
        "node_types": nodes,
        "edge_types": edges,
    }


def _columns(part: Nodes, names: Sequence[str]) -> list[dict[str, Any]]:
    """Each column with its type, share of missing cells, range and role: feature or label."""
    found: list[dict[str, Any]] = []
    if names and part.num_nodes and part.features.nbytes <= _MOST_READ:
        rows = np.asarray(part.features, np.float32)
        for name, low, high in zip(names, rows.min(0).tolist(), rows.max(0).tolist(), strict=True):
            found.append({"name": name, "type": "float", "missing": 0.0, "min": low, "max": high})
    found += [] if part.columns is None else part.columns.described()
    labels = [] if part.labels is None else part.labels.described()
    return [*found, *({**each, "role": "label"} for each in labels)]


def _time(graph: Graph, found: tuple[int, int] | None) -> dict[str, Any] | None:
    """Unit and range of times, as numbers and as dates; None without times."""
    if found is None:
        return None
    unit = graph.schema.time_unit
    likely = unit or likely_unit(np.array(found))
    dates = [iso(value, likely) for value in found] if likely else ["", ""]
    return {"unit": unit, "likely_unit": likely, "min": found[0], "max": found[1], "dates": dates}


def _show(described: dict[str, Any]) -> None:
    console = Screen()
    console.print(
        f"[bold]{escape(described['path'])}[/bold]  version {described['version']}  "
        f"{described['num_nodes']:,} nodes  {described['num_edges']:,} edges  "
        f"{described['num_bytes'] / 1e6:,.1f} MB"
    )
    if time := described["time"]:
        unit = time["unit"] or "unknown; set --time-unit when building"
        as_dates = " to ".join(time["dates"]) if time["likely_unit"] else ""
        guess = "" if time["unit"] or not as_dates else f"if it is {time['likely_unit']}: "
        shown = f" ({guess}{as_dates})" if as_dates else ""
        console.print(
            f"times {time['min']} to {time['max']}{shown}, unit {unit}", highlight=False, soft_wrap=True
        )
    _print_rows(
        console,
        ("node type", "nodes", "features", "dtype", "MB", "ids", "history"),
        [
            (
                name,
                f"{row['num_nodes']:,}",
                row["feature_dim"],
                row["feature_dtype"],
                f"{row['feature_bytes'] / 1e6:,.1f}",
                row["id_kind"],
                _past(row["history"]),
            )
            for name, row in described["node_types"].items()
        ],
    )
    types = {**described["node_types"], **described["edge_types"]}
    columns = [(name, {"role": "feature", **one}) for name, row in types.items() for one in row["columns"]]
    if columns:
        _print_rows(
            console,
            ("type", "column", "role", "type", "missing", "range"),
            [
                (name, one["name"], one["role"], one["type"], f"{one['missing']:.1%}", _range(one))
                for name, one in columns
            ],
        )
    _print_rows(
        console,
        ("edge type", "edges", "attr", "time", "weight", "loops", "repeats", "in: p50", "p99", "max"),
        [
            (
                name,
                f"{row['num_edges']:,}",
                row["attr_dim"],
                *(_ANSWERS[row[flag]] for flag in _FLAGS),
                *(f"{row['in_degree'].get(q, 0):,}" for q in ("0.5", "0.99", "1")),
            )
            for name, row in described["edge_types"].items()
        ],
    )


def _past(history: dict[str, Any] | None) -> str:
    time = history and history["time"]
    return f"{history['rows']:,} rows, {time['dates'][0] or time['min']} on" if history and time else ""


def _range(column: dict[str, Any]) -> str:
    if "distinct" in column:
        return f"{column['distinct']:,} distinct"
    return "" if column["min"] is None else f"{column['min']} to {column['max']}"


def _print_rows(console: Console, header: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    table = Table(*header, box=None, pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    console.print(table)


@contextmanager
def _warnings() -> Iterator[None]:
    """Print warnings about the input, such as columns left out, to stderr after all progress bars."""
    texts: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("hopline.graph")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        for text in texts:
            typer.echo(f"note: {text}", err=True)
