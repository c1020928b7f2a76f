"""When a candidate goes on, and when it goes back: pure decisions over counts.

Little evidence must not decide, and clear evidence must not wait: a share counts as above its limit once
the limit would show so many with a probability below `_CHANCE`, by the Chernoff bound
exp(-n KL(share || limit)), which holds for every n. So three failures of three roll back where 1 % may
fail; one of forty does not.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from hopline.rollout.tally import Tally

#: Small, since a rollout is looked at thousands of times.
_CHANCE = 1e-5
#: Of the candidate's requests, those that may be slower than the limit that 1 % of the current ones' pass.
_SLOW_SHARE = 0.05

Verdict = Literal["wait", "good", "bad"]


class Gates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a candidate must hold.

    Attributes:
        max_error_rate: share of requests that may fail, beyond what fails on the current version.
        max_p99_ratio: its p99 may be so many times that of the current version.
        p99_ms: and at most this; 0 is no limit.
        max_disagreement: share of requests answered otherwise than by the current version (another label,
            or a score that differs by more than `tolerance`, or an error in place of an answer).
        tolerance: difference of scores that does not count.
        max_psi: population stability index between both versions' scores.
        min_requests: that the candidate must have answered in a step before it goes on.
    """

    max_error_rate: float = 0.01
    max_p99_ratio: float = 1.5
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
        for name in ("p99_ms", "tolerance", "max_psi", "min_requests"):
            if not getattr(self, name) >= 0:
                found.append(f"gates.{name} must be at least 0, not {getattr(self, name)}")
        if not self.max_p99_ratio >= 1:
            found.append(f"gates.max_p99_ratio must be at least 1, not {self.max_p99_ratio}")
        return found


def exceeds(hits: int, count: int, limit: float) -> bool:
    """Whether `hits` of `count` are certainly more than a share of `limit` would bring."""
    if count <= 0 or hits <= limit * count:
        return False
    if limit <= 0:
        return True
    share = hits / count
    divergence = share * math.log(share / limit)
    if share < 1:
        divergence += (1 - share) * math.log((1 - share) / (1 - limit))
    return count * divergence > -math.log(_CHANCE)


def verdict(gates: Gates, current: Tally, candidate: Tally) -> tuple[Verdict, str]:
    """Hold a candidate's counts of one step against its gates.

    Returns: "bad" and why, as soon as that is certain; "good" once `min_requests` were answered and
    nothing speaks against it; "wait" and what is lacking.
    """
    for check in (_errors, _slowness, _disagreement, _shift):
        why = check(gates, current, candidate)
        if why:
            return "bad", why
    # What a mirror sends counts as well: a shadow has no requests of its own.
    seen = max(candidate.requests, candidate.compared)
    if seen < gates.min_requests:
        return "wait", f"{seen} of {gates.min_requests} requests"
    return "good", f"{seen} requests within the gates"


def _errors(gates: Gates, current: Tally, candidate: Tally) -> str:
    usual = current.errors / current.requests if current.requests else 0.0
    allowed = min(1.0, usual + gates.max_error_rate)
    if not exceeds(candidate.errors, candidate.requests, allowed):
        return ""
    named = f" ({candidate.last_error})" if candidate.last_error else ""
    return (
        f"error rate: {candidate.errors} of {candidate.requests} requests failed{named}; "
        f"{allowed:.1%} are allowed"
    )


def _slowness(gates: Gates, current: Tally, candidate: Tally) -> str:
    limits = []
    if gates.p99_ms:
        limits.append(gates.p99_ms / 1e3)
    usual = current.p99_s()
    if usual is not None:
        limits.append(usual * gates.max_p99_ratio)
    if not limits:
        return ""
    limit = min(limits)
    slow = candidate.slower_than(limit)
    if not exceeds(slow, candidate.answered, _SLOW_SHARE):
        return ""
    return f"latency: {slow} of {candidate.answered} answers took longer than {limit * 1e3:.2f} ms" + (
        "" if limit == gates.p99_ms / 1e3 else f", {gates.max_p99_ratio:g} times the current p99"
    )


def _disagreement(gates: Gates, current: Tally, candidate: Tally) -> str:
    if not exceeds(candidate.differing, candidate.compared, gates.max_disagreement):
        return ""
    return (
        f"disagreement: {candidate.differing} of {candidate.compared} compared answers differ "
        f"(mean difference {candidate.mean_difference():.3g}); {gates.max_disagreement:.1%} are allowed"
    )


def _shift(gates: Gates, current: Tally, candidate: Tally) -> str:
    found, noise = candidate.shift_from(current)
    if found is None or found - noise <= gates.max_psi:
        return ""
    return (
        f"outputs shifted: PSI {found:.2f} (chance alone gives {noise:.2f}); {gates.max_psi:g} is allowed"
    )
