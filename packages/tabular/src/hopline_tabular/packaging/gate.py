"""The gate: the artifact, run as the server runs it, must give the estimator's answers.

Agreement means |a - b| <= 1e-4, and for values beyond 1 also 1e-4 of them: on every row of the sample and
on edge rows: absent values, unknown categories, extremes. Served answers are float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopline.errors import ParityError
from hopline.types import AnyArray, FloatArray
from hopline_tabular.model import TabularModel
from hopline_tabular.packaging.encoders import UNKNOWN_STRING
from hopline_tabular.packaging.oracle import Oracle
from hopline_tabular.packaging.sample import Sample
from hopline_tabular.spec import Column

TOLERANCE = 1e-4
#: Probabilities closer to each other are equal in float64.
_TIE = 1e-12
#: Rows of one call while checking.
_CHUNK = 1024
#: Rows on which answers alone are compared with answers in batches.
_ALONE = 64
#: Rows named in a message.
_NAMED = 3
#: Rows of the sample on which each probe is tried.
_BASES = 3
#: Parts of a transformer that are looked through, and fitted numbers that each column is given.
_MOST_PARTS, _FITTED = 1000, 16
_EXTREMES = (0.0, -1.0, 1e-6, 1e6, -1e6, 1e12, 1e30, -1e30)


@dataclass(frozen=True, slots=True)
class ColumnProbe:
    """Some rows that differ from rows of the sample in one column.

    Attributes:
        column: which.
        value: put there; None for an absent one.
        rows: with that value.
        answer: the estimator's; None where it refuses such rows.
    """

    column: Column
    value: Any
    rows: Sample
    answer: AnyArray | None

    def __str__(self) -> str:
        return f"{self.column.name} {'absent' if self.value is None else f'= {self.value!r}'}"


def probe(oracle: Oracle, sample: Sample, columns: tuple[Column, ...]) -> Iterator[ColumnProbe]:
    """Call the estimator on edge rows for each of these columns."""
    bases = sample.take(range(min(_BASES, sample.num_rows)))
    fitted = np.unique(np.concatenate([np.zeros(0), *_fitted_numbers(oracle.steps)]))
    for column in columns:
        absent, *values = _edges(column, sample.rows[column.name], fitted)
        # an absent value makes a column of integers one of floats: it has a separate call
        yield from _probes(oracle, bases, column, [absent])
        yield from _probes(oracle, bases, column, values)


def _probes(oracle: Oracle, bases: Sample, column: Column, values: list[Any]) -> list[ColumnProbe]:
    """Probes of some values; one call of the estimator, and calls for each half where it refuses it."""
    samples = [bases.of({**bases.rows, column.name: [value] * bases.num_rows}) for value in values]
    rows = {name: [row for sample in samples for row in sample.rows[name]] for name in bases.rows}
    try:
        answers = np.split(oracle.answer(bases.of(rows)), len(values))
    except Exception:  # an estimator may raise any error on rows that it refuses
        if len(values) == 1:
            return [ColumnProbe(column, values[0], samples[0], None)]
        half = len(values) // 2
        parts = [_probes(oracle, bases, column, part) for part in (values[:half], values[half:])]
        return [*parts[0], *parts[1]]
    return [ColumnProbe(column, *each) for each in zip(values, samples, answers, strict=True)]


def _fitted_numbers(found: object) -> Iterator[AnyArray]:
    """Numbers that transformers were fitted to or given; thresholds and bounds of bins are among them."""
    if isinstance(found, np.ndarray) and found.dtype.kind == "f":
        yield found[np.isfinite(found)].ravel().astype(np.float64)
    elif isinstance(found, float) and np.isfinite(found):
        yield np.array([found])
    elif isinstance(found, np.ndarray | list | tuple) and len(found) <= _MOST_PARTS:
        for part in found:
            yield from _fitted_numbers(part)
    elif hasattr(found, "get_params"):
        yield from _fitted_numbers(list(vars(found).values()))


def _edges(column: Column, values: list[Any], fitted: AnyArray) -> Iterator[Any]:
    yield None
    if column.dtype == "string":
        yield UNKNOWN_STRING
        yield ""
        return
    known = [value for value in values if value is not None]
    low, high = (min(known), max(known)) if known else (0, 0)
    kind = int if column.dtype == "int" else float
    beyond = (low - 1, high + 1) if column.dtype == "int" else (low - 0.5, high + 0.5)
    inside = fitted[(fitted > low) & (fitted < high)]
    chosen = (
        inside[np.unique(np.linspace(0, len(inside) - 1, _FITTED).astype(int))] if len(inside) else inside
    )
    for value in dict.fromkeys((low, high, *beyond, *_EXTREMES, *chosen.tolist())):
        if column.dtype == "int" and (abs(value) > 2**53 or value != int(value)):
            continue
        yield kind(value)


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of the gate.

    Attributes:
        num_rows, num_edge_rows: compared.
        max_abs_diff, max_abs_diff_edges: largest difference in any of their answers.
        worst: the rows of the largest differences, in words; "" if there are none.
    """

    num_rows: int
    num_edge_rows: int
    max_abs_diff: float
    max_abs_diff_edges: float
    worst: tuple[str, ...]


def check_answers(
    model: TabularModel, oracle: Oracle, sample: Sample, expected: AnyArray, probes: Sequence[ColumnProbe]
) -> Agreement:
    """Compare the packaged model with the estimator.

    Args:
        expected: the estimator's answers for the sample.
        probes: edge rows, including those that the estimator refuses.

    Raises:
        ParityError: naming the rows that differ.
    """
    answers = run(model, sample)
    places = [f"row {row} of the sample" for row in range(sample.num_rows)]
    largest = _compare(answers, expected, places)
    if oracle.task != "regression":
        _check_labels(model, oracle, sample, answers)
    largest_edge, edge_places = compare(model, probes)
    all_places, every = places + edge_places, np.concatenate([largest, largest_edge])
    worst = [place for place in np.argsort(-every, kind="stable")[:_NAMED].tolist() if every[place] > 0]
    return Agreement(
        sample.num_rows,
        len(edge_places),
        float(largest.max(initial=0.0)),
        float(largest_edge.max(initial=0.0)),
        tuple(f"{all_places[place]}: {every[place]:.2g}" for place in worst),
    )


def compare(model: TabularModel, probes: Sequence[ColumnProbe]) -> tuple[AnyArray, list[str]]:
    """Compare edge rows: largest difference of each row, and the row in words.

    Raises:
        ParityError: naming the rows that differ.
    """
    answered = [(one, one.answer) for one in probes if one.answer is not None]
    places = [f"edge row {one}" for one, _ in answered for _ in range(one.rows.num_rows)]
    if not answered:
        return np.zeros(0), places
    found = np.concatenate([run(model, one.rows) for one, _ in answered])
    return _compare(found, np.concatenate([answer for _, answer in answered]), places), places


def check_preprocessing(model: TabularModel, oracle: Oracle, sample: Sample) -> None:
    """Compare the input of the last step.

    Raises:
        ParityError: the input differs.
    """
    expected = oracle.preprocess(sample)
    found = model.preprocess(_served(sample, model), sample.num_rows)
    _compare(
        found, expected, [f"preprocessing of row {row} of the sample" for row in range(sample.num_rows)]
    )


def answers_alone(model: TabularModel, sample: Sample) -> bool:
    """True if rows have the same bytes alone and in batches of several sizes."""
    rows = sample.take(range(min(_ALONE, sample.num_rows)))
    together = run(model, rows)
    for size in (1, 2, 3, 5, 17):
        parts = [
            run(model, rows.take(range(at, min(at + size, rows.num_rows))))
            for at in range(0, rows.num_rows, size)
        ]
        if np.concatenate(parts).tobytes() != together.tobytes():
            return False
    return True


def run(model: TabularModel, sample: Sample) -> FloatArray:
    """The packaged model's answers, in calls of many rows."""
    parts = []
    for at in range(0, sample.num_rows, _CHUNK):
        rows = sample.take(range(at, min(at + _CHUNK, sample.num_rows)))
        parts.append(model.answer([_served(rows, model)], [rows.num_rows]))
    return np.concatenate(parts)


def _served(sample: Sample, model: TabularModel) -> dict[str, list[object]]:
    return {column.name: sample.rows[column.name] for column in model.spec.columns}


def _compare(answers: AnyArray, expected: AnyArray, places: Sequence[str]) -> AnyArray:
    """Largest difference in each row, float64 [n]."""
    if answers.shape != expected.shape:
        raise ParityError(f"answers have shape {answers.shape}, the estimator's have {expected.shape}")
    with np.errstate(all="ignore"):
        narrowed = expected.astype(answers.dtype).astype(np.float64)
        difference = np.abs(answers.astype(np.float64) - narrowed)
        same = (answers == narrowed) | (np.isnan(answers) & np.isnan(narrowed))
        difference[same] = 0.0
        bad = ~(difference <= TOLERANCE + TOLERANCE * np.abs(narrowed)) & ~same
    wrong = bad.reshape(len(bad), -1)
    if (rows_bad := wrong.any(axis=1)).any():
        named = np.flatnonzero(rows_bad)
        shown = "; ".join(
            f"{places[row]}, columns {np.flatnonzero(wrong[row])[:_NAMED]}: "
            f"{_shown(answers[row], wrong[row])} instead of {_shown(expected[row], wrong[row])}"
            for row in named[:_NAMED].tolist()
        )
        raise ParityError(
            f"{len(named)} of {len(bad)} rows differ from the estimator's answers by more than "
            f"{TOLERANCE:g}: {shown}; nothing was written"
        )
    return difference.reshape(len(difference), -1).max(axis=1, initial=0.0)


def _check_labels(model: TabularModel, oracle: Oracle, sample: Sample, answers: FloatArray) -> None:
    labels, expected = model.labels(answers), oracle.labels(sample)
    exact = oracle.answer(sample)
    if oracle.task == "binary":
        lead = np.abs(exact - 0.5) * 2
    else:
        ordered = np.sort(exact, axis=1)
        lead = ordered[:, -1] - ordered[:, -2]
    # Between the two, float32 decides; a tie goes to the first class, as an estimator decides it.
    differ = np.flatnonzero((labels != expected) & ((lead > 2 * TOLERANCE) | (lead < _TIE)))
    if len(differ):
        row = int(differ[0])
        raise ParityError(
            f"the label is the most probable class, which the estimator's predict() does not return in "
            f"{len(differ)} rows of the sample (row {row}: {oracle.classes[labels[row]]!r} is the most "
            f"probable, it predicts {oracle.classes[expected[row]]!r}); calibrate it, or drop its threshold"
        )


def _shown(row: AnyArray, wrong: AnyArray) -> str:
    return np.array2string(np.ravel(row)[wrong][:_NAMED], precision=6, separator=", ")
