"""Places that batch runs write to, and how their readers find what is there."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import boto3
import numpy as np
import pyarrow.dataset
import pyarrow.parquet

from hopline.engine.precomputed_file import PrecomputedFile
from hopline.engine.precomputed_file.identity import id_hashes
from hopline.errors import FeatureGroupNotFound
from hopline.features.registry import open_store
from hopline.graph.schema import quoted
from hopline.jobs.batch.npy import TABLE
from hopline.jobs.batch.sink import Column
from hopline_stores.testing.sinks import TEXT, SinkPlace


def picked(ids, found, columns):
    """Rows of `columns` (of ids `found`) in the order of `ids`."""
    row_of = {id: row for row, id in enumerate(found)}
    rows = [row_of[id] for id in ids]
    return {name: values[rows] for name, values in columns.items()}


def npy_column(folder, name):
    """A column of a folder of arrays: an array, or a list of texts."""
    if not (folder / f"{name}_blob.npy").exists():
        return np.load(folder / f"{name}.npy")
    blob, ends = np.load(folder / f"{name}_blob.npy").tobytes(), np.load(folder / f"{name}_offsets.npy")
    return [blob[a:b].decode() for a, b in pairwise(ends)]


class NpyPlace(SinkPlace):
    columns = (*SinkPlace.columns, TEXT)

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "out"
        self.address = f"npy:{self.folder}"
        (folder / "mine").mkdir()
        (folder / "mine" / "thesis.txt").write_text("")
        self.wrong = ("npy:", f"npy:{folder}/mine", "npy:/proc/out")

    def read(self, ids, part=""):
        folder = self.folder / quoted(part) if part else self.folder
        if not (folder / TABLE).exists():
            return None
        found = {column.name: np.array(npy_column(folder, column.name)) for column in self.columns}
        return picked(ids, list(npy_column(folder, "id")), found)


class TablePlace(SinkPlace):
    columns = (Column("state", "float32", 4), Column("logits", "float32", 2))

    def __init__(self, folder: Path) -> None:
        self.path = folder / "a.precomputed"
        self.address = str(self.path)
        self.wrong = ("precomputed:", "/proc/a.precomputed")

    def read(self, ids, part=""):
        path = self.path.with_name(f"a-{quoted(part)}.precomputed") if part else self.path
        if not path.exists():
            return None
        table = PrecomputedFile.open(path)
        table.verify()
        hashes = id_hashes(
            ids
            if isinstance(ids[:1], list) and ids and isinstance(ids[0], str)
            else np.array(ids, np.int64)
        )
        found = {"state": np.array(table.state), "logits": np.array(table.logits)}
        return picked(hashes.tolist(), np.array(table.ids).tolist(), found)


def from_arrow(table, ids, columns):
    found = {}
    for column in columns:
        values = table[column.name].combine_chunks()
        flat = values.flatten() if column.width else values
        found[column.name] = flat.to_numpy(zero_copy_only=False).reshape(column.empty(table.num_rows).shape)
    return picked(ids, table["id"].to_pylist(), found)


class ParquetPlace(SinkPlace):
    columns = (*SinkPlace.columns, TEXT)

    def __init__(self, folder: Path) -> None:
        self.path = folder / "out.parquet"
        self.address = str(self.path)
        (folder / "d.parquet").mkdir()
        self.wrong = ("parquet:", f"{folder}/d.parquet", "/proc/out.parquet", "nosuch://secret@h/x.parquet")

    def read(self, ids, part=""):
        path = self.path.with_name(f"out-{quoted(part)}.parquet") if part else self.path
        return from_arrow(pyarrow.parquet.read_table(path), ids, self.columns) if path.exists() else None


class ParquetFolderPlace(SinkPlace):
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "out"
        self.address = f"parquet:{self.folder}"
        (folder / "mine").mkdir()
        (folder / "mine" / "thesis.txt").write_text("")
        self.wrong = (f"parquet:{folder}/mine", "parquet:/proc/out", "parquet:s3://bucket/folder")

    def read(self, ids, part=""):
        folder = self.folder / quoted(part) if part else self.folder
        if not folder.exists():
            return None
        return from_arrow(pyarrow.dataset.dataset(folder).to_table(), ids, self.columns)


class S3Place(SinkPlace):
    def __init__(self, endpoint: str, bucket: str) -> None:
        self.client = boto3.client("s3", endpoint_url=endpoint)
        self.bucket = bucket
        self.client.create_bucket(
            Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
        )
        self.address = f"s3://{bucket}/results/out.parquet"
        self.wrong = (f"s3://{bucket}/results",)

    def read(self, ids, part=""):
        key = f"results/out-{quoted(part)}.parquet" if part else "results/out.parquet"
        listed = self.client.list_objects_v2(Bucket=self.bucket).get("Contents", [])
        if key not in [entry["Key"] for entry in listed]:
            return None
        body = self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return from_arrow(pyarrow.parquet.read_table(pyarrow.BufferReader(body)), ids, self.columns)

    def close(self) -> None:
        self.client.close()


class StorePlace(SinkPlace):
    """A feature store, read as a server reads it."""

    def __init__(self, url: str, wrong: tuple[str, ...]) -> None:
        self.url = url
        self.address = f"{url}&keep_s=0"
        self.wrong = wrong

    def read(self, ids, part=""):
        return asyncio.run(self._read(ids, part))

    async def _read(self, ids, part):
        store = open_store(f"published+{self.url}")
        await store.open()
        try:
            found = {}
            for column in self.columns:
                name = f"{quoted(part)}.{column.name}" if part else column.name
                group = await store.describe(name)
                rows = await store.fetch(group, ids)
                if not rows.found.all():
                    raise KeyError(ids[int(np.argmin(rows.found))])
                found[column.name] = rows.values.reshape(column.empty(len(ids)).shape)
            return found
        except FeatureGroupNotFound:
            return None
        finally:
            await store.close()
