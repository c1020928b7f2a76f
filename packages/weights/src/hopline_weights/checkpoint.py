"""Loads weights into a module from any format that training saved.

A checkpoint is searched for state dicts: at any depth, under any key, with any prefix before the module's
own names (`module.` of DataParallel, `_orig_mod.` of torch.compile, `model.` of Lightning). Exactly one
must have every weight of the module, in its shape. If two have (such as weights and their moving average),
they are refused until the caller names one; so is one that nearly fits.

Files are state dicts, checkpoints of trainers, whole modules or safetensors. Tensors only: nothing in a
file is executed, unless the caller allows it.
"""

from __future__ import annotations

import argparse
import collections
import copy
import importlib.util
import pathlib
import pickle
import re
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX
from torch.nn.parameter import is_lazy

from hopline.errors import PackagingError
from hopline_weights import renamed

#: What wrappers add to the names of weights.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
#: Counters of wrappers and layers, not weights: may be absent or surplus.
_COUNTERS = ("num_batches_tracked", "n_averaged")
_MAX_DEPTH = 5
#: Names that a message lists.
_LISTED = 5
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


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Part of a checkpoint that may be a module's state dict.

    Attributes:
        key: its name for `--state-dict-key`.
        state: weight name -> tensor, without the prefix.
        missing: the module's names that the state dict lacks.
        unexpected: names that the module does not have.
        misfits: a phrase for each tensor that cannot be the weight of its name.
        unused: names in the same state dict that do not begin with the prefix.
    """

    key: str
    state: dict[str, Any]
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misfits: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return not (self.missing or self.misfits)

    @property
    def has_some(self) -> bool:
        """True if any of its names is one of the module's: a loss next to a state dict is a tensor, too."""
        return len(self.state) > len(self.unexpected)

    @property
    def fits(self) -> bool:
        return self.is_complete and not self.unexpected


def load_weights(
    module: nn.Module, path: Path, *, key: str | None = None, unsafe_pickle: bool = False
) -> list[str]:
    """Load the weights in a file; tensors only, so that nothing in the file is executed.

    Args:
        module: receives the weights.
        path: of torch.save, or safetensors; see the module.
        key: which state dict of the checkpoint; None uses the only one that fits.
        unsafe_pickle: the file may hold any object, such as a whole module: executes code in it.

    Returns: notes for the user: which part was used if there are several.
    Raises: PackagingError: no such file, no state dict, or not exactly one that fits; lists names.
    """
    content = read_checkpoint(path, unsafe_pickle=unsafe_pickle, model=module)
    whole = content if isinstance(content, nn.Module) else None
    states = dict(_states(content))
    if not states:
        raise PackagingError(f"{path}: {_no_state(content)}")
    wanted = {_unwrapped(name): value for name, value in module.state_dict().items()}
    found = [candidate for name, state in states.items() for candidate in _candidates(name, state, wanted)]
    if key is not None:
        found = _named(found, key, path)
    fitting = [candidate for candidate in found if candidate.is_complete] or _by_hooks(module, found)
    notes: list[str] = []
    reasons: list[str] = []
    if not fitting:
        fitting, notes, reasons = _of_earlier_pyg(module, found, wanted)
    if len(fitting) > 1:
        keys = [candidate.key or "." for candidate in fitting]
        raise PackagingError(
            f"{path}: {len(keys)} sets of weights fit {type(module).__name__}: "
            f"{', '.join(keys)}; choose one with --state-dict-key, for example --state-dict-key {keys[0]}"
        )
    if not fitting or (fitting[0].is_complete and not fitting[0].fits):
        raise PackagingError("; ".join([f"{path}: {_nothing_fits(module, fitting or found)}", *reasons]))
    (chosen,) = fitting
    _load(module, chosen, path)
    return _notes(chosen, found, whole) + notes


def _states(content: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every mapping of names to tensors in a checkpoint, with its key."""
    if isinstance(content, nn.Module):
        content = content.state_dict()
    if not isinstance(content, Mapping) or "param_groups" in content or len(path) > _MAX_DEPTH:
        return
    named = {name: value for name, value in content.items() if isinstance(name, str)}
    # the value of `Module.get_extra_state` may be any object
    extra = {name for name in named if name.rpartition(".")[2] == _EXTRA_STATE_KEY_SUFFIX}
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor) or name in extra}
    if any(isinstance(value, Tensor) for value in tensors.values()):
        yield "/".join(path), tensors
    for name, value in named.items():
        yield from _states(value, (*path, name))


def _candidates(key: str, state: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[_Candidate]:
    """A state dict once for each prefix before the module's names; the best one if no prefix has all."""
    found = _of_prefixes(key, _without(_WRAPPERS, state), wanted)
    if not any(each.is_complete for each in found) and not any("module" in n.split(".") for n in wanted):
        # DataParallel around a part of the model
        again = _of_prefixes(key, _without((*_WRAPPERS, "module"), state), wanted)
        if any(each.is_complete for each in again):
            found = again
    complete = [candidate for candidate in found if candidate.is_complete]
    return complete or [min(found, key=lambda each: (len(each.missing), len(each.unexpected)))]


def _of_prefixes(key: str, names: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[_Candidate]:
    prefixes = {name[: -len(own)] for own in wanted for name in names if name.endswith(own)}
    prefixes = {prefix for prefix in prefixes if not prefix or prefix.endswith(".")} or {""}
    found = {prefix: _judged(key, prefix, names, wanted) for prefix in sorted(prefixes)}
    complete = tuple(prefix for prefix, candidate in found.items() if prefix and candidate.is_complete)
    return [_apart(candidate, prefix, complete) for prefix, candidate in found.items()]


def _apart(candidate: _Candidate, prefix: str, others: tuple[str, ...]) -> _Candidate:
    """A candidate without the names of others inside of it, for example an average next to the weights."""
    inner = tuple(other[len(prefix) :] for other in others if other != prefix and other.startswith(prefix))
    theirs = [name for name in candidate.unexpected if inner and name.startswith(inner)]
    return replace(
        candidate,
        state={name: value for name, value in candidate.state.items() if name not in theirs},
        unexpected=[name for name in candidate.unexpected if name not in theirs],
        unused=candidate.unused + [prefix + name for name in theirs],
    )


def _without(wrappers: Sequence[str], state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state dict without what wrappers add to names; unchanged where two would get the same name."""
    names = {_unwrapped(name, wrappers): value for name, value in state.items()}
    return names if len(names) == len(state) else state


def _unwrapped(name: str, wrappers: Sequence[str] = _WRAPPERS) -> str:
    return ".".join(part for part in name.split(".") if part not in wrappers)


def _judged(key: str, prefix: str, names: Mapping[str, Any], wanted: Mapping[str, Any]) -> _Candidate:
    state = {name[len(prefix) :]: value for name, value in names.items() if name.startswith(prefix)}
    label = "/".join(part for part in (key, prefix.rstrip(".")) if part)
    missing = [name for name in wanted if name not in state and not _is_counter(name)]
    unexpected = [name for name in state if name not in wanted and not _is_counter(name)]
    unused = [name for name in names if not name.startswith(prefix) and not _is_counter(name)]
    both = [name for name in state if name in wanted]
    misfits = [why for name in both if (why := _misfit(name, state[name], wanted[name]))]
    return _Candidate(label, state, missing, unexpected, misfits, unused)


def _is_counter(name: str) -> bool:
    return name.rpartition(".")[2] in _COUNTERS


def _misfit(name: str, value: Any, own: Any) -> str:
    """Why a tensor cannot be a weight's value; "" where it can."""
    if not isinstance(value, Tensor) or not isinstance(own, Tensor):
        return "" if type(value) is type(own) else f"{name} is {type(value).__name__}"
    if is_lazy(value):
        return f"{name} has no values: run the model once before it is saved"
    if value.is_quantized or value.is_meta or value.layout != own.layout:
        return f"{name} is not a plain tensor"
    if is_lazy(own):
        return ""
    if value.shape != own.shape:
        return f"{name} is {list(value.shape)}, the model has {list(own.shape)}"
    kinds = {(each.is_complex(), each.is_floating_point()) for each in (value, own)}
    if len(kinds) > 1 and not _is_counter(name):
        types = [str(each.dtype).removeprefix("torch.") for each in (value, own)]
        return f"{name} is {types[0]}, the model has {types[1]}"
    return ""


def _named(found: list[_Candidate], key: str, path: Path) -> list[_Candidate]:
    """The candidates of a key, or below it."""
    chosen = [each for each in found if (each.key or ".") == key]
    chosen = chosen or [each for each in found if each.key.startswith(f"{key}/")]
    if not chosen:
        there = ", ".join(each.key or "." for each in found)
        raise PackagingError(f"{path}: no weights under --state-dict-key {key!r}; there are: {there}")
    return chosen


def _by_hooks(module: nn.Module, found: list[_Candidate]) -> list[_Candidate]:
    """Candidates that the module's own hooks accept: layers rename weights of earlier releases."""
    taken = []
    for candidate in found:
        if candidate.misfits or not (candidate.missing and candidate.unexpected):
            continue
        try:
            copy.deepcopy(module).load_state_dict(dict(candidate.state), strict=True)
        except Exception:  # of any type; then the message lists the names
            continue
        taken.append(candidate)
    return taken


def _of_earlier_pyg(
    module: nn.Module, found: list[_Candidate], wanted: Mapping[str, Any]
) -> tuple[list[_Candidate], list[str], list[str]]:
    """Candidates that fit once they are converted; notes on how; reasons why others cannot be."""
    fitting, notes, reasons = [], [], []
    for candidate in found:
        state, how, why = renamed.converted(module, candidate.state)
        judged = _judged(candidate.key, "", state, wanted)
        if how and judged.fits:
            fitting.append(replace(judged, key=candidate.key, unused=candidate.unused))
            notes += how
        reasons += why
    return fitting, notes, reasons


def _load(module: nn.Module, chosen: _Candidate, path: Path) -> None:
    own = {_unwrapped(name): name for name in module.state_dict()}
    state = {own.get(name, name): value for name, value in chosen.state.items()}
    _check_shared(module, state, path)
    try:
        outcome = module.load_state_dict(state, strict=False)
    except Exception as error:  # hooks of layers raise errors of any type
        raise PackagingError(f"{path}: cannot be loaded into {type(module).__name__}: {error}") from error
    left = [name for name in (*outcome.missing_keys, *outcome.unexpected_keys) if not _is_counter(name)]
    if left:
        raise PackagingError(f"{path}: {type(module).__name__} did not load {_listed(left)}")


def _check_shared(module: nn.Module, state: Mapping[str, Any], path: Path) -> None:
    """Refuse two values for one tensor that the module has under two names: one of them would be lost."""
    first: dict[int, str] = {}
    for name, own in module.state_dict(keep_vars=True).items():
        other = first.setdefault(id(own), name)
        value, shared = state.get(name), state.get(other)
        if not (isinstance(own, Tensor) and isinstance(value, Tensor) and isinstance(shared, Tensor)):
            continue
        shared = shared.to(value)
        same = value.shape == shared.shape and (value == shared) | (value.isnan() & shared.isnan())
        if not torch.as_tensor(same).all():
            raise PackagingError(
                f"{path}: {type(module).__name__} uses one tensor as {other} and {name}, but the file has "
                "two different ones; was it trained without sharing them?"
            )


def _notes(chosen: _Candidate, found: list[_Candidate], whole: nn.Module | None) -> list[str]:
    notes = []
    if chosen.key:
        others = [each.key or "." for each in found if each.key != chosen.key and each.has_some]
        others_named = f", not those under {', '.join(others)}" if others else ""
        notes.append(f"weights under {chosen.key!r}{others_named}")
    if chosen.unused:
        notes.append(f"not used, since they are outside of it: {_listed(chosen.unused)}")
    if whole is not None:
        notes.append(f"weights of a whole {type(whole).__name__}; its code is taken from --model")
    return notes


def _nothing_fits(module: nn.Module, found: list[_Candidate]) -> str:
    best = min(found, key=lambda a: (not a.has_some, len([*a.missing, *a.unexpected, *a.misfits])))
    parts = [f"does not fit {type(module).__name__}"]
    if best.key:
        parts[0] += f" (weights under {best.key!r})"
    for what, names in (("missing", best.missing), ("not in the model", best.unexpected)):
        if names:
            parts.append(f"{len(names)} {what}: {_listed(names)}")
    if best.misfits:
        parts.append(f"{len(best.misfits)} of another shape or type: {_listed(best.misfits)}")
    others = [each.key or "." for each in found if each is not best and each.has_some]
    if others:
        parts.append(f"nor does {', '.join(others)}")
    if best.misfits and not best.missing:
        parts.append("--init gives the class other sizes")
    return "; ".join(parts)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _no_state(content: Any) -> str:
    due = "expected a state dict: torch.save(model.state_dict(), FILE)"
    if isinstance(content, Mapping):
        keys = ", ".join(str(name) for name in list(content)[:_LISTED]) or "none"
        parts = [each for each in (content, *content.values()) if isinstance(each, Mapping)]
        if any("param_groups" in each for each in parts):
            return f"holds the state of an optimizer (keys: {keys}) and no weights; {due}"
        return f"holds no weights; its keys are: {keys}; {due}"
    return f"holds a {type(content).__name__}; {due}"


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
