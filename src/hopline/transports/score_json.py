"""The JSON of `POST /v1/models/<m>/score`: body to `ScoreRequest`, `ScoreResult` to response body.

Typed decoding (msgspec) reports the place of an error. orjson writes arrays without a copy, and float32 in
the shortest form that reads back as the same float32: 0.1, where Python floats would give
0.10000000149011612. Measured for [1024, 2]: 108 µs and 24 kB, against 196 µs and 42 kB for `tolist` and
msgspec.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import orjson

from hopline.errors import BadRequest, quoted
from hopline.request_fields import FIELDS
from hopline.transports.json_body import decode_body, refuse_repeated
from hopline.transports.rows import Scalar, columns_of, read_as_of, time_limit_of
from hopline.types import UNREADABLE, AnyArray, Cell, InlineNode, ScoreRequest, ScoreResult
from turnserve.compression import PIECE_BYTES

_Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Id: TypeAlias = _Int64 | str
_Row: TypeAlias = dict[str, Scalar]
_Cells: TypeAlias = dict[str, Cell]
_NUMPY = orjson.OPT_SERIALIZE_NUMPY
#: Values that are encoded at a time, in a millisecond: an encoder holds the interpreter lock.
SLICE_VALUES = 2**14


class InlineBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A node that is not in the graph. Lists are for the only edge type; mappings are by edge type.

    A model with preprocessing takes `columns`, name -> value, in place of `features`.
    """

    features: list[float] | None = None
    neighbors: list[_Id] | dict[str, list[_Id]] = []
    id: _Id | None = None
    edge_attr: list[list[float] | _Cells] | dict[str, list[list[float] | _Cells]] = []
    edge_weight: list[float] | dict[str, list[float]] = []
    columns: _Cells | None = None

    def __post_init__(self) -> None:
        if (self.features is None) == (self.columns is None):
            given = "missing required field" if self.features is None else "either"
            raise ValueError(f"{given} `features`, or `columns` for a model with preprocessing")


class RowsBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields of a request that name what is scored: each decides how many rows the answer has.

    Ids in JSON keep their type: 42 is an integer, "42" a string.

    Attributes:
        rows: column name -> value, for each row; an alternative to `columns`.
    """

    nodes: list[_Id] | None = None
    inline: list[InlineBody] | None = None
    pairs: list[tuple[_Id, _Id]] | None = None
    rows: list[_Row] | None = None
    columns: dict[str, list[Scalar]] | None = None


class InputsBody(RowsBody, forbid_unknown_fields=True, gc=False):
    """The inputs of a request.

    Attributes:
        version: may also be in the path.

    Null is the same as a missing field, since generated clients write null for unset fields.
    """

    timeout_ms: float | None = None
    version: Annotated[str, msgspec.Meta(min_length=1)] | None = None


#: JSON names and types of the options of a request, in the form of `msgspec.defstruct`.
OPTIONS: list[tuple[str, Any, Any]] = [
    (field.name, field.sent_as | None, msgspec.field(default=None, name=field.sent_name))
    for field in FIELDS
]
#: The body of POST /v1/models/<model>/score.
ScoreBody: Any = msgspec.defstruct(
    "ScoreBody", OPTIONS, bases=(InputsBody,), forbid_unknown_fields=True, gc=False, module=__name__
)
_options_of = attrgetter(*[field.name for field in FIELDS])
_NO_OPTIONS = (None,) * len(FIELDS)

_decode: Callable[[bytes | memoryview], InputsBody] = msgspec.json.Decoder(ScoreBody).decode
_inline_body = msgspec.json.Decoder(InlineBody).decode
_PIECES: dict[str, Any] = {
    "inline": lambda piece: inline_node(_inline_body(piece)),
    "rows": msgspec.json.Decoder(_Row).decode,
}
_split = [(name, list[msgspec.Raw] | None, None) for name in _PIECES]
#: The same, with nodes and rows that are not decoded yet.
_SplitBody: Any = msgspec.defstruct("SplitBody", _split, bases=(ScoreBody,), gc=False)
_decode_split: Callable[[bytes], InputsBody] = msgspec.json.Decoder(_SplitBody).decode


def decode_score(body: bytes, *, is_counted: bool = False) -> InputsBody:
    """Decode a body.

    Args:
        is_counted: True if the body was already checked for repeated names.

    Raises:
        BadRequest: not JSON (with the position), an unknown field or a wrong type (with its path), or a
            repeated name.
    """
    found = decode_body(body, _decode, ScoreBody)
    if not is_counted and body.count(b":") > 1:  # a typical request has one
        refuse_repeated_names(found, body)
    return found


def decode_large(body: bytes) -> InputsBody:
    """Decode as `decode_score`, on a thread; between slices of nodes and rows, other threads run."""
    try:
        found, size = _decode_split(body), 0
        for name, decode in _PIECES.items():
            pieces: list[Any] = getattr(found, name) or []
            for at, piece in enumerate(pieces):
                size += memoryview(piece).nbytes
                pieces[at] = decode(piece)
                if size > PIECE_BYTES:
                    size = 0
                    time.sleep(0)
    except (*UNREADABLE, ValueError):
        return decode_score(body, is_counted=True)  # the error names the place
    return found


def refuse_repeated_names(found: InputsBody, body: bytes) -> None:
    """Refuse a body in which an object repeats a name.

    Raises: BadRequest: with the name.
    """
    names = sum(value is not None for value in msgspec.structs.astuple(found))
    names += sum(map(len, found.rows or ())) + len(found.columns or ())
    names += sum(len(value) for value in _options_of(found) if type(value) is dict)
    context: Any = found.context or ()  # type: ignore[attr-defined]
    names += sum(node.type != "" for node in context)
    for edit in found.edits or ():  # type: ignore[attr-defined]
        values = msgspec.structs.astuple(edit.remove_edge or edit.add_edge or edit.set)
        names += 1 + sum(bool(value) for value in values)
        names += sum(len(value) for value in values if type(value) is dict)
    for edge in found.edges or ():  # type: ignore[attr-defined]
        names += 2 + (edge.attr is not None)
        names += 0 if edge.columns is None else 1 + len(edge.columns)
    for node in (*(found.inline or ()), *context):
        names += (node.id is not None) + bool(node.features)
        for each in (node.neighbors, node.edge_attr, node.edge_weight, node.columns):
            if each:
                names += 1 + len(each) if isinstance(each, dict) else 1
        lists = node.edge_attr.values() if isinstance(node.edge_attr, dict) else (node.edge_attr,)
        names += sum(len(row) for rows in lists for row in rows if type(row) is dict)
    refuse_repeated(body, names)


def may_name_version(body: bytes) -> bool:
    """Return True if a body may select a version, without decoding it; True may be wrong."""
    # Searching a large body needs as long as decoding it.
    return len(body) > PIECE_BYTES or b"version" in body or b"\\u" in body


def score_request(
    model: str, version: str | None, body: InputsBody, deadline: float | None, request_id: str
) -> ScoreRequest:
    """Build the transport-neutral request.

    Raises:
        BadRequest: path and body name different versions, rows have different columns, or as_of is invalid.
    """
    if body.version is not None:
        if version is not None and version != body.version:
            raise BadRequest(
                f"the path has version {quoted(version)}, but the body has {quoted(body.version)}"
            )
        version = body.version
    columns: Any = body.columns
    if body.rows is not None:
        if columns is not None:
            raise BadRequest("send either rows or columns, not both")
        columns = columns_of(body.rows)
    pairs: Any = body.pairs
    nodes: Any = body.nodes  # the id index refuses a mixture of integers and strings
    inline: Any = body.inline or ()
    if inline:  # some are converted where they were decoded
        inline = [node if type(node) is InlineNode else inline_node(node) for node in inline]
    both = None if pairs is None else ([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    sent = _options_of(body)
    options = {}
    if sent != _NO_OPTIONS:  # not the usual request
        options = {
            field.name: value for field, value in zip(FIELDS, sent, strict=True) if value is not None
        }
        if "as_of" in options:
            options["as_of"] = read_as_of(options["as_of"])
    return ScoreRequest(
        model, nodes or (), inline, both, version,
        deadline=deadline, request_id=request_id, columns=columns, **options,
    )  # fmt: skip


def deadline_after(timeout_ms: float | None, header: bytes | None, now: float) -> float | None:
    """Return the earlier of the two time limits of a request, as an absolute time.

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
    """Encode the response body; rows of unknown nodes are null and their ids are listed in `missing`.

    For pipelines, `parts` contains the version that answered each step.
    """
    missing = result.missing
    head = _answer_head(result.model, result.version, result.graph_version)
    tail = b"}"
    if missing is not None:
        tail = b',"missing":' + _missing_ids(request, missing) + tail
    if result.graph_through_ms:
        tail = b',"graph_age_ms":%d%b' % (result.graph_age_ms(time.time()), tail)
    if result.features_age_ms >= 0:
        tail = b',"features_age_ms":%d%b' % (result.features_age_ms, tail)
    if result.as_of is not None:
        tail = b',"as_of":%d%b' % (result.as_of, tail)
    if result.parts:
        tail = b',"parts":' + orjson.dumps(result.parts) + tail
    degraded = orjson.dumps(result.degraded) if result.degraded else b"[]"
    if missing is None and num_values(result) <= SLICE_VALUES:  # a typical answer
        try:
            outputs = orjson.dumps(result.outputs, option=_NUMPY)
            return b'%b"outputs":%b,"degraded":%b%b' % (head, outputs, degraded, tail)
        except orjson.JSONEncodeError:  # strings, or an array that is not contiguous
            pass
    parts: list[bytes | memoryview] = [head, b'"outputs":{']
    for name, array in result.outputs.items():
        parts.append(b'%b"%b":[' % (b"," if len(parts) > 2 else b"", name.encode()))
        parts += _in_slices({name: array}, missing, lambda rows: next(iter(rows.values())))
        parts.append(b"]")
    return b"".join([*parts, b'},"degraded":', degraded, tail])


def num_values(result: ScoreResult) -> int:
    """Return how many values an answer has."""
    total = 0
    for array in result.outputs.values():  # in the path of each request: no comprehension
        total += array.size
    return total


def encode_rows(array: AnyArray) -> bytes:
    """Encode an array as nested JSON lists; NaN and infinities become null."""
    return b"".join([b"[", *_in_slices({"": array}, None, lambda rows: rows[""]), b"]"])


def encode_predictions(result: ScoreResult) -> bytes:
    """Encode one object for each row, as Vertex AI has them, and the fallbacks that were used, if any."""

    def objects(rows: dict[str, Any]) -> list[dict[str, Any]]:
        return [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]

    end = b'],"degraded":%b}' % orjson.dumps(result.degraded) if result.degraded else b"]}"
    return b"".join([b'{"predictions":[', *_in_slices(result.outputs, result.missing, objects), end])


def _in_slices(
    arrays: Mapping[str, AnyArray], missing: AnyArray | None, values: Callable[[dict[str, Any]], Any]
) -> list[bytes | memoryview]:
    """Encode what `values` returns for rows of arrays, a slice of the rows at a time; without brackets.

    Between slices, other threads get the interpreter lock, such as the event loop.

    Args:
        missing: bool [n], rows that become null; None if there are none.
    """
    if not arrays:
        return []
    # Each row of each array costs as much as some values, since it becomes an object.
    num_rows = len(next(iter(arrays.values())))
    size = sum(array.size for array in arrays.values()) + (8 * len(arrays) * num_rows if num_rows else 0)
    step = max(1, SLICE_VALUES * num_rows // max(size, 1))
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    texts: list[bytes | memoryview] = []
    for start in range(0, num_rows, step):
        at = slice(start, start + step)
        rows = {name: _rows(array[at], missing, at) for name, array in plain.items()}
        texts += (memoryview(orjson.dumps(values(rows), option=_NUMPY))[1:-1], b",")
        if start + step < num_rows:
            time.sleep(0)
    return texts[:-1]


def _rows(rows: AnyArray, missing: AnyArray | None, at: slice) -> Any:
    values = rows.tolist() if rows.dtype.kind in "OUS" else rows
    if missing is None:
        return values
    return [None if gone else row for gone, row in zip(missing[at], values, strict=True)]


@functools.lru_cache(maxsize=256)
def _answer_head(model: str, version: str, graph_version: str) -> bytes:
    head = orjson.dumps({"model": model, "version": version, "graph_version": graph_version})
    return head[:-1] + b","


def _missing_ids(request: ScoreRequest, missing: AnyArray) -> bytes:
    """Encode the ids of the missing rows; row numbers if a pipeline read its ids from columns."""
    ids: Any = request.nodes if request.ends is None else list(zip(*request.ends, strict=True))
    if request.names_edges:
        ids = [(edge.src, edge.dst) if edge.id is None else edge.id for edge in request.edges]
    if not len(ids):
        ids = range(len(missing))
    return orjson.dumps([ids[index] for index in np.flatnonzero(missing).tolist()])


def inline_node(node: InlineBody) -> InlineNode:
    """Convert a node of a body. Raises: BadRequest: it names '' and other edge types."""
    attr, weight = _by_edge_type(node.edge_attr), _by_edge_type(node.edge_weight)
    return InlineNode(
        node.features or (), _by_edge_type(node.neighbors), node.id, attr, weight, node.columns
    )


def _by_edge_type(value: Any) -> Any:
    """Return values by edge type; a list is for the only edge type, with the key ""."""
    if isinstance(value, dict):
        if "" in value and len(value) > 1:  # otherwise one of the two lists would be ignored
            raise BadRequest("an inline node has edge type '' and others; name all edge types")
        return value
    return {"": value} if value else {}
