"""`hopline init`: write a small project, from tables to a served answer."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr
from enum import StrEnum
from functools import partial
from importlib.resources import files
from io import StringIO
from pathlib import Path
from pprint import pformat
from typing import Annotated, Any, TypeAlias

import typer

from hopline.commands.graph import SUBCOMMANDS, Database
from hopline.commands.graph_files import TABLES
from hopline.errors import BadRequest, GraphError
from hopline.toml import parse_toml

#: Rows of a pair's second table among which the client chooses.
_AMONG = 50
#: A value that the client sends in place of a column's: a request takes none of these.
_NO_FEATURE = ("label", "time", "weight", "left out")
Cells: TypeAlias = Callable[[dict[str, Any]], dict[str, list[Any]]]


class Kind(StrEnum):
    """The kind of a project."""

    fraud = "fraud"
    recommender = "recommender"
    relational = "relational"


def init(
    kind: Annotated[
        Kind,
        typer.Argument(
            help="fraud: which rows of a table are true; recommender: which pairs are made; relational: "
            "a number or a truth of a table's rows."
        ),
    ],
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            help="CSV or Parquet files, FILE or NAME=FILE each; with --database NAME, or "
            "NAME='sql:SELECT ...'. Default: all tables of the database, or generated ones."
        ),
    ] = None,
    database: Database = "",
    out: Annotated[Path | None, typer.Option(help="New folder of the project. Default: the kind.")] = None,
    label: Annotated[
        str, typer.Option(metavar="TABLE.COLUMN", help="Label, unless its name says that it is one.")
    ] = "",
    run: Annotated[bool, typer.Option("--run", help="Run it: to the answer of a server.")] = False,
) -> None:
    """Write a project: the description of the tables, a model in PyG, a client, a test; python run.py."""
    folder = out or Path(kind.value)
    if folder.exists():
        raise BadRequest(f"{folder} exists; name a new folder with --out")
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)  # so that a corrected command can be run
        sources = list(tables or ())
        if not (sources or database):
            from hopline_demo.shop import write

            sources = [f"{name}={path}" for name, path in write(kind.value, folder / "data").items()]
            label = label or ("order.delivery_days" if kind is Kind.relational else "")
        folder.mkdir(exist_ok=True)
        path = folder / "graph.toml"
        with redirect_stderr(StringIO()):  # its next step is another one
            SUBCOMMANDS.require("describe")(sources, path, database)
        if label:
            path.write_text(_labelled(path.read_text(), label))
        described, is_pairs = parse_toml(path.read_text())["tables"], kind is Kind.recommender
        cells = partial(_cells, folder, database)
        words = _pairs(described, cells) if is_pairs else _rows(described, cells, kind is Kind.fraud)
        words["NAME"] = kind.value
        for template in ("shared", "pairs" if is_pairs else "nodes"):
            for file in files("hopline_demo").joinpath("project", template).iterdir():
                text = file.read_text(encoding="utf-8")
                for name, value in words.items():
                    text = text.replace(f"@{name}@", value)
                (folder / file.name.removesuffix(".txt")).write_text(text)
        undo.pop_all()
    typer.echo(f"{folder}: read graph.toml, then: cd {folder} && python run.py", err=True)
    if run:
        raise typer.Exit(subprocess.call([sys.executable, "run.py"], cwd=folder))


def _labelled(text: str, label: str) -> str:
    """The description with a column as a label. Raises: GraphError: it has no such column."""
    table, _, column = label.rpartition(".")
    section = re.search(rf'(?ms)^\[tables\."?{re.escape(table)}"?\.columns\]$.*?(?=^\[|\Z)', text)
    line = section and re.search(rf'(?m)^("?{re.escape(column)}"? = \{{ )(role = "[^"]*",? ?)?', section[0])
    if not section or not line:
        raise GraphError(f"--label {label}: no such column; write TABLE.COLUMN")
    if not parse_toml(text)["tables"][table].get("key"):
        raise GraphError(f"--label {label}: no column has another value in each row; add a column of ids")
    end = section.start() + line.end()
    rest = "" if text[end] == "}" else ", "  # a column that was left out has nothing else
    return f'{text[: section.start() + line.start()]}{line[1]}role = "label"{rest or " "}{text[end:]}'


def _rows(described: dict[str, Any], cells: Cells, is_fraud: bool) -> dict[str, str]:
    """The words of a project about the rows of a table. Raises: GraphError: no column is a label."""
    found = [
        (name, column, any(each.get("role") == "time" for each in table["columns"].values()))
        for name, table in described.items()
        for column, one in table.get("columns", {}).items()
        if one.get("role") == "label" and table.get("key")
    ]
    if not found:
        raise GraphError("no column of a table with a key is a label by its name: --label TABLE.COLUMN")
    target, label, _ = max(found, key=lambda each: each[2])
    table = described[target]
    is_truth = table["columns"][label].get("type") == "boolean"
    if table["columns"][label].get("type", "text") == "text":
        raise GraphError(f"label {target}.{label} is text; write it as a number, or as true and false")
    rows = cells(table)
    is_truth = is_truth or {each for each in rows[label] if each is not None} <= {0, 1}
    if is_fraud and not is_truth:
        raise GraphError(f"label {target}.{label} is a number: hopline init relational predicts numbers")
    columns = {
        name: rows[name][0]
        for name, each in table["columns"].items()
        if each.get("role", "feature") not in _NO_FEATURE
    }
    neighbors = {
        f"{each['table']}__{each['reverse']}__{target}": rows[name][:1]
        for name, each in table.get("foreign_keys", {}).items()
        if each.get("reverse") and rows[name][0] is not None
    }
    return {
        "TARGET": target,
        "LABEL": label,
        "TASK": "binary" if is_truth else "regression",
        "COLUMNS": pformat(columns, sort_dicts=False),
        "NEIGHBORS": pformat(neighbors, sort_dicts=False, width=100),
    }


def _pairs(described: dict[str, Any], cells: Cells) -> dict[str, str]:
    """The words of a project about pairs. Raises: GraphError: no table's rows are edges between others."""
    for name, table in described.items():
        ends = [each["table"] for each in table.get("foreign_keys", {}).values()]
        if table.get("key") or len(ends) != 2 or not set(ends) <= described.keys():
            continue
        src, dst = ends
        who, among = (cells(described[each])[described[each]["key"]] for each in ends)
        shown = pformat(among[:_AMONG], compact=True, width=100)
        relation = table.get("relation") or name
        return {"SRC": src, "RELATION": relation, "DST": dst, "WHO": repr(who[0]), "AMONG": shown}
    raise GraphError(
        "no table without a key is between two other tables: pass users, items, and what they took without "
        "a column of ids"
    )


def _cells(folder: Path, database: str, table: dict[str, Any]) -> dict[str, list[Any]]:
    """The cells of a table by column, as requests have them."""
    from hopline.graph.cells import Missing
    from hopline.graph.files import open_table
    from hopline.graph.list_columns import list_of
    from hopline.graph.text_table import TextFormat
    from hopline.graph.typed_columns import typed
    from hopline.types import silent

    query = table.get("query")
    source = TABLES.require("sql")(query, database) if query else folder / table["file"]
    opened = open_table(source, TextFormat(), (), silent)
    opened.load(opened.names)
    kinds = {name: each.get("type", "") for name, each in table.get("columns", {}).items()}
    wanted = [table.get("key") or "", *table.get("foreign_keys", {}), *kinds]
    found = {}
    for name in filter(None, wanted):
        if kinds.get(name) in ("vector", "codes", "codes-only"):
            cells = opened.column(name).to_pylist()
            found[name] = [list_of(each) if isinstance(each, str) else each for each in cells]
        elif kinds.get(name) or name not in kinds:
            column = typed(opened, name, Missing(), kinds.get(name, "")).to_pylist()
            found[name] = [each.isoformat() if hasattr(each, "isoformat") else each for each in column]
    return found
