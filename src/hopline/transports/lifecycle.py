"""The lifecycle over the wire: loading, unloading and rollouts, from JSON or parameters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from hopline.errors import BadRequest
from hopline.rollout.gates import Gates
from hopline.rollout.rollout import RolloutRequest
from hopline.transports.json_body import check_repeated, decode_body


class LoadBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of load and unload in the model-repository extension: everything is in `parameters`.

    Attributes:
        parameters: `version`, `graph`, `groups`, `serve` for load, `version` for unload; Triton's own
            `unload_dependents` may be false, its `config` and `file:…` overrides are refused.
    """

    parameters: dict[str, Any] = {}


class DecisionBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a decision about a rollout; may be empty.

    Attributes:
        reason: is written down with it.
    """

    reason: str = ""


#: Names of objects inside a body, none of which may come twice either.
_WITHIN: dict[Any, tuple[str, ...]] = {
    LoadBody: ("version", "graph", "groups", "serve"),
    RolloutRequest: Gates.__struct_fields__,
}
#: Characters of a wrong value that a message shows.
_SHOWN = 60


class Lifecycle:
    """Args:
    service: that may have models that come and go.
    """

    def __init__(self, service: Any) -> None:
        self._service = service

    def change(self, verb: str, model: str, body: bytes) -> Awaitable[Any]:
        """Load or unload.

        Raises: BadRequest: the body is wrong, or this server does not do that.
        """
        method = self._method(verb, f"{verb} models on request")
        changing: Awaitable[Any] = method(
            model, **change_parameters(verb, _read(body, LoadBody).parameters)
        )
        return changing

    def begin(self, body: bytes) -> Awaitable[Any]:
        """Begin a rollout.

        Raises: BadRequest: as above.
        """
        method = self._method("begin_rollout", "roll models out")
        beginning: Awaitable[Any] = method(_read(body, RolloutRequest))
        return beginning

    def decide(self, verb: str, model: str, body: bytes) -> Awaitable[Any]:
        """Promote, roll back, …

        Raises: BadRequest: as above.
        """
        method = self._method("decide_rollout", "roll models out")
        deciding: Awaitable[Any] = method(model, verb, _read(body, DecisionBody).reason)
        return deciding

    def describe(self, model: str) -> dict[str, Any]:
        """A model's versions and rollouts.

        Raises: BadRequest, ModelNotFound.
        """
        found: dict[str, Any] = self._method("describe_rollout", "roll models out")(model)
        return found

    def _method(self, name: str, what: str) -> Callable[..., Any]:
        method: Callable[..., Any] | None = getattr(self._service, name, None)
        if method is None:
            raise BadRequest(f"this server does not {what}")
        return method


def graph_updates(service: Any) -> Any:
    """What takes changes to the live graph.

    Raises: BadRequest: this server's graph is a snapshot.
    """
    found = getattr(service, "graph_updates", None)
    if found is None:
        raise BadRequest("this server's graph does not change; serve it with live.enabled (--live)")
    return found


def change_parameters(verb: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `Service.load` and `Service.unload` from a request's parameters.

    Raises: BadRequest: an unknown one, or a wrong type.
    """
    known: dict[str, type] = {"version": str}
    if verb == "load":
        known |= {"graph": str, "groups": list, "serve": bool}
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        if name == "unload_dependents" and verb == "unload" and not value:
            continue
        if name not in known:
            raise BadRequest(f"parameter {_shown(name)} of {verb} is unknown; known are {', '.join(known)}")
        if name == "groups" and isinstance(value, str):  # gRPC has no lists
            value = [part for part in value.split(",") if part]
        if not isinstance(value, known[name]):
            raise BadRequest(
                f"parameter {name!r} of {verb} must be a {known[name].__name__}, not {_shown(value)}"
            )
        if isinstance(value, list):
            for item in value:
                if not isinstance(item, str):
                    raise BadRequest(
                        f"parameter {name!r} of {verb} is a list of strings; {_shown(item)} is none"
                    )
            value = tuple(value)
        found[name] = value
    return found


def _shown(value: Any) -> str:
    """A wrong value, for a message."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return repr(value) if len(repr(value)) <= _SHOWN else f"{repr(value)[:_SHOWN]}…"


def _read(body: bytes, kind: Any) -> Any:
    body = body or b"{}"
    found = decode_body(body, msgspec.json.Decoder(kind).decode, kind, example="{}")
    names = kind.__struct_fields__ + _WITHIN.get(kind, ())
    check_repeated(body, [f'"{name}"'.encode() for name in names])
    return found
