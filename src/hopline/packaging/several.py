"""Several outputs of a module or head: columns side by side, so that all else sees one row of numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import Tensor, fx, nn

from hopline.errors import PackagingError
from hopline.graph import GraphSchema
from hopline.packaging.proxy import value_of
from hopline.packaging.settings import checked_names


class Heads(nn.Module):
    """Heads over one state, for several tasks."""

    def __init__(self, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.names, self.heads = tuple(heads), nn.ModuleList(heads.values())

    def forward(self, h: Tensor) -> dict[str, Tensor]:
        """The answer of each."""
        return {name: head(h) for name, head in zip(self.names, self.heads, strict=True)}


class Several(nn.Module):
    """A module or head that answers several outputs.

    Args:
        module: answers a dictionary, a dataclass, or a tuple; maybe one for each node type.
        names: of its outputs that are served, in order. target: node type of the answer.
    """

    def __init__(self, module: nn.Module, names: Sequence[str], target: str) -> None:
        super().__init__()
        self.module, self.names, self.target = module, tuple(names), target

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The outputs' columns, [n, sum of widths]."""
        found = self.named(self.module(*args, **kwargs))
        parts = [columns(name, found[name]) for name in self.names]
        return torch.cat([part if part.is_floating_point() else part.float() for part in parts], 1)

    def named(self, out: Any) -> dict[str, Any]:
        """All outputs by name, of the module's answer or of a traced value that is a dictionary or tuple.

        Raises: PackagingError: there is a single one, or one of `names` is not among them.
        """
        value = value_of(out.node) if isinstance(out, fx.Proxy) else out
        if isinstance(value, dict) and self.target in value and not {*self.names} <= value.keys():
            out, value = out[self.target], value[self.target]
        keys: Sequence[Any] = [*value] if isinstance(value, dict) else []
        part: Any = itemgetter
        if dataclasses.is_dataclass(value):
            part, keys = attrgetter, [each.name for each in dataclasses.fields(value)]
        names: Sequence[Any] = keys
        if isinstance(value, tuple | list):
            keys = range(len(value))
            names = getattr(value, "_fields", [f"output_{at}" for at in keys])
            if len(keys) == len(self.names) and not (hasattr(value, "_fields") or {*names} & {*self.names}):
                names = self.names
        if not {*self.names} <= {*names}:
            found = ", ".join(map(str, names)) or type(value).__name__
            raise PackagingError(
                f"task= names the outputs {', '.join(self.names)}, and returned is {found}. Return a dict, "
                "a dataclass or a tuple; or return states, and name the heads, head={name: module}"
            )
        outputs = {name: part(key)(out) for name, key in zip(names, keys, strict=True)}
        by_type = {name: each for name, each in outputs.items() if isinstance(each, dict)}
        return outputs | {name: each[self.target] for name, each in by_type.items() if self.target in each}


def columns(name: str, out: Any) -> Tensor:
    """One output, [n, c]. Raises: PackagingError: it is none, or has further dimensions."""
    if not isinstance(out, Tensor | fx.Proxy) or out.dim() not in (1, 2):
        shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise PackagingError(f"output {name!r} is {shape}; one of several is [n] or [n, columns]")
    return out.unsqueeze(1) if out.dim() == 1 else out  # type: ignore[return-value]


def node_types_of(
    tasks: Mapping[str, Any], target: object, schema: GraphSchema, head: object
) -> tuple[str, ...]:
    """The node types that `task` names, for a head each; () if it names outputs of one type.

    Raises: PackagingError: it names both, or `head` or `target` is for something else.
    """
    named = tuple(name for name in tasks if name in schema.node_types)
    if len(schema.node_types) < 2 or not named:
        return ()
    listed, other = ", ".join(named), [name for name in tasks if name not in named]
    if target is not None or other:
        wrong = f"which {other[0]} is not ({', '.join(schema.node_types)})" if other else "without target="
        raise PackagingError(
            f"task names node types ({listed}): then all its names are node types, {wrong}"
        )
    if isinstance(head, Heads) and {*head.names} != {*named}:
        raise PackagingError(f"head= names {', '.join(head.names)}, and task= names {listed}")
    return named


def by_output(given: Any, what: str, tasks: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Values of an argument (`what`) by output; the only output has no name, and the key "".

    Raises: PackagingError: a name that cannot be served, or that is not among `tasks`.
    """
    if not isinstance(given, Mapping) or not given:
        return {"": given}
    for name in checked_names(given, what):
        if tasks is not None and name not in tasks:
            raise PackagingError(f"{what}: no output is named {name!r}; task= has {', '.join(tasks)}")
        if isinstance(given[name], Mapping):
            raise PackagingError(
                f"{what}: {name!r} has one value. To give a node type several outputs, package the model "
                "once for each type, target=..., under two names"
            )
        if not name.isidentifier() or not name.isascii():
            raise PackagingError(f"{what}: output {name!r}: a name has letters, digits and underscores")
    return dict(given)


@contextmanager
def of_output(name: str) -> Iterator[None]:
    """Name the output that an error is about, if it has a name."""
    try:
        yield
    except PackagingError as error:
        if not name:
            raise
        raise type(error)(f"output {name!r}: {error}") from error
