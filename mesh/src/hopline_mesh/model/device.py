"""The device of a model: its requirements, and the encoder for it. Loads torch only for a GPU."""

from __future__ import annotations

import importlib.util
from typing import Protocol

from hopline.errors import ConfigError
from hopline_mesh.model.encoder import Encoder, Reconstruction
from hopline_mesh.model.graph import BoolArray, MeshGraph
from hopline_mesh.model.weights import FloatArray, Weights


class AnyEncoder(Protocol):
    """The interface of `Encoder` and `GpuEncoder`."""

    def reconstruct(
        self,
        graph: MeshGraph,
        x: FloatArray,
        h: FloatArray,
        e: FloatArray,
        g: FloatArray,
        node_mask: BoolArray | None = None,
    ) -> Reconstruction:
        """See `Encoder.reconstruct`."""


def encoder_for(
    weights: Weights,
    device: str = "cpu",
    threads: int | None = None,
    usual_edge: FloatArray | None = None,
) -> AnyEncoder:
    """An encoder on a device.

    Args:
        device: "cpu", "cuda", "cuda:1" …
        threads, usual_edge: on the CPU; see `Encoder`.

    Raises:
        ConfigError: the device is unusable; see `check_device`.
    """
    if device == "cpu":
        return Encoder(weights, threads=threads, usual_edge=usual_edge)
    check_device(device)
    from hopline_mesh.model.gpu import GpuEncoder

    return GpuEncoder(weights, device)


def check_device(device: str) -> None:
    """Check that a device is usable.

    Raises:
        ConfigError: it is not; the message says what is missing.
    """
    if device == "cpu":
        return
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(f"device: {device} needs torch; pip install 'hopline-mesh[train]'")
    import torch

    if not torch.cuda.is_available():
        raise ConfigError("device: torch finds no CUDA device; use cpu")
    if importlib.util.find_spec("triton") is None:
        raise ConfigError(f"device: {device} needs Triton; pip install triton")
    try:
        torch.zeros(1, device=device)
    except RuntimeError as error:  # no device with this number, or it is full or too old
        first = str(error).splitlines()[0]
        raise ConfigError(f"device: {device} cannot be used: {first}; use cpu") from None
