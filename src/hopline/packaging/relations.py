"""Edge types as numbers: the relations of an `edge_type` argument."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import nn
from torch_geometric.nn import HGTConv


def split_key(key: str) -> tuple[str, str, str]:
    """The (source, relation, destination) of an edge type key."""
    src, relation, dst = key.split("__")
    return src, relation, dst


def natural(key: str) -> list[tuple[int, str]]:
    """A sort key that puts r2 before r10: relation numbers are positions in this order."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", key)]


def in_order(keys: Iterable[str], module: nn.Module) -> list[str]:
    """Edge types in the order of their names, or in that of an `HGTConv`, whose input must have it."""
    for part in module.modules():
        listed = ["__".join(key) for key in part.edge_types] if isinstance(part, HGTConv) else []
        if listed:
            return sorted(keys, key=lambda key: listed.index(key) if key in listed else len(listed))
    return sorted(keys, key=natural)


def numbered(keys: tuple[str, ...]) -> bool:
    """True if edge types differ by numbers alone, and none from 0 is missing: each place is the number."""
    names = [re.fullmatch(r"(.*?)0*(\d+)", split_key(key)[1]) for key in keys]
    found = [(name[1], int(name[2])) for name in names if name]
    if not found:
        return len(keys) == 1
    return found == [(found[0][0], number) for number in range(len(keys))]


def next_numbered(keys: tuple[str, ...]) -> str:
    """The edge type that has the number after those of `keys`; "" where they are not numbered from 0."""
    src, relation, dst = split_key(keys[-1])
    stem = relation.rstrip("0123456789")
    if stem == relation or not numbered(keys):
        return ""
    return f"{src}__{stem}{len(keys)}__{dst}"
