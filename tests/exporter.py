"""Keeps the tables of torch's exporter, which makes the same ones again for each file: half of its time.

`torch.onnx.export` lists the operators that are composed of others, and replaces the Python kernels of
each: about 440 operators with 13 keys each, twice for each file. Both depend only on the operators that are
registered. Files are the same, byte for byte (`test_exporter.py`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest


class _Override(NamedTuple):
    """One operator inside torch's override: when it holds, and what it is.

    Attributes:
        code: what the operator is composed of inside.
        before, inside: Python kernels by dispatch key.
        fake: what computes shapes inside.
    """

    code: Callable[..., Any]
    before: dict[Any, Any]
    inside: dict[Any, Any]
    fake: Callable[..., Any]


def keep_tables(patch: pytest.MonkeyPatch) -> None:
    """Make torch's exporter keep its tables, until `patch` is undone. `__wrapped__` is torch's own."""
    import torch
    from torch._export import utils
    from torch._subclasses import fake_impls
    from torch.export import decomp_utils, exported_program

    collect, compose = utils._collect_all_valid_cia_ops, utils._get_decomp_for_cia
    override = exported_program._override_composite_implicit_decomp
    collected: dict[Any, set[Any]] = {}
    composed: dict[Any, tuple[Any, Callable[..., Any]]] = {}
    overrides: dict[Any, _Override] = {}

    @functools.wraps(collect)
    def collect_once() -> set[Any]:
        names = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        key = (tuple(names), *((name, len(getattr(torch.ops, name)._dir)) for name in torch.ops._dir))
        if key not in collected:
            collected[key] = collect()
        return collected[key]

    @functools.wraps(compose)
    def compose_once(op: Any) -> Callable[..., Any]:
        kernel = op.py_kernels.get(torch._C.DispatchKey.CompositeImplicitAutograd)
        if op not in composed or composed[op][0] is not kernel:
            composed[op] = kernel, compose(op)
        return composed[op][1]

    @functools.wraps(override)
    @contextlib.contextmanager
    def override_once(codes: dict[Any, Callable[..., Any]]) -> Iterator[None]:
        kept = {
            op: known
            for op, code in codes.items()
            if (known := overrides.get(op))
            and known.code is code
            and known.before == op.py_kernels
            and op not in fake_impls.op_implementations_dict
        }
        others = {op: code for op, code in codes.items() if op not in kept}
        free = {op: dict(op.py_kernels) for op in others if op not in fake_impls.op_implementations_dict}
        try:
            for op, known in kept.items():
                op.py_kernels.clear()
                op.py_kernels.update(known.inside)
                op._dispatch_cache.clear()
                fake_impls.op_implementations_dict[op] = known.fake
            with override(others):
                for op, before in free.items():
                    fake = fake_impls.op_implementations_dict[op]
                    overrides[op] = _Override(others[op], before, dict(op.py_kernels), fake)
                yield
        finally:
            for op, known in kept.items():
                op.py_kernels.clear()
                op.py_kernels.update(known.before)
                op._dispatch_cache.clear()
                fake_impls.op_implementations_dict.pop(op, None)

    for module in (exported_program, decomp_utils):
        patch.setattr(module, "_collect_all_valid_cia_ops", collect_once)
    patch.setattr(decomp_utils, "_get_decomp_for_cia", compose_once)
    patch.setattr(exported_program, "_override_composite_implicit_decomp", override_once)
