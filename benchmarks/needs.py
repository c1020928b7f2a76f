"""Needs of each benchmark in addition to a plain installation, checked first.

A benchmark that ran for ten minutes and then lacked a program has cost ten minutes.
"""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec

_TRAIN = ("torch", "torch_geometric", "onnx", "onnxscript")
_TABULAR = ("sklearn", "skl2onnx", "onnxmltools", "xgboost", "pandas")

#: `python -m benchmarks.<name>` -> packages as they are imported, programs as they are called.
NEEDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "abuse": ((*_TRAIN, *_TABULAR, "pyarrow"), ()),
    "admission": (_TRAIN, ("wrk",)),
    "batch": (_TRAIN, ("wrk",)),
    "compress": (_TRAIN, ()),
    "distill": (_TRAIN, ("wrk",)),
    "features": ((*_TRAIN, "redis"), ("redis-server", "wrk")),
    "kernels": (_TRAIN, ()),
    "lifecycle": ((*_TRAIN, *_TABULAR, "grpc"), ()),
    "models": (_TRAIN, ()),
    "paired": ((*_TRAIN, "grpc"), ()),
    "serving": (_TRAIN, ("wrk",)),
    "stream": ((*_TRAIN, "confluent_kafka", "nats", "redis"), ("nats-server", "redis-server")),
    "transports": (("uvicorn",), ("wrk",)),
    "tune": ((), ("wrk",)),
    "zoo": (_TRAIN, ()),
}


def missing(name: str) -> str:
    """Missing needs of `python -m benchmarks.<name>`, and how to install them; "" for none."""
    packages, programs = NEEDS.get(name, ((), ()))
    no_packages = [each for each in packages if find_spec(each) is None]
    no_programs = [each for each in programs if shutil.which(each) is None]
    if not no_packages and not no_programs:
        return ""
    lines = [f"benchmarks.{name} needs {', '.join(no_packages + no_programs)}. To install:"]
    if no_packages:
        lines.append("  ./scripts/setup test,lint")
    if no_programs:
        lines.append(f"  apt-get install {' '.join(no_programs)}    (Debian, Ubuntu)")
    return "\n".join(lines)


def benchmark_of(words: Sequence[str]) -> str:
    """The benchmark that a command line of Python runs with -m; "" where it runs something else."""
    for option, module in itertools.pairwise(words):
        if option == "-m":
            package, _, name = module.partition(".")
            return name if package == __package__ else ""
    return ""


def check() -> None:
    """End here, with what to install, where this process is a benchmark that lacks something."""
    if said := missing(benchmark_of(sys.orig_argv)):
        sys.exit(said)
