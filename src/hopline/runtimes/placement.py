"""Decides on which device this process computes, and whether whole models run compiled.

All models of a process share one placement, because torch's number of threads and ONNX Runtime's
environment also belong to the process. `place_models` is called once by the code that loads models, before
it loads any. Independent of the libraries; `onnx.py` and `torch.py` read the placement here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Device = Literal["cpu", "cuda", "tensorrt"]
UseCompiled = Literal["auto", "never", "require"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Loading of a process's models.

    Attributes:
        device: `cuda` and `tensorrt` are never replaced by the processor: a model or library without
            support is refused.
        compiled: for whole models: `auto` runs the compiled program if it fits this machine, else the
            eager one; `require` refuses the model if it does not fit; `never` ignores compiled programs.
    """

    device: Device = "cpu"
    compiled: UseCompiled = "auto"


_placed = Placement()


def place_models(placement: Placement) -> None:
    """Set the placement of all models that this process loads from now on."""
    global _placed
    _placed = placement


def placed() -> Placement:
    """The placement; by default the CPU, and compiled programs that fit."""
    return _placed
