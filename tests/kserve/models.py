"""Checks manifests with the models of KServe's custom resources, which the `kserve` package has.

Fields that no model names are refused, as the API server does with the definitions that these models were
generated from. Parts that are Kubernetes' own, such as a container, are left to the schemas of Kubernetes.
"""

from __future__ import annotations

import re
from typing import Any

import kserve

_SIMPLE: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "object": (object,),
}


def check(body: dict[str, Any]) -> None:
    """Raises: ValueError: a field is unknown, missing or of a wrong type; the message names it."""
    version = body["apiVersion"].rpartition("/")[2].capitalize()
    _made(body, f"{version}{body['kind']}", body["kind"])


def _made(value: Any, kind: str, place: str) -> Any:
    if found := re.fullmatch(r"list\[(.+)\]", kind):
        _expect(value, (list,), place)
        return [_made(each, found[1], f"{place}[{number}]") for number, each in enumerate(value)]
    if found := re.fullmatch(r"dict\(str, (.+)\)", kind):
        _expect(value, (dict,), place)
        return {key: _made(each, found[1], f"{place}.{key}") for key, each in value.items()}
    if kind in _SIMPLE:
        _expect(value, _SIMPLE[kind], place)
        return value
    model = getattr(kserve, kind, None)
    if model is None:  # of Kubernetes
        return value
    _expect(value, (dict,), place)
    names = {field: name for name, field in model.attribute_map.items()}
    if unknown := sorted(value.keys() - names.keys()):
        raise ValueError(f"{place}: {', '.join(unknown)}: no such field of {kind}")
    parts = {
        names[field]: _made(each, model.openapi_types[names[field]], f"{place}.{field}")
        for field, each in value.items()
    }
    return model(**parts)


def _expect(value: Any, types: tuple[type, ...], place: str) -> None:
    if not isinstance(value, types) or (
        isinstance(value, bool) and bool not in types and object not in types
    ):
        raise ValueError(f"{place}: {value!r} is not a {types[0].__name__}")
