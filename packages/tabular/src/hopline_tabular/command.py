"""`hopline package --sklearn` and `--preprocess`: packages fitted objects of files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import joblib
import pandas as pd
from rich.markup import escape
from rich.table import Table

from hopline.commands.model_reference import load_module
from hopline.commands.screen import Screen, whole
from hopline.errors import PackagingError
from hopline.graph import Graph
from hopline_tabular.packaging import TabularReport, package_tabular

_PICKLED = (".joblib", ".pkl", ".pickle")


def load_fitted(reference: str, what: str, does: str = "predict", graph: Graph | None = None) -> Any:
    """Load the object of a joblib file, or the one that FILE.py:NAME or MODULE:NAME names.

    A joblib file is a pickle: reading it runs code in it. Only `hopline package` reads it, never a server.

    Args:
        what: option named in messages.
        does: the method that the object must have.
        graph: passed to a function that has an argument named `graph`.

    Raises: PackagingError: no such file, module or name, or an object without the method.
    """
    path, kind = Path(reference), f"a fitted {'estimator' if does == 'predict' else 'transformer'}"
    form = kind, lambda each: hasattr(each, does) and not isinstance(each, type)
    if path.suffix not in _PICKLED:
        return load_module(reference, graph, what=what, form=form)
    try:
        found = joblib.load(path)
    except FileNotFoundError:
        raise PackagingError(f"{path}: no such file") from None
    except Exception as error:  # unpickling can raise any exception
        raise PackagingError(f"{path}: cannot be read: {type(error).__name__}: {error}") from error
    if not form[1](found):
        raise PackagingError(f"{what}: {reference} is {type(found).__name__}, not {kind}")
    return found


def load_transformers(references: Mapping[str, str], graph: Graph) -> dict[str, Any]:
    """Node type or edge type key -> its fitted transformer, as `load_fitted`; None for "none"."""
    return {
        name if name in graph.nodes else name.replace(":", "__"): (
            None if each == "none" else load_fitted(each, f"--preprocess {name}", "transform", graph)
        )
        for name, each in references.items()
    }


def read_sample_file(path: Path) -> Any:
    """Read the rows of a CSV or Parquet file as a DataFrame.

    Raises:
        PackagingError: the file is missing, has another format, or cannot be read.
    """
    readers = {".csv": pd.read_csv, ".parquet": pd.read_parquet}
    reader = readers.get(path.suffix)
    if reader is None:
        raise PackagingError(f"--sample {path}: must end in .csv or .parquet")
    try:
        return reader(path)
    except FileNotFoundError:
        raise PackagingError(f"--sample {path}: no such file") from None
    except (ValueError, OSError) as error:
        raise PackagingError(f"--sample {path}: cannot be read: {error}") from error


def _show_tabular(report: TabularReport) -> None:
    """Print the columns, and how well the artifact agrees with the estimator."""
    console = Screen()
    table = Table("column", "type", "null", "default", "values", box=None, pad_edge=False)
    for column in report.spec.columns:
        default = "" if column.default is None else escape(str(column.default))
        values = f"{len(column.values)} known" if column.values else "any"
        table.add_row(
            escape(column.name), column.dtype, "yes" if column.nullable else "no", default, values
        )
    console.print(whole(table, "column"))
    for note in report.notes:
        console.print(f"note: {escape(note)}")
    agreement = report.agreement
    for place in agreement.worst:
        console.print(f"largest difference: {escape(str(place))}")
    largest = max(agreement.max_abs_diff, agreement.max_abs_diff_edges)
    console.print(
        f"[bold]{escape(str(report.path))}[/bold]  {report.num_bytes:,} bytes  "
        f"{agreement.num_rows} rows and {agreement.num_edge_rows} edge cases: "
        f"largest difference from the estimator {largest:.1e}  {report.seconds:.1f} s"
    )


def package_file(
    reference: str,
    sample: Path,
    repository: Path,
    name: str,
    version: str,
    task: str | None,
    overwrite: bool,
) -> None:
    """Package the estimator that a reference names, and print the report.

    Raises:
        PackagingError, ParityError: as `load_fitted`, `read_sample_file` and `package_tabular`.
    """
    _show_tabular(
        package_tabular(
            load_fitted(reference, "--sklearn"),
            read_sample_file(sample),
            repository,
            name=name,
            version=version,
            task=cast(Any, task),
            overwrite=overwrite,
            progress=True,
        )
    )
