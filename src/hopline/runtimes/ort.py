"""ONNX Runtime, without its telemetry. All of Hopline imports `ort` from here.

From version 1.29 on, builds for Linux and macOS send events about sessions and errors to their maker, and
write a device id into the home folder. They read the switch for that once, when they are imported. A server
calls no other hosts than those in its settings. ORT_DISABLE_TELEMETRY=0 in the environment allows events.
"""

from __future__ import annotations

import functools
import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

__all__ = ["load_cuda", "ort"]


@functools.cache
def load_cuda() -> None:
    """Load CUDA's libraries from pip's `nvidia` packages, where the system's loader does not look for them.

    Installed elsewhere, the loader finds them. Prints the name of a library that is nowhere.
    """
    ort.preload_dlls()
    # Else ONNX Runtime warns for each session that its CUDA provider is no plug-in.
    ort.set_default_logger_severity(3)
