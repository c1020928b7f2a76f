"""Decisions to advance a candidate, or to roll it back: pure functions of counts.

Little evidence must not decide, and clear evidence must not wait: a share counts as above its limit once
the limit would show so many with a probability below `_CHANCE`, by the Chernoff bound
exp(-n KL(share || limit)), which holds for every n. So three failures of three roll back where 1 % may
fail; one of forty does not.

What failed, was refused or slow is counted by requests. Answers are compared by distinct rows
(`pairs.py`): the same node a thousand times is one row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from hopline.answering.outcome_counts import OutcomeCounts
from hopline.answering.pairs import MAX_PAIRS, Evidence, weigh

#: Small, since a rollout is looked at thousands of times.
_CHANCE = 1e-5
#: Of rows: looks at the same rows again are no further chance.
_CHANCE_OF_ROWS = 1e-3
#: Below it, the candidate does not advance until more rows decide, or the sample is full.
_CHANCE_OF_UNDECIDED = 0.15
#: Of the candidate's requests, those that may be slower than a limit of its p99.
_SLOW_SHARE = 0.05
#: For one that was slow before: less has to be seen.
_CHANCE_AGAIN = 1e-3
#: Answers after a slow verdict that must support the candidate, even where fewer would suffice to advance.
_AFTER_SLOW = 20
#: Shares of `max_disagreement` that rows may move far, and that a class may grow or shrink by. Chosen on
#: trained models, see benchmarks/gates.py.
_MOVED, _ONE_WAY = 0.1, 0.2

#: Of any gate: what is stored must be finite.
_LARGEST = 1e15

Word = Literal["wait", "good", "bad", "slow"]


class Verdict(NamedTuple):
    """A verdict, why, and the name of the gate that a bad one failed, or that too few rows leave open."""

    word: Word
    why: str
    gate: str = ""


class Gates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds that a candidate must hold.

    Attributes:
        max_error_rate: share of requests that may fail, beyond what fails on the current version; also that
            it may refuse though the current version answers them, and of rows that it may leave null.
        max_p99_ratio, max_p50_ratio: its p99 and its median may be so many times those of the current
            version.
        slack_ms: and this much longer in any case: a quarter of a millisecond harms no caller.
        p99_ms: the most that its p99 may be; 0 is no limit.
        max_disagreement: share of rows with another decision, relative to two unrelated versions, and of
            the rows of each class. A fifth of it is how much one class may grow or shrink, a tenth the
            share of rows whose rank may move by more than a quarter of all rows. 1 is no limit.
        threshold: score from which callers act; None takes the labels of the model.
        max_changed: share of rows whose score may differ by more than `tolerance`, or whose decision may
            differ: for a version that must answer the same. 1 is no limit.
        tolerance: difference of scores that does not count, in standard deviations of the current ones.
        max_psi: population stability index between both versions' scores of the same rows.
        min_requests: that the candidate must have answered in a step before it advances.
    """

    max_error_rate: float = 0.01
    max_p99_ratio: float = 1.5
    max_p50_ratio: float = 2.0
    slack_ms: float = 0.25
    p99_ms: float = 0.0
    max_disagreement: float = 0.4
    threshold: float | None = None
    max_changed: float = 1.0
    tolerance: float = 0.05
    max_psi: float = 0.5
    min_requests: int = 200

    def problems(self) -> list[str]:
        """Faults of the numbers, one sentence each."""
        found = []
        for name in ("max_error_rate", "max_disagreement", "max_changed"):
            if not 0 <= getattr(self, name) <= 1:
                found.append(f"gates.{name} is a share between 0 and 1, not {getattr(self, name)}")
        for name in ("slack_ms", "p99_ms", "tolerance", "max_psi", "min_requests"):
            if not getattr(self, name) >= 0:
                found.append(f"gates.{name} must be at least 0, not {getattr(self, name)}")
        for name in ("max_p99_ratio", "max_p50_ratio"):
            if not getattr(self, name) >= 1:
                found.append(f"gates.{name} must be at least 1, not {getattr(self, name)}")
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not -_LARGEST <= value <= _LARGEST:
                found.append(f"gates.{name} is at most {_LARGEST:g}, not {value}")
        return found


def exceeds(hits: int, count: int, limit: float, chance: float = _CHANCE) -> bool:
    """True if `hits` of `count` are certainly more than a share of `limit` would bring.

    Args:
        chance: that is still taken for certain.
    """
    if count <= 0 or hits <= limit * count:
        return False
    if limit <= 0:
        return True
    share = hits / count
    divergence = share * math.log(share / limit)
    if share < 1:
        divergence += (1 - share) * math.log((1 - share) / (1 - limit))
    return count * divergence > -math.log(chance)


def verdict(
    gates: Gates,
    current: OutcomeCounts,
    candidate: OutcomeCounts,
    *,
    preflight: int = 0,
    slow_latency: Sequence[int] | None = None,
    evidence: Callable[[OutcomeCounts, Gates], dict[str, Evidence]] | None = None,
) -> Verdict:
    """Hold a candidate's counts of one step against its gates.

    Args:
        preflight: of a step in which the candidate only gets copies, those that it must have answered;
            their speed says nothing, since they wait for all other requests.
        slow_latency: the candidate's `latency` when it was "slow", whose answers do not count; None before.
        evidence: what the candidate's pairs say, by output; `weighed` by default.

    Returns: "bad" and why, as soon as that is certain; "slow" and why, where it is for the first time;
    "good" once `min_requests` were answered and nothing speaks against it; "wait" and what is lacking.
    """
    if why := _errors(gates, current, candidate):
        return Verdict("bad", why, "max_error_rate")
    found = Verdict("good", "")
    for name, seen_pairs in (evidence or weighed)(candidate, gates).items():
        of_rows = _rows(gates, seen_pairs)
        if name and of_rows.why:
            of_rows = of_rows._replace(why=f"output {name!r}: {of_rows.why}")
        if of_rows.word == "bad":
            return of_rows
        found = found if found.word == "wait" else of_rows
    believed = candidate if slow_latency is None else candidate.after(slow_latency)
    chance = _CHANCE if slow_latency is None else _CHANCE_AGAIN
    why, gate = ("", "") if preflight else _slowness(gates, current, believed, chance)
    if why:
        return Verdict("slow" if slow_latency is None else "bad", why, gate)
    # What a mirror sends counts as well: a shadow has no callers.
    seen = max(candidate.requests, candidate.compared) if slow_latency is None else believed.requests
    wanted = preflight or gates.min_requests
    if slow_latency is not None:
        wanted = max(wanted, _AFTER_SLOW)
    if seen < wanted:
        return Verdict("wait", f"{seen} of {wanted} requests")
    if found.word == "wait":
        return found
    return Verdict("good", f"{seen} requests within the gates")


def weighed(candidate: OutcomeCounts, gates: Gates) -> dict[str, Evidence]:
    """Evidence of a candidate's pairs, by output."""
    found = {"": candidate.pairs} | candidate.of_outputs
    return {name: weigh(pairs, gates.tolerance, gates.threshold) for name, pairs in found.items()}


def _errors(gates: Gates, current: OutcomeCounts, candidate: OutcomeCounts) -> str:
    refused = candidate.refused
    if exceeds(refused, candidate.compared, gates.max_error_rate):
        return (
            f"refuses requests: {refused} of {candidate.compared} that the current version answers "
            f"({candidate.last_refusal}); {gates.max_error_rate:.1%} are allowed"
        )
    usual = current.errors / current.requests if current.requests else 0.0
    allowed = min(1.0, usual + gates.max_error_rate)
    if not exceeds(candidate.errors, candidate.requests, allowed):
        return ""
    named = f" ({candidate.last_error})" if candidate.last_error else ""
    return (
        f"error rate: {candidate.errors} of {candidate.requests} requests failed{named}; "
        f"{allowed:.1%} are allowed"
    )


def _rows(gates: Gates, seen: Evidence) -> Verdict:
    """Verdict of distinct rows: "bad", "wait" where too few speak against the candidate, or "good"."""
    limit = gates.max_disagreement
    checks = [
        (
            "max_error_rate",
            (seen.nulls, seen.num_keys, gates.max_error_rate),
            f"null scores: {seen.nulls} of {seen.num_keys} rows have no finite number, and have one in the "
            "current version",
        ),
        (
            "max_changed",
            (seen.changed, seen.num_keys, gates.max_changed),
            f"changed answers: {seen.changed} of {seen.num_keys} rows have another decision, or a score "
            f"that differs by more than {gates.tolerance:g}",
        ),
    ]
    if limit < 1:
        checks += [
            (
                "max_disagreement",
                (seen.flipped, seen.decided, limit * seen.by_chance),
                f"disagreement: {seen.flipped} of {seen.decided} rows have another decision; two unrelated "
                f"versions would have {seen.by_chance:.0%}",
            ),
            (
                "max_disagreement",
                (seen.one_way, seen.decided, _ONE_WAY * limit),
                f"disagreement: one class grew or shrank by {seen.one_way} of {seen.decided} rows",
            ),
            (
                "max_disagreement",
                (seen.lost, seen.of_class, limit),
                f"disagreement: {seen.lost} of the {seen.of_class} rows of one class have another decision",
            ),
            (
                "max_disagreement",
                (seen.moved, seen.ordered, _MOVED * limit),
                f"disagreement: the ranks of {seen.moved} of {seen.ordered} rows moved by more than a "
                "quarter of all rows",
            ),
        ]
    undecided = None
    for gate, (hits, count, allowed), text in checks:
        why = f"{text}; {allowed:.1%} are allowed"
        if exceeds(hits, count, allowed, _CHANCE_OF_ROWS):
            return Verdict("bad", why, gate)
        if count < MAX_PAIRS and exceeds(hits, count, allowed, _CHANCE_OF_UNDECIDED):
            undecided = undecided or Verdict(
                "wait", f"{why}. Answers of more different nodes are needed to decide", gate
            )
    shift = seen.shift
    if shift is not None and shift.above(gates.max_psi):
        why = (
            f"outputs shifted: PSI {shift.psi:.2f} over {seen.num_keys} rows (chance alone gives "
            f"{shift.noise:.2f}), most of it in scores {shift.bin}; {gates.max_psi:g} is allowed"
        )
        return Verdict("bad", why, "max_psi")
    return undecided or Verdict("good", "")


def _slowness(
    gates: Gates, current: OutcomeCounts, candidate: OutcomeCounts, chance: float
) -> tuple[str, str]:
    """Why the candidate is slow, and the gate; ("", "") if it is not.

    Of its answers, `_SLOW_SHARE` may take longer than a limit of its p99, half longer than that of its
    median.
    """
    limits = []
    if gates.p99_ms:
        limits.append((gates.p99_ms, _SLOW_SHARE, "gates.p99_ms", "p99_ms"))
    for share, ratio, slow, name, gate in (
        (0.99, gates.max_p99_ratio, _SLOW_SHARE, "p99", "max_p99_ratio"),
        (0.5, gates.max_p50_ratio, 0.5, "median", "max_p50_ratio"),
    ):
        usual = current.quantile_s(share)
        if usual is not None:
            usual *= 1e3
            limit = max(usual * ratio, usual + gates.slack_ms)
            limits.append((limit, slow, f"the current {name} is {usual:.2f} ms", gate))
    for limit, allowed, name, gate in limits:
        slow_answers = candidate.slower_than(limit / 1e3)
        if exceeds(slow_answers, candidate.answered, allowed, chance):
            why = (
                f"latency: {slow_answers} of {candidate.answered} answers took longer than {limit:.2f} ms "
                f"({name})"
            )
            return why, gate
    return "", ""
