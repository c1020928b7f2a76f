"""When a candidate advances, and when it is rolled back: pure decisions over counts.

Little evidence must not decide, and clear evidence must not wait: a share counts as above its limit once
the limit would show so many with a probability below `_CHANCE`, by the Chernoff bound
exp(-n KL(share || limit)), which holds for every n. So three failures of three roll back where 1 % may
fail; one of forty does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from hopline.observe.psi import Comparison
from hopline.rollout.outcome_counts import OutcomeCounts

#: Small, since a rollout is looked at thousands of times.
_CHANCE = 1e-5
#: Of the candidate's requests, those that may be slower than a limit of its p99.
_SLOW_SHARE = 0.05
#: For one that was slow before: less has to be seen.
_CHANCE_AGAIN = 1e-3
#: Answers after a doubt that must support the candidate, even where fewer would suffice to advance.
_AFTER_DOUBT = 20

#: Of any gate: what is stored must be finite.
_LARGEST = 1e15

Verdict = Literal["wait", "good", "bad", "slow"]


class Gates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a candidate must hold.

    Attributes:
        max_error_rate: share of requests that may fail, beyond what fails on the current version.
        max_p99_ratio, max_p50_ratio: its p99 and its median may be so many times those of the current
            version.
        slack_ms: and this much longer in any case: a quarter of a millisecond harms no caller.
        p99_ms: the most that its p99 may be; 0 is no limit.
        max_disagreement: share of requests with another answer than the current version's (another label,
            or a score that differs by more than `tolerance`, or an error in place of an answer).
        tolerance: difference of scores that does not count.
        max_psi: population stability index between both versions' scores of the same requests.
        min_requests: that the candidate must have answered in a step before it advances.
    """

    max_error_rate: float = 0.01
    max_p99_ratio: float = 1.5
    max_p50_ratio: float = 2.0
    slack_ms: float = 0.25
    p99_ms: float = 0.0
    max_disagreement: float = 0.05
    tolerance: float = 0.1
    max_psi: float = 0.25
    min_requests: int = 200

    def problems(self) -> list[str]:
        """What is wrong with the numbers, one sentence each."""
        found = []
        for name in ("max_error_rate", "max_disagreement"):
            if not 0 <= getattr(self, name) <= 1:
                found.append(f"gates.{name} is a share between 0 and 1, not {getattr(self, name)}")
        for name in ("slack_ms", "p99_ms", "tolerance", "max_psi", "min_requests"):
            if not getattr(self, name) >= 0:
                found.append(f"gates.{name} must be at least 0, not {getattr(self, name)}")
        for name in ("max_p99_ratio", "max_p50_ratio"):
            if not getattr(self, name) >= 1:
                found.append(f"gates.{name} must be at least 1, not {getattr(self, name)}")
        for name in self.__struct_fields__:
            if not -_LARGEST <= getattr(self, name) <= _LARGEST:
                found.append(f"gates.{name} is at most {_LARGEST:g}, not {getattr(self, name)}")
        return found


def exceeds(hits: int, count: int, limit: float, chance: float = _CHANCE) -> bool:
    """Whether `hits` of `count` are certainly more than a share of `limit` would bring.

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
    doubted: Sequence[int] | None = None,
    shift: Callable[[OutcomeCounts], Comparison | None] = OutcomeCounts.shift,
) -> tuple[Verdict, str]:
    """Hold a candidate's counts of one step against its gates.

    Args:
        preflight: of a step in which the candidate only gets copies, those that it must have answered;
            their speed says nothing, since they wait for all other requests.
        doubted: the candidate's `latency` when it was "slow", whose answers do not count; None before.
        shift: how far the candidate's scores are from the current ones.

    Returns: "bad" and why, as soon as that is certain; "slow" and why, where it is for the first time;
    "good" once `min_requests` were answered and nothing speaks against it; "wait" and what is lacking.
    """
    why = _errors(gates, current, candidate) or _disagreement(gates, current, candidate)
    if why:
        return "bad", why
    believed = candidate if doubted is None else candidate.after(doubted)
    chance = _CHANCE if doubted is None else _CHANCE_AGAIN
    why = "" if preflight else _slowness(gates, current, believed, chance)
    if why:
        return ("slow" if doubted is None else "bad"), why
    why = _shift(gates, shift(candidate))
    if why:
        return "bad", why
    # What a mirror sends counts as well: a shadow has no callers.
    seen = max(candidate.requests, candidate.compared) if doubted is None else believed.requests
    wanted = preflight or gates.min_requests
    if doubted is not None:
        wanted = max(wanted, _AFTER_DOUBT)
    if seen < wanted:
        return "wait", f"{seen} of {wanted} requests"
    return "good", f"{seen} requests within the gates"


def _errors(gates: Gates, current: OutcomeCounts, candidate: OutcomeCounts) -> str:
    usual = current.errors / current.requests if current.requests else 0.0
    allowed = min(1.0, usual + gates.max_error_rate)
    if not exceeds(candidate.errors, candidate.requests, allowed):
        return ""
    named = f" ({candidate.last_error})" if candidate.last_error else ""
    return (
        f"error rate: {candidate.errors} of {candidate.requests} requests failed{named}; "
        f"{allowed:.1%} are allowed"
    )


def _slowness(gates: Gates, current: OutcomeCounts, candidate: OutcomeCounts, chance: float) -> str:
    """Whether more of the candidate's answers take long than may: of its p99 limits `_SLOW_SHARE`, of its
    median's half."""
    limits = []
    if gates.p99_ms:
        limits.append((gates.p99_ms, _SLOW_SHARE, "gates.p99_ms"))
    for share, ratio, slow, name in (
        (0.99, gates.max_p99_ratio, _SLOW_SHARE, "p99"),
        (0.5, gates.max_p50_ratio, 0.5, "median"),
    ):
        usual = current.quantile_s(share)
        if usual is not None:
            usual *= 1e3
            limit = max(usual * ratio, usual + gates.slack_ms)
            limits.append((limit, slow, f"the current {name} is {usual:.2f} ms"))
    for limit, allowed, name in limits:
        slow_answers = candidate.slower_than(limit / 1e3)
        if exceeds(slow_answers, candidate.answered, allowed, chance):
            return (
                f"latency: {slow_answers} of {candidate.answered} answers took longer than {limit:.2f} ms "
                f"({name})"
            )
    return ""


def _disagreement(gates: Gates, current: OutcomeCounts, candidate: OutcomeCounts) -> str:
    if not exceeds(candidate.differing, candidate.compared, gates.max_disagreement):
        return ""
    return (
        f"disagreement: {candidate.differing} of {candidate.compared} compared answers differ "
        f"(mean difference {candidate.mean_difference():.3g}); {gates.max_disagreement:.1%} are allowed"
    )


def _shift(gates: Gates, found: Comparison | None) -> str:
    if found is None or not found.above(gates.max_psi):
        return ""
    return (
        f"outputs shifted: PSI {found.psi:.2f} (chance alone gives {found.noise:.2f}), most of it in "
        f"scores {found.bin}; {gates.max_psi:g} is allowed"
    )
