"""Encoding and decoding for the clients: request bodies, responses, errors by their code.

This file handles the JSON of `/v1`; it does not depend on connections.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Literal, TypeAlias, TypedDict, Unpack
from urllib.parse import quote, urlsplit

import msgspec
import numpy as np

from hopline import errors
from hopline.types import (
    UNREADABLE,
    AnyArray,
    ContextNode,
    Edit,
    Excluded,
    ExternalId,
    ExternalIds,
    InlineNode,
    ModelInfo,
    Priority,
    ScoredEdge,
    ScoreResult,
)

#: Edges to score, as objects or as JSON has them.
Edges: TypeAlias = Iterable[ScoredEdge | Mapping[str, Any]]


class ScoreOptions(TypedDict, total=False):
    """Options of every scoring call.

    Attributes:
        version: a model version; default: the server's rollout chooses.
        outputs: names of outputs; default: the model's default outputs.
        as_of: only edges up to this time are used: an integer in the graph's unit; a date, a datetime or
            ISO 8601 text, in UTC without a time zone.
        on_missing: "null" returns NaN (integers: -1) and `missing` for unknown nodes.
        degraded: "refuse" raises Unavailable instead of an answer of lower quality.
        timeout: seconds for this call; default: the client's.
        attributes: name -> string, number or bool, for routing rules.
        key: requests with the same key get the same version in an A/B test.
        priority: "high" goes before "normal", and "low" is refused first.
        tags: labels for the server's prediction log: at most 16, of up to 64 characters.
        min_version: the answer must be of this version of the graph, or of a later one: the `graph_version`
            of an `EventsOutcome` or of another answer. Raises Unavailable if the server does not get it
            in time.
        context: nodes of any type that are not in the graph, and that inline nodes refer to.
        node_type: of the nodes, for a model that answers for several node types.
        keep: add the inline nodes, and those of `context`, to the live graph. Give a `key` too: without
            one, a call whose answer is lost is not repeated.
        edits: of the graph, for this call only: `Edit`, or mappings as JSON has them under "if".
        exclude_seed_edges: for pairs and edges: its own edges are not seen by a pair's message passing.
            "self" those from source to destination, "reverse" also those back; default: as packaged.
    """

    version: str | None
    outputs: Sequence[str]
    as_of: int | str | date | np.datetime64 | None
    on_missing: Literal["error", "null"]
    degraded: Literal["allow", "refuse"]
    timeout: float | None
    attributes: Mapping[str, str | float | bool]
    key: str
    priority: Priority
    tags: Sequence[str]
    min_version: str
    context: Iterable[ContextNode | Mapping[str, Any]]
    node_type: str | None
    keep: bool
    edits: Iterable[Edit | Mapping[str, Any]]
    exclude_seed_edges: Excluded


class _Answer(msgspec.Struct):
    model: str
    version: str
    graph_version: str
    outputs: dict[str, list[Any]]
    degraded: tuple[str, ...] = ()
    missing: list[Any] | None = None
    parts: dict[str, str] = {}
    graph_age_ms: int = -1
    features_age_ms: int = -1
    as_of: int | None = None


class _Failure(msgspec.Struct):
    code: str = "internal"
    message: str = ""
    missing: list[ExternalId] = []
    differences: list[str] = []
    retry_after_s: float | None = None


#: JSON has a form for all of these.
_EXACT = frozenset({int, str, bool, type(None)})


class Models(msgspec.Struct):
    """The list of models."""

    models: list[ModelInfo]


def credentials(api_key: str | None, token: str | None) -> dict[str, str]:
    """Return the headers that authenticate a client.

    Raises: BadRequest: both are given, or one that no header can have.
    """
    if api_key is not None and token is not None:
        raise errors.BadRequest("give api_key or token, not both")
    for name, secret in (("api_key", api_key), ("token", token)):
        if secret is not None and re.search("[^!-~]", secret):  # without the secret, which logs would show
            raise errors.BadRequest(f"{name} has a blank, a line break or a letter outside ASCII")
    if api_key is not None:
        return {"x-api-key": api_key}
    return {} if token is None else {"authorization": f"Bearer {token}"}


def origin(url: str) -> str:
    """Check the URL of a server; return its beginning, without path, user and password.

    Raises: BadRequest: it does not begin with http:// or https://, has no host, or has a query.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise errors.BadRequest(f"{url!r} is not a server URL: {error}") from None
    if parts.scheme not in ("http", "https"):
        rest = url.rpartition("://")[2]
        raise errors.BadRequest(
            f"{url!r} is not a server URL: it must begin with http://, for example http://{rest}"
        )
    if not parts.hostname:
        raise errors.BadRequest(f"{url!r} is not a server URL: it has no host")
    if parts.query or parts.fragment:
        raise errors.BadRequest(f"{url!r} is not a server URL: it has a query or a fragment")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def encode(body: Any, name: str = "") -> bytes:
    """Encode a body as JSON.

    Args:
        name: of the body, for error messages.
    Raises: BadRequest: a value has no JSON form, or msgspec would send another value in its place: null for
        NaN and infinity, base64 for bytes, any order for a set.
    """
    _check(body, name)
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.BadRequest(f"the request cannot be encoded as JSON: {error}") from None


def _check(value: Any, name: str) -> None:
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            _check(item, f"{name}.{key}" if name else str(key))
    elif kind is list or kind is tuple:
        kinds = set(map(type, value))
        if not kinds <= _EXACT and not (kinds == {float} and all(map(math.isfinite, value))):
            for place, item in enumerate(value):
                _check(item, f"{name}[{place}]")
    elif isinstance(value, float) and not math.isfinite(value):
        shown = "NaN" if math.isnan(value) else "infinite"
        other = "of a list with one for each column, in order" if name.endswith("]") else f"or omit {name}"
        raise errors.BadRequest(f"{name} is {shown}, which JSON does not have; give a number, {other}")
    elif isinstance(value, bytes | bytearray | memoryview):
        raise errors.BadRequest(f"{name} is {value!r}; JSON has text, not bytes: decode it")
    elif isinstance(value, set | frozenset):
        raise errors.BadRequest(f"{name} is a set, which has no order; give a list")
    elif kind.__name__ in ("Decimal", "NAType"):  # a text to msgspec; pandas' missing value
        raise errors.BadRequest(f"{name} is {value!r}; pass a float, or None for a missing value")


def score_path(model: str) -> str:
    """Return the path for scoring requests to a model."""
    return f"/v1/models/{quote(model, safe='')}/score"


def score_body(
    nodes: ExternalIds,
    rows: Iterable[Mapping[str, Any]] | None,
    columns: Mapping[str, Any] | None,
    **options: Unpack[ScoreOptions],
) -> dict[str, Any]:
    """Build the body for known nodes, for rows of a tabular model, or for a pipeline that reads both.

    Raises: BadRequest: both forms together.
    """
    if rows is not None and columns is not None:
        raise errors.BadRequest("give rows or columns, not both")
    body = _options(options)
    ids = _ids(nodes)
    if ids or (rows is None and columns is None):
        body["nodes"] = ids
    if rows is not None:
        body["rows"] = [{name: _cell(value) for name, value in row.items()} for row in rows]
    if columns is not None:
        body["columns"] = {
            name: [_cell(value) for value in listed(values, f"column {name!r}", "values")]
            for name, values in columns.items()
        }
    return body


def inline_body(
    inline: Iterable[InlineNode | Mapping[str, Any]], nodes: ExternalIds, **options: Unpack[ScoreOptions]
) -> dict[str, Any]:
    """Build the body for nodes that are not in the graph, after `nodes` that are."""
    body = {"inline": list(map(_inline, listed(inline, "inline", "nodes"))), **_options(options)}
    ids = _ids(nodes)
    return body | {"nodes": ids} if ids else body


def pairs_body(
    pairs: Iterable[tuple[ExternalId, ExternalId]], **options: Unpack[ScoreOptions]
) -> dict[str, Any]:
    """Build the body for link scores."""
    return {
        "pairs": [_pair(pair) for pair in listed(_as_list(pairs), "pairs", "pairs")],
        **_options(options),
    }


def edges_body(edges: Edges, **options: Unpack[ScoreOptions]) -> dict[str, Any]:
    """Build the body for edges with their own rows."""
    return {"edges": list(map(_edge, listed(edges, "edges", "edges"))), **_options(options)}


def read_result(content: bytes) -> ScoreResult:
    """Decode a response to NumPy arrays: float32, or int64 for labels; NaN and -1 for unknown nodes.

    Raises: HoplineError: the response is not that of a Hopline server.
    """
    answer: _Answer = read_json(content, _Answer)
    gone: list[bool] = []
    if answer.missing is not None:
        first = next(iter(answer.outputs.values()), [])
        gone = [row is None for row in first]
    try:
        outputs = {name: _array(name, rows, gone) for name, rows in answer.outputs.items()}
    except (ValueError, TypeError, OverflowError) as error:
        raise errors.HoplineError(
            f"the server's response has outputs that are not arrays: {error}"
        ) from None
    missing = np.array(gone) if answer.missing is not None else None
    return ScoreResult(
        answer.model,
        answer.version,
        answer.graph_version,
        outputs,
        missing,
        answer.degraded,
        parts=answer.parts,
        graph_through_ms=0 if answer.graph_age_ms < 0 else int(time.time() * 1e3) - answer.graph_age_ms,
        features_age_ms=answer.features_age_ms,
        as_of=answer.as_of,
    )


def read_json(content: bytes, kind: Any = Any) -> Any:
    """Decode JSON of the server, as a kind of object. Raises: HoplineError: it is invalid."""
    try:
        return msgspec.json.decode(content, type=kind)
    except UNREADABLE as error:
        raise errors.HoplineError(f"the server's response cannot be read: {error}") from None


def read_error(status: int, content: bytes, code: str = "") -> errors.HoplineError:
    """Build the error that the server raised, with the same class.

    Args:
        code: value of the header `hopline-error`: Open Inference Protocol bodies have only a text.

    A response that is not Hopline's (for example a proxy's page) becomes Unavailable for 502 to 504 and a
    plain HoplineError otherwise.
    """
    try:
        failure = msgspec.json.decode(content, type=dict[Literal["error"], _Failure | str])["error"]
        if isinstance(failure, str):
            failure = _Failure(code, failure)
    except (*UNREADABLE, KeyError):
        text = f"HTTP {status}: {content[:200].decode(errors='replace')}"
        return errors.Unavailable(text) if status in (502, 503, 504) else errors.HoplineError(text)
    kind = errors.BY_CODE.get(failure.code)
    if kind is None:
        kind = errors.BadRequest if 400 <= status < 500 else errors.HoplineError
    if issubclass(kind, errors.NodeNotFound):
        return kind(failure.message, failure.missing)
    if kind is errors.SchemaMismatch:
        return errors.SchemaMismatch(failure.message, failure.differences)
    passing = errors.Overloaded | errors.Unavailable | errors.ModelNotReady
    if issubclass(kind, passing) and failure.retry_after_s is not None:
        return kind(failure.message, failure.retry_after_s)
    return kind(failure.message)


def _options(options: ScoreOptions) -> dict[str, Any]:
    body: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    if "as_of" in body:
        body["as_of"] = _moment(body["as_of"])
    if (timeout := body.pop("timeout", None)) is not None:
        body["timeout_ms"] = timeout * 1000
    if "outputs" in body:
        body["outputs"] = listed(body["outputs"], "outputs", "names")
    if "context" in body:
        body["context"] = list(map(_inline, listed(body["context"], "context", "nodes")))
    if (edits := body.pop("edits", None)) is not None:
        body["if"] = plain(
            msgspec.to_builtins(listed(edits, "edits", "edits"), enc_hook=_as_list), cells=True
        )
    return body


def _ids(ids: ExternalIds) -> list[Any]:
    return list(map(_id, listed(_as_list(ids), "nodes", "ids")))


def _as_list(values: Any) -> Any:
    """Convert arrays, tensors and columns of data frames to lists; return other values unchanged."""
    return values.tolist() if hasattr(values, "tolist") else values


def listed(values: Any, what: str, items: str) -> list[Any]:
    """Convert to a list; a string is refused, since it would become its characters.

    Raises: BadRequest: a single value; a set or a mapping, which have no order or are not a list.
    """
    if isinstance(values, set | frozenset | Mapping):
        raise errors.BadRequest(f"{what} must be a list of {items}, which has an order, not {values!r}")
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise errors.BadRequest(
            f"{what} must be a list of {items}, for example [{values!r}], not {values!r}"
        )
    return list(values)


def _pair(pair: tuple[ExternalId, ExternalId]) -> list[Any]:
    ends = listed(_as_list(pair), "each pair", "two ids")
    if len(ends) != 2:
        raise errors.BadRequest(f"each pair must be (source, destination), not {pair!r}")
    return [_id(ends[0]), _id(ends[1])]


def _edge(edge: ScoredEdge | Mapping[str, Any]) -> dict[str, Any]:
    given = edge if isinstance(edge, Mapping) else msgspec.structs.asdict(edge)
    names = {"src": "from", "dst": "to"}
    kept = {key: value for key, value in given.items() if value is not None}
    return {names.get(key, key): plain(value, cells=key == "columns") for key, value in kept.items()}


def _moment(as_of: Any) -> Any:
    """Convert a time to its JSON form."""
    if isinstance(as_of, date):  # datetimes are dates
        return as_of.isoformat()
    return str(as_of) if isinstance(as_of, np.datetime64) else _id(as_of)


def _id(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _cell(value: Any) -> Any:
    """Convert a value of a column; NaN and NaT become null. Raises: BadRequest: it may be rounded."""
    if isinstance(value, np.float32 | np.float16) and np.inf > abs(value) / 2 >= 2 ** np.finfo(value).nmant:
        raise errors.BadRequest(f"{value!r} may be a rounded integer; pass an int, or a float")
    value = _id(value)
    return None if isinstance(value, float | date) and value != value else value


_OF_CELLS = ("columns", "edge_attr")


def _inline(node: InlineNode | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(node, Mapping):
        return {key: plain(value, cells=key in _OF_CELLS) for key, value in node.items()}
    body: dict[str, Any] = {"features": plain(node.features)}
    if node.columns is not None:
        body = {"columns": plain(node.columns, cells=True)}
    for key in ("neighbors", "edge_attr", "edge_weight", "type"):
        values = plain(getattr(node, key, ""), cells=key in _OF_CELLS)
        if values:
            body[key] = values
    return body if node.id is None else body | {"id": node.id}


def _value(value: Any) -> Any:
    """Convert a value of a column, which may be a time."""
    return _moment(value) if isinstance(value, date | np.datetime64) and value == value else _cell(value)


def plain(value: Any, *, cells: bool = False) -> Any:
    """Convert arrays, tensors, columns of frames and NumPy numbers to Python's lists and numbers.

    Args:
        cells: values of columns, which may be times.
    """
    if isinstance(value, Mapping):
        return {key: plain(item, cells=cells) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, cells=cells) for item in value]
    return _value(value) if cells and not hasattr(value, "__len__") else _as_list(value)


def _array(name: str, rows: list[Any], gone: list[bool]) -> AnyArray:
    """Build the array of one output; a null row has the shape of the others."""
    sample: Any = next((row for row in rows if row is not None), None)
    if isinstance(sample, str):
        return np.array(["" if row is None else row for row in rows])
    is_integer = name == "label" or isinstance(sample, int)
    blank: Any = -1 if is_integer else np.nan
    if isinstance(sample, list):
        blank = [blank] * len(sample)
    filled = [blank if row is None else row for row in rows]
    return np.array(filled, dtype=np.int64 if is_integer and not isinstance(sample, float) else np.float32)
