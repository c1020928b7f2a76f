"""References without traffic: from a prediction log, a graph, or a table of training rows."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from hopline.errors import BadRequest
from hopline.records.entry import Entry
from hopline.types import ScoreRequest, ScoreResult
from hopline_drift.log_reader import LogReader
from hopline_drift.observed import LABEL, SCORE, Observed, Quantity
from hopline_drift.reader import SampleReader
from hopline_drift.reference import Reference
from hopline_drift.reservoir import Sampled
from hopline_drift.structure import GraphModel, Packaged

#: Requests or nodes per read.
_PIECE = 512


class Choice(NamedTuple):
    """The choice of rows and columns to read.

    Attributes:
        max_rows: most rows, sampled from all.
        seed: of the sample.
        max_columns, columns: see the settings.
    """

    max_rows: int = 20_000
    seed: int = 0
    max_columns: int = 32
    columns: tuple[str, ...] = ()

    def reader(self) -> SampleReader:
        """A reader like that of a server."""
        random = np.random.default_rng(self.seed)
        return SampleReader(self.max_columns, self.columns, random, rest=lambda: None)


def from_log(
    path: Path, model: str, version: str, choice: Choice, made: float, around: GraphModel | None = None
) -> Reference:
    """A reference from logged answers.

    Args:
        path: folder or file of the log.
        model, version: of the answers; version "" is the last one in the log.
        made: creation, time.time().
        around: model and graph, to also read neighbourhoods of the logged nodes.

    Raises: BadRequest: the log has no answers of that version.
    """
    reader = LogReader(path)
    found: dict[str, list[Entry]] = {}
    counts: dict[str, int] = {}
    last = ""
    random = Random(choice.seed)
    for entry in reader:
        if entry.model != model or entry.outcome != "ok":
            continue
        last = entry.version
        count = counts[last] = counts.get(last, 0) + 1
        kept = found.setdefault(last, [])
        if len(kept) < choice.max_rows:
            kept.append(entry)
        elif (place := random.randrange(count)) < choice.max_rows:
            kept[place] = entry
    version = version or last
    if version not in found:
        known = ", ".join(sorted(found)) or "none"
        raise BadRequest(f"{path}: no answers of {model}/{version or '?'}; versions of {model}: {known}")
    observed, samples = Observed(), choice.reader()
    sampled = [_sampled(entry) for entry in found[version]]
    for first in range(0, len(sampled), _PIECE):
        observed.add(samples.read(sampled[first : first + _PIECE], around))
    return Reference.of(observed, f"log {path}", made, model=model, version=version)


def from_graph(packaged: Packaged, choice: Choice, made: float) -> Reference:
    """A reference from nodes sampled uniformly from a graph; traffic adds the answers.

    For a link model both sides are sampled.
    """
    spec, graph = packaged.spec, packaged.graph
    observed, structure = Observed(), choice.reader().structure(packaged)
    head = spec.head
    sides = [(head.node_type, "")]
    if head.kind == "link":
        sides = [(head.node_type, "source "), (head.dst_node_type or head.node_type, "destination ")]
    random = np.random.default_rng(choice.seed)
    for node_type, prefix in sides:
        num_nodes = graph.nodes[node_type].num_nodes
        ids = np.sort(random.choice(num_nodes, min(num_nodes, choice.max_rows), replace=False))
        for first in range(0, ids.shape[0], _PIECE):
            structure.read_nodes(ids[first : first + _PIECE], node_type, prefix, observed)
        observed.num_requests += ids.shape[0]
    source = f"graph {graph.version}"
    return Reference.of(observed, source, made, model=spec.name, version=spec.version, is_complete=False)


def from_table(
    path: Path, choice: Choice, made: float, score: str | None = None, label: str | None = None
) -> Reference:
    """A reference from training rows: Parquet, or CSV with a header line.

    Args:
        score: column with the model's scores of these rows; without it traffic adds them.
        label: column with its labels.

    Raises: BadRequest: the file cannot be read, or a column is missing.
    """
    columns = _columns(path)
    absent = [name for name in (score, label) if name is not None and name not in columns]
    if absent:
        raise BadRequest(f"{path}: no column {absent[0]!r}; columns are {', '.join(map(repr, columns))}")
    count = len(next(iter(columns.values()), ()))
    rows = np.arange(count)
    if count > choice.max_rows:
        rows = np.random.default_rng(choice.seed).choice(count, choice.max_rows, replace=False)
    observed = Observed()
    observed.num_requests = rows.shape[0]
    inputs = [name for name in columns if name not in (score, label)]
    watched = [name for name in inputs if not choice.columns or name in choice.columns]
    for name in watched[: choice.max_columns]:
        observed.column(Quantity("input", name), [columns[name][row] for row in rows.tolist()])
    if score is not None:
        observed.numbers(SCORE, [columns[score][row] for row in rows.tolist()])
    if label is not None:
        observed.categories(LABEL, [columns[label][row] for row in rows.tolist()])
    return Reference.of(observed, f"table {path}", made, is_complete=score is not None)


def _sampled(entry: Entry) -> Sampled:
    missing = None
    if entry.missing:
        count = max((len(array) for array in entry.outputs.values()), default=0)
        missing = np.zeros(count, np.bool_)
        missing[list(entry.missing)] = True
    result = ScoreResult(
        entry.model, entry.version, entry.graph_version, entry.outputs, missing, entry.degraded
    )
    if entry.inputs is None:  # not logged: only the answer is used
        return ScoreRequest(entry.model), result
    return entry.inputs.request(entry.model, entry.version), result


def table_of(path: Path) -> tuple[dict[str, list[Any]], bool]:
    """Column -> values, None for missing ones; and True if they are the texts of a CSV file.

    Raises: BadRequest: the file cannot be read.
    """
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            return dict(parquet.read_table(path).to_pydict()), False
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            texts = list(zip(*rows, strict=False)) or [()] * len(header)
    except ImportError:
        raise BadRequest("reading Parquet needs pyarrow: pip install 'hopline[parquet]'") from None
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise BadRequest(f"{path} cannot be read: {error}") from None
    columns = zip(header, texts, strict=False)
    return {name: [text or None for text in values] for name, values in columns}, True


def _columns(path: Path) -> Mapping[str, Sequence[Any]]:
    """Column name -> values, None for missing values; a CSV file's columns of numbers are numbers."""
    columns, is_text = table_of(path)
    return {name: list(typed(values)) for name, values in columns.items()} if is_text else columns


def typed(texts: Sequence[str | None]) -> Sequence[float | str | None]:
    """Numbers if every text is a number or missing, else the texts."""
    try:
        return [float(text) if text else None for text in texts]
    except ValueError:
        return texts
