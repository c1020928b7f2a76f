"""Reads files that training wrote: state dicts, checkpoints of trainers, whole modules, safetensors.

Tensors only: nothing in a file is executed, unless the caller allows it. Knows nothing of the module
that the weights are for; `checkpoint.py` does.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import pathlib
import pickle
import re
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from hopline.errors import PackagingError

#: Plain values that trainers store next to weights. Unpickling them sets values, and calls nothing else.
_PLAIN: list[Any] = [argparse.Namespace, collections.defaultdict, pathlib.Path, pathlib.PosixPath]
_PLAIN += [np.dtype, np.ndarray, *(kind for kind in vars(np.dtypes).values() if isinstance(kind, type))]
for _core in ("core", "_core"):
    for _name in ("scalar", "_reconstruct"):
        _function = getattr(np._core.multiarray, _name)  # type: ignore[attr-defined]
        _PLAIN.append((_function, f"numpy.{_core}.multiarray.{_name}"))
_GLOBAL = re.compile(r"(?:Unsupported global: GLOBAL|Unsupported class|Can only .* but got) (\S+)")
_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
_LFS = b"version https://git-lfs"


def read_checkpoint(path: Path, *, unsafe_pickle: bool = False, model: Any = None) -> Any:
    """Read the content of a file, on the CPU.

    Args:
        path: as `torch.save` or safetensors wrote it.
        unsafe_pickle: the file may hold any Python object; reading it executes code that it names.
        model: for pickles: classes of a script are looked for in the file of this module's class.

    Raises: PackagingError: no such file, damaged, or another format; the message says which.
    """
    head = _head(path)
    is_sized = len(head) > 9 and head[8:9] == b"{" and struct.unpack("<Q", head[:8])[0] < 100 << 20
    if path.suffix == ".safetensors" or is_sized:
        return _read_safetensors(path)
    try:
        if unsafe_pickle:
            pickles = _pickles(model)
            return torch.load(path, map_location="cpu", weights_only=False, pickle_module=pickles)
        with torch.serialization.safe_globals(_PLAIN):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling raises errors of any type
        raise PackagingError(f"{path}: {_why(error, head)}") from error


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except FileNotFoundError:
        raise PackagingError(f"{path}: no such file") from None
    except IsADirectoryError:
        inside = sorted(file.name for file in path.iterdir() if file.suffix in _SUFFIXES)
        files = f"; it contains {', '.join(inside[:5])}" if inside else ""
        raise PackagingError(f"{path}: a folder; expected one file of weights{files}") from None
    except OSError as error:
        raise PackagingError(f"{path}: cannot be read: {error.strerror}") from None
    if not head:
        raise PackagingError(f"{path}: the file is empty")
    if head.startswith(_LFS):
        raise PackagingError(f"{path}: a Git LFS pointer, not the file itself; run `git lfs pull`")
    return head


def _why(error: Exception, head: bytes) -> str:
    """Meaning of an error of `torch.load`."""
    text = str(error)
    found = _GLOBAL.search(text)
    if found:
        return (
            f"holds a Python object of class {found[1]}, not tensors alone. Save the weights with "
            "torch.save(model.state_dict(), FILE). Or pass --unsafe-pickle if you trust the file: "
            "loading it executes code in it"
        )
    if "TorchScript" in text:
        return (
            "is a TorchScript archive; save its weights with "
            "torch.save(torch.jit.load(FILE).state_dict(), OTHER)"
        )
    if isinstance(error, AttributeError | ModuleNotFoundError) or "Can't get attribute" in text:
        return f"holds an object whose class cannot be imported here: {text}"
    is_torch = head.startswith((b"PK", b"\x80"))
    if not is_torch:
        return f"not a file of torch.save or safetensors; it begins with {head[:12]!r}"
    return (
        f"is cut off or damaged, or not a file of torch.save: {type(error).__name__}: {_first_line(text)}"
    )


def _first_line(text: str) -> str:
    return text.splitlines()[0][:300] if text else "no message"


def _read_safetensors(path: Path) -> Mapping[str, torch.Tensor]:
    if importlib.util.find_spec("safetensors") is None:
        raise PackagingError(f"{path}: a safetensors file; reading it needs: pip install safetensors")
    from safetensors.torch import load_file

    try:
        found: Mapping[str, torch.Tensor] = load_file(path, device="cpu")
    except Exception as error:  # the library's own class, or OSError
        raise PackagingError(
            f"{path}: cannot be read as safetensors: {type(error).__name__}: {_first_line(str(error))}"
        ) from error
    return found


def _pickles(model: Any) -> ModuleType:
    """`pickle`, but classes of a script that was run or imported are looked up in the file of `model`."""
    source = sys.modules.get(type(model).__module__)
    scripts = ("__main__", Path(getattr(source, "__file__", None) or "__main__").stem)

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if module in scripts and hasattr(source, name):
                return getattr(source, name)
            return super().find_class(module, name)

    pickles = ModuleType("pickle_of_a_script")
    pickles.__dict__.update({name: getattr(pickle, name) for name in pickle.__all__})
    pickles.__dict__["Unpickler"] = Unpickler
    pickles.__dict__["load"] = lambda file, **options: Unpickler(file, **options).load()
    return pickles
