"""Changes of a model's state: pure functions from the state before to the state after.

They are called with the newest state, under the lock of the state file. So what may be done is decided
here, and never on a worker's own copy, which another worker may have overtaken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from hopline.answering.unit import Unit
from hopline.errors import Conflict, ModelNotFound, quoted
from hopline.rollout import rollout as steps
from hopline.rollout.rollout import Rollout, RolloutRequest
from hopline.rollout.state import MAX_PAST, LifecycleState, ModelState, Trial

#: An operator's decisions: rollout, why, time() -> the rollout after it; Conflict if it does not fit.
_DECISIONS: dict[str, Callable[[Rollout, str, float], Rollout]] = {
    "promote": steps.promoted,
    "rollback": steps.rolled_back,
    "pause": lambda rollout, _, now: steps.paused(rollout, now),
    "resume": lambda rollout, _, now: steps.resumed(rollout, now),
    "advance": steps.forward,
    "end": steps.ended,
}
#: What `Lifecycle.decide` takes.
VERBS = tuple(_DECISIONS)


def settled(state: ModelState, rollout: Rollout) -> ModelState:
    """A model's state after a step of its rollout."""
    if not rollout.is_over:
        return msgspec.structs.replace(state, rollout=rollout)
    rollout = steps.shortened(rollout)
    past = (*state.past, rollout)[-MAX_PAST:]
    if rollout.status != "promoted":
        units = state.units
        if rollout.kind == "shadow":
            units = tuple(unit for unit in units if unit.id != rollout.candidate)
        # a rollback that is repeated never goes back further
        previous = "" if rollout.status == "rolled_back" else state.previous
        return msgspec.structs.replace(state, rollout=None, past=past, units=units, previous=previous)
    return msgspec.structs.replace(
        state, rollout=None, past=past, serving=rollout.candidate, previous=state.serving
    )


def check_no_rollout(state: ModelState, model: str) -> None:
    """Check that no rollout runs. Raises: Conflict: a rollout of the model is under way."""
    if state.rollout is not None:
        raise Conflict(
            f"a rollout of {model} to {state.rollout.candidate} is under way; promote it or roll it "
            "back first"
        )


def tried(state: ModelState, model: str, trial: Trial) -> ModelState:
    """With a unit that every worker loads before anything is made of it.

    Raises: Conflict: a rollout is under way.
    """
    check_no_rollout(state, model)
    return msgspec.structs.replace(state, trials=(*state.trials, trial), tries=state.tries + 1)


def without_trial(state: ModelState, trial_id: str) -> ModelState:
    """Without a trial; the same object where it is none."""
    left = tuple(trial for trial in state.trials if trial.id != trial_id)
    return state if len(left) == len(state.trials) else msgspec.structs.replace(state, trials=left)


def without_trials(whole: LifecycleState, is_over: Callable[[Trial], bool]) -> LifecycleState:
    """The whole state without trials that no living member makes; see `Trial`."""
    models = dict(whole.models)
    for name, state in whole.models.items():
        left = tuple(trial for trial in state.trials if not is_over(trial))
        if len(left) < len(state.trials):
            models[name] = msgspec.structs.replace(state, trials=left)
    return whole if models == whole.models else msgspec.structs.replace(whole, models=models)


def loaded(state: ModelState, model: str, unit: Unit, *, serve: bool) -> ModelState:
    """With a unit that every worker has loaded; it serves if requested, or where nothing does.

    Raises: Conflict: a rollout is under way.
    """
    check_no_rollout(state, model)
    state = _with(state, unit)
    if state.serving == unit.id or (state.serving and not serve):
        return state
    return msgspec.structs.replace(state, serving=unit.id, previous=state.serving)


def _with(state: ModelState, unit: Unit) -> ModelState:
    units = state.units if state.unit(unit.id) is not None else (*state.units, unit)
    return msgspec.structs.replace(state, units=units, tries=state.tries + 1)


def unloaded(state: ModelState, model: str, version: str | None) -> ModelState:
    """Without one unit, or without any.

    Raises:
        ModelNotFound: it is not loaded.
        Conflict: it serves (and others are loaded), or a rollout is under way.
    """
    if not state.units:
        raise ModelNotFound(f"model {model!r} is not loaded")
    if version is not None and state.unit(version) is None:
        raise ModelNotFound(no_version(model, version, [unit.id for unit in state.units]))
    check_no_rollout(state, model)
    gone = {unit.id for unit in state.units} if version is None else {version}
    if state.serving in gone and len(gone) < len(state.units):
        raise Conflict(
            f"{model}/{state.serving} serves; let another serve first, or unload the whole model"
        )
    return _without(state, gone)


def _without(state: ModelState, gone: Collection[str]) -> ModelState:
    return msgspec.structs.replace(
        state,
        units=tuple(unit for unit in state.units if unit.id not in gone),
        serving="" if state.serving in gone else state.serving,
        previous="" if state.previous in gone else state.previous,
    )


def check_candidate(state: ModelState, model: str, unit_id: str) -> None:
    """Check a candidate. Raises: Conflict: the unit cannot be rolled out against the serving version."""
    check_no_rollout(state, model)
    if not state.serving:
        raise Conflict(f"model {model!r} has no version that serves; load one")
    if unit_id == state.serving:
        raise Conflict(f"{model}/{unit_id} serves already")


def begun(state: ModelState, wanted: RolloutRequest, unit: Unit, now: float) -> ModelState:
    """With a rollout of a unit that every worker has loaded.

    Raises: Conflict: as `check_candidate`.
    """
    check_candidate(state, wanted.model, unit.id)
    return msgspec.structs.replace(
        _with(state, unit), rollout=steps.begin(wanted, state.serving, unit.id, now)
    )


def decided_on(state: ModelState, model: str, verb: str, why: str, now: float) -> ModelState:
    """State of a model after an operator's decision on its rollout, or (rollback) on its last switch.

    The change is idempotent: a rollback that is repeated because its answer was lost, or that two people
    request at the same time, never goes back a second time.

    Raises: Conflict: nothing that this could be done to.
    """
    if state.rollout is not None:
        return settled(state, _DECISIONS[verb](state.rollout, why, now))
    if verb != "rollback":
        raise Conflict(f"no rollout of {model} is under way")
    if not state.previous or state.unit(state.previous) is None:
        for last in state.past[-1:]:
            if last.status == "rolled_back" and last.current == state.serving:
                done = f"the rollout of {model} to {last.candidate} was rolled back already"
                raise Conflict(f"{done}, and {state.serving} serves; to serve another version, load it")
        raise Conflict(f"no version of {model} served before {state.serving}, or it is not loaded")
    return msgspec.structs.replace(state, serving=state.previous, previous="")


def no_version(model: str, version: str, there: Collection[str]) -> str:
    """The error text for a missing version."""
    return f"model {model!r} has no version {quoted(version)}; there are: {', '.join(there)}"


def changed(
    whole: LifecycleState, name: str, change: Callable[[ModelState], ModelState], present: ModelState
) -> LifecycleState:
    """The whole state with one model's changed; the same object where nothing is.

    Args:
        present: the model's state where no request changed it yet.
    """
    before = whole.models.get(name) or present
    after = change(before)
    if after is before:
        return whole
    return msgspec.structs.replace(whole, models={**whole.models, name: after})
