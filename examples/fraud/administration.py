"""The administrator: rolls out versions of the trees over REST while checkouts continue."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hopline
from examples.fraud.trees import MODEL
from hopline.errors import PermissionDenied, Unavailable
from hopline.ingress.clients_edit import add_key
from hopline.ingress.clients_file import Grant, KeyEntry
from hopline.ingress.keys import new_key

_LOOK_S, _LONGEST_S = 0.1, 90.0


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of the clients; `hopline auth new-key` makes them for people.

    Attributes:
        payments: may score `fraud*`. admin: may do everything.
    """

    payments: str
    admin: str

    @classmethod
    def written(cls, file: Path) -> Keys:
        """New keys, whose digests are in a clients file."""
        made = []
        for client, grant in (
            ("payments", Grant(score=("fraud*",))),
            ("admins", Grant(score=True, admin=True)),
        ):
            key = new_key()
            add_key(file, client, KeyEntry(key.id, key.sha256), grant)
            made.append(key.text)
        return cls(*made)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Course of a rollout.

    Attributes:
        version: that was tried. kind: canary or shadow.
        status: promoted, rolled_back or ended; reason: why.
        steps: what happened, one line each.
        seconds: that it took.
        seen: last counts of both versions.
    """

    version: str
    kind: str
    status: str
    reason: str
    steps: list[str]
    seconds: float
    seen: dict[str, Any]


class Administrator:
    """Rolls out versions of a model over REST.

    Args:
        client: with the administrator's key.
    """

    def __init__(self, client: hopline.Client) -> None:
        self._admin = hopline.Admin(client)

    def shadow(self, version: str, copies: int) -> Outcome:
        """Compare a version with the one that serves on copies of requests, then end it.

        Args:
            copies: to wait for.
        """
        began = time.monotonic()
        self._admin.begin_rollout(MODEL, version, "shadow", share=100)
        seen: dict[str, Any] = {}
        while time.monotonic() < began + _LONGEST_S:
            rollout = self._admin.rollout(MODEL)["rollout"]
            if rollout is None:  # its gates ended it
                return self._outcome(began, seen)
            seen = rollout["seen"]
            if seen["candidate"]["compared"] >= copies:
                self._admin.decide(MODEL, "end", "enough was compared")
                return self._outcome(began, seen)
            time.sleep(_LOOK_S)
        raise Unavailable(f"{copies} copies were not compared within {_LONGEST_S:g} s: {seen}")

    def canary(self, version: str, steps: list[float], min_step_s: float, min_requests: int) -> Outcome:
        """Move requests to a version step by step, until it serves or is rolled back."""
        began = time.monotonic()
        gates = {"min_requests": min_requests}
        self._admin.begin_rollout(MODEL, version, "canary", steps=steps, min_step_s=min_step_s, gates=gates)
        seen: dict[str, Any] = {}
        while time.monotonic() < began + _LONGEST_S:
            rollout = self._admin.rollout(MODEL)["rollout"]
            if rollout is None:
                return self._outcome(began, seen)
            seen = rollout.get("seen", seen)
            time.sleep(_LOOK_S)
        raise Unavailable(f"the canary of {version} was not over within {_LONGEST_S:g} s: {seen}")

    def serving(self) -> str:
        """The version that answers."""
        return str(self._admin.rollout(MODEL)["serving"])

    def _outcome(self, began: float, seen: dict[str, Any]) -> Outcome:
        over = self._admin.rollout(MODEL)["past"][0]
        steps = [event["text"] for event in over["events"]]
        version = over["candidate"].partition("+")[0]
        seconds = time.monotonic() - began
        return Outcome(version, over["kind"], over["status"], over["reason"], steps, seconds, seen)


def may_change(client: hopline.Client) -> bool:
    """Check that a client's key may change rollouts of the trees."""
    try:
        hopline.Admin(client).decide(MODEL, "rollback")
    except PermissionDenied:
        return False
    return True
