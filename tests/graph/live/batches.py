"""Batches of changes, drawn at random and made by hand, and what it is for two to be equal."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hopline.graph.live.changes import Changes, EdgeChanges, NodeChanges

INTS = st.integers(-(2**63), 2**63 - 1)
#: Ids of older graphs may have lone surrogates.
STRINGS = st.text(st.characters(), max_size=12)
NAMES = st.text("abc_é", min_size=1, max_size=6)
PLAIN = st.recursive(
    st.none() | st.booleans() | INTS | st.floats(allow_nan=False) | st.text("xyé", max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("kl", max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


def column(dtype: Any, shape: Any) -> st.SearchStrategy[np.ndarray]:
    return arrays.arrays(dtype, shape)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


@st.composite
def orders(draw: Any, n: int, num_events: int) -> np.ndarray:
    if draw(st.booleans()):
        first = draw(st.integers(0, num_events - n)) if n <= num_events else 0
        return np.arange(first, first + n)
    drawn = draw(st.lists(st.integers(0, max(0, num_events - 1)), min_size=n, max_size=n))
    return np.array(sorted(drawn), np.int64)


@st.composite
def ids(draw: Any, n: int) -> Any:
    if draw(st.booleans()):
        return draw(column(np.int64, n))
    return draw(st.lists(STRINGS, min_size=n, max_size=n))


@st.composite
def batches(draw: Any) -> Changes:
    num_events = draw(st.integers(0, 20))
    sizes = st.integers(0, num_events)
    edges = {}
    for key in draw(st.lists(NAMES, max_size=2, unique=True)):
        n, dim = draw(sizes), draw(st.integers(0, 3))
        edges[key] = EdgeChanges(
            draw(ids(n)),
            draw(ids(n)),
            draw(column(np.bool_, n)),
            draw(orders(n, num_events)),
            draw(optional(column(np.int64, n))),
            draw(optional(column(np.bool_, n))),
            draw(optional(column(np.float32, n))),
            draw(optional(column(np.float32, (n, dim)))),
        )
    nodes = {}
    for name in draw(st.lists(NAMES, max_size=2, unique=True)):
        n, dim = draw(sizes), draw(st.integers(0, 3))
        rows = None, None
        if draw(st.booleans()):
            cells, texts = draw(column(np.float64, (n, dim))), draw(st.integers(0, 2))
            words = st.lists(optional(STRINGS), min_size=n * texts, max_size=n * texts)
            rows = cells, np.array(draw(words), object).reshape(n, texts)
        nodes[name] = NodeChanges(
            draw(ids(n)),
            draw(column(np.bool_, n)),
            draw(column(np.float32, (n, dim))),
            draw(orders(n, num_events)),
            *rows,
            draw(optional(column(np.bool_, n))),
            draw(optional(column(np.int64, n))),
        )
    return Changes(
        edges,
        nodes,
        num_events,
        draw(st.just([]) | st.lists(STRINGS, min_size=num_events, max_size=num_events)),
        draw(optional(column(np.int64, num_events))),
        draw(st.dictionaries(NAMES, PLAIN, max_size=3)),
    )


def added_edges(n: int, seed: int = 0, *, event_ids: bool = False) -> Changes:
    """n edges between nodes below 169,000, of integer ids."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, 169_000, (2, n))
    edges = EdgeChanges(ends[0], ends[1], np.zeros(n, np.bool_), np.arange(n))
    names = [f"e{seed}-{i}" for i in range(n)] if event_ids else ()
    return Changes({"node__to__node": edges}, {}, n, names, positions={"kafka/edges/0": seed})


def same(a: Any, b: Any) -> bool:
    """Equal field by field; NaN equals NaN, and a list equals the tuple of its values."""
    if a is None or b is None:
        return a is b
    if dataclasses.is_dataclass(a):
        fields = [field.name for field in dataclasses.fields(a)]
        return type(a) is type(b) and all(same(getattr(a, f), getattr(b, f)) for f in fields)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype == object:
            return a.shape == b.shape and a.tolist() == b.tolist()
        return a.shape == b.shape and (a.dtype == b.dtype or not a.size) and a.tobytes() == b.tobytes()
    return list(a) == list(b) if isinstance(a, list | tuple) else bool(a == b)
