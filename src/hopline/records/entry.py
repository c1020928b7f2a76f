"""One entry of the prediction log: the request, its answer, the version that answered, and the latency."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from hopline.records.exact import array_json, json_array
from hopline.records.inputs import Inputs


class Entry(msgspec.Struct, omit_defaults=True):
    """The log entry of one finished request.

    Attributes:
        request_id: id that the client received.
        time: end of the request, seconds since 1970 (UTC), with microseconds.
        model, version: model version that answered.
        graph_version: id of the graph snapshot, "" if the model reads no graph.
        outcome: "ok", or the code of the returned error.
        outputs: output name -> array, one row for each requested item, with the exact bits of the answer
            (rows of `missing` have no meaning); {} if the request failed.
        missing: rows that are null because the node is unknown.
        degraded: fallbacks that were used.
        latency_ms: "queue" and "total" of the request; "compute" of its batch, or "sample", "compute" and
            "post" if they are measured separately.
        input_hash: hash of the inputs; see `records.inputs`.
        artifact_hash: hash of all files of the model version.
        preprocessing_hash: hash of the steps from inputs to what the model reads: sampling and first
            stages, or the steps before a tabular model.
        feature_schema_hash: hash of names, order and widths of the features.
        runtime: libraries and versions that computed the answer.
        client: authenticated client, "" without authentication.
        key: of the request, which chose the version in a rollout; "" without one.
        is_copy: a copy of a request to compare versions; no caller received the answer.
        inputs: inputs of the request; None if they are not logged.
        tensors: name -> array: what the model read for the first rows, such as "nodes.node.features"
            float32 [n, d], for comparison with training; {} except for a sample of requests.
    """

    request_id: str
    time: float
    model: str
    version: str
    graph_version: str = ""
    outcome: str = "ok"
    outputs: dict[str, Any] = {}
    missing: tuple[int, ...] = ()
    degraded: tuple[str, ...] = ()
    latency_ms: dict[str, float] = {}
    input_hash: str = ""
    artifact_hash: str = ""
    preprocessing_hash: str = ""
    feature_schema_hash: str = ""
    runtime: str = ""
    client: str = ""
    key: str = ""
    is_copy: bool = False
    inputs: Inputs | None = None
    tensors: dict[str, Any] = {}


class EntryWriter:
    """Encodes entries as lines; used by one thread.

    Args:
        rest: called between parts of large arrays.
    """

    def __init__(self, rest: Callable[[], object]) -> None:
        def other(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return array_json(value, rest)
            if isinstance(value, np.generic):
                return value.item()
            if isinstance(value, Mapping):
                return dict(value)
            raise TypeError(f"{type(value).__name__} cannot be logged")

        self._encoder = msgspec.json.Encoder(enc_hook=other)

    def append(self, entry: Entry, buffer: bytearray) -> None:
        """Add one line to a buffer.

        Raises: TypeError, ValueError: JSON cannot represent a value; nothing is added.
        """
        size = len(buffer)
        try:
            self._encoder.encode_into(entry, buffer, -1)
        except BaseException:
            del buffer[size:]
            raise
        buffer += b"\n"


_decode = msgspec.json.Decoder(Entry).decode


def read_entry(line: bytes) -> Entry:
    """Decode a line; outputs become arrays.

    Raises: ValueError: the line is incomplete or not an entry.
    """
    try:
        entry = _decode(line)
        entry.outputs = {name: json_array(value) for name, value in entry.outputs.items()}
        entry.tensors = {name: json_array(value) for name, value in entry.tensors.items()}
        num_rows = {len(array) for array in entry.outputs.values()}
        if entry.outcome == "ok" and entry.missing:
            (num,) = num_rows
            if not all(0 <= row < num for row in entry.missing):
                raise ValueError(f"missing: not all of {num} rows")
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not an entry of the prediction log: {error}") from None
    return entry
