"""`hopline graph describe`, and `hopline graph build` from the file that it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hopline.errors import GraphError

#: Parameters of `hopline graph build` that go with a description.
_TAKEN = {"edges", "out", "database", "dtype", "compress_edges", "overwrite"}


def describe(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables: FILE or NAME=FILE each; NAME='sql:SELECT ...', or with --database NAME for "
            "all of its columns. Default: all tables of the database."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New file to write. Default: stdout.")] = None,
    database: Annotated[
        str,
        typer.Option(metavar="URL", help="Database of tables and queries, as of `hopline graph build`."),
    ] = "",
) -> None:
    """Describe tables: keys, foreign keys, types and roles of columns; to edit, and to build a graph of."""
    from hopline_sql.describe import described

    if not (tables or database):
        raise GraphError("pass tables: FILE or NAME=FILE each; or --database, for all of its tables")
    text = described(tables or (), database, out.parent if out else Path())
    if out is None:
        typer.echo(text, nl=False)
        return
    with out.open("x", encoding="utf-8") as file:  # an edited one is not replaced
        file.write(text)
    typer.echo(f"{out}: read and edit it, then: hopline graph build {out} --out graph", err=True)


def build(path: str, context: typer.Context, progress: Any) -> Any:
    """The graph of a description, with the options of `hopline graph build`.

    Raises: GraphError: another option is given; any error of `Description`.
    """
    from hopline_sql.description import Description

    given = context.params
    others = {each.name or "": each for each in context.command.params if each.name not in _TAKEN}
    more = [
        each.opts[0] for name, each in others.items() if (given[name] or None) != (each.default or None)
    ]
    if more:
        raise GraphError(f"{', '.join(more)}: a description says this itself; edit {path}")
    return Description(path).graph(
        database=given["database"], feature_dtype=given["dtype"], progress=progress
    )
