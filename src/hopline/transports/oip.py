"""The Open Inference Protocol without a transport: tensors to `ScoreRequest`, `ScoreResult` to tensors.

HTTP and gRPC translate to and from these tensors. Inputs:

    node_ids           INT64 or BYTES [n]       known nodes
    src_ids, dst_ids   INT64 or BYTES [n]       pairs, for link models
    features           FP32 [n, d]              unseen nodes, one row each, with
    neighbors          INT64 or BYTES [total]   the concatenated neighbour ids of all these nodes, and
    neighbor_counts    INT64 [n]                the number of neighbours of each node
    as_of              INT64 or BYTES [1]       optional time limit of edges, a number or ISO 8601
    any other name     [n] or [n, 1]            a column of a tabular model, or of unseen nodes (with
                                                neighbor_counts): numbers, BOOL, or BYTES for strings

Request parameters: `timeout` (microseconds, as in Triton), `timeout_ms`, `on_missing`, `degraded`,
`binary_data_output`, `key`, `priority` (a name or Triton's number), `attributes`, `tags`, `context`,
`edges`, `if` and `inline` (JSON in a string), `as_of`, `node_type`, `exclude_seed_edges`, `min_version`,
`keep` (a bool); over gRPC `triton_enable_empty_final_response`, see `grpc_stream.py`. Outputs are those of
the model, and `missing` BOOL [n] if `on_missing` is "null" and an id is unknown: its floats are NaN and its
integers -1.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from hopline import __version__
from hopline.artifact import GRAPH_INPUTS
from hopline.errors import BadRequest, ModelNotReady, RequestTooLarge, quoted
from hopline.request_fields import FIELDS, RequestField
from hopline.transports.rows import option_of, read_as_of, time_limit_of
from hopline.transports.score_json import InlineBody, inline_node
from hopline.transports.tensors import Tensor, tensor_from_array
from hopline.types import AnyArray, InlineNode, ModelInfo, ScoreRequest, ScoreResult, TensorInfo

if TYPE_CHECKING:
    from hopline.service import Service

SERVER_NAME = "hopline"
PLATFORM = "hopline"
EXTENSIONS = ("binary_tensor_data", "model_repository", "model_configuration", "statistics")

#: Messages for features of Triton that this server does not have.
NO_SHARED_MEMORY = "shared memory is not supported; send the data in the request"
NO_TRACE_SETTINGS = "trace settings are not supported"
NO_LOG_SETTINGS = "log settings cannot be changed at run time; use the log section of the config"
#: Parameters of features that only other servers have.
_REFUSED = {
    "sequence_id": "sequences are not supported: requests have no state",
    "sequence_start": "sequences are not supported: requests have no state",
    "sequence_end": "sequences are not supported: requests have no state",
    **dict.fromkeys(
        ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"), NO_SHARED_MEMORY
    ),
    "classification": "the classification extension is not supported; request output 'label'",
}
#: Parameters about the encoding of inputs and outputs, accepted by every transport. Clients send them over
#: gRPC too.
_CARRIED = {"binary_data", "binary_data_output", "binary_data_size"}
_OPTIONS = tuple(field for field in FIELDS if field.is_parameter)
#: Unseen nodes as in the JSON of /v1: with missing values, and neighbours along several edge types.
_INLINE = RequestField("inline", tuple[InlineBody, ...], tuple[InlineNode, ...], True, True)
_KNOWN = {*[field.sent_name for field in _OPTIONS], "inline", "timeout", "timeout_ms"}
_SWITCHES = {"binary_data", "binary_data_output", *(f.sent_name for f in _OPTIONS if f.sent_as is bool)}
_TYPES = {"BYTES": "TYPE_STRING"}
#: Unit of an input's first dimension, for messages.
_COUNTED = dict.fromkeys(("node_ids", "features", "neighbor_counts"), "nodes")
_COUNTED |= dict.fromkeys(("src_ids", "dst_ids"), "pairs")


def request_from_tensors(
    model: str,
    version: str,
    tensors: Sequence[Tensor],
    outputs: Iterable[str],
    parameters: Mapping[str, Any],
    request_id: str,
    deadline: float | None = None,
    max_nodes: int | None = None,
) -> ScoreRequest:
    """Build a request from tensors and parameters.

    Args:
        model, version: from the caller; version "" lets the server choose.
        tensors: the inputs.
        outputs: names of the requested outputs; empty for the model's default.
        parameters: request parameters.
        request_id: for logs.
        deadline: the call's deadline, on time.monotonic()'s clock.
        max_nodes: limit of one request; None for no limit.

    Raises:
        BadRequest: repeated inputs, wrong shapes or types, unknown parameters.
        RequestTooLarge: more nodes, pairs or rows than allowed; checked before they are converted.
    """
    inputs = {tensor.name: tensor for tensor in tensors}
    if len(inputs) != len(tensors):
        raise BadRequest(f"an input is repeated: {quoted(', '.join(tensor.name for tensor in tensors))}")
    if max_nodes is not None:
        for name, tensor in inputs.items():
            if tensor.shape[0] > max_nodes and name != "neighbors":
                check_count(tensor.shape[0], _COUNTED.get(name, "rows"), max_nodes)
    columns = {name: tensor.column() for name, tensor in inputs.items() if name not in GRAPH_INPUTS}
    check_parameters(parameters)
    nodes = inputs["node_ids"].ids() if "node_ids" in inputs else ()
    inline = _inline_nodes(inputs, columns)
    is_described = "neighbor_counts" in inputs and "features" not in inputs  # by these columns
    if "inline" in parameters:
        if inline:
            raise BadRequest("unseen nodes are both in inputs and in parameter 'inline'; send one of them")
        inline = [inline_node(node) for node in option_of(_INLINE, parameters["inline"])]
    return ScoreRequest(
        model,
        nodes,
        inline,
        _pairs(inputs),
        version or None,
        # `missing` is added to an answer automatically.
        tuple(name for name in outputs if name != "missing"),
        deadline=_deadline(parameters, deadline),
        request_id=request_id,
        columns=None if not columns or is_described else columns,
        **_options(inputs, parameters),
    )


def _options(inputs: Mapping[str, Tensor], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a request from parameters and inputs, by field name."""
    options = {}
    if parameters:
        for field in _OPTIONS:
            if field.sent_name in parameters and field.name != "as_of":
                options[field.name] = option_of(field, parameters[field.sent_name])
    if "as_of" in inputs or "as_of" in parameters:
        options["as_of"] = _as_of(inputs, parameters.get("as_of"))
    return options


def check_count(count: int, what: str, most: int) -> None:
    """Refuse a request with more items than one request may have.

    Raises: RequestTooLarge.
    """
    if count > most:
        raise RequestTooLarge(
            f"{count} {what} in one request; at most {most} are allowed (limits.max_nodes_per_request)"
        )


def tensors_from_result(result: ScoreResult) -> list[Tensor]:
    """Return the outputs as tensors, with `missing` if an id was unknown."""
    missing = result.missing
    if missing is None:
        return [tensor_from_array(name, array) for name, array in result.outputs.items()]
    tensors = [tensor_from_array(name, _blanked(array, missing)) for name, array in result.outputs.items()]
    return [*tensors, tensor_from_array("missing", missing)]


def answer_parameters(result: ScoreResult) -> dict[str, str]:
    """Return the response parameters."""
    parameters = {"graph_version": result.graph_version}
    if result.graph_through_ms:
        parameters["graph_age_ms"] = str(result.graph_age_ms(time.time()))
    if result.features_age_ms >= 0:
        parameters["features_age_ms"] = str(result.features_age_ms)
    if result.as_of is not None:
        parameters["as_of"] = str(result.as_of)
    if result.degraded:
        parameters["degraded"] = ",".join(result.degraded)
    if result.parts:
        parameters["parts"] = ",".join(f"{step}={part}" for step, part in result.parts.items())
    return parameters


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Refuse parameters that would have no effect.

    Raises: BadRequest: an unsupported extension, or an unknown parameter.
    """
    for name, value in parameters.items():
        if name in _REFUSED:
            if value:  # clients send zeros for unused features
                raise BadRequest(f"parameter {quoted(name)}: {_REFUSED[name]}")
        elif name not in _KNOWN and name not in _CARRIED and not name.startswith("triton_"):
            known = ", ".join(sorted({*_KNOWN, "binary_data_output"}))
            raise BadRequest(f"unknown parameter {quoted(name)}; known are {known}")
        elif name in _SWITCHES and not isinstance(value, bool):
            raise BadRequest(f"parameter {quoted(name)} must be true or false, not {quoted(value)}")


def server_metadata() -> dict[str, Any]:
    """Return name, version and extensions of the server."""
    return {"name": SERVER_NAME, "version": __version__, "extensions": list(EXTENSIONS)}


def model_metadata(info: ModelInfo) -> dict[str, Any]:
    """Return a ModelMetadataResponse as a dict."""
    return {
        "name": info.name,
        "versions": list(info.versions),
        "platform": PLATFORM,
        "inputs": [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in info.inputs],
        "outputs": [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in info.outputs],
    }


def model_config(info: ModelInfo, max_nodes: int) -> dict[str, Any]:
    """Return a ModelConfig as a dict, with the fields that clients read.

    `max_batch_size` is the limit of one request, and shapes are those of one node, pair or row, as in
    Triton: a request of many has one more dimension. The server batches requests of any size automatically.

    Args:
        max_nodes: limit of nodes, pairs or rows of one request.
    """
    return {
        "name": info.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"all": {}},
        "max_batch_size": max_nodes,
        "input": [_config(tensor) | {"optional": tensor.optional} for tensor in info.inputs],
        "output": [_config(tensor) for tensor in info.outputs],
        "dynamic_batching": {},
        "parameters": {
            "graph_version": {"string_value": info.graph_version},
            "kind": {"string_value": info.kind},
            "id_kind": {"string_value": info.id_kind},
        },
        "model_transaction_policy": {"decoupled": False},
    }


def repository_index(service: Service, *, ready_only: bool = False) -> list[dict[str, str]]:
    """Return every version of every model with its state."""
    return [dict(row) for row in service.index() if not ready_only or row["state"] == "READY"]


def model_is_ready(service: Service, name: str, version: str | None) -> bool:
    """Return True if requests for this version would be accepted.

    Raises: ModelNotFound.
    """
    try:
        return service.describe(name, version).state == "READY" and service.ready()
    except ModelNotReady:
        return False


def all_statistics(service: Service, name: str | None, version: str | None) -> list[dict[str, Any]]:
    """Return ModelStatistics of one model or of all.

    Raises: ModelNotFound.
    """
    names = service.model_names() if name is None else (name,)
    if name is not None:
        service.describe(name, version)
    rows = [dict(row) for each in names for row in service.statistics(each)]
    return [row for row in rows if version is None or row.get("version") == version]


def _inline_nodes(inputs: Mapping[str, Tensor], columns: Mapping[str, Any]) -> list[InlineNode]:
    features = inputs["features"].rows() if "features" in inputs else None
    if "neighbor_counts" not in inputs:
        if "neighbors" in inputs:
            raise BadRequest("input 'neighbors' also needs input 'neighbor_counts'")
        return [] if features is None else [InlineNode(row) for row in features]
    if features is None and not columns:
        raise BadRequest("input 'neighbor_counts' also needs input 'features', or columns of the nodes")
    counts = inputs["neighbor_counts"].integers()
    for name, values in columns.items() if features is None else (("features", features),):
        if len(values) != len(counts):
            raise BadRequest(
                f"'neighbor_counts' has {len(counts)} values for {len(values)} of {quoted(name)}"
            )
    ids: Any = inputs["neighbors"].ids() if "neighbors" in inputs else ()
    if (counts < 0).any() or (counts > len(ids)).any() or int(counts.sum()) != len(ids):
        raise BadRequest(f"'neighbor_counts' must add up to the {len(ids)} ids in 'neighbors'")
    ends = zip(counts.tolist(), np.cumsum(counts).tolist(), strict=True)
    lists: list[Any] = [{"": ids[end - count : end]} if count else {} for count, end in ends]
    if features is not None:
        return [InlineNode(row, near) for row, near in zip(features, lists, strict=True)]
    # FP16 and FP32 keep their type: a column of integers refuses numbers that they may have rounded.
    cells = (c if isinstance(c, list) or c.dtype.char in "ef" else c.tolist() for c in columns.values())
    rows = zip(*cells, strict=True)
    return [
        InlineNode((), near, columns=dict(zip(columns, row, strict=True)))
        for row, near in zip(rows, lists, strict=True)
    ]


def _pairs(inputs: Mapping[str, Tensor]) -> tuple[Any, Any] | None:
    if "src_ids" not in inputs and "dst_ids" not in inputs:
        return None
    for name in ("src_ids", "dst_ids"):
        if name not in inputs:
            raise BadRequest(f"input {name!r} is missing; pairs need 'src_ids' and 'dst_ids'")
    if "node_ids" in inputs:
        raise BadRequest("send either 'node_ids' or 'src_ids' and 'dst_ids'")
    src, dst = inputs["src_ids"].ids(), inputs["dst_ids"].ids()
    if len(src) != len(dst):
        raise BadRequest(f"'src_ids' has {len(src)} ids and 'dst_ids' has {len(dst)}")
    return src, dst


def _as_of(inputs: Mapping[str, Tensor], parameter: Any) -> int | datetime | None:
    if "as_of" not in inputs:
        if parameter is None:
            return None
        if isinstance(parameter, bool) or not isinstance(parameter, int | float | str):
            raise BadRequest(f"parameter as_of must be a number or text, not {quoted(parameter)}")
        return read_as_of(parameter)
    if parameter is not None:
        raise BadRequest("as_of is both an input and a parameter; send one of them")
    tensor = inputs["as_of"]
    if len(tensor) != 1:
        raise BadRequest(f"'as_of' has {len(tensor)} values; expected one")
    (value,) = tensor.ids()
    return read_as_of(value if isinstance(value, str) else int(value))


def _deadline(parameters: Mapping[str, Any], deadline: float | None) -> float | None:
    for name, scale in (("timeout", 1e-6), ("timeout_ms", 1e-3)):
        value = parameters.get(name)
        if value is None or (name == "timeout" and value == 0):  # Triton's 0 means none
            continue
        limit = time_limit_of(value)
        if limit is None:
            raise BadRequest(f"parameter {name!r} must be a positive number, not {quoted(value)}")
        end = time.monotonic() + limit * scale
        deadline = end if deadline is None else min(deadline, end)
    return deadline


def _blanked(array: AnyArray, missing: AnyArray) -> AnyArray:
    if array.dtype.kind not in "fi":
        return array
    array = array.copy()
    array[missing] = np.nan if array.dtype.kind == "f" else -1
    return array


def _config(tensor: TensorInfo) -> dict[str, Any]:
    """Return a tensor with the shape of one item: [1] if it has none, since [n, 1] is read like [n]."""
    kind = _TYPES.get(tensor.datatype, f"TYPE_{tensor.datatype}")
    return {"name": tensor.name, "data_type": kind, "dims": list(tensor.shape[1:]) or [1]}
