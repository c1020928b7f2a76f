"""Inputs of a request: a form to log for replay, and a hash.

The hash tells whether two requests have the same inputs in any form: ids as a JSON list or an int64
tensor, features as decimals or float32, columns in any order. It covers all on which an answer depends
(nodes, inline nodes, pairs, columns, time cut, outputs, handling of unknown nodes, attributes), but not
the client, the time, the version or the deadline.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
import orjson

from hopline.errors import BadRequest
from hopline.graph.id_values import as_int64, typed
from hopline.records.exact import packed, unpacked
from hopline.request_fields import LOGGED, default_of, values_of
from hopline.types import AnyArray, InlineNode, ScoreRequest

_HASH_BYTES = 16
#: Integers up to here are exact in float64.
_EXACT = 2.0**53
_ONE_INT, _ONE_TEXT = struct.Struct("<cqqq"), struct.Struct("<cqqq")
_logged = values_of(LOGGED)


class Inline(msgspec.Struct, omit_defaults=True):
    """An inline node; see `types.InlineNode`."""

    features: Any = ()
    neighbors: dict[str, Any] = {}
    id: int | str | None = None
    edge_attr: dict[str, Any] = {}
    edge_weight: dict[str, Any] = {}
    columns: dict[str, Any] | None = None


class LoggedInputs(msgspec.Struct, omit_defaults=True):
    """Inputs of a request as they are logged; see `types.ScoreRequest`.

    Arrays are lists, float32 is widened to float64 without loss; arrays with NaN are packed.
    """

    nodes: Any = []
    inline: list[Inline] = []
    pairs: tuple[Any, Any] | None = None
    columns: dict[str, Any] | None = None

    def request(self, model: str, version: str | None, request_id: str = "") -> ScoreRequest:
        """A request with these inputs to a model."""
        pairs = self.pairs
        return ScoreRequest(
            model,
            nodes=_array(self.nodes),
            inline=[_inline_node(node) for node in self.inline],
            pairs=None if pairs is None else (_array(pairs[0]), _array(pairs[1])),
            version=version,
            request_id=request_id,
            columns=None
            if self.columns is None
            else {name: _array(values) for name, values in self.columns.items()},
            **{field.name: getattr(self, field.name) for field in LOGGED},
        )


#: `LoggedInputs` and further fields of the request.
Inputs: Any = msgspec.defstruct(
    "Inputs",
    [(field.name, field.kept_as, default_of(field)) for field in LOGGED],
    bases=(LoggedInputs,),
    omit_defaults=True,
    module=__name__,
)


def inputs_of(request: ScoreRequest, rest: Callable[[], object]) -> LoggedInputs:
    """The inputs of a request to log; `rest` is called between pieces of work."""
    pairs, columns = request.pairs, request.columns
    inline = []
    for node in request.inline:
        inline.append(
            Inline(
                _plain(node.features),
                {key: _plain(ids) for key, ids in node.neighbors.items()},
                _plain(node.id),
                {key: _plain(values) for key, values in node.edge_attr.items()},
                {key: _plain(values) for key, values in node.edge_weight.items()},
                None if node.columns is None else {key: _plain(each) for key, each in node.columns.items()},
            )
        )
        rest()
    inputs: LoggedInputs = Inputs(
        _plain(request.nodes),
        inline,
        None if pairs is None else (_plain(pairs[0]), _plain(pairs[1])),
        None if columns is None else {name: _plain(values) for name, values in columns.items()},
        *_logged(request),
    )
    return inputs


def input_hash(request: ScoreRequest) -> str:
    """Hex BLAKE2b (128 bits) of the canonical form of a request's inputs."""
    others = request.inline or request.context or request.outputs or request.attributes or request.node_type
    if (
        not (others or request.edits or request.exclude_seed_edges)
        and request.ends is None
        and request.columns is None
        and request.as_of is None
    ):
        # a fast path for the usual request
        form = b"N" + _ids(request.nodes) + request.on_missing.encode()
        return hashlib.blake2b(form, digest_size=_HASH_BYTES).hexdigest()
    parts = [b"N", _ids(request.nodes), request.on_missing.encode()]
    for node in request.inline:
        parts += [b"I", *_inline(node)]
    for node in request.context:
        parts += [b"X", _strings([node.type]), *_inline(node)]
    if request.edits:
        parts += [b"E", _json(msgspec.to_builtins(request.edits))]
    if request.exclude_seed_edges:
        parts += [b"S", _strings([request.exclude_seed_edges])]
    if request.pairs is not None:
        parts += [b"P", _ids(request.pairs[0]), _ids(request.pairs[1])]
    for edge in request.edges:
        parts += [b"D", *(_ids([each]) for each in (edge.src, edge.dst, edge.id) if each is not None)]
        parts += [_matrix(edge.attr or ())]
        parts += _by_name(edge.columns or {}, lambda value: _values([value]))
    if request.columns is not None:
        parts += [b"C", *_by_name(request.columns, _values)]
    if request.as_of is not None:
        as_of = request.as_of
        parts += [b"T", _ids([as_of.isoformat() if isinstance(as_of, datetime) else as_of])]
    if request.node_type:
        parts += [b"Y", _strings([request.node_type])]
    if request.outputs:
        parts += [b"O", _ids(sorted(request.outputs))]
    if request.attributes:
        parts += [b"A", *_by_name(request.attributes, _json)]
    return hashlib.blake2b(b"".join(parts), digest_size=_HASH_BYTES).hexdigest()


# Logged form


def _plain(value: Any) -> Any:
    """Convert to a value that JSON represents without loss."""
    if type(value) is list:  # the usual ids; the checks below cost a microsecond
        return value
    if isinstance(value, np.ndarray):
        if value.dtype == np.float32:
            value = value.astype(np.float64)
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            return packed(value)
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return list(value)
    if hasattr(value, "__array__"):
        return _plain(np.asarray(value))
    return value


def _array(value: Any) -> Any:
    return unpacked(value) if isinstance(value, dict) else value


def _inline_node(node: Inline) -> InlineNode:
    return InlineNode(
        _array(node.features),
        {key: _array(ids) for key, ids in node.neighbors.items()},
        node.id,
        {key: _array(values) for key, values in node.edge_attr.items()},
        {key: _array(values) for key, values in node.edge_weight.items()},
        node.columns,
    )


# Hashing: every piece begins with its kind and its length, so that concatenations are unambiguous.


def _piece(kind: bytes, count: int, data: bytes) -> bytes:
    return kind + struct.pack("<qq", count, len(data)) + data


def _ids(ids: Any) -> bytes:
    """Encode ids from any container."""
    if type(ids) is list and len(ids) == 1:  # a fast path for the usual request, in half the time
        (only,) = ids
        if type(only) is int and -(2**63) <= only < 2**63:
            return _ONE_INT.pack(b"i", 1, 8, only)
        if type(only) is str and only.isascii():
            return _ONE_TEXT.pack(b"s", 1, 8 + len(only), len(only)) + only.encode()
    if not len(ids):
        return _piece(b"i", 0, b"")
    try:
        kind, values = typed(ids)
    except BadRequest:  # such a request failed; it has a hash, too
        return _json([_plain(item) for item in ids])
    if kind == "string":
        return _strings(values)
    numbers = as_int64(values)
    if numbers is None:  # beyond 64 bits: no graph has such ids
        return _strings([str(int(value)) for value in values])
    return _piece(b"i", len(numbers), numbers.tobytes())


def _strings(values: Sequence[str]) -> bytes:
    pieces = [value.encode("utf-8", "surrogatepass") for value in values]
    lengths = array("q", map(len, pieces)).tobytes()
    return _piece(b"s", len(pieces), lengths + b"".join(pieces))


def _values(values: Any) -> bytes:
    """Encode a column: numbers that a model reads as equal are encoded equally."""
    column = values if isinstance(values, np.ndarray) else np.array(list(values), dtype=_dtype(values))
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.dtype.kind == "S":
        column = np.char.decode(column, "utf-8")
    if column.dtype.kind == "U":
        return _strings(column.ravel().tolist())
    if column.dtype.kind == "O":
        items = column.ravel().tolist()
        if all(isinstance(item, str) for item in items):
            return _strings(items)
        if not all(item is None or isinstance(item, int | float | np.number) for item in items):
            return _json(items)
        column = np.array([np.nan if item is None else item for item in items], np.float64)
    return _numbers(column)


def _dtype(values: Any) -> Any:
    """int64 if all are integers that fit, else NumPy's choice, but never strings for numbers."""
    kinds = set(map(type, values))
    if kinds <= {int, bool}:
        return np.int64 if all(-(2**63) <= value < 2**63 for value in values) else np.float64
    return np.float64 if kinds <= {int, float, bool} else np.object_


def _numbers(values: AnyArray) -> bytes:
    """Encode as float32 bits, or int64 if all values are integers: 3, 3.0 and true's 1 are equal."""
    kind = values.dtype.kind
    if kind in "biu" and not (kind == "u" and values.size and values.max() >= 2**63):
        return _piece(b"i", len(values), np.ascontiguousarray(values, np.int64).tobytes())
    wide = values.astype(np.float64)
    for numbers in (wide, wide.astype(np.float32).astype(np.float64)):
        with np.errstate(invalid="ignore"):
            if (np.abs(numbers) <= _EXACT).all() and (numbers == np.floor(numbers)).all():
                return _piece(b"i", len(values), numbers.astype(np.int64).tobytes())
    with np.errstate(over="ignore"):
        single = wide.astype(np.float32) + np.float32(0)  # one zero
    single[np.isnan(single)] = np.nan  # one NaN
    return _piece(b"f", len(values), single.tobytes())


def _matrix(values: Any) -> bytes:
    """Encode features and edge attributes, which the engine reads as float32."""
    try:
        numbers = np.asarray(values, np.float32)
    except (TypeError, ValueError):  # ragged or not numbers: the request failed
        return _json(values)
    shape = struct.pack(f"<{numbers.ndim}q", *numbers.shape)
    return _piece(b"m", numbers.ndim, shape + (np.ascontiguousarray(numbers) + np.float32(0)).tobytes())


def _inline(node: InlineNode) -> Iterable[bytes]:
    yield _matrix(node.features)
    if node.columns is not None:
        yield from _by_name(node.columns, lambda value: _values([value]))
    yield _json(_plain(node.id))
    yield from _by_name({key: ids for key, ids in node.neighbors.items() if len(ids)}, _ids)
    for values in (node.edge_attr, node.edge_weight):
        yield from _by_name({key: rows for key, rows in values.items() if len(rows)}, _matrix)


def _by_name(values: Mapping[str, Any], form: Callable[[Any], bytes]) -> list[bytes]:
    parts = [_piece(b"d", len(values), b"")]
    for name in sorted(values):
        parts += [_strings([name]), form(values[name])]
    return parts


def _json(value: Any) -> bytes:
    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY, default=str)
    return _piece(b"j", 1, text)
