"""`hopline skew`: compare the columns that servers logged with a graph's and with training rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from hopline.artifact import ModelSpec, read_spec
from hopline.commands.screen import Screen, whole
from hopline.errors import BadRequest

if TYPE_CHECKING:
    from hopline.engine.encoders import RowEncoder
    from hopline.graph.schema import ColumnType
    from hopline_drift.skew import Finding

#: Exit status if skew was found; 1 is an error.
FOUND = 2


def skew(
    log: Annotated[Path, typer.Argument(help="Prediction log: folder or file.")],
    artifact: Annotated[
        Path | None, typer.Option(help="<repository>/<model>/<version> of a graph model that answered.")
    ] = None,
    graph: Annotated[Path | None, typer.Option(help="Graph folder to compare with.")] = None,
    table: Annotated[
        Path | None, typer.Option(help="Training rows to compare with: CSV with a header, or Parquet.")
    ] = None,
    id_column: Annotated[
        str, typer.Option("--id", help="Column of --table with ids of nodes, to compare row by row.")
    ] = "",
    model: Annotated[str, typer.Option(help="Model in the log. Default: that of --artifact.")] = "",
    version: Annotated[str, typer.Option(help="Version in the log. Default: all.")] = "",
    share: Annotated[
        float, typer.Option(help="Share of rows below which a difference is none.", min=0, max=1)
    ] = 0.01,
    psi: Annotated[float, typer.Option(help="Index from which on a distribution differs.", min=0)] = 0.25,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find differences between what servers read and training. Exits with 2 if there are any."""
    from hopline.graph import Graph
    from hopline_drift.skew import Limits
    from hopline_drift.skew_log import Known, Logged, compare_columns, compare_encoded, compare_features

    if graph is None and table is None:
        raise BadRequest("pass what to compare with: --graph with --artifact, --table, or both")
    if graph is not None and artifact is None:
        raise BadRequest("--graph: pass --artifact as well, which names what the model reads of the graph")
    limits = Limits(share, psi)
    spec, encoder, types, names = _model(artifact)
    name = model or (spec.name if spec is not None else "")
    if not name:
        raise BadRequest("--model: name the model whose inputs are read from the log")
    node_type = spec.head.node_type if spec is not None else ""
    opened = None if graph is None else Graph.open(graph)
    schema = None if opened is None else opened.schema
    logged = Logged.read(log, name, version, node_type, list(types), id_column, schema)
    known = [] if opened is None else [Known.of_graph(opened, node_type, types)]
    if table is not None:
        known.append(Known.of_table(table, id_column, types))
    found: list[Finding] = []
    for each in known:
        compared = types or {name: column.kind for name, column in each.columns.items()}
        found += compare_columns(logged, each, compared, limits)
        if spec is not None:
            found += compare_features(logged, each, encoder, names or list(types), limits)
    if encoder is not None:
        found += compare_encoded(logged, encoder, names, limits)
    counts = {"rows": len(logged.rows), "encoded_rows": len(logged.encoded), "nodes": len(logged.features)}
    for other, rows in logged.others.items():
        if spec is not None and opened is not None and other in spec.encoders and rows:
            counts[f"rows_of_{other}"] = len(rows)
            kinds = _model(artifact, other)[2]
            those = Known.of_graph(opened, other, kinds)
            more = compare_columns(Logged(rows, [None] * len(rows)), those, kinds, limits)
            found += [msgspec.structs.replace(each, column=f"{other}: {each.column}") for each in more]
    counts |= {f"ids_in_{each.against}": each.num_matched(logged) for each in known}
    _show(name, counts, found, as_json)
    if found:
        raise typer.Exit(FOUND)


def _model(
    artifact: Path | None, name: str = ""
) -> tuple[ModelSpec | None, RowEncoder | None, Mapping[str, ColumnType], Sequence[str]]:
    """A graph model, the preprocessing of a type, the columns that it reads, and names of features.

    Args:
        name: of the type; "" for the nodes that it answers.
    """
    from hopline.engine.encoders import encoder_of

    if artifact is None:
        return None, None, {}, ()
    spec = read_spec(artifact, verify=False)
    node_type = name or spec.head.node_type
    if node_type in spec.encoders:
        encoder = encoder_of(artifact, spec, node_type)
        types = {column["name"]: column["type"] for column in encoder.columns}
        return spec, encoder, types, spec.encoders[node_type].names
    schema = spec.graph_schema["node_types"][node_type]  # type: ignore[index]
    named = schema.get("feature_names") or [f"f{at}" for at in range(schema["feature_dim"])]
    return spec, None, dict.fromkeys(named, "float"), named


def _show(model: str, counts: Mapping[str, int], found: Sequence[Finding], as_json: bool) -> None:
    if as_json:
        report = {"model": model, **counts, "skew": found}
        typer.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
        return
    screen = Screen()
    read = f"{counts['rows']:,} rows and {counts['nodes']:,} nodes of {model}"
    matched = {name: count for name, count in counts.items() if name.startswith(("ids_in_", "rows_of_"))}
    read += "".join(f", {count:,} {name.replace('_', ' ')}" for name, count in matched.items())
    if not found:
        screen.print(f"no skew: {read}")
        return
    lines = Table(title=f"{len(found)} differences: {read}", title_justify="left")
    for column in ("column", "against", "kind", "what differs"):
        lines.add_column(column)
    for each in sorted(found, key=lambda each: (each.against, each.column)):
        lines.add_row(Text(each.column), each.against, Text(each.kind, "bold red"), Text(each.text))
    screen.print(whole(lines, "column", "kind"))
