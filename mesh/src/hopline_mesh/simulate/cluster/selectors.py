"""Field and label selectors of the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopline.errors import BadRequest

Body = dict[str, Any]
Matches = Callable[[Body], bool]


def field_selector(text: str) -> Matches:
    """Parse `status.phase!=Failed,metadata.name=a`; "" matches everything.

    Raises:
        BadRequest: the selector is invalid.
    """
    return _all([_term(term, lambda body, path: _field(body, path)) for term in _terms(text)])


def label_selector(text: str) -> Matches:
    """Parse `app=cart,tier!=web`; "" matches everything.

    Raises:
        BadRequest: the selector is invalid; sets (`in`, `notin`) are not supported.
    """
    return _all(
        [
            _term(term, lambda body, name: body["metadata"].get("labels", {}).get(name, ""))
            for term in _terms(text)
        ]
    )


def _terms(text: str) -> list[str]:
    return [term for term in text.split(",") if term]


def _term(term: str, value_of: Callable[[Body, str], Any]) -> Matches:
    for operator in ("!=", "==", "="):
        left, found, right = term.partition(operator)
        if found and left:
            wanted = operator != "!="
            return lambda body: (str(value_of(body, left)) == right) is wanted
    raise BadRequest(f"unable to parse requirement: {term!r}")


def _field(body: Body, path: str) -> Any:
    value: Any = body
    for part in path.split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    return value


def _all(terms: list[Matches]) -> Matches:
    return lambda body: all(term(body) for term in terms)
