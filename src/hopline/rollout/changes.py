"""How a model's state changes: pure functions from the state before to the state after."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from hopline.rollout import rollout as steps
from hopline.rollout.rollout import Rollout
from hopline.rollout.state import MAX_PAST, LifecycleState, ModelState

#: What `Lifecycle.decide` takes.
VERBS = ("promote", "rollback", "pause", "resume", "advance", "end")


def settled(state: ModelState, rollout: Rollout) -> ModelState:
    """A model's state after a step of its rollout."""
    if not rollout.is_over:
        return msgspec.structs.replace(state, rollout=rollout)
    past = (*state.past, rollout)[-MAX_PAST:]
    if rollout.status != "promoted":
        units = state.units
        if rollout.kind == "shadow":
            units = tuple(unit for unit in units if unit.id != rollout.candidate)
        return msgspec.structs.replace(state, rollout=None, past=past, units=units)
    return msgspec.structs.replace(
        state, rollout=None, past=past, serving=rollout.candidate, previous=state.serving
    )


def without(state: ModelState, gone: Collection[str]) -> ModelState:
    """A model's state without some units."""
    return msgspec.structs.replace(
        state,
        units=tuple(unit for unit in state.units if unit.id not in gone),
        serving="" if state.serving in gone else state.serving,
        previous="" if state.previous in gone else state.previous,
    )


def decided(rollout: Rollout, verb: str, why: str, now: float) -> Rollout:
    """What a person's word makes of a rollout.

    Raises: Conflict: it does not fit.
    """
    match verb:
        case "promote":
            return steps.promoted(rollout, why, now)
        case "rollback":
            return steps.rolled_back(rollout, why, now)
        case "pause":
            return steps.paused(rollout, now)
        case "resume":
            return steps.resumed(rollout, now)
        case "advance":
            return steps.forward(rollout, why, now)
        case _:
            return steps.ended(rollout, why, now)


def changed(
    whole: LifecycleState, name: str, change: Callable[[ModelState], ModelState], present: ModelState
) -> LifecycleState:
    """The whole state with one model's changed; the same object where nothing is.

    Args:
        present: the model's state where nothing was asked of it yet.
    """
    before = whole.models.get(name) or present
    after = change(before)
    if after is before and name in whole.models:
        return whole
    return msgspec.structs.replace(whole, models={**whole.models, name: after})
