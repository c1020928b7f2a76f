"""Pinned buffers, which a GPU reads and writes directly: memory that the kernel must not move.

ONNX Runtime's Python cannot allocate pinned memory, so NumPy's is registered with the CUDA runtime
(cudaHostRegister). Written from NVIDIA's documentation; it has not run on a GPU yet.
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from hopline.types import AnyArray

log = logging.getLogger(__name__)

_LIBRARIES = ("libcudart.so.12", "libcudart.so.13", "libcudart.so")


class CudaRuntime(Protocol):
    """The two calls of libcudart that are needed; both return 0 on success."""

    def cudaHostRegister(self, pointer: Any, num_bytes: Any, flags: Any) -> int:
        """Pin memory."""
        ...

    def cudaHostUnregister(self, pointer: Any) -> int:
        """Unpin memory."""
        ...


def pinned(arrays: Sequence[AnyArray], runtime: CudaRuntime | None = None) -> int:
    """Pin arrays if possible; if not, copies are slower and a warning is logged.

    Args:
        runtime: libcudart; the installed one by default.

    Returns: number of pinned arrays.
    """
    found = runtime or _runtime()
    if found is None:
        log.warning("buffers are not pinned: found none of %s", ", ".join(_LIBRARIES))
        return 0
    codes = [_pin(array, found) for array in arrays]
    failed = [code for code in codes if code]
    if failed:
        log.warning("%d of %d buffers are not pinned: CUDA error %d", len(failed), len(codes), failed[0])
    return len(codes) - len(failed)


def _pin(array: AnyArray, runtime: CudaRuntime) -> int:
    pointer = ctypes.c_void_p(array.ctypes.data)
    code = runtime.cudaHostRegister(pointer, ctypes.c_size_t(array.nbytes), ctypes.c_uint(0))
    if code == 0:
        weakref.finalize(array, runtime.cudaHostUnregister, pointer)
    return code


def _runtime() -> CudaRuntime | None:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
