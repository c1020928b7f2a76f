"""ONNX Runtime's execution providers for each device, with their options.

ONNX Runtime falls back to the processor if a provider is missing or cannot start, and reports that in its
log only. Here both are errors that name what is missing. CUDA's options ran on a GPU (docs/benchmarks.md);
TensorRT's are written from ONNX Runtime's documentation and have not run yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from hopline.errors import ConfigError
from hopline.files import expanded
from hopline.runtimes.placement import Device

Provider: TypeAlias = tuple[str, dict[str, Any]]

_CPU: Provider = ("CPUExecutionProvider", {})
_CUDA: Provider = (
    "CUDAExecutionProvider",
    # The arena grows by the requested size: several workers share one GPU. Copies run in the stream that
    # computes, so that no call waits for two streams. TF32, ONNX Runtime's default, moved scores by up to
    # 1e-3; float32 gives what the CPU gives.
    {
        "device_id": "0",
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "1",
        "cudnn_conv_algo_search": "HEURISTIC",
        "use_tf32": "0",
    },
)
_INSTALL_CUDA = "pip install 'onnxruntime-gpu[cuda,cudnn]' in place of onnxruntime"
#: Device -> the providers that it needs, and how to install each.
_NEEDED: dict[Device, tuple[tuple[str, str], ...]] = {
    "cpu": (),
    "cuda": (("CUDAExecutionProvider", _INSTALL_CUDA),),
    "tensorrt": (
        ("TensorrtExecutionProvider", "pip install onnxruntime-gpu and tensorrt in place of onnxruntime"),
        ("CUDAExecutionProvider", _INSTALL_CUDA),
    ),
}


def check_device(device: Device, available: Sequence[str], version: str) -> None:
    """Check that the installed ONNX Runtime was built for a device.

    Args:
        available: `onnxruntime.get_available_providers()`. version: of ONNX Runtime.

    Raises:
        ConfigError: names the provider that is missing and how to install it.
    """
    for name, how in _NEEDED[device]:
        if name not in available:
            raise ConfigError(
                f"compute.device: {device!r} needs ONNX Runtime's {name}; the installed onnxruntime "
                f"{version} has {', '.join(available)}: {how}, or set compute.device to 'cpu'"
            )


def providers(
    device: Device,
    available: Sequence[str],
    version: str,
    *,
    rows: tuple[Mapping[str, int], int] | None = None,
    cache: Path | None = None,
) -> list[Provider]:
    """The providers of a session, best first.

    Args:
        available, version: as for `check_device`.
        rows: for a file whose inputs have one row for each destination: (input name -> columns, 0 for a
            one-dimensional input), and the most rows of a call. TensorRT builds an engine for these shapes;
            without them it would build one while a request waits. So a file without `rows` runs on
            CUDA.
        cache: folder of TensorRT's engines; the user's cache by default.

    Raises:
        ConfigError: as `check_device`.
    """
    check_device(device, available, version)
    if device == "cpu":
        return [_CPU]
    if device == "cuda" or rows is None:
        return [_CUDA, _CPU]
    folder = cache or expanded("~/.cache/hopline/tensorrt", "compute.device")
    widths, most = rows
    options = {
        "device_id": "0",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(folder),
        "trt_profile_min_shapes": _shapes(widths, 1),
        "trt_profile_opt_shapes": _shapes(widths, min(32, most)),
        "trt_profile_max_shapes": _shapes(widths, most),
    }
    return [("TensorrtExecutionProvider", options), _CUDA, _CPU]


def check_started(wanted: Sequence[Provider], started: Sequence[str], what: str) -> None:
    """Check that a session runs on the providers that it was opened with.

    Args:
        wanted: requested providers. started: `InferenceSession.get_providers()`. what: the file.

    Raises:
        ConfigError: a provider is built in and could not start: its libraries or its GPU are missing.
    """
    for name, _ in wanted:
        if name not in started:
            raise ConfigError(
                f"compute.device: {name} is built into onnxruntime but did not start for {what} (it runs "
                f"on {', '.join(started)}): check the GPU, its driver and the libraries of CUDA"
                f"{' and TensorRT' if name.startswith('Tensorrt') else ''}"
            )


def _shapes(widths: Mapping[str, int], rows: int) -> str:
    return ",".join(
        f"{name}:{rows}x{width}" if width else f"{name}:{rows}" for name, width in widths.items()
    )
