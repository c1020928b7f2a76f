"""Changes as bytes: nothing is lost, and no bytes do harm."""

from __future__ import annotations

import contextlib
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.errors import BadRequest
from hopline.graph.live import codec
from hopline.graph.live.changes import Applied, Changes, EdgeChanges, NodeChanges, Rejected
from hopline.graph.live.codec import StoredBatch, decode_entry, encode_entry
from tests.graph.live.batches import INTS, STRINGS, added_edges, batches, same
from tests.thorough import thorough


@given(batches())
@settings(max_examples=thorough(75, 300), deadline=None)
def test_a_batch_comes_back_as_it_was(batch: Changes) -> None:
    assert same(codec.decode_changes(codec.encode_changes(batch)), batch)


@given(batches(), st.data())
@settings(max_examples=thorough(75, 300), deadline=None)
def test_damaged_bytes_are_refused_or_are_another_batch(batch: Changes, data: st.DataObject) -> None:
    whole = bytearray(codec.encode_changes(batch))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del whole[data.draw(st.integers(0, len(whole))) :]
    try:
        found = codec.decode_changes(whole)
    except BadRequest:
        return
    assert isinstance(found, Changes)
    codec.encode_changes(found)  # and one that is coherent


@given(st.binary(max_size=200))
@settings(max_examples=thorough(75, 300), deadline=None)
def test_any_bytes_are_refused(junk: bytes) -> None:
    for data in (junk, b"HLch" + junk, b"HLch" + len(junk).to_bytes(4, "little") + junk):
        with pytest.raises(BadRequest):
            codec.decode_changes(data)


@pytest.mark.parametrize("size", [2**31, 2**40, 2**62, -1, -5])
@pytest.mark.parametrize("field", ["num_events", "num_rows", "src_bytes", "attr_dim", "first"])
def test_absurd_sizes_are_refused_before_anything_is_made(field: str, size: int) -> None:
    edges = codec._Edges("k", 1, -1, -1, 0, False, False, False, -1)
    head = codec._Head(1, [edges], [], 0, True, {})
    if (field, size) in {("src_bytes", -1), ("attr_dim", -1), ("first", -1)}:
        size = -2  # -1 means that there is none
    setattr(head if field == "num_events" else edges, field, size)
    packed = msgspec.msgpack.encode(head)
    data = b"HLch" + len(packed).to_bytes(4, "little") + packed
    tracemalloc.start()
    with pytest.raises(BadRequest):
        codec.decode_changes(data + bytes(-len(data) % 8) + bytes(64))
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_deeply_nested_positions_are_refused() -> None:
    packed = b"\x96\x01\x90\x90\xff\xc2\x81\xa1k" + b"\x91" * 100_000 + b"\xc0"
    with pytest.raises(BadRequest, match="malformed"):
        codec.decode_changes(b"HLch" + len(packed).to_bytes(4, "little") + packed)


def test_columns_of_numbers_are_views_of_the_bytes() -> None:
    data = bytearray(codec.encode_changes(added_edges(1000)))
    edges = codec.decode_changes(data).edges["node__to__node"]
    assert np.shares_memory(np.asarray(edges.src), np.frombuffer(data, np.uint8))
    assert np.asarray(edges.src).flags.aligned
    assert np.asarray(edges.src).flags.writeable


def test_an_edge_of_integer_ids_takes_17_bytes() -> None:
    assert len(codec.encode_changes(added_edges(10_000))) < 17 * 10_000 + 100


ONE = np.zeros(1, np.bool_)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (Changes({"k": EdgeChanges([1, 2], [1], ONE, np.arange(1))}, {}, 1), "src of k has 2 rows"),
        (Changes({"k": EdgeChanges([1], [1], ONE, np.arange(2))}, {}, 2), "order has shape"),
        (Changes({"k": EdgeChanges([2**63], [1], ONE, np.arange(1))}, {}, 1), "64-bit"),
        (Changes({"k": EdgeChanges([1.5], [1], ONE, np.arange(1))}, {}, 1), "integers or strings"),  # type: ignore[list-item]
        (
            Changes({}, {"n": NodeChanges([1], ONE, np.zeros(1, np.float32), np.arange(1))}, 1),
            "features of n",
        ),
        (Changes({}, {}, 2, ["a"]), "event_ids has 1 rows; expected 2"),
        (Changes({}, {}, 0, positions={"s": object()}), "positions must be plain values"),
    ],
)
def test_batches_that_do_not_fit_together_are_refused(changes: Changes, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        codec.encode_changes(changes)


@given(
    INTS,
    st.integers(0, 2**40),
    st.lists(st.integers(0, 2**40)),
    st.lists(st.tuples(st.integers(0, 2**40), st.sampled_from(["bad_id", "full"]), st.text(max_size=20))),
)
def test_an_outcome_comes_back_as_it_was(sequence: int, n: int, duplicates: list, rejected: list) -> None:
    outcome = Applied(sequence, n, tuple(duplicates), tuple(Rejected(*each) for each in rejected))
    assert codec.decode_applied(codec.encode_applied(outcome)) == outcome


@given(STRINGS)
def test_an_outcome_may_quote_any_id(text: str) -> None:
    found = codec.decode_applied(codec.encode_applied(Applied(1, 0, (), (Rejected(0, "bad_id", text),))))
    assert found.rejected[0].reason == text.encode("utf-8", "backslashreplace").decode()


@given(st.binary(max_size=60))
def test_malformed_outcomes_are_refused(junk: bytes) -> None:
    for data in (junk, b"\x94\x01\x01\xc4" + junk, b"\xdd\xff\xff\xff\xff" + junk):
        with contextlib.suppress(BadRequest):
            assert isinstance(codec.decode_applied(data), Applied)


@given(batches(), st.data())
@settings(deadline=None)
def test_an_entry_of_the_log_comes_back_or_is_refused(batch: Changes, data: st.DataObject) -> None:
    skip = np.array(
        data.draw(st.lists(st.booleans(), min_size=batch.num_events, max_size=batch.num_events))
    )
    packed = encode_entry(StoredBatch(batch, skip.astype(np.bool_), 123))
    found = decode_entry(packed)
    assert same(found.changes, batch)
    assert (found.skip.tolist(), found.through_ms) == (skip.tolist(), 123)
    assert all(
        group.src.flags.aligned
        for group in found.changes.edges.values()
        if isinstance(group.src, np.ndarray)
    )
    with pytest.raises(BadRequest):
        decode_entry(packed[: data.draw(st.integers(0, len(packed) - 1))])
    damaged = bytearray(packed)
    at = data.draw(st.integers(8, len(packed) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(BadRequest):
        decode_entry(bytes(damaged))
