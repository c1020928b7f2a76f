"""Whole models: a torch.export program over one sampled ego-graph for each seed.

The only file of the server that imports torch (`cuda_graphs.py` gets it from here), and only when such a
model is loaded. The program was written by `hopline.packaging`; it is loaded without unpickling code.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hopline.artifact import ModelSpec
from hopline.errors import ArtifactError, ConfigError, RuntimeFailure
from hopline.runtimes.placement import placed
from hopline.runtimes.unknown_code import unknown_code
from hopline.types import UNREADABLE, AnyArray, FloatArray, IdArray

#: Describes the program.
SLOTS_FILE = "whole.json"


class WholeSlots(msgspec.Struct, frozen=True):
    """The content of whole.json.

    Attributes:
        slots: names of the tensors that the program reads; see `WholeModel`.
        relations: edge types of a relational model, in the order of their numbers.
        pooled: the model answers one row for its graph; of an earlier release.
    """

    slots: list[str]
    relations: list[str] = []
    pooled: bool = False


def read_slots(folder: Path) -> WholeSlots:
    """Read whole.json of an artifact. Raises: ArtifactError: it is missing or malformed."""
    path = folder / SLOTS_FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=WholeSlots)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}") from None
    except UNREADABLE as error:
        raise ArtifactError(f"{path}: not a description of a whole model: {error}; package again") from None
    if found.pooled:
        raise ArtifactError(f"{path}: the model answers one row for a graph: package it again")
    return found


class WholeModel:
    """A loaded whole model.

    Attributes:
        slots: names of the tensors that the program reads: "features:<node type>",
            "edge_index:<edge type>", "edge_attr:<edge type>", "edge_weight:<edge type>", and for
            relational models "edge_index:*" and "edge_type:*".
        output_dim: columns of the logits.
    """

    def __init__(self, folder: Path, spec: ModelSpec, *, threads: int = 1) -> None:
        """Load `spec.whole_file`.

        Args:
            threads: of torch, for the whole process.

        Raises:
            ArtifactError: torch is not installed, or refuses the file.
            ConfigError: the device is a GPU, but torch has none.
        """
        if spec.runtime != "torch" or spec.whole_file is None:
            raise ArtifactError(f"{folder}: runtime {spec.runtime!r}; it is served in stages, not whole")
        try:
            import torch
        except ModuleNotFoundError:
            raise ArtifactError(
                f"{folder}: the model is served whole ({spec.why_whole}) and needs torch: "
                "pip install 'hopline[train]'"
            ) from None
        torch.set_num_threads(threads)
        self._torch = torch
        self.slots = read_slots(folder).slots
        self.output_dim = spec.head.output_dim
        self._on_gpu = placed() != "cpu"
        if self._on_gpu:
            _check_gpu(torch)
        self._program: Any = self._loaded(folder / spec.whole_file)

    def _loaded(self, path: Path) -> Any:
        torch = self._torch
        try:
            with warnings.catch_warnings():
                # torch loads its own file formats with functions it has deprecated.
                warnings.simplefilter("ignore")
                program = torch.export.load(path)
                if not self._on_gpu:
                    return program.module()
                from hopline.runtimes.cuda_graphs import on_gpu

                return on_gpu(program, self.slots)
        except Exception as error:  # torch.export.load has no common base of its errors
            raise ArtifactError(f"{path}: torch {torch.__version__} cannot load it: {error}") from error

    def run_slots(self, slots: Mapping[str, AnyArray], seeds: IdArray) -> FloatArray:
        """Score seeds of one ego-graph of any types.

        Args:
            slots: slot name -> array, as `slots` names them.
            seeds: int64 [n], rows of the target type.

        Returns: float32 [n, output_dim].

        Raises:
            RuntimeFailure: the program fails, or an input that it reads is missing.
            UnknownCode: a code has no entry in the model's table.
        """
        torch = self._torch
        missing = [name for name in self.slots if name not in slots]
        if missing:
            raise RuntimeFailure(f"the whole model reads {', '.join(missing)}, which the request lacks")
        tensors = [torch.from_numpy(np.ascontiguousarray(slots[name])) for name in self.slots]
        answers = np.empty((len(seeds), self.output_dim), dtype=np.float32)
        try:
            with torch.no_grad():
                for row, seed in enumerate(np.asarray(seeds, dtype=np.int64)):
                    answers[row] = self._program(torch.from_numpy(seed.reshape(1)), *tensors).numpy()
        except Exception as error:  # a program raises any error of its operators
            given = (torch.from_numpy(np.asarray(seeds[:1], np.int64)), *tensors)
            if (unknown := unknown_code(error, self._program, given, slots)) is not None:
                raise unknown from error
            raise RuntimeFailure(f"the whole model failed: {type(error).__name__}: {error}") from error
        return answers


def _check_gpu(torch: Any) -> None:
    if not torch.cuda.is_available():
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
        raise ConfigError(
            f"compute.device: {placed()!r} needs a GPU for models that are served whole; torch "
            f"{torch.__version__} was built with {built} and finds no device: install a torch with CUDA "
            "and check nvidia-smi, or set compute.device to 'cpu'"
        )
