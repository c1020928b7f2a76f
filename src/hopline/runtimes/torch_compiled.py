"""Compiled whole models: AOTInductor's output of packaging, if it was compiled for this machine.

The file holds machine code, built by `hopline.packaging.compile` with the compiler's `-march=native`
against one version of torch. Another torch has other internals, and another processor may lack an
instruction, which kills the process. So a record is stored next to the file, and checked before any of the
file is loaded. Imports torch only in `CompiledProgram`, and never its compiler (3 s; log/).
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import msgspec

from hopline.errors import ArtifactError
from hopline.types import UNREADABLE

RECORD_FILE = "compiled.json"
FILE = "compiled.pt2"

#: How /proc/cpuinfo names the flags that a compiler turns into instructions (x86 and Arm). Other flags
#: describe the kernel, virtual machines and mitigations, and differ between machines that run the same
#: code.
_INSTRUCTIONS = (
    "sse", "ssse3", "avx", "amx", "fma", "f16c", "bmi", "abm", "popcnt", "movbe", "adx", "aes", "pclmulqdq",
    "gfni", "vaes", "vpclmulqdq", "sha", "rdrand", "rdseed", "rdpid", "clflushopt", "clwb", "serialize",
    "asimd", "sve", "bf16", "i8mm", "atomics", "crc32", "fphp",
)  # fmt: skip


class Machine(msgspec.Struct, frozen=True):
    """The properties of a machine that matter to compiled code.

    Attributes:
        triple: processor and system, as "x86_64-linux".
        features: flags of its instructions, sorted; none if the system does not list them.
    """

    triple: str
    features: tuple[str, ...] = ()

    @classmethod
    def here(cls, cpuinfo: Path = Path("/proc/cpuinfo")) -> Machine:
        """The machine that this runs on."""
        triple = f"{platform.machine()}-{platform.system().lower()}"
        try:
            lines = cpuinfo.read_text(errors="replace").splitlines()
        except OSError:
            return cls(triple)
        flags: set[str] = set()
        for line in lines:
            name, _, values = line.partition(":")
            if name.strip().lower() in ("flags", "features"):
                flags = {flag for flag in values.split() if flag.startswith(_INSTRUCTIONS)}
                break
        return cls(triple, tuple(sorted(flags)))


class CompiledRecord(msgspec.Struct, frozen=True):
    """The content of compiled.json.

    Attributes:
        torch: version that compiled it, local part included ("2.13.0+cpu").
        machine: that compiled it; code runs on machines with all of its features.
        max_abs_diff: from the eager program, over all shapes checked.
        shapes: how many shapes were checked.
        seconds: that compiling took.
        file: inside the artifact.
    """

    torch: str
    machine: Machine
    max_abs_diff: float
    shapes: int
    seconds: float
    file: str = FILE

    def misfit(self, torch_version: str, machine: Machine) -> str:
        """Why the code cannot run with this torch on this machine; empty if it can."""
        if torch_version != self.torch:
            return f"it was compiled by torch {self.torch}, and torch {torch_version} is installed"
        if machine.triple != self.machine.triple:
            return f"it was compiled for {self.machine.triple}, and this is {machine.triple}"
        missing = sorted(set(self.machine.features) - set(machine.features))
        if missing:
            return f"it was compiled for a processor with {', '.join(missing)}, which this processor lacks"
        return ""


def read_record(folder: Path) -> CompiledRecord | None:
    """The record of an artifact; None if nothing was compiled.

    Raises:
        ArtifactError: the record cannot be read.
    """
    path = folder / RECORD_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=CompiledRecord)
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        raise ArtifactError(f"{path}: not a record of a compiled program: {error}; package again") from None


class CompiledProgram:
    """A program in machine code, called like the eager one.

    Raises:
        ArtifactError: torch cannot load the file.
    """

    def __init__(self, path: Path) -> None:
        import torch

        try:
            # torch._inductor.aoti_load_package calls this too, but first imports the whole compiler, which
            # a machine that only serves does not need. One runner: one batch at a time.
            loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
        except Exception as error:  # torch raises RuntimeError and errors of its zip reader
            raise ArtifactError(f"{path}: torch {torch.__version__} cannot load it: {error}") from error
        self._run: Any = loader.run

    def __call__(self, seed: Any, *tensors: Any) -> Any:
        """float32 [1, output_dim] of one seed's tensors, which must be contiguous."""
        return self._run([seed, *tensors])[0]


def runnable(folder: Path, torch_version: str, machine: Machine | None = None) -> tuple[Path | None, str]:
    """The compiled file of an artifact if it may be loaded here, else the reason.

    Returns: (path, "") to load it; (None, reason) if it exists but does not fit; (None, "") if it does not
        exist.
    """
    record = read_record(folder)
    if record is None:
        return None, ""
    reason = record.misfit(torch_version, machine or Machine.here())
    return (None, reason) if reason else (folder / record.file, "")
