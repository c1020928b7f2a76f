"""Where this process computes: on which device, and whether whole models run compiled.

One process computes in one way, as torch's number of threads and ONNX Runtime's environment are the
process's too: `place_models` is called once by whoever loads models, before it loads any. Knows nothing of
the libraries; `providers.py` and `torch.py` ask here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Device = Literal["cpu", "cuda", "tensorrt"]
UseCompiled = Literal["auto", "never", "require"]


@dataclass(frozen=True, slots=True)
class Placement:
    """How models of a process are loaded.

    Attributes:
        device: `cuda` and `tensorrt` are never replaced by the processor: what lacks them is refused.
        compiled: of whole models: `auto` runs the compiled program where it fits this machine and the
            eager one where it does not, `require` refuses the model then, `never` ignores what is compiled.
    """

    device: Device = "cpu"
    compiled: UseCompiled = "auto"


_placed = Placement()


def place_models(placement: Placement) -> None:
    """Decide for all models that this process loads from now on."""
    global _placed
    _placed = placement


def placed() -> Placement:
    """What was decided; the processor, and compiled programs where they fit, until then."""
    return _placed
