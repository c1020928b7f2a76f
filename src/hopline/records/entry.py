"""One entry of the prediction log: what was asked, who answered, with what, and how long it took."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from hopline.records.exact import array_json, json_array
from hopline.records.inputs import Inputs
from hopline.types import AnyArray


class Entry(msgspec.Struct, omit_defaults=True):
    """One ended request.

    Attributes:
        request_id: as the client was told.
        time: when it ended, seconds since 1970 (UTC), to the microsecond.
        model, version: who answered.
        graph_version: id of the graph snapshot, "" where none is read.
        outcome: "ok", or the code of the error that was answered.
        outputs: output name -> array, one row for each requested item, bit for bit what was answered
            (rows of `missing` mean nothing); {} where the request failed.
        missing: rows that are null because the node is unknown.
        degraded: fallbacks that the answer used.
        latency_ms: "queue" and "total" of the request; "compute", or where they are told apart "sample",
            "compute" and "post", of its batch.
        input_hash: of what was asked; see `records.inputs`.
        artifact_hash: of all files of the model version.
        preprocessing_hash: of what turns inputs into what the model reads: sampling and first stages, or
            the steps before a tabular model.
        feature_schema_hash: of names, order and widths of the features.
        runtime: libraries and versions that computed it.
        client: who asked, "" where nobody has to say.
        is_copy: sent beside the real request to compare versions; nobody got the answer.
        inputs: what was asked; None where it was not kept.
        tensors: name -> array: what the model saw of the first rows, such as "nodes.node.features" float32
            [n, d], for comparing with training; {} for all but a sample.
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
    is_copy: bool = False
    inputs: Inputs | None = None
    tensors: dict[str, Any] = {}


class EntryWriter:
    """Makes lines of entries; used by one thread.

    Args:
        rest: called between the parts of large arrays.
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
        """Add one line to a buffer. Raises: TypeError, ValueError: it holds what JSON cannot; nothing is
        added.
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
    """The entry of a line, its outputs as arrays.

    Raises: ValueError: the line is torn or no entry.
    """
    try:
        entry = _decode(line)
        entry.outputs = arrays(entry.outputs)
        entry.tensors = arrays(entry.tensors)
    except (msgspec.MsgspecError, UnicodeDecodeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"not an entry of the prediction log: {error}") from None
    return entry


def arrays(values: Mapping[str, Any]) -> dict[str, AnyArray]:
    """Decoded JSON as arrays."""
    return {name: json_array(value) for name, value in values.items()}
