"""Decides on which device this process computes.

All models of a process share one device, because ONNX Runtime's environment also belongs to the process.
`place_models` is called once by the code that loads models, before it loads
any. Independent of the libraries; `onnx.py` reads the device here.
"""

from __future__ import annotations

from typing import Literal

Device = Literal["cpu", "cuda", "tensorrt"]
_placed: Device = "cpu"


def place_models(device: Device) -> None:
    """Set the device of all models that this process loads from now on.

    Args:
        device: `cuda` and `tensorrt` are never replaced by the processor: a model or library without
            support is refused.
    """
    global _placed
    _placed = device


def placed() -> Device:
    """The device; by default the CPU."""
    return _placed
