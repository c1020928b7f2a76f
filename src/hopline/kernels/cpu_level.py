"""The kind of CPU that kernels are compiled for: this machine's own, or a level that many machines share.

Numba compiles for the CPU that it runs on, and code in its cache is for that CPU model alone. An image is
built on one machine and runs on others. `hopline warm --cpu LEVEL` therefore compiles for levels of the
x86-64 psABI, into a folder of the installed package:

    hopline/kernels/compiled/x86-64-v3/hopline.engine/kernels.gather-31.py311.nbi
                             x86-64-v4/…

Where that folder exists, a process compiles and loads for the best of its levels that the CPU has. Kernels
for a level gave the same bits as those for the CPU's own model, at the same speed (log/).
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from llvmlite.binding import get_host_cpu_features

from hopline.errors import ConfigError

_V2 = frozenset(["cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3"])
_V3 = _V2 | frozenset(["avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"])
_V4 = _V3 | frozenset(["avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"])
#: Level -> what a CPU must have, in LLVM's names; the best first.
LEVELS: Mapping[str, frozenset[str]] = (
    {"x86-64-v4": _V4, "x86-64-v3": _V3, "x86-64-v2": _V2}
    if platform.machine() in ("x86_64", "AMD64")
    else {"generic": frozenset()}
)
#: Where the compiled kernels of all levels lie.
FOLDER = Path(__file__).with_name("compiled")

#: The level that `compile_for` was called with; "" for none.
_compiling_for = ""


def compile_for(level: str) -> None:
    """Write kernels of a level into `FOLDER`. Call it before anything imports `hopline.kernels.jit`.

    Raises: ConfigError: there is no such level on machines of this kind.
    """
    global _compiling_for
    check_level(level)
    _compiling_for = level
    target.cache_clear()


def check_level(level: str) -> None:
    """Check a level's name. Raises: ConfigError: machines of this kind have no such level."""
    if level not in LEVELS:
        raise ConfigError(f"--cpu: {level!r} is not a CPU level here; levels are {', '.join(LEVELS)}")


@functools.cache
def target() -> str:
    """The level that kernels are compiled for; "" for this machine's own CPU."""
    if _compiling_for:
        return _compiling_for
    own = _host()
    return next((name for name, needs in LEVELS.items() if needs <= own and (FOLDER / name).is_dir()), "")


def features() -> frozenset[str]:
    """Instruction sets that kernels may use, in LLVM's names. At least those of the target."""
    return LEVELS[target()] if target() else _host()


def shipped_folder(level: str, root: str, file: str) -> Path:
    """Folder of the kernels of a module that were compiled for a level.

    Args:
        root: the folder of the module's top-level package.
        file: of the module.
    """
    return FOLDER / level / os.path.relpath(os.path.dirname(file), root).replace(os.sep, ".")


def is_writing() -> bool:
    """True if this process writes kernels of its level into `FOLDER`."""
    return bool(_compiling_for)


@functools.cache
def _host() -> frozenset[str]:
    try:
        return frozenset(name for name, has in get_host_cpu_features().items() if has)
    except RuntimeError:  # LLVM does not know this kind of CPU
        return frozenset()
