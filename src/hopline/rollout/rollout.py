"""One rollout from start to end, as the state file has it: pure steps, the clock is an argument."""

from __future__ import annotations

import secrets
from typing import Literal

import msgspec

from hopline.errors import BadRequest, Conflict
from hopline.rollout.gates import Gates, Verdict

Kind = Literal["canary", "blue_green", "shadow", "ab"]
Status = Literal["running", "paused", "promoted", "rolled_back", "ended"]

STEPS: dict[str, tuple[float, ...]] = {
    "canary": (5.0, 25.0, 50.0, 100.0),
    "blue_green": (100.0,),
    "shadow": (),
    "ab": (50.0,),
}
#: Events that are kept, of a rollout under way and of one that is over; the oldest go.
_MAX_EVENTS, _MAX_PAST_EVENTS = 100, 20
#: Characters of an event.
_MAX_TEXT = 500
#: Of one rollout: each step is stored, and read by every worker at each change.
MAX_STEPS = 100
#: Characters of what a person says about a decision.
MAX_REASON = 200
_MAX_HOLD_S, _MAX_PREFLIGHT = 10 * 365 * 86_400.0, 1_000_000
#: Seconds for which a step waits for enough requests.
_MAX_WAIT_S = 86_400.0


class RolloutRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a rollout.

    Attributes:
        model: name.
        version: the candidate's folder in the repository.
        kind: "canary" moves requests over in steps; "blue_green" all in one step; "shadow" copies requests
            to the candidate and only compares; "ab" splits them until a person decides.
        graph, groups: the candidate's snapshot and feature groups, where they are not the server's own.
        steps: percent of requests for the candidate, in order; empty takes the kind's default.
        min_step_s: seconds that each step lasts at least.
        gates: see `Gates`.
        share: of requests that a shadow gets a copy of, in percent.
        auto: False leaves advancing to people; gates still roll back.
        preflight: copies of requests that the candidate of a canary or blue/green must answer first, within
            the gates, before any caller gets its answers; that also fills its state caches. 0 goes without.
        max_wait_s: seconds after which a step of a canary or blue/green that still waits for requests is
            rolled back.
    """

    model: str
    version: str
    kind: Kind = "canary"
    graph: str = ""
    groups: tuple[str, ...] = ()
    steps: tuple[float, ...] = ()
    min_step_s: float = 60.0
    gates: Gates = Gates()
    share: float = 100.0
    auto: bool = True
    preflight: int = 100
    max_wait_s: float = _MAX_WAIT_S

    def check(self) -> None:
        """Check the fields. Raises: BadRequest: steps, shares or gates that make no sense."""
        problems = self.gates.problems()
        if len(self.steps) > MAX_STEPS:
            raise BadRequest(f"steps: {len(self.steps)} of them; a rollout has at most {MAX_STEPS}")
        if any(not 0 < step <= 100 for step in self.steps) or list(self.steps) != sorted(set(self.steps)):
            problems.append(f"steps are percents above 0 and up to 100 that grow, not {list(self.steps)}")
        if self.steps and self.kind == "canary" and self.steps[-1] != 100:
            problems.append("the last step of a canary is 100")
        if self.steps and self.kind in ("shadow", "blue_green"):
            problems.append(f"a {self.kind} has no steps")
        if self.kind == "ab" and len(self.steps) > 1:
            problems.append("an A/B test has one step: the percent of requests for the candidate")
        if not 0 <= self.min_step_s <= _MAX_HOLD_S:
            problems.append(f"min_step_s is from 0 to {_MAX_HOLD_S:.0f} (ten years), not {self.min_step_s}")
        if not 0 < self.max_wait_s <= _MAX_HOLD_S:
            problems.append(
                f"max_wait_s is above 0 and at most {_MAX_HOLD_S:.0f} (ten years), not {self.max_wait_s}"
            )
        if not 0 < self.share <= 100:
            problems.append(f"share is a percent above 0 and up to 100, not {self.share}")
        if not 0 <= self.preflight <= _MAX_PREFLIGHT:
            problems.append(f"preflight is from 0 to {_MAX_PREFLIGHT}, not {self.preflight}")
        if problems:
            raise BadRequest("; ".join(problems))


class Event(msgspec.Struct, frozen=True):
    """Something that happened, at a time.time()."""

    time: float
    text: str


class Rollout(msgspec.Struct, frozen=True):
    """A rollout of a model, and how far it is.

    Attributes:
        id: unique; also salts who is in the candidate's share, so that a key stays in as the share grows.
        current, candidate: unit ids.
        preflight: copies that it answers first; see `RolloutRequest.preflight`.
        step: index in `steps`; -1 during the pre-flight.
        percent: of requests that the candidate answers now.
        step_since: time.time() at which the step began.
        reason: of the present status.
        gate: that the candidate failed; "" where it failed none.
        max_wait_s: see `RolloutRequest`.
    """

    id: str
    model: str
    kind: Kind
    current: str
    candidate: str
    steps: tuple[float, ...]
    min_step_s: float
    gates: Gates
    share: float
    auto: bool
    started: float
    step_since: float
    preflight: int = 0
    step: int = 0
    percent: float = 0.0
    status: Status = "running"
    reason: str = ""
    events: tuple[Event, ...] = ()
    gate: str = ""
    max_wait_s: float = _MAX_WAIT_S

    @property
    def copies(self) -> int:
        """Copies that the candidate gets instead of requests: how many it must answer; 0 for requests.

        A shadow gets nothing but copies, and there is no number of them to reach.
        """
        if self.kind == "shadow":
            return 1
        return self.preflight if self.step < 0 else 0

    @property
    def waits_until(self) -> float | None:
        """Time at which the present step is rolled back if it still waits for requests; None for never."""
        if self.kind in ("shadow", "ab") or self.status == "paused" or not self.auto:
            return None
        return self.step_since + self.min_step_s + self.max_wait_s

    @property
    def is_over(self) -> bool:
        """True if it needs no more attention."""
        return self.status in ("promoted", "rolled_back", "ended")


def begin(wanted: RolloutRequest, current: str, candidate: str, now: float) -> Rollout:
    """The first step."""
    steps = wanted.steps or STEPS[wanted.kind]
    preflight = wanted.preflight if wanted.kind in ("canary", "blue_green") else 0
    rollout = Rollout(
        id=secrets.token_hex(6),
        model=wanted.model,
        kind=wanted.kind,
        current=current,
        candidate=candidate,
        steps=steps,
        min_step_s=wanted.min_step_s,
        gates=wanted.gates,
        share=wanted.share,
        auto=wanted.auto,
        started=now,
        step_since=now,
        preflight=preflight,
        max_wait_s=wanted.max_wait_s,
        step=-1 if preflight else 0,
        percent=steps[0] if steps and not preflight else 0.0,
    )
    return _noted(rollout, now, f"{wanted.kind} of {candidate} against {current}, {_summary(rollout)}")


def step(rollout: Rollout, verdict: Verdict, now: float) -> Rollout:
    """State of a rollout after the gates' verdict; the same object where nothing changes.

    Gates hold for every kind, also for one that is paused; an A/B test never advances alone.
    """
    if rollout.is_over:
        return rollout
    word, why, gate = verdict
    if word == "bad":
        return _failed(rollout, why, gate, now)
    if word == "slow":
        return _noted(rollout, now, f"slow for the first time, which does not count yet: {why}")
    until = rollout.waits_until
    if word == "wait" and until is not None and now >= until:
        waited = f"{why} in {now - rollout.step_since:.0f} s (max_wait_s): too little to judge the version"
        return _failed(rollout, waited, gate or "min_requests", now)
    if word != "good" or rollout.status == "paused" or not rollout.auto:
        return rollout
    if rollout.kind in ("shadow", "ab"):
        return rollout
    if rollout.step >= 0 and now - rollout.step_since < rollout.min_step_s:
        return rollout
    return forward(rollout, why, now)


def _failed(rollout: Rollout, why: str, gate: str, now: float) -> Rollout:
    """Rolled back by a gate; says what to do next."""
    version = rollout.candidate.removesuffix("+shadow").partition("@")[0]
    again = f"hopline rollout start {rollout.model} {version}"
    if rollout.kind != "canary":
        again += f" --kind {rollout.kind}"
    if gate == "max_error_rate":
        advice = f"mend the version, and start again: {again}"
    elif gate == "min_requests":
        advice = f"start again with a smaller gate: {again} --gate min_requests=N"
    else:
        advice = f"mend the version, or allow it: {again} --gate {gate}=N"
    rollout = msgspec.structs.replace(rollout, gate=gate)
    return rolled_back(rollout, f"{why[: _MAX_TEXT - len(advice) - 40]}. Next: {advice}", now)


def forward(rollout: Rollout, why: str, now: float) -> Rollout:
    """The next step, or the end of the last one.

    Raises: Conflict: it is over, or has no steps.
    """
    _must_run(rollout, "advance")
    if rollout.kind == "shadow":
        raise Conflict("a shadow has no next step: promote it, end it, or start a canary")
    if rollout.step + 1 >= len(rollout.steps):
        return promoted(rollout, why, now)
    at = rollout.step + 1
    rollout = msgspec.structs.replace(
        rollout, step=at, percent=rollout.steps[at], step_since=now, reason="", status="running"
    )
    return _noted(rollout, now, f"{_summary(rollout)}: {why}")


def promoted(rollout: Rollout, why: str, now: float) -> Rollout:
    """The candidate becomes the version that serves."""
    _must_run(rollout, "be promoted")
    if rollout.kind == "shadow":
        raise Conflict("a shadow answers no callers, so it cannot be promoted; end it and begin a canary")
    rollout = msgspec.structs.replace(rollout, status="promoted", reason=why, percent=100.0)
    return _noted(rollout, now, f"promoted: {why}")


def rolled_back(rollout: Rollout, why: str, now: float) -> Rollout:
    """The current version gets every request again."""
    _must_run(rollout, "be rolled back")
    rollout = msgspec.structs.replace(rollout, status="rolled_back", reason=why, percent=0.0)
    return _noted(rollout, now, f"rolled back: {why}")


def ended(rollout: Rollout, why: str, now: float) -> Rollout:
    """Over without a decision: a shadow that was watched long enough."""
    _must_run(rollout, "end")
    return _noted(
        msgspec.structs.replace(rollout, status="ended", reason=why, percent=0.0), now, f"ended: {why}"
    )


def paused(rollout: Rollout, now: float) -> Rollout:
    """Stay at this step; gates still roll back."""
    _must_run(rollout, "be paused")
    return _noted(msgspec.structs.replace(rollout, status="paused"), now, "paused")


def resumed(rollout: Rollout, now: float) -> Rollout:
    """Continue from this step."""
    _must_run(rollout, "be resumed")
    return _noted(msgspec.structs.replace(rollout, status="running"), now, "resumed")


def shortened(rollout: Rollout) -> Rollout:
    """A rollout that is over, as it is stored."""
    return msgspec.structs.replace(
        rollout, events=rollout.events[-_MAX_PAST_EVENTS:], reason=rollout.reason[:_MAX_TEXT]
    )


def _must_run(rollout: Rollout, what: str) -> None:
    if rollout.is_over:
        name = f"the rollout of {rollout.model} to {rollout.candidate}"
        raise Conflict(f"{name} is over ({rollout.status}) and cannot {what}")


def _noted(rollout: Rollout, now: float, text: str) -> Rollout:
    if len(text) > _MAX_TEXT:
        text = f"{text[: _MAX_TEXT - 1]}…"
    events = (*rollout.events, Event(now, text))[-_MAX_EVENTS:]
    return msgspec.structs.replace(rollout, events=events)


def _summary(rollout: Rollout) -> str:
    if rollout.kind == "shadow":
        return f"{rollout.share:g} % of requests copied"
    if rollout.step < 0:
        return f"pre-flight with {rollout.preflight} copies of requests first"
    return f"{rollout.percent:g} % of requests"
