"""Options of a scoring request, in addition to its inputs: one line per field.

All code that reads, hashes, logs or sends a `ScoreRequest` derives from this list: JSON bodies and broker
messages (`transports/score_json.py`), Open Inference Protocol parameters (`transports/oip.py`), the
response cache (`answering/response_cache.py`), the prediction log (`records/inputs.py`) and replays
(`jobs/targets.py`).
A new option is a line here, a field of `types.ScoreRequest`, and an option of the Python client
(`client/wire.py`); docs/extending.md lists the tests and pages that follow.

The inputs (nodes, inline, pairs, rows or columns), the version, the time limit and the fields that the
server adds are not options: each has its own reader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec

from hopline.types import ContextNode, Edit, Excluded, OnMissing, Priority, ScoredEdge, ScoreRequest

_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
#: Text that is absent if it is not set: an empty one would be ignored.
_Text = Annotated[str, msgspec.Meta(min_length=1)]
#: Labels of a request, limited in number and length.
_Tags = Annotated[
    tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=64)], ...], msgspec.Meta(max_length=16)
]


@dataclass(frozen=True, slots=True)
class RequestField:
    """One field of `ScoreRequest` that callers set.

    Attributes:
        name: field name, also in JSON and as a parameter, unless `sent_name` says another one.
        sent_as: type in JSON.
        kept_as: type in a `ScoreRequest` and in the prediction log.
        changes_answer: True if the value may change the answer of a version.
        is_logged: True if the prediction log stores it with the inputs.
        is_parameter: True if it may be an Open Inference Protocol parameter; there, lists and mappings are
            JSON in a string.
    """

    name: str
    sent_as: Any
    kept_as: Any
    changes_answer: bool
    is_logged: bool
    is_parameter: bool = True
    sent_name: str = ""

    def __post_init__(self) -> None:
        if not self.sent_name:
            object.__setattr__(self, "sent_name", self.name)


FIELDS = (
    RequestField("outputs", tuple[str, ...], tuple[str, ...], True, True, is_parameter=False),
    RequestField("as_of", _Int64 | float | str, int | datetime | None, True, True),
    RequestField("on_missing", OnMissing, OnMissing, True, True),
    RequestField("degraded", Literal["allow", "refuse"], Literal["allow", "refuse"], True, True),
    # These two choose the version. The response cache is per version.
    RequestField("attributes", dict[str, int | float | str | bool], dict[str, Any] | None, False, True),
    RequestField("key", _Text, str, False, False),
    RequestField("priority", Priority, Priority, False, False),
    RequestField("tags", _Tags, tuple[str, ...], False, True),
    # A cached answer may be of an older version of the graph.
    RequestField("min_version", _Text, str, True, False),
    RequestField("node_type", _Text, str, True, True),
    RequestField("context", tuple[ContextNode, ...], tuple[ContextNode, ...], True, True),
    # Models get the request by ids: a replay must add nothing.
    RequestField("keep", bool, bool, False, False),
    RequestField("edits", tuple[Edit, ...], tuple[Edit, ...], True, True, sent_name="if"),
    RequestField("edges", tuple[ScoredEdge, ...], tuple[ScoredEdge, ...], True, True),
    RequestField("exclude_seed_edges", Excluded, Literal["", Excluded], True, True),
)

_DEFAULTS = dict(zip(ScoreRequest.__struct_fields__[1:], ScoreRequest.__struct_defaults__, strict=True))


def default_of(field: RequestField) -> Any:
    """Return the value of a request that does not set the field."""
    return _DEFAULTS[field.name]


def values_of(fields: tuple[RequestField, ...]) -> Callable[[ScoreRequest], tuple[Any, ...]]:
    """Return a function that reads these fields, at least two, of a request, in order."""
    return attrgetter(*[field.name for field in fields])


#: Fields that the prediction log stores.
LOGGED = tuple(field for field in FIELDS if field.is_logged)
