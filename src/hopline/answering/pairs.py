"""Answers of two versions to the same rows, one pair for each distinct row, and what they say together.

Two trainings of one model never give the same scores. They give nearly the same decisions and nearly the
same order of rows; a broken version does not. So decisions and ranks are compared:

    flipped   rows with another decision; `by_chance` is the share that two unrelated versions would have,
              so that a rare class counts as much as a frequent one (kappa: J. Cohen, 1960)
    one_way   how much one class grew or shrank: a shifted bias or threshold
    lost      rows of one class that get another one: classes in another order
    moved     rows whose rank moved by more than a quarter of all rows: a broken part

A sample has the rows with the smallest keys. That is an even sample of all distinct rows, and samples of
several workers add up (bottom-k: E. Cohen and H. Kaplan, 2007).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from typing import NamedTuple
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.observe.psi import Comparison, Sketch, compare, number_bins
from hopline.types import AnyArray, ScoreResult

#: Rows of a sample.
MAX_PAIRS = 2000
#: Rows below which ranks and the shift of scores say nothing, and decisions by the median.
MIN_PAIRS, _MIN_MEDIAN = 100, 20
#: A rank that moves by more than this share of all rows moved far.
_FAR = 1 / 4
#: Difference of probabilities that never counts.
_LEAST = 1e-3
#: Relative difference that float32 arithmetic makes.
_FLOAT_NOISE = 1e-6

#: Decisions, then scores of both versions, the current one first; and whether the scores order the rows. A
#: decision is the code of a label and of the largest of several classes, None where the answer has neither.
Pair = tuple[int | None, int | None, float, float, bool]


class Evidence(NamedTuple):
    """Figures of a sample of pairs; see the module.

    Attributes:
        num_keys: distinct rows.
        nulls: of them, rows that only the candidate leaves without a number.
        decided: rows with a decision of both versions.
        of_class: rows of the class that `lost` is about.
        ordered: rows whose ranks were compared.
        changed: rows with another decision, a score that differs by more than the tolerance, or a null.
        shift: of the scores; None for too few rows.
    """

    num_keys: int = 0
    nulls: int = 0
    decided: int = 0
    flipped: int = 0
    by_chance: float = 0.0
    one_way: int = 0
    lost: int = 0
    of_class: int = 0
    ordered: int = 0
    moved: int = 0
    changed: int = 0
    shift: Comparison | None = None


def pairs_of(
    current: ScoreResult, candidate: ScoreResult, count: int, *, is_text: bool
) -> list[Pair | None]:
    """Pairs of the first `count` rows of two answers to one request; None where the current one is null.

    Args:
        is_text: only the lengths of texts are paired: two models never write the same text.
    """
    ours, theirs = _side(current, count), _side(candidate, count)
    is_ordered = ours.is_ordered and theirs.is_ordered and not is_text
    pairs: list[Pair | None] = []
    for row, (before, after) in enumerate(zip(ours.scores.tolist(), theirs.scores.tolist(), strict=False)):
        if before != before:
            pairs.append(None)
        elif is_text or not (ours.decisions and theirs.decisions):
            pairs.append((None, None, before, after, is_ordered))
        else:
            pairs.append((ours.decisions[row], theirs.decisions[row], before, after, is_ordered))
    return pairs


def by_output(result: ScoreResult) -> dict[str, ScoreResult]:
    """The answers of each named output (`fraud_label`), as those of a model with one; of others, as ""."""
    found: dict[str, dict[str, AnyArray]] = {}
    for name, values in result.outputs.items():
        output, _, kind = name.rpartition("_")
        if kind not in ("probabilities", "label", "logits"):
            output, kind = "", name
        found.setdefault(output, {})[kind] = values
    if len(found) > 1:
        found.get("", {}).pop("logits", None)  # of all outputs together
    return {name: msgspec.structs.replace(result, outputs=own) for name, own in found.items()}


def smallest(pairs: dict[int, Pair]) -> dict[int, Pair]:
    """The `MAX_PAIRS` rows with the smallest keys."""
    if len(pairs) <= MAX_PAIRS:
        return pairs
    return {key: pairs[key] for key in nsmallest(MAX_PAIRS, pairs)}


def weigh(pairs: Mapping[int, Pair], tolerance: float, threshold: float | None = None) -> Evidence:
    """Figures of pairs; half a millisecond for a thousand.

    Args:
        tolerance: difference of scores that does not count, in standard deviations of the current ones.
        threshold: score from which callers act. None takes the labels, and the current median of numbers
            without labels.
    """
    rows = list(pairs.values())
    before, after = _numbers(rows, 2), _numbers(rows, 3)
    known = np.isfinite(after) | ~np.isfinite(before)
    nulls = len(rows) - int(known.sum())
    if nulls:
        rows = [row for row, is_known in zip(rows, known, strict=True) if is_known]
        before, after = before[known], after[known]
    if not rows:
        return Evidence(num_keys=len(pairs), nulls=nulls, changed=nulls)
    if tolerance:
        tolerance *= float(before.std())
        if before.min() >= 0 and before.max() <= 1:
            tolerance = max(tolerance, _LEAST)
    near = ~(np.abs(after - before) > np.maximum(tolerance, _FLOAT_NOISE * np.abs(before)))
    after = np.where(near, before, after)
    is_ordered = np.array([row[4] for row in rows], bool)
    decisions = _decisions(rows, before, after, is_ordered, threshold)
    flips = [first != second for first, second in decisions]
    by_class = _by_class([pair for pair in decisions if None not in pair])
    ordered = int(is_ordered.sum())
    shift = None
    if len(rows) >= MIN_PAIRS:
        bins = number_bins(before, at_least=tolerance)
        shift = compare(Sketch.of(bins, before), Sketch.of(bins, after))
    return by_class._replace(
        num_keys=len(pairs),
        nulls=nulls,
        ordered=ordered,
        moved=_moved(before[is_ordered], after[is_ordered]) if ordered >= MIN_PAIRS else 0,
        changed=nulls + int((~near | flips).sum()),
        shift=shift,
    )


class _Side(NamedTuple):
    """One version's answer.

    Attributes:
        scores: float64 [n]; NaN for a null row, 0 where the answer has no score.
        decisions: codes of the labels, [n]; empty where there are none.
        is_ordered: True if the scores order the rows; those of several classes do not.
    """

    scores: NDArray[np.float64]
    decisions: Sequence[int]
    is_ordered: bool


def _side(result: ScoreResult, count: int) -> _Side:
    outputs = {name: values[:count] for name, values in result.outputs.items() if values.ndim}
    num_rows = min((len(values) for values in outputs.values()), default=0)
    scores, decisions, is_ordered = np.zeros(num_rows), list[int](), False
    for values in outputs.values():
        if values.dtype.kind == "f":
            broken = ~np.isfinite(values[:num_rows]).reshape(num_rows, -1).all(axis=1)
            scores[broken] = np.nan
    length = outputs.get("completion_tokens")
    if length is not None:
        return _Side(length.astype(np.float64), [], False)
    for name in ("probabilities", "value", "logits"):
        values = outputs.get(name)  # type: ignore[assignment]
        if values is None or values.dtype.kind != "f":
            continue
        is_ordered = values.ndim == 1 or values.shape[1] <= 2
        one = values if values.ndim == 1 else values[:, -1] if is_ordered else values.max(axis=1)
        scores = np.where(np.isnan(scores), np.nan, one.astype(np.float64))
        if name != "value":
            decisions = _classes(values, 0.5 if name == "probabilities" else 0.0)
        break
    label = outputs.get("label")
    if label is not None:
        # Callers read either: a label, or the order of the classes.
        classes = decisions if decisions and not is_ordered else [0] * num_rows
        decisions = [code << 20 | at for code, at in zip(_codes(label), classes, strict=False)]
    missing = result.missing
    if missing is not None:
        scores[missing[:num_rows]] = np.nan
    return _Side(scores, decisions, is_ordered)


def _classes(values: AnyArray, half: float) -> list[int]:
    """The class with the largest score of each row; 0 or 1 for a single score."""
    if values.ndim == 1 or values.shape[1] == 1:
        return (values.reshape(-1) >= half).astype(int).tolist()  # type: ignore[no-any-return]
    return values.reshape(len(values), -1).argmax(axis=1).tolist()  # type: ignore[no-any-return]


def _codes(labels: AnyArray) -> list[int]:
    """A number for each label: itself, or a checksum of its text."""
    if labels.ndim == 1 and labels.dtype.kind in "biu":
        return labels.astype(int).tolist()  # type: ignore[no-any-return]
    return [crc32(str(label).encode(errors="replace")) for label in labels.tolist()]


def _numbers(rows: Sequence[Pair], at: int) -> NDArray[np.float64]:
    return np.array([row[at] for row in rows], np.float64)


def _decisions(
    rows: Sequence[Pair],
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    is_ordered: NDArray[np.bool_],
    threshold: float | None,
) -> list[tuple[int | None, int | None]]:
    """Decisions of both versions, of each row."""
    decisions: list[tuple[int | None, int | None]] = [row[:2] for row in rows]
    by_score = (
        is_ordered if threshold is not None else is_ordered & [first is None for first, _ in decisions]
    )
    if threshold is None and by_score.sum() >= _MIN_MEDIAN:
        threshold = float(np.median(before[by_score]))
    if threshold is not None:
        for at in np.flatnonzero(by_score).tolist():
            decisions[at] = int(before[at] >= threshold), int(after[at] >= threshold)
    return decisions


def _by_class(decisions: Sequence[tuple[int | None, int | None]]) -> Evidence:
    """Figures of decisions, for any classes."""
    if not decisions:
        return Evidence()
    _, codes = np.unique(np.array(decisions, np.int64), return_inverse=True)
    first, second = codes.reshape(-1, 2).T
    num_classes, count = int(codes.max()) + 1, len(decisions)
    before, after = np.bincount(first, minlength=num_classes), np.bincount(second, minlength=num_classes)
    lost = np.bincount(first[first != second], minlength=num_classes)
    # Of classes with one row, any flip would be all.
    most = int(np.argmax(lost / np.maximum(before, 5)))
    return Evidence(
        decided=count,
        flipped=int((first != second).sum()),
        by_chance=1.0 - float((before / count) @ (after / count)),
        one_way=int(np.abs(after - before).max()),
        lost=int(lost[most]),
        of_class=int(before[most]),
    )


def _moved(before: NDArray[np.float64], after: NDArray[np.float64]) -> int:
    """Rows that differ, and whose rank moved far."""
    moved = np.abs(_ranks(after) - _ranks(before)) > _FAR
    return int((moved & (before != after)).sum())


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of smaller values, equal ones counted half: in [0, 1]."""
    ordered = np.sort(values)
    below, to = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    return (below + to) / (2 * len(values))
