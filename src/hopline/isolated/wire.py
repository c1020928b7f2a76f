"""Messages between a server and the process of one model, over a socket pair.

    server                              model process
            ◄─────────────────────────── Loaded or NotLoaded, once
      Submit [1, 2, 3] ───────────────────►  what came in one turn of the loop
      Drop [2] ────────────────────────►  withdrawn: no caller waits
            ◄─────────────────────────── Ended [(1, …), (2, gone), (3, …)]: what ended in one turn
      Compare [(request, outcome), …] ─►  copies of requests, with what went out to their callers
            ◄─────────────────────────── Compared: counts of all of them
            ◄─────────────────────────── Beat: so many batches so far, about once a second
      the end of stdin ────────────────►  finish and end

The framing is that of `process/wire.py`. Arrays travel as their bytes, errors as their class and all of
their attributes.
"""

from __future__ import annotations

import operator
from typing import Any, get_origin

import msgspec
import numpy as np

from hopline.answering.outcome_counts import OutcomeCounts
from hopline.errors import HoplineError
from hopline.process.wire import PackedError, Wire, pack_error, unpack_error
from hopline.request_fields import FIELDS
from hopline.types import AnyArray, ContextNode, InlineNode, ModelInfo, ScoreRequest, ScoreResult

_ARRAY, _OBJECTS = 1, 2
_REQUEST_FIELDS = ScoreRequest.__struct_fields__
_DEADLINE = _REQUEST_FIELDS.index("deadline")
_INLINE, _CONTEXT = _REQUEST_FIELDS.index("inline"), _REQUEST_FIELDS.index("context")
_PAIRS = _REQUEST_FIELDS.index("pairs")
#: Options that MessagePack makes lists of: place -> type. `convert` takes no arrays, which nodes may have.
_TUPLES = {
    _REQUEST_FIELDS.index(each.name): each.kept_as
    for each in FIELDS
    if get_origin(each.kept_as) is tuple and each.name != "context"
}
_DEGRADED = ScoreResult.__struct_fields__.index("degraded")


class Loaded(msgspec.Struct, tag="loaded"):
    """The model is loaded and warm. `identity` as in `Beat`."""

    graph_version: str
    info: ModelInfo
    identity: str


class NotLoaded(msgspec.Struct, tag="not_loaded"):
    """The model cannot be loaded; the process ends. `error` as from `pack_error`."""

    error: PackedError


class Submit(msgspec.Struct, tag="submit"):
    """Requests: (number, fields of the request) each."""

    requests: list[tuple[int, list[Any]]]


class Drop(msgspec.Struct, tag="drop"):
    """Withdrawn requests."""

    numbers: list[int]


class Batch(msgspec.Struct, array_like=True):
    """Requests that were computed together.

    Attributes:
        compute_s: of the batch, wall time.
        stages: stage -> seconds, where they are measured separately.
    """

    numbers: list[int]
    compute_s: float
    stages: dict[str, float]


class Ended(msgspec.Struct, tag="ended"):
    """Requests that ended.

    Attributes:
        results: (number, fields of the result).
        errors: (number, as from `pack_error`); None for one that was dropped.
        batches: which of them were computed together; what came to no batch is in none.
    """

    results: list[tuple[int, list[Any]]]
    errors: list[tuple[int, PackedError | None]]
    batches: list[Batch]


class Beat(msgspec.Struct, tag="beat"):
    """The loop turns.

    Attributes:
        num_batches: that ended so far.
        state_cache_hits, state_cache_misses: rows found and not found in state caches so far.
        cpu_s: processor seconds of the process so far.
        due: earliest deadline of the batch under way, also where its callers have their outcome; infinite
            where none is.
        damage, identity: as in `WatchedFiles`, of the files that the model reads; "" without them.
    """

    num_batches: int
    state_cache_hits: float
    state_cache_misses: float
    cpu_s: float
    due: float
    damage: str
    identity: str


class Compare(msgspec.Struct, tag="compare"):
    """Copies of requests, each as from `pack_copy`.

    The answers are not sent back, only how they compare: that spares the server their reading.
    """

    copies: list[msgspec.Raw]
    tolerance: float


class Compared(msgspec.Struct, tag="compared"):
    """Result of one `Compare`."""

    tally: OutcomeCounts


FromModel = Loaded | NotLoaded | Ended | Beat | Compared
FromServer = Submit | Drop | Compare
#: Exceptions of `frame` for a value that cannot be sent.
UNSENDABLE = (TypeError, ValueError, OverflowError, NotImplementedError)


def _encode_other(value: Any) -> Any:
    """Encoding of values that msgspec does not know: arrays and NumPy's numbers."""
    if isinstance(value, np.ndarray | np.floating):
        if value.dtype.hasobject:
            shape_and_items = (value.shape, value.ravel().tolist())
            return msgspec.msgpack.Ext(_OBJECTS, _encoder.encode(shape_and_items))
        head = _encoder.encode((value.dtype.str, value.shape))
        return msgspec.msgpack.Ext(_ARRAY, bytes([len(head)]) + head + value.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"a {type(value).__name__} cannot be sent to a model's own process")


def _decode_other(code: int, data: memoryview) -> AnyArray:
    try:
        return _array_of(code, data)
    except (ValueError, TypeError, LookupError, SyntaxError, OverflowError, MemoryError) as error:
        raise msgspec.ValidationError(f"not an array: {error}") from None


def _array_of(code: int, data: memoryview) -> AnyArray:
    if code == _OBJECTS:
        shape, items = _plain.decode(data)
        objects = np.empty(len(items), object)
        objects[:] = items
        return objects.reshape(shape)
    if code != _ARRAY:
        raise ValueError(f"extension {code}")
    size = data[0] + 1
    dtype, shape = _plain.decode(data[1:size])
    # a copy: aligned, writable, and it does not keep the whole message
    return np.frombuffer(data[size:], dtype).reshape(shape).copy()[()]


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_other)
_plain = msgspec.msgpack.Decoder(ext_hook=_decode_other)
#: Of any length: both ends are one server's, and bound what they send by requests and answers.
WIRE = Wire(protocol=1, enc_hook=_encode_other)
frame, frames = WIRE.frame, WIRE.frames
from_model = msgspec.msgpack.Decoder(FromModel, ext_hook=_decode_other)
from_server = msgspec.msgpack.Decoder(FromServer, ext_hook=_decode_other)


def pack_request(request: ScoreRequest, deadline: float) -> list[Any]:
    """The fields of a request, with the deadline that holds."""
    fields = list(msgspec.structs.astuple(request))
    fields[_DEADLINE] = deadline
    return fields


def unpack_request(fields: list[Any]) -> ScoreRequest:
    """The request that `pack_request` made fields of."""
    if fields[_INLINE]:
        fields[_INLINE] = [InlineNode(**node) for node in fields[_INLINE]]
    if fields[_PAIRS] is not None:
        fields[_PAIRS] = tuple(fields[_PAIRS])
    fields[_CONTEXT] = tuple(ContextNode(**node) for node in fields[_CONTEXT])
    for place, kind in _TUPLES.items():
        fields[place] = msgspec.convert(fields[place], kind) if fields[place] else ()
    return ScoreRequest(*fields)


def pack_result(result: ScoreResult) -> list[Any]:
    """The fields of a result."""
    return list(msgspec.structs.astuple(result))


def unpack_result(fields: list[Any]) -> ScoreResult:
    """The result that `pack_result` made fields of."""
    fields[_DEGRADED] = tuple(fields[_DEGRADED])
    return ScoreResult(*fields)


def pack_copy(request: ScoreRequest, outcome: ScoreResult | HoplineError) -> bytes:
    """A request and its outcome, for `Compare`.

    Raises:
        UNSENDABLE: something in them cannot be sent.
    """
    fields = msgspec.structs.astuple(request)
    if isinstance(outcome, ScoreResult):
        return _encoder.encode((fields, msgspec.structs.astuple(outcome), None))
    return _encoder.encode((fields, None, pack_error(outcome)))


def unpack_copy(copy: msgspec.Raw) -> tuple[ScoreRequest, ScoreResult | HoplineError]:
    """Inverse of `pack_copy`."""
    fields, result, error = _plain.decode(copy)
    request = unpack_request(fields)
    if result is not None:
        return request, unpack_result(result)
    assert error is not None
    return request, unpack_error(error)


def num_items(request: ScoreRequest) -> int:
    """Rows that a request asks for, as far as is known without its model."""
    count = len(request.nodes) + len(request.inline) + len(request.edges)
    if request.pairs is not None:
        count += operator.length_hint(request.pairs[0])
    if request.columns:
        count += max(map(operator.length_hint, request.columns.values()))
    return max(1, count)
