"""Fallbacks of the steps of a pipeline, without an order between steps; their labels name the step."""

from __future__ import annotations

from typing import Final

from hopline.engine.fallbacks import Fallback

_FILLED, _WITHOUT_MEMBER = "filled:", "ensemble_member:"

OF_STEPS: Final = (
    Fallback(
        f"{_FILLED}<step>",
        "the step's `fill` value, because its model does not know the node",
        ("hopline_pipelines/model_step.py",),
    ),
    Fallback(
        f"{_WITHOUT_MEMBER}<step>",
        "an ensemble without this member, because the member's step failed",
        ("hopline_pipelines/ensemble.py",),
    ),
)


def filled(step: str) -> str:
    """The label of an answer with a step's `fill` value."""
    return _FILLED + step


def without_member(step: str) -> str:
    """The label of an answer of an ensemble that lacks a member."""
    return _WITHOUT_MEMBER + step
