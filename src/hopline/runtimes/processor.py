"""Int8 instructions of this machine's processor, and their effect on quantised versions."""

from __future__ import annotations

import functools
import logging
import platform
from pathlib import Path
from typing import Any

from hopline.artifact import ModelSpec

logger = logging.getLogger(__name__)


def has_vnni(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """True if this processor multiplies and adds int8 in one instruction."""
    try:
        flags = next(line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")).split()
    except (OSError, StopIteration):
        return False
    return "avx512_vnni" in flags or "avx_vnni" in flags


@functools.cache
def adds_in_16_bits() -> bool:
    """True if products of uint8 and int8 are added in 16 bits, two at a time, where they can overflow.

    ONNX Runtime does so on x86 without VNNI (`vpmaddubsw`): 2 · 255 · 127 is more than 32,767, and is
    clipped. With weights of 7 bits it is 2 · 255 · 64, which fits.
    """
    return platform.machine().lower() in ("x86_64", "amd64") and not has_vnni()


def weight_bits_of(spec: ModelSpec) -> int | None:
    """Bits of a version's int8 weights; None if it has none. Versions without the field have 8."""
    quantized: Any = spec.parity.get("quantized")
    if not isinstance(quantized, dict) or quantized.get("to") != "int8":
        return None
    return int(quantized.get("weight_bits", 8))


def warn_of_overflow(spec: ModelSpec) -> None:
    """Warn if this processor may compute other answers than the quantisation measured."""
    if weight_bits_of(spec) == 8 and adds_in_16_bits():
        logger.warning(
            "model %r version %s has int8 weights of 8 bits, and this processor (no VNNI) adds their "
            "products in 16 bits, which can overflow: its answers may be wrong here. Quantise it with "
            "--weight-bits 7, which is correct on every processor",
            spec.name,
            spec.version,
        )
