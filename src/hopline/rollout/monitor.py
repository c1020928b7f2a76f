"""This worker's counts of a rollout, and their place for the worker that decides.

A `Recorder`: while a rollout runs it gets every batch. Counts restart at each step. Several times
a second they are published in the fleet's store; the leader adds up what all members counted of the step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec

from hopline.answering.outcome_counts import OutcomeCounts
from hopline.answering.pairs import Evidence
from hopline.answering.row_keys import row_keys
from hopline.answering.served import Ran
from hopline.rollout.gates import Gates, weighed
from hopline.rollout.request_copies import Outcome
from hopline.rollout.rollout import Rollout
from hopline.rollout.store.fleet import Fleet
from hopline.types import UNREADABLE, ScoreRequest

log = logging.getLogger(__name__)

FormT = TypeVar("FormT")

_CountsByVersion = dict[str, OutcomeCounts]
#: Seconds for which the evidence of many pairs holds.
_EVIDENCE_S = 1.0
#: Seconds between verdicts of a rollout, and of a shadow: no caller is harmed until it is judged.
_JUDGE_S, _SHADOW_S = 0.2, 1.0
#: Seconds that a copy may take, and one of a request for a text.
_PATIENCE_S, _TEXT_PATIENCE_S = 5.0, 120.0
#: Batches that are counted together: one by one, each finds the caches full of other things.
_COUNTED_TOGETHER = 32


class RolloutMonitor:
    """Counts what both versions of a rollout answer in this worker.

    Args:
        rollout: that is watched, at its present step.
        fleet: in which members find each other's counts.
        clock: seconds, monotonic.
        is_text: as for `OutcomeCounts.compare`.
    """

    def __init__(
        self,
        rollout: Rollout,
        fleet: Fleet,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_text: bool = False,
    ) -> None:
        self._clock = clock
        self.rollout = rollout
        self._fleet = fleet
        self._is_text = is_text
        self._tallies: _CountsByVersion = {
            rollout.current: OutcomeCounts(),
            rollout.candidate: OutcomeCounts(),
        }
        self._uncounted: list[Ran] = []
        #: Whether copies are what the candidate answers: a shadow, or a pre-flight, has no callers.
        self._counts_copies = bool(rollout.copies)
        # A step is not judged by its first moment: a pause of the machine makes all answers of it slow.
        self._published_at = clock()
        self._slow_latency: list[int] | None = None
        self._said_unreadable = False
        self._evidence: dict[str, Evidence] = {}
        self._evidence_at, self._evidence_of = float("-inf"), 0

    @property
    def tallies(self) -> dict[str, OutcomeCounts]:
        """Version -> what was counted of it until now."""
        self._count()
        return self._tallies

    def record(self, ran: Ran) -> None:
        """Count what both versions answered."""
        if ran.served.name == self.rollout.model:
            self._uncounted.append(ran)
            if len(self._uncounted) >= _COUNTED_TOGETHER:
                self._count()

    def _count(self) -> None:
        uncounted, self._uncounted = self._uncounted, []
        for ran in uncounted:
            tally = self._tallies.get(ran.served.version)
            if tally is None or "cache" in ran.stages:
                continue  # a cached answer says nothing of the version that would compute it
            copies_count = self._counts_copies and ran.served.version == self.rollout.candidate
            for request, outcome, waited in zip(ran.requests, ran.outcomes, ran.queue_s, strict=True):
                if outcome is None or request.is_copy != copies_count:
                    continue
                # A copy waits until there is time for it: only what it took to compute can be compared.
                tally.count(outcome, ran.compute_s if copies_count else waited + ran.compute_s)

    def compared(self, request: ScoreRequest, wanted: Outcome, found: Outcome) -> bool:
        """Count two outcomes of one request, the one that went out and the copy's; whether they differ."""
        if self._counts_copies:
            ours, current = found, wanted
        else:
            ours, current = wanted, found
        tally = self._tallies[self.rollout.candidate]
        before = tally.differing + tally.refused
        keys = partial(row_keys, request)
        tally.compare(current, ours, self.rollout.gates.tolerance, keys, is_text=self._is_text)
        return tally.differing + tally.refused > before

    @property
    def patience_s(self) -> float:
        """Seconds that a copy may take."""
        return _TEXT_PATIENCE_S if self._is_text else _PATIENCE_S

    @property
    def is_due(self) -> bool:
        """True if it is time to publish, and to judge."""
        interval_s = _SHADOW_S if self.rollout.kind == "shadow" else _JUDGE_S
        return self._clock() - self._published_at >= interval_s

    def publish(self) -> None:
        """Have the leader get the counts."""
        self._published_at = self._clock()
        self._fleet.publish_counts(self._step, msgspec.msgpack.encode(self.tallies))

    def withdraw(self) -> None:
        """Remove what was published: the step is over."""
        self._fleet.withdraw_counts(self._step)

    def evidence(self, candidate: OutcomeCounts, gates: Gates) -> dict[str, Evidence]:
        """Verdict of the candidate's pairs, as from `gates.weighed`.

        That takes a millisecond of the loop, so it is done again only once a second, or when there are a
        quarter more rows than the last time: the first rows that suffice may be the last before the step
        ends.
        """
        now, count = self._clock(), len(candidate.pairs) + sum(map(len, candidate.of_outputs.values()))
        if now - self._evidence_at >= _EVIDENCE_S or 4 * count >= 5 * self._evidence_of:
            self._evidence = weighed(candidate, gates)
            self._evidence_at, self._evidence_of = now, count
        return self._evidence

    def mark_slow(self, candidate: OutcomeCounts) -> None:
        """It was slow for the first time in this step: every worker leaves out what came until now."""
        self._slow_latency = candidate.latency
        self._fleet.mark_slow(self._step, msgspec.msgpack.encode(candidate.latency))

    def slow_latency(self) -> list[int] | None:
        """The candidate's latency counts when that was; None: it was not. See gates.py."""
        if self._slow_latency is None and (noted := self._fleet.slow_latency(self._step)) is not None:
            self._slow_latency = self._read(noted, list[int])
        return self._slow_latency

    def totals(self) -> tuple[OutcomeCounts, OutcomeCounts]:
        """Counts of all workers for this step: (current, candidate)."""
        current, candidate = OutcomeCounts(), OutcomeCounts()
        others = [self._read(counts, _CountsByVersion) for counts in self._fleet.counts(self._step)]
        for tallies in (self.tallies, *others):
            if tallies is None:
                continue
            current.add(tallies.get(self.rollout.current, OutcomeCounts()))
            candidate.add(tallies.get(self.rollout.candidate, OutcomeCounts()))
        return current, candidate

    def _read(self, content: bytes, form: type[FormT]) -> FormT | None:
        """Counts of another worker; None, and reported once, where they cannot be read.

        The others' counts are judged: a rollout that is no longer judged would harm callers.
        """
        try:
            return msgspec.msgpack.decode(content, type=form)
        except UNREADABLE as error:
            if not self._said_unreadable:
                self._said_unreadable = True
                log.warning(
                    "rollout of %s to %s: counts of another worker cannot be read, and are left out (%s); "
                    "is it of another release of Hopline?",
                    self.rollout.model,
                    self.rollout.candidate,
                    error,
                )
            return None

    @property
    def _step(self) -> str:
        return step_name(self.rollout, self.rollout.step)


def step_name(rollout: Rollout, step: int) -> str:
    """The name of a step in the store."""
    return f"{rollout.id}-{step}"


def in_numbers(tally: OutcomeCounts) -> dict[str, object]:
    """Counts in numbers for people."""
    p99_s = tally.p99_s()
    return {
        "requests": tally.requests,
        "errors": tally.errors,
        "last_error": tally.last_error,
        "p99_ms": None if p99_s is None else round(p99_s * 1e3, 3),
        "compared": tally.compared,
        "refused": tally.refused,
        "last_refusal": tally.last_refusal,
        "differing": tally.differing,
        "rows": max(map(len, (tally.pairs, *tally.of_outputs.values()))),
        "mean_difference": tally.mean_difference(),
        "last_difference": tally.last_difference,
    }
