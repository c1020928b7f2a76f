"""Watches rollouts under way: who gets which requests, what both versions make of them, what follows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from hopline.answering.outcome_counts import OutcomeCounts
from hopline.answering.served import Compares, Recorder, Scorer, Version
from hopline.observe.metrics import Metrics
from hopline.rollout import rollout as steps
from hopline.rollout.gates import Verdict, verdict
from hopline.rollout.monitor import RolloutMonitor, in_numbers, step_name
from hopline.rollout.request_copies import LocalCopies, Outcome, ProcessCopies
from hopline.rollout.rollout import Rollout
from hopline.rollout.split import Mirror, Split
from hopline.rollout.store.fleet import Fleet
from hopline.types import ScoreRequest


class RolloutJudge:
    """Watches rollouts, and decides their steps in the leading worker.

    Args:
        metrics: of the server.
        recorders: the list that versions report their answers to; it holds a monitor during a rollout.
        fleet: of the members; open.
        is_confirmed: True if the state that is followed holds now; without it no caller gets a candidate.
    """

    def __init__(
        self,
        metrics: Metrics,
        recorders: list[Recorder],
        fleet: Fleet,
        is_confirmed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._recorders = recorders
        self._fleet = fleet
        self._is_confirmed = is_confirmed
        self._watches: dict[str, RolloutMonitor] = {}
        self._percent = metrics.gauge(
            "hopline_rollout_percent",
            "Percent of requests that a rollout's candidate answers.",
            ("model", "kind"),
            merge="max",
        )
        self._ended = metrics.counter(
            "hopline_rollouts_total", "Rollouts that ended, by how.", ("model", "kind", "outcome")
        )
        self._failed = metrics.counter(
            "hopline_rollout_gates_failed_total",
            "Candidates that a gate rolled back, by gate.",
            ("model", "kind", "gate"),
        )
        self._compared = metrics.counter(
            "hopline_rollout_compared_total",
            "Answers of a candidate held against those of the current version.",
            ("model", "result"),
        )
        self._dropped = metrics.counter(
            "hopline_rollout_copies_dropped_total", "Copies that there was no room for.", ("model",)
        )

    @property
    def is_busy(self) -> bool:
        """True if a rollout is under way."""
        return bool(self._watches)

    def between(self, rollout: Rollout, current: Version, candidate: Version) -> Scorer:
        """Route of requests while a rollout is at its present step."""
        name = rollout.model
        watch = self._watches.get(name)
        if watch is None or (watch.rollout.id, watch.rollout.step) != (rollout.id, rollout.step):
            self.leave(name)
            is_text = candidate.info(()).kind == "generative"
            watch = RolloutMonitor(rollout, self._fleet, is_text=is_text)
            self._watches[name] = watch
            self._recorders.append(watch)
        watch.rollout = rollout  # paused or resumed: its counts continue
        self._percent(name, rollout.kind).set(rollout.percent)
        same, different = self._compared(name, "same"), self._compared(name, "different")
        counting = watch

        def compare(request: ScoreRequest, wanted: Outcome, found: Outcome) -> None:
            (different if counting.compared(request, wanted, found) else same).inc()

        drop = self._dropped(name).inc
        if rollout.copies and isinstance(candidate, Compares):

            def on_counts(tally: OutcomeCounts) -> None:
                different.inc(tally.differing + tally.refused)
                same.inc(tally.compared - tally.differing - tally.refused)
                counting.tallies[rollout.candidate].add(tally)

            distant = ProcessCopies(candidate, rollout.gates.tolerance, on_counts, drop)
            return Mirror(current, rollout.share, distant)
        if rollout.copies:
            return Mirror(current, rollout.share, LocalCopies(candidate, compare, drop, watch.patience_s))
        copies = LocalCopies(current, compare, drop, watch.patience_s)
        return Split(
            current, candidate, rollout.percent, rollout.id, copies, is_confirmed=self._is_confirmed
        )

    def leave(self, name: str) -> None:
        """No rollout of a model is watched any more."""
        watch = self._watches.pop(name, None)
        if watch is not None:
            self._recorders.remove(watch)
            self._percent(name, watch.rollout.kind).set(0)
            watch.withdraw()

    async def judge(self, clock: Callable[[], float]) -> AsyncIterator[tuple[Rollout, Rollout]]:
        """Publish what this worker saw; where it decides for all, (before, after) of rollouts that move.

        Of those whose time it is; to be called often.
        """
        for watch in list(self._watches.values()):
            if not watch.is_due:
                continue
            watch.publish()
            if not self._fleet.leads():
                continue
            rollout = watch.rollout
            current, candidate = watch.totals()
            found = self._verdict(watch, current, candidate)
            if found.word == "slow":
                watch.mark_slow(candidate)
            after = steps.step(rollout, found, clock())
            if after is not rollout:
                yield rollout, after

    def seen(self, rollout: Rollout) -> dict[str, Any]:
        """Counts of all workers for the present step, and the gates' verdict on them."""
        watch = self._watches.get(rollout.model)
        if watch is None:
            return {}
        current, candidate = watch.totals()
        found = self._verdict(watch, current, candidate)
        return {
            "seen": {"current": in_numbers(current), "candidate": in_numbers(candidate)},
            "verdict": found.word,
            "why": found.why,
            "gate": found.gate,
            "waits_until": rollout.waits_until if found.word == "wait" else None,
        }

    def _verdict(self, watch: RolloutMonitor, current: OutcomeCounts, candidate: OutcomeCounts) -> Verdict:
        rollout = watch.rollout
        return verdict(
            rollout.gates,
            current,
            candidate,
            preflight=rollout.copies,
            slow_latency=watch.slow_latency(),
            evidence=watch.evidence,
        )

    def forget(self, rollout: Rollout) -> None:
        """Count a rollout that is over, once, and remove what was written for it."""
        self._ended(rollout.model, rollout.kind, rollout.status).inc()
        if rollout.gate:
            self._failed(rollout.model, rollout.kind, rollout.gate).inc()
        steps_of = range(-1, len(rollout.steps) + 1)
        self._fleet.forget_counts([step_name(rollout, step) for step in steps_of])

    def close(self) -> None:
        """Watch nothing any more."""
        self._watches.clear()  # counts that were published stay
