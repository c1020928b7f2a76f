"""Parses faults and operations of the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from hopline.config.setting import read_number
from hopline.errors import BadRequest
from hopline_mesh.simulate.plan import Fault, Operation
from hopline_mesh.simulate.traits import Traits

_SHAPE = re.compile(
    r"(?P<kind>[a-z_]+)@(?P<start>[0-9.]+)(\+(?P<length>[0-9.]+))?(:(?P<target>[^=*]*))?"
    r"(=(?P<replicas>[0-9]{1,9}))?(\*(?P<severity>[0-9.]+))?"
)


def read_fault(text: str) -> Fault:
    """Read `KIND@T[+SECONDS][:SERVICE or CALLER>CALLEE][*SEVERITY]`, such as `edge_latency@9:web>cart*0.8`.

    Raises:
        BadRequest: the text has another form.
        ConfigError: no such kind, or a severity outside of 0 to 1.
    """
    found = _SHAPE.fullmatch(text)
    if found is None or found["replicas"]:
        raise BadRequest(
            f"--fault {text}: must be KIND@T[+SECONDS][:SERVICE or CALLER>CALLEE][*SEVERITY], such as"
            " memory_leak@300+600:cart or edge_latency@300:web>cart*0.8"
        )
    kind, (caller, _, callee) = found["kind"], (found["target"] or "").rpartition(">")
    start_s, length_s = _number(text, found["start"]), _number(text, found["length"] or "300")
    severity = _number(text, found["severity"] or "0.6")
    return Fault(kind, start_s, length_s, callee, caller, severity)  # type: ignore[arg-type]


def read_operation(text: str) -> Operation:
    """Read `KIND@T[:SERVICE][=REPLICAS]`, such as `scale@300:cart=7`.

    Raises:
        BadRequest: the text has another form.
        ConfigError: no such kind.
    """
    found = _SHAPE.fullmatch(text)
    if found is None or found["length"] or found["severity"]:
        raise BadRequest(
            f"--operation {text}: must be KIND@T[:SERVICE][=REPLICAS], such as scale@300:cart=7"
        )
    replicas = int(found["replicas"] or 0)
    start_s = _number(text, found["start"])
    return Operation(found["kind"], start_s, found["target"] or "", replicas)  # type: ignore[arg-type]


def read_traits(texts: Sequence[str], traits: Traits) -> Traits:
    """Return traits with values of the command line, such as `without_sidecar=0.2` or `tcp=0`.

    Raises:
        BadRequest: no such trait, or its value is not a number, or for `tcp` not 0 or 1.
        ConfigError: a value outside of 0 to 1.
    """
    known = [each.name for each in fields(Traits)]
    for text in texts:
        name, _, value = text.partition("=")
        if name not in known:
            raise BadRequest(f"--trait {text}: must be NAME=SHARE, with a name of {', '.join(known)}")
        number = _number(f"--trait {text}", value)
        if name == "tcp" and number not in (0.0, 1.0):
            raise BadRequest(f"--trait {text}: must be tcp=0 or tcp=1")
        changed: dict[str, Any] = {name: number != 0.0 if name == "tcp" else number}
        traits = replace(traits, **changed)
    return traits


def _number(text: str, number: str) -> float:
    value = read_number(number)
    if value is None:
        raise BadRequest(f"{text}: {number!r} is not a number")
    return value
