"""What readers of Parquet find, which bytes a run that goes on leaves, and what is in the way."""

import filecmp
import json
import resource
import signal
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopline.errors import SinkError
from hopline.jobs.batch.registry import open_sink, work_folder
from hopline.jobs.batch.sink import Column
from hopline_stores import parquet_sink
from hopline_stores.testing.sinks import check, feed, ids_of, schema_of, values_of, write
from tests.jobs.batch.places import ParquetFolderPlace, ParquetPlace

NUM_ROWS = 300


@pytest.fixture
def place(tmp_path):
    return ParquetPlace(tmp_path)


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A folder whose parts have 60 rows, in groups of 30."""
    monkeypatch.setattr(parquet_sink, "_GROUP_BYTES", 1)
    monkeypatch.setattr(parquet_sink, "_LEAST_ROWS", 30)
    monkeypatch.setattr(parquet_sink, "_PART_BYTES", 60 * (8 + 20 + 4 + 8))
    return ParquetFolderPlace(tmp_path)


def test_vectors_are_of_fixed_size_and_the_file_says_what_it_is(place):
    schema = schema_of(place, NUM_ROWS, classes=("bad", "good"), exact=True)
    write(place, schema)
    found = pq.read_schema(place.path)
    assert found.field("id").type == pa.string()
    assert found.field("embedding").type.list_size == 5
    assert found.field("embedding").type.value_type == pa.float32()
    assert found.field("probabilities").type == pa.float32()
    assert found.field("label").type == pa.int64()
    metadata = {key.decode(): value.decode() for key, value in found.metadata.items()}
    assert metadata["hopline.run_id"] == schema.run_id
    assert (metadata["hopline.model"], metadata["hopline.version"], metadata["hopline.graph_version"]) == (
        "m",
        "1",
        "g",
    )
    assert metadata["hopline.exact"] == "true"
    assert json.loads(metadata["hopline.classes"]) == ["bad", "good"]


def test_other_readers_find_the_rows(place):
    schema = schema_of(place, NUM_ROWS, "int")
    write(place, schema)
    frame = pq.read_table(place.path).to_pandas()
    assert frame["id"].tolist() == ids_of(schema)
    np.testing.assert_array_equal(np.stack(frame["embedding"]), values_of(schema)["embedding"])


def test_numbers_that_are_none_and_infinite_ones_stay_what_they_are(place):
    schema = schema_of(place, 3, columns=(Column("logits", "float32", 2),))
    values = np.array([[np.nan, np.inf], [-np.inf, -0.0], [1e-45, 3.4e38]], np.float32)
    sink = place.open()
    sink.open(schema)
    sink.write(0, {"id": ids_of(schema), "logits": values})
    sink.commit()
    found = pq.read_table(place.path)["logits"].combine_chunks().flatten().to_numpy()
    assert found.tobytes() == values.tobytes()


@pytest.mark.parametrize("ended_at", [0, 60, 119, 200, 299])
def test_a_folder_that_was_gone_on_with_has_the_same_files(parts, tmp_path, ended_at):
    schema = schema_of(parts, NUM_ROWS)
    write(parts, schema)
    whole = parts.folder.rename(tmp_path / "whole")
    sink = parts.open()
    sink.open(schema)
    feed(sink, schema, 0, ended_at)
    sink.abort()
    sink = parts.open()
    begin = sink.open(schema)
    assert begin == ended_at // 60 * 60
    feed(sink, schema, begin, NUM_ROWS, step=7)
    sink.commit()
    names = sorted(path.name for path in whole.iterdir())
    assert names == ["_table.json", *(f"part-{k:05d}.parquet" for k in range(5))]
    assert names == sorted(path.name for path in parts.folder.iterdir())
    assert filecmp.cmpfiles(whole, parts.folder, names, shallow=False)[0] == names
    assert not parts.folder.with_name("out.partial").exists()


def test_a_part_is_never_there_before_it_is_whole(parts):
    schema = schema_of(parts, NUM_ROWS)
    sink = parts.open()
    sink.open(schema)
    feed(sink, schema, 0, 100)
    found = list(parts.folder.with_name("out.partial").glob("part-*"))
    assert [pq.read_metadata(path).num_rows for path in found] == [60]
    sink.abort()


def test_other_part_sizes_begin_anew(parts, monkeypatch):
    schema = schema_of(parts, NUM_ROWS)
    sink = parts.open()
    sink.open(schema)
    feed(sink, schema, 0, 200)
    sink.abort()
    monkeypatch.setattr(parquet_sink, "_PART_BYTES", 1)
    sink = parts.open()
    assert sink.open(schema) == 0
    feed(sink, schema, 0, NUM_ROWS)
    sink.commit()
    check(parts, schema)


@pytest.fixture
def little_room():
    """Files may grow to 64 KiB, as on a disk that is full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def feed_and_commit(sink, schema):
    feed(sink, schema, 0, schema.num_rows)
    sink.commit()


@pytest.mark.parametrize("kind", [ParquetPlace, ParquetFolderPlace])
def test_a_full_disk_is_reported_and_leaves_nothing_to_be_seen(tmp_path, little_room, monkeypatch, kind):
    monkeypatch.setattr(parquet_sink, "_GROUP_BYTES", 1)
    place = kind(tmp_path)
    schema = schema_of(place, 10_000)
    sink = place.open()
    sink.open(schema)
    with pytest.raises(SinkError, match=r"out.* cannot be written: .*start the same command again"):
        feed_and_commit(sink, schema)
    sink.abort()
    assert place.read(ids_of(schema)) is None
    assert not list(tmp_path.glob("*.parquet.partial"))


@pytest.mark.parametrize("address", ["a.parquet", "parquet:folder"])
def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(SinkError, match=r"pip install 'hopline\[parquet\]'"):
        open_sink(address)


def test_without_fsspec_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(
        SinkError, match=r"…@b/x\.parquet: URLs need fsspec: pip install 'hopline\[remote\]'"
    ):
        open_sink("s3://k:secret@b/x.parquet")


def test_ids_that_are_no_text_are_refused(place):
    schema = schema_of(place, 1)
    sink = place.open()
    sink.open(schema)
    sink.write(0, values_of(schema) | {"id": ["\ud800"]})
    with pytest.raises(SinkError, match="not valid UTF-8"):
        sink.commit()
    sink.abort()


def test_a_file_url_is_a_path(tmp_path):
    place = ParquetPlace(tmp_path)
    place.address = f"file://{place.path}"
    write(place, schema_of(place, 10))
    check(place, schema_of(place, 10))


@pytest.mark.parametrize(
    ("address", "folder"),
    [("a/x.parquet", "a/x.parquet.run"), ("parquet:out/", "out.run"), ("s3://b/x.parquet", "run.run")],
)
def test_work_is_kept_beside_a_path_and_else_here(address, folder):
    assert str(work_folder(address, "run")) == folder
