"""The attention kernel: equal to its NumPy reference, and the same bits in any batch and order."""

import numpy as np
import pytest

from hopline.artifact import Attention
from hopline.engine.attention import AttentionInput
from hopline.engine.view import EdgeView
from tests.engine.attention_reference import attended

N, DESTINATIONS = 50, 23


def drawn(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def attention_of(kind, heads, channels, num_attr, loops, fill, rng, *, shared=False):
    width = heads * channels
    edge = {"gat": (num_attr, heads), "gatv2": (num_attr, width), "transformer": (0, 0)}[kind]
    query = {"gat": 5 if shared else heads, "gatv2": width, "transformer": width + heads * num_attr}[kind]
    return Attention(
        kind=kind,
        heads=heads,
        channels=channels,
        shared=shared,
        query=(1, 1 + query),
        loops=loops,
        slope=0.2,
        num_attr=num_attr,
        fill=fill,
        vector=drawn(rng, width).tobytes() if kind == "gatv2" or (kind == "gat" and shared) else b"",
        own_vector=drawn(rng, heads, query).tobytes() if kind == "gat" and shared else b"",
        edge=drawn(rng, *edge).tobytes(),
        fill_row=drawn(rng, num_attr).tobytes(),
    )


class Case:
    """A drawn block: destination i is row i of `base`; the last destinations have no neighbours."""

    def __init__(self, attention, rng):
        self.attention = attention
        width = attention.heads * attention.channels
        reads = width + {"gat": attention.heads, "gatv2": 0, "transformer": width}[attention.kind]
        if attention.shared:
            reads = attention.channels
        self.column = 3
        self.base = drawn(rng, N, self.column + reads + 2)
        self.reads = reads
        self.counts = rng.integers(0, 9, DESTINATIONS)
        self.counts[-3:] = 0
        self.neighbors = [rng.integers(0, N, count) for count in self.counts]
        for i in range(0, 12, 3):
            self.neighbors[i][:2] = i  # self-loops
        self.attr = [drawn(rng, count, attention.num_attr) for count in self.counts]
        assert attention.query is not None
        self.query = drawn(rng, DESTINATIONS, attention.query[1] + 1)
        self.kernel = AttentionInput(attention, self.column, reads)

    def run(self, destinations, *, flagged=False):
        destinations = np.asarray(destinations)
        rows = np.concatenate([np.empty(0, np.int64), *(self.neighbors[i] for i in destinations)])
        offsets = np.concatenate([[0], np.cumsum(self.counts[destinations])])
        view = EdgeView(self.base, rows.astype(np.int64), offsets)
        view.attr = np.concatenate(
            [np.empty((0, self.attention.num_attr), np.float32), *(self.attr[i] for i in destinations)]
        )
        if flagged:
            view.is_self = rows == np.repeat(destinations, self.counts[destinations])
        out = np.full((len(destinations) + 1, self.attention.width + 3), 7, np.float32)
        self.kernel.run(
            view, 0, len(destinations), self.base, destinations, self.query, destinations, out, 2
        )
        assert (out[-1] == 7).all()
        assert (out[:, :2] == 7).all()
        assert (out[:, -1] == 7).all()
        return out[:-1, 2:-1]

    def expected(self, i):
        def row(r):
            return self.base[r, self.column : self.column + self.reads]

        edges = [
            (row(r), attr)
            for r, attr in zip(self.neighbors[i], self.attr[i], strict=True)
            if not (self.attention.loops and r == i)
        ]
        first, last = self.attention.query
        return attended(
            self.attention, edges, self.query[i, first:last], row(i) if self.attention.loops else None
        )


CASES = [
    (kind, heads, channels, num_attr, loops, fill)
    for kind in ("gat", "gatv2", "transformer")
    for heads, channels in ((1, 4), (4, 32), (3, 11))
    for num_attr, loops, fill in (
        (0, False, "row"), (0, True, "row"), (2, False, "row"), (2, True, "mean"), (2, True, "sum"),
        (2, True, "row"),
    )
    if not (loops and kind == "transformer")
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "shared"),
    [(case, shared) for case in CASES for shared in (False, True) if not (shared and case[0] == "gatv2")],
    ids=str,
)
def test_attention_equals_its_reference_and_its_bits_do_not_depend_on_the_batch(case, shared):
    rng = np.random.default_rng(len(str(case)))
    made = Case(attention_of(*case, rng, shared=shared), rng)
    together = made.run(np.arange(DESTINATIONS))
    for i in range(DESTINATIONS):
        np.testing.assert_allclose(together[i], made.expected(i), rtol=1e-5, atol=1e-5)
        assert (made.run([i])[0] == together[i]).all()
    order = rng.permutation(DESTINATIONS)
    assert (made.run(order) == together[order]).all()
    assert (made.run(np.arange(DESTINATIONS), flagged=True) == together).all()
    if not case[4]:
        assert (together[-3:] == 0).all()


def test_scores_that_overflow_without_the_softmax_shift_give_finite_answers():
    rng = np.random.default_rng(1)
    made = Case(attention_of("gatv2", 2, 8, 0, True, "row", rng), rng)
    made.base *= 1000
    assert np.isfinite(made.run(np.arange(DESTINATIONS))).all()


def test_nan_of_a_neighbour_reaches_the_answer():
    rng = np.random.default_rng(2)
    made = Case(attention_of("gatv2", 2, 8, 0, False, "row", rng), rng)
    i = int(made.counts.argmax())
    made.base[made.neighbors[i][0]] = np.nan
    assert np.isnan(made.run([i])).all()


def test_a_score_that_overflows_downwards_has_no_weight():
    rng = np.random.default_rng(3)
    made = Case(attention_of("gatv2", 1, 8, 0, False, "row", rng), rng)
    i = int(made.counts.argmax())
    row = made.base[made.neighbors[i][0]]
    vector = np.frombuffer(made.attention.vector, np.float32)
    row[3:11] = np.where(vector > 0, -3e38, 3e38)
    assert np.isfinite(made.run([i])).all()
