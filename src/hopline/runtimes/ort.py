"""ONNX Runtime, without its telemetry. All of Hopline imports `ort` from here.

From version 1.29 on, builds for Linux and macOS send events about sessions and errors to their maker, and
write a device id into the home folder. They read the switch for that once, when they are imported. A server
calls no other hosts than those in its settings. ORT_DISABLE_TELEMETRY=0 in the environment allows events.

It does not publish the numbers of the opsets that it runs; it refuses a model with an unknown opset. So it
gets a model: a single Identity node, written out here, since a server does not have `onnx` to write it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path

from hopline.artifact import Spec
from hopline.errors import ArtifactError

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

__all__ = ["check_model", "load_cuda", "ort"]


@functools.cache
def load_cuda() -> None:
    """Load CUDA's libraries from pip's `nvidia` packages, where the system's loader does not look for them.

    Installed elsewhere, the loader finds them. Prints the name of a library that is nowhere.
    """
    ort.preload_dlls()
    # Else ONNX Runtime warns for each session that its CUDA provider is no plug-in.
    ort.set_default_logger_severity(3)


#: Opset 7 is the oldest that ONNX Runtime guarantees to run; ai.onnx.ml 1 is the first version.
_OLDEST = {"ai.onnx": 7, "ai.onnx.ml": 1}


def check_model(folder: Path, spec: Spec, model: str, opsets: Mapping[str, int]) -> None:
    """Check that an artifact is of a model, and that the installed ONNX Runtime runs its opsets.

    Args:
        opsets: domain -> opset that it is pinned to; 0 if it has no ONNX file, or for unknown.

    Raises:
        ArtifactError: naming both models; or the pinned opsets and the newest that run.
    """
    if spec.name != model:
        raise ArtifactError(f"{folder}: the artifact is of model {spec.name!r}, its folder of {model!r}")
    pinned = {domain: opset for domain, opset in opsets.items() if opset}
    refused = [domain for domain, opset in pinned.items() if not _runs(domain, opset)]
    if refused:
        newest = _listed({domain: _newest(domain) for domain in pinned})
        raise ArtifactError(
            f"model {spec.name!r} version {spec.version} is pinned to {_listed(pinned)}; the installed "
            f"ONNX Runtime {ort.__version__} runs up to {newest}: "
            "install a newer onnxruntime, or package the model again"
        )


def _listed(opsets: Mapping[str, int]) -> str:
    return " and ".join(f"{domain} opset {opset}" for domain, opset in opsets.items())


@functools.cache
def _newest(domain: str) -> int:
    opset = _OLDEST[domain]
    while _runs(domain, opset + 1):
        opset += 1
    return opset


@functools.cache
def _runs(domain: str, opset: int) -> bool:
    opsets = {"ai.onnx": 13}
    opsets[domain] = opset
    options = ort.SessionOptions()
    options.log_severity_level = 4  # a refusal is expected here
    options.intra_op_num_threads = 1
    try:
        ort.InferenceSession(_identity_model(opsets), options, providers=["CPUExecutionProvider"])
    except Exception:  # onnxruntime raises its own errors, without a common public base
        return False
    return True


def _identity_model(opsets: Mapping[str, int]) -> bytes:
    """y = Identity(x), float [1], as a serialized ModelProto (onnx.proto3)."""
    tensor = _field(1, _number(1, 1) + _field(2, _field(1, _number(1, 1))))  # elem_type FLOAT, shape [1]
    node = _field(1, b"x") + _field(2, b"y") + _field(4, b"Identity")
    graph = _field(1, node) + _field(2, b"g")
    graph += _field(11, _field(1, b"x") + _field(2, tensor)) + _field(
        12, _field(1, b"y") + _field(2, tensor)
    )
    imports = b"".join(
        _field(8, _field(1, b"" if name == "ai.onnx" else name.encode()) + _number(2, opset))
        for name, opset in opsets.items()
    )
    return _number(1, 8) + _field(7, graph) + imports  # IR version 8


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
