"""Lifecycle requests: loading, unloading and rollouts, from JSON or parameters."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hopline.answering.requested_unit import MAX_GROUPS
from hopline.errors import BadRequest, quoted
from hopline.rollout.rollout import RolloutRequest
from hopline.transports.json_body import decode_body, refuse_repeated

if TYPE_CHECKING:
    from hopline.live.updates import LiveUpdates
    from hopline.service import Service

#: Linux's limit for a file name, bytes, and a limit for a path, characters.
_MAX_PART, _MAX_PATH = 255, 1000
#: Decisions about a rollout.
DECISIONS = {
    "promote": "Make the candidate current.",
    "rollback": "Make the previous version current.",
    "pause": "Stay at the current step. Gates still roll back.",
    "resume": "Continue a paused rollout.",
    "advance": "Move to the next step now.",
    "end": "End a shadow or an A/B test. The current version stays.",
}


class LoadBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of load and unload in the model-repository extension: everything is in `parameters`.

    Attributes:
        parameters: `version`, `graph`, `groups`, `serve`, `force` for load, `version` for unload; Triton's
            own `unload_dependents` may be false, its `config` and `file:…` overrides are refused.
    """

    parameters: dict[str, Any] = {}


class IndexBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of the repository index; may be empty.

    Attributes:
        ready: list only versions that accept requests.
    """

    ready: bool = False


class DecisionBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a decision about a rollout; may be empty.

    Attributes:
        reason: is stored with the decision.
    """

    reason: str = ""


class LifecycleRequests:
    """Calls the lifecycle methods of a service from requests."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def change(self, verb: str, model: str, body: bytes) -> Awaitable[Any]:
        """Load or unload a model.

        Raises: BadRequest: the body is invalid.
        """
        checked_path("model", model)
        parameters = change_parameters(verb, _read(body, LoadBody).parameters)
        if verb == "load":
            return self._service.load(model, **parameters)
        return self._service.unload(model, **parameters)

    def begin(self, body: bytes) -> Awaitable[Any]:
        """Begin a rollout.

        Raises: BadRequest: as above.
        """
        request = _read(body, RolloutRequest)
        for what in ("model", "version", "graph"):
            checked_path(what, getattr(request, what))
        _checked_groups(request.groups)
        return self._service.begin_rollout(request)

    def decide(self, verb: str, model: str, body: bytes) -> Awaitable[Any]:
        """Apply a decision (promote, roll back, …) to a model's rollout.

        Raises: BadRequest: as above.
        """
        return self._service.decide_rollout(model, verb, _read(body, DecisionBody).reason)

    def describe(self, model: str) -> dict[str, Any]:
        """Return a model's versions and rollouts.

        Raises: ModelNotFound.
        """
        return self._service.describe_rollout(model)


def graph_updates(service: Service) -> LiveUpdates:
    """Return the object that accepts changes of the live graph.

    Raises: BadRequest: the graph of this server is a snapshot.
    """
    if service.graph_updates is None:
        raise BadRequest("the graph of this server is read-only; serve it with live.enabled (--live)")
    return service.graph_updates


def change_parameters(verb: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments for `Service.load` or `Service.unload` from a request's parameters.

    Raises: BadRequest: an unknown parameter, or a wrong type.
    """
    known: dict[str, type] = {"version": str}
    if verb == "load":
        known |= {"graph": str, "groups": list, "serve": bool, "force": bool}
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        if name == "unload_dependents" and verb == "unload" and not value:
            continue
        if name not in known:
            raise BadRequest(f"parameter {quoted(name)} of {verb} is unknown; known are {', '.join(known)}")
        if name == "groups" and isinstance(value, str):  # gRPC has no lists
            value = [part for part in value.split(",") if part]
        if not isinstance(value, known[name]):
            raise BadRequest(
                f"parameter {quoted(name)} of {verb} must be a {known[name].__name__}, not {quoted(value)}"
            )
        if value == "":
            raise BadRequest(
                f"parameter {quoted(name)} of {verb} is empty; leave it out or give it a value"
            )
        if isinstance(value, str):
            checked_path(f"parameter {name!r}", value)
        elif isinstance(value, list):
            if not all(isinstance(each, str) for each in value):
                raise BadRequest(f"parameter {name!r} of {verb} must be a list of strings")
            value = _checked_groups(value)
        found[name] = value
    return found


def _checked_groups(groups: Sequence[str]) -> tuple[str, ...]:
    if len(groups) > MAX_GROUPS:
        raise BadRequest(f"groups has {len(groups)} names; at most {MAX_GROUPS} are allowed")
    return tuple(checked_path("groups", each) for each in groups)


def checked_path(what: str, name: str) -> str:
    """Check a name that may become a part of a path, and return it.

    Raises: BadRequest: it is longer than file systems allow, or not printable.
    """
    parts = name.encode(errors="replace").split(b"/")
    if not name.isprintable() or max(map(len, parts)) > _MAX_PART or len(name) > _MAX_PATH:
        raise BadRequest(
            f"{what} is {quoted(name)}; a name must be printable and at most {_MAX_PART} bytes long"
        )
    return name


def _read(body: bytes, kind: Any) -> Any:
    body = body or b"{}"
    found = decode_body(body, msgspec.json.Decoder(kind).decode, kind, example="{}")
    refuse_repeated(body)
    return found
