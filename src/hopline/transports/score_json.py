"""The JSON of `POST /v1/models/<m>/score`: body to `ScoreRequest`, `ScoreResult` to answer.

Typed decoding (msgspec) names the place of what is wrong. Arrays are written by orjson, which reads
them in place and writes float32 in the shortest form that reads back as the same float32: 0.1, where
going through Python floats gives 0.10000000149011612. Measured for [1024, 2]: 108 µs and 24 kB, against
196 µs and 42 kB for `tolist` and msgspec.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import orjson

from hopline.errors import BadRequest, quoted
from hopline.request_fields import FIELDS
from hopline.transports.as_of import read_as_of
from hopline.transports.json_body import decode_body, refuse_repeated
from hopline.transports.rows import Scalar, columns_of, named_place, time_limit_of
from hopline.transports.share import PIECE_BYTES
from hopline.types import AnyArray, InlineNode, ScoreRequest, ScoreResult

_Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Id: TypeAlias = _Int64 | str
_NUMPY = orjson.OPT_SERIALIZE_NUMPY


class InlineBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A node that the graph does not have. Lists are for the only edge type, mappings name edge types."""

    features: list[float]
    neighbors: list[_Id] | dict[str, list[_Id]] = []
    id: _Id | None = None
    edge_attr: list[list[float]] | dict[str, list[list[float]]] = []
    edge_weight: list[float] | dict[str, list[float]] = []


class AskedBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What a request is about. Ids in JSON keep their kind: 42 is an integer, "42" a string.

    Attributes:
        version: may also stand in the path.
        rows: column name -> value, for each row; or the same as `columns`.

    Null is as good as absent, since clients made by generators write it for what they do not set.
    """

    nodes: list[_Id] | None = None
    inline: list[InlineBody] | None = None
    pairs: list[tuple[_Id, _Id]] | None = None
    timeout_ms: float | None = None
    version: str | None = None
    rows: list[dict[str, Scalar]] | None = None
    columns: dict[str, list[Scalar]] | None = None


#: JSON names and types of a request's options, as `msgspec.defstruct` takes them.
SAID: list[tuple[str, Any, None]] = [(field.name, field.sent_as | None, None) for field in FIELDS]
#: The body of POST /v1/models/<model>/score.
ScoreBody: Any = msgspec.defstruct(
    "ScoreBody", SAID, bases=(AskedBody,), forbid_unknown_fields=True, gc=False, module=__name__
)
_names_said = attrgetter(*[field.name for field in FIELDS])
_NOTHING_SAID = (None,) * len(FIELDS)

_decode: Callable[[bytes | memoryview], AskedBody] = msgspec.json.Decoder(ScoreBody).decode


def decode_score(body: bytes, *, is_counted: bool = False) -> AskedBody:
    """Read a body.

    Args:
        is_counted: whether it is known that no name is repeated.

    Raises:
        BadRequest: not JSON (with the position), an unknown field or a wrong type (with its path), or a
            name that is repeated.
    """
    try:
        found = decode_body(body, _decode, ScoreBody)
    except BadRequest as error:
        if len(body) > PIECE_BYTES:  # naming the place takes as long as reading
            raise
        raise BadRequest(named_place(str(error), body)) from None
    if not is_counted and body.count(b":") > 1:  # the usual request has one
        refuse_twice(found, body)
    return found


def refuse_twice(found: AskedBody, body: bytes) -> None:
    """Refuse a body in which a name is repeated.

    Raises: BadRequest: names it.
    """
    names = sum(value is not None for value in msgspec.structs.astuple(found))
    names += sum(map(len, found.rows or ())) + len(found.columns or ())
    names += sum(len(value) for value in _names_said(found) if type(value) is dict)
    for node in found.inline or ():
        names += 1 if node.id is None else 2
        for each in (node.neighbors, node.edge_attr, node.edge_weight):
            if each:
                names += 1 + len(each) if isinstance(each, dict) else 1
    refuse_repeated(body, names)


def may_name_version(body: bytes) -> bool:
    """Whether a body may name a version, found without decoding: True may be wrong."""
    # Looking through a large body takes as long as reading it.
    return len(body) > PIECE_BYTES or b"version" in body or b"\\u" in body


def score_request(
    model: str, version: str | None, body: AskedBody, deadline: float | None, request_id: str
) -> ScoreRequest:
    """The transport-neutral request.

    Args:
        model: from the path.
        version: from the path; must not contradict the body's.
        body: as decoded.
        deadline: on time.monotonic()'s clock.
        request_id: for logs.

    Raises:
        BadRequest: path and body name different versions, rows have different columns, or as_of is no time.
    """
    if body.version is not None:
        if version is not None and version != body.version:
            raise BadRequest(f"the path says version {quoted(version)}, the body {quoted(body.version)}")
        version = body.version
    columns: Any = body.columns
    if body.rows is not None:
        if columns is not None:
            raise BadRequest("send either rows or columns")
        columns = columns_of(body.rows)
    pairs: Any = body.pairs
    nodes: Any = body.nodes  # a mixture of integers and strings is the id index's to refuse
    inline = [_inline_node(node) for node in body.inline] if body.inline else ()
    both = None if pairs is None else ([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    said = _names_said(body)
    if said == _NOTHING_SAID:  # the usual request
        return ScoreRequest(
            model, nodes or (), inline, both, version,
            deadline=deadline, request_id=request_id, columns=columns,
        )  # fmt: skip
    options = {field.name: value for field, value in zip(FIELDS, said, strict=True) if value is not None}
    if "as_of" in options:
        options["as_of"] = read_as_of(options["as_of"])
    return ScoreRequest(
        model, nodes or (), inline, both, version,
        deadline=deadline, request_id=request_id, columns=columns, **options,
    )  # fmt: skip


def deadline_after(timeout_ms: float | None, header: bytes | None, now: float) -> float | None:
    """The earlier of the two time limits that a request may name, as an absolute time.

    Raises:
        BadRequest: not a positive number.
    """
    if header is not None:
        shown = header.decode("latin-1")
        limit = time_limit_of(shown)
        if limit is None:
            raise BadRequest(
                f"header timeout-ms must be a positive number of milliseconds, not {quoted(shown)}"
            )
        timeout_ms = limit if timeout_ms is None else min(limit, timeout_ms)
    if timeout_ms is None:
        return None
    if not timeout_ms > 0:
        raise BadRequest(f"timeout_ms must be a positive number of milliseconds, not {timeout_ms}")
    return now + timeout_ms / 1000


def encode_result(result: ScoreResult, request: ScoreRequest) -> bytes:
    """The answer's body; rows of unknown nodes are null and their ids are listed in `missing`.

    `parts` is there for pipelines: which version answered each of their steps.
    """
    missing = result.missing
    # The usual answer, without a detour.
    if missing is None and not (result.degraded or result.parts or result.graph_through_ms):
        head = _answer_head(result.model, result.version, result.graph_version)
        try:
            return b'%b"outputs":%b,"degraded":[]}' % (head, orjson.dumps(result.outputs, option=_NUMPY))
        except orjson.JSONEncodeError:  # strings, or rows that are not contiguous
            pass
    parts = [
        b'"%b":%b' % (name.encode(), encode_rows(array) if missing is None else _with_nulls(array, missing))
        for name, array in result.outputs.items()
    ]
    degraded = b"[]" if not result.degraded else orjson.dumps(result.degraded)
    head = _answer_head(result.model, result.version, result.graph_version)
    tail = b"}" if missing is None else b',"missing":' + _missing_ids(request, missing) + b"}"
    if result.graph_through_ms:
        tail = b',"graph_age_ms":%d%b' % (result.graph_age_ms(time.time()), tail)
    if result.parts:
        tail = b',"parts":' + orjson.dumps(result.parts) + tail
    return b'%b"outputs":{%b},"degraded":%b%b' % (head, b",".join(parts), degraded, tail)


def encode_rows(array: AnyArray) -> bytes:
    """An array as nested JSON lists; NaN and infinities become null."""
    if array.dtype.kind in "OUS":
        return orjson.dumps(array.tolist())
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return orjson.dumps(array, option=_NUMPY)


@functools.lru_cache(maxsize=256)
def _answer_head(model: str, version: str, graph_version: str) -> bytes:
    head = orjson.dumps({"model": model, "version": version, "graph_version": graph_version})
    return head[:-1] + b","


def _with_nulls(array: AnyArray, missing: AnyArray) -> bytes:
    array = np.ascontiguousarray(array)
    rows = array.tolist() if array.dtype.kind in "OUS" else array
    return orjson.dumps(
        [None if gone else row for gone, row in zip(missing, rows, strict=True)], option=_NUMPY
    )


def _missing_ids(request: ScoreRequest, missing: AnyArray) -> bytes:
    """Ids of the rows; numbers of the rows where a pipeline took its ids from columns."""
    ids: Any = request.nodes if request.pairs is None else list(zip(*request.pairs, strict=True))
    if not len(ids):
        ids = range(len(missing))
    return orjson.dumps([ids[index] for index in np.flatnonzero(missing).tolist()])


def _inline_node(node: InlineBody) -> InlineNode:
    return InlineNode(
        node.features,
        _by_edge_type(node.neighbors),
        node.id,
        _by_edge_type(node.edge_attr),
        _by_edge_type(node.edge_weight),
    )


def _by_edge_type(value: Any) -> Any:
    """A bare list belongs to the node type's only edge type, whose key is left empty."""
    if isinstance(value, dict):
        if "" in value and len(value) > 1:  # one of the two lists would be lost
            raise BadRequest("an inline node has edges of type '' and of other types; name all types")
        return value
    return {"": value} if value else {}
