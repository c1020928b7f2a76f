"""`hopline score`: score nodes or links on a running server."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from hopline.commands.connection import ApiKey, Token, Url, open_client
from hopline.commands.screen import Screen
from hopline.errors import BadRequest
from hopline.graph.id_values import integer_id
from hopline.types import ScoreResult

_MAX_COLUMNS = 8


def score(
    model: Annotated[str, typer.Argument(help="Model name.")],
    nodes: Annotated[
        list[str],
        typer.Argument(
            help="Node ids; source,destination with --pairs, and column=value after it with --edges, or "
            "the id of an edge of the graph."
        ),
    ],
    pairs: Annotated[bool, typer.Option(help="Score links instead of nodes.")] = False,
    edges: Annotated[bool, typer.Option(help="Score edges with their own columns.")] = False,
    output: Annotated[list[str] | None, typer.Option(help="Output to show; repeatable.")] = None,
    node_type: Annotated[
        str | None, typer.Option(help="Type of the nodes, of a model that answers for several.")
    ] = None,
    version: Annotated[str | None, typer.Option(help="Model version.")] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            help="Use only edges up to this time: a number in the graph's time unit, or ISO 8601."
        ),
    ] = None,
    edits: Annotated[
        str | None, typer.Option("--if", help="Edits of the graph for this score: a JSON list.")
    ] = None,
    on_missing: Annotated[str, typer.Option(help="Result for unknown ids: 'error' or 'null'.")] = "error",
    timeout: Annotated[float, typer.Option(help="Timeout in seconds.")] = 30.0,
    url: Url = None,
    api_key: ApiKey = None,
    token: Token = None,
) -> None:
    """Score nodes or links and show the answer as a table."""
    if on_missing not in ("error", "null"):
        raise BadRequest(f"--on-missing is 'error' or 'null', not {on_missing!r}")
    options: dict[str, Any] = {"outputs": output or (), "version": version}
    options |= {"as_of": None if as_of is None else _moment(as_of.strip()), "on_missing": on_missing}
    if edits is not None:
        try:
            options["edits"] = msgspec.json.decode(edits, type=list[dict[str, Any]])
        except msgspec.MsgspecError as error:
            raise BadRequest(f"--if: must be a JSON list of edits: {error}") from None
    with open_client(url, api_key, token, timeout_s=timeout) as client:
        # Ids on a command line are text; the model's metadata says whether ids are numbers or strings.
        info = next((known for known in client.models() if known.name == model), None)
        kinds = info.properties.get("node_types", {}) if info else {}
        is_int = info and kinds.get(node_type, info.id_kind) == "int"
        if pairs or edges:
            are_int = [kind == "int" for kind in kinds.values()] or [is_int]
            items: list[Any] = [_edge(text, are_int[0], are_int[-1], edges) for text in nodes]
            score_ends = client.score_edges if edges else client.score_pairs
            result = score_ends(model, items, **options)
        else:
            items = [_id(node, is_int) for node in nodes]
            result = client.score(model, items, node_type=node_type, **options)
    Screen(markup=False).print(result_table(nodes, result))  # ids may contain brackets


def result_table(names: list[str], result: ScoreResult) -> Table:
    """A table with one row for each item and one column for each output."""
    title = f"{result.model} version {result.version}, graph {result.graph_version}"
    if result.degraded:
        title += f", degraded: {', '.join(result.degraded)}"
    table = Table(title=title, title_justify="left")
    table.add_column("node", no_wrap=True)
    for name in result.outputs:
        table.add_column(name)
    for row, name in enumerate(names):
        if result.missing is not None and result.missing[row]:
            table.add_row(name, *["unknown"] * len(result.outputs))
        else:
            table.add_row(name, *[_cell(array[row]) for array in result.outputs.values()])
    return table


def _cell(value: Any) -> str:
    if getattr(value, "ndim", 0) == 0:
        return (
            f"{value:.6g}"
            if getattr(value, "dtype", None) is not None and value.dtype.kind == "f"
            else str(value)
        )
    shown = ", ".join(f"{item:.4g}" for item in value[:_MAX_COLUMNS].tolist())
    return f"{shown}, … ({len(value)})" if len(value) > _MAX_COLUMNS else shown


def _moment(text: str) -> int | str:
    try:
        return integer_id(text)
    except ValueError:
        return text


def _id(text: str, is_int: object) -> int | str:
    try:
        return integer_id(text) if is_int else text
    except ValueError:
        raise BadRequest(f"{text!r} is not an integer; the model's node ids are integers") from None


def _edge(text: str, is_source_int: object, is_target_int: object, has_columns: bool) -> Any:
    """The edge, or the pair, of "source,destination,column=value,..."."""
    source, *rest = text.split(",")
    if has_columns and not rest:
        return {"id": text}
    if not rest or (rest[1:] and not has_columns) or not all("=" in cell for cell in rest[1:]):
        form = "an edge source,destination,column=value" if has_columns else "a pair source,destination"
        raise BadRequest(f"{text!r} is not {form}")
    ends = _id(source, is_source_int), _id(rest[0], is_target_int)
    if not has_columns:
        return ends
    row = {name: _cell_of(value) for name, _, value in (cell.partition("=") for cell in rest[1:])}
    return {"from": ends[0], "to": ends[1], "columns": row or None}


def _cell_of(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
