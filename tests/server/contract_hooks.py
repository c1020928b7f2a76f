"""Hooks of schemathesis: names of models that exist, and time limits that do not pass.

Loaded by its command line (SCHEMATHESIS_HOOKS), in a process of its own.
"""

from __future__ import annotations

import os
import re
from typing import Any

import schemathesis

#: A number above 0.
_NUMBER = re.compile(r"(?=.*[1-9])\d+(\.\d+)?(e[-+]?\d+)?")
MODELS = os.environ["CONTRACT_MODELS"].split(",")


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Three of four generated names are names of models, chosen by the generated one."""
    named = dict(path_parameters or {})
    model = str(named.get("model", ""))
    choice = sum(model.encode()) % 4
    if "model" in named and choice:
        named["model"] = MODELS[sum(model.encode()) % len(MODELS)]
        if choice > 1 and "version" in named:
            named["version"] = "1"
    return named


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """A generated time limit may be shorter than any answer takes, which is status 504."""
    if _NUMBER.fullmatch(str((case.headers or {}).get("timeout-ms", ""))):
        case.headers["timeout-ms"] = "60000"
    if isinstance(case.body, dict) and _NUMBER.fullmatch(str(case.body.get("timeout_ms"))):
        case.body = case.body | {"timeout_ms": 60_000}
