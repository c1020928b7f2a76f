"""Scores in the log are those that were answered, bit for bit, in every form of the log."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hopline.records.entry import Entry, EntryWriter, read_entry
from hopline.records.exact import array_json, packed, unpacked
from hopline.records.inputs import Inputs
from hopline_drift.parquet import ParquetRows, write_parquet

FLOAT32_BITS = hnp.arrays(np.uint32, hnp.array_shapes(max_dims=2, max_side=9)).map(
    lambda bits: bits.view(np.float32)
)


def through_json(entry):
    line = bytearray()
    EntryWriter(lambda: None).append(entry, line)
    assert line.count(b"\n") == 1
    return read_entry(bytes(line))


def through_parquet(entry, folder):
    line = bytearray()
    EntryWriter(lambda: None).append(entry, line)
    (folder / "a.jsonl").write_bytes(line)
    assert write_parquet(folder / "a.jsonl", folder / "a.parquet") == 1
    (found,) = ParquetRows(folder / "a.parquet")
    return found


def same(mine, other):
    assert mine.dtype.kind == other.dtype.kind
    assert mine.shape == other.shape
    if mine.dtype.kind in "OU":
        assert mine.tolist() == other.tolist()
    else:
        assert mine.dtype == other.dtype
        assert mine.tobytes() == other.tobytes()


@given(FLOAT32_BITS)
def test_every_float32_comes_back_with_its_bits(scores):
    same(through_json(Entry("r", 1.0, "m", "1", outputs={"p": scores})).outputs["p"], scores)


def test_a_decimal_beside_the_middle_of_two_float32_is_read_as_the_right_one():
    # of all float32 the one whose decimal, read as float64, becomes the middle itself
    value = np.array([0x15AE43FD, 0x95AE43FD, 0x15AE43FE], np.uint32).view(np.float32)
    assert np.float32(np.float64("7.038531e-26")) != value[0]
    same(through_json(Entry("r", 1.0, "m", "1", outputs={"p": value})).outputs["p"], value)


@given(hnp.arrays(st.sampled_from([np.dtype(name) for name in ("<f8", ">f4", "<f2", "?", "u1", "<i8")]),
                  hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))  # fmt: skip
def test_other_types_are_packed(array):
    found = unpacked(packed(array))
    assert found.dtype == array.dtype.newbyteorder("=")
    same(found, array.astype(array.dtype.newbyteorder("=")))


ODD = {
    "scores": np.array([[0.1, 1e-45], [3.4e38, -0.0]], np.float32),
    "nan": np.array([np.nan, np.inf, 1.0], np.float32),
    "label": np.array([2**62 + 1, -1]),
    "wide": np.array([0.1, 1e300]),
    "none": np.empty((0, 3), np.float32),
    "flag": np.array([True, False]),
    "text": np.array(["a", "", "ü\n"], object),
}
WHOLE = Entry(
    "r-1",
    1_790_000_000.123456,
    "risk",
    "7",
    "snapshot",
    outputs=ODD,
    degraded=("stale_features",),
    latency_ms={"queue": 0.25, "total": 1.5},
    input_hash="h",
    artifact_hash="a",
    preprocessing_hash="p",
    feature_schema_hash="f",
    runtime="hopline, onnxruntime",
    client="shop",
    is_copy=True,
    inputs=Inputs([1, 2], outputs=("label",)),
    tensors={"nodes.node.features": np.array([[np.nan, 0.1]], np.float32)},
)
PLAIN = Entry("r-2", 1.0, "risk", "7", outcome="overloaded")
GONE = Entry("r-3", 1.0, "risk", "7", outputs={"scores": ODD["scores"]}, missing=(1,))


@pytest.mark.parametrize("form", ["json", "parquet"])
@pytest.mark.parametrize("entry", [WHOLE, PLAIN, GONE], ids=["whole", "plain", "gone"])
def test_an_entry_comes_back_whole(form, entry, tmp_path):
    found = through_json(entry) if form == "json" else through_parquet(entry, tmp_path)
    for name in entry.__struct_fields__:
        before, after = getattr(entry, name), getattr(found, name)
        if name in ("outputs", "tensors"):
            assert before.keys() == after.keys()
            for key in before:
                same(after[key], before[key])
        else:
            assert after == before


def test_a_large_array_is_written_in_parts_with_rests_between():
    rests = []
    array = np.arange(3 * 20_000, dtype=np.int64).reshape(-1, 3)
    text = bytes(array_json(array, lambda: rests.append(1)))
    assert text == bytes(array_json(array, lambda: None))
    assert len(rests) > 10
    same(through_json(Entry("r", 1.0, "m", "1", outputs={"e": array})).outputs["e"], array)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b'{"request_id":"r"}',
        b'{"request_id":"r","time":1,"model":"m","version":"1","outputs":{"p":{}}}',
        b'{"request_id":"r","time":1,"model":"m","version":"1","outputs":{"p":[[1],[1,2]]}}',
        b'{"request_id":"r","time":1,"model":"m","version":"1","outputs":{"p":null}}',
        b'{"request_id":"r","time":1,"model":"m","version":"1","outputs":{"p":[0.5],"label":[0,1]},"missing":[0]}',
        b'{"request_id":"r","time":1,"model":"m","version":"1","outputs":{"p":[0.5]},"missing":[1]}',
        b'{"request_id":"r","time":1,"model":"m","version":"1","outputs":{"p":[0.5]},"missing":[-1]}',
        b'{"request_id":"r","time":1,"model":"m","version":"1","missing":[0]}',
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b'\xff\xfe"',
    ],
    ids=range(13),
)
def test_what_is_no_entry_is_refused(line):
    with pytest.raises(ValueError, match="not an entry"):
        read_entry(line)


def test_what_json_cannot_hold_leaves_the_buffer_as_it_was():
    line = bytearray(b"before\n")
    with pytest.raises(TypeError, match="object"):
        EntryWriter(lambda: None).append(Entry("r", 1.0, "m", "1", inputs=Inputs([object()])), line)
    assert line == b"before\n"
