"""Conformance tests of sinks of batch runs. Subclass, and define the fixture `place`, a `SinkPlace`.

class TestMine(SinkSuite):
    @pytest.fixture
    def place(self, tmp_path):
        return MyPlace(...)
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
from abc import ABC, abstractmethod
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from hopline.errors import SinkError
from hopline.jobs.batch.registry import open_sink
from hopline.jobs.batch.sink import ID_COLUMN, Column, Sink, TableSchema
from hopline.types import AnyArray

#: One column of each kind; rows of nodes have no text besides their ids.
VECTOR, SCALAR, INTEGER, TEXT = (
    Column("embedding", "float32", 5),
    Column("probabilities", "float32", 0),
    Column("label", "int64", 0),
    Column("from", "string", 0),
)

Ids = list[int] | list[str]
Columns = dict[str, AnyArray | list[str]]


class SinkPlace(ABC):
    """A destination of a sink.

    Attributes:
        address: value of `--to`; the destination is empty when a test begins.
        wrong: invalid addresses, refused when parsed or at `open`.
        columns: supported columns.
        resumes: rows after which an interrupted run can resume, or 0 if it cannot.
    """

    address: str
    wrong: tuple[str, ...] = ()
    columns: tuple[Column, ...] = (VECTOR, SCALAR, INTEGER)
    resumes = 0

    @abstractmethod
    def read(self, ids: Ids, part: str = "") -> dict[str, AnyArray] | None:
        """Read as a consumer would: the rows of ids, in their order; None if there is no table.

        Raises:
            KeyError: the table lacks some of them.
        """

    def open(self) -> Sink:
        """Create a sink for the address."""
        return open_sink(self.address)


def schema_of(place: SinkPlace, num_rows: int, kind: str = "string", **changes: Any) -> TableSchema:
    """The schema of a table for a place."""
    about: dict[str, Any] = {
        "run_id": "0123456789abcdef",
        "model": "m",
        "version": "1",
        "model_hash": "a" * 64,
        "graph_version": "g",
        "node_type": "node",
        "part": "",
        "num_rows": num_rows,
        "id_kind": kind,
        "columns": place.columns,
    }
    return TableSchema(**(about | changes))


def ids_of(schema: TableSchema) -> Ids:
    """Ids of a table's rows: strings of several alphabets, or integers that are not row numbers."""
    if schema.id_kind == "string":
        return [f"{'käse' if row % 3 else 'n'}:{row}" for row in range(schema.num_rows)]
    return [5 * row - 7 for row in range(schema.num_rows)]


def values_of(schema: TableSchema, seed: int = 0) -> dict[str, AnyArray]:
    """The columns of a whole table."""
    rng = np.random.default_rng(seed)
    found: dict[str, AnyArray] = {}
    for column in schema.columns:
        shape = column.empty(schema.num_rows).shape
        if column.dtype == "int64":
            found[column.name] = rng.integers(0, 9, shape)
        elif column.dtype == "string":
            found[column.name] = np.array([f"ü{number}" for number in rng.integers(0, 9, shape)], object)
        else:
            found[column.name] = rng.standard_normal(shape).astype(np.float32)
    return found


def feed(sink: Sink, schema: TableSchema, begin: int, end: int, *, seed: int = 0, step: int = 40) -> None:
    """Write rows [begin, end); the arrays are overwritten right after each call."""
    ids, values = ids_of(schema), values_of(schema, seed)
    for at in range(begin, end, step):
        last = min(at + step, end)
        some: Columns = {
            name: array[at:last].tolist() if array.dtype == object else array[at:last].copy()
            for name, array in values.items()
        }
        part = ids[at:last]
        some[ID_COLUMN] = part if schema.id_kind == "string" else np.array(part, np.int64)  # type: ignore[assignment]
        sink.write(at, some)
        for array in some.values():
            if isinstance(array, np.ndarray):
                array[:] = 0


def write(place: SinkPlace, schema: TableSchema, *, seed: int = 0) -> None:
    """Write a whole table."""
    sink = place.open()
    assert sink.open(schema) in (0, schema.num_rows)
    feed(sink, schema, 0, schema.num_rows, seed=seed)
    sink.commit()


def check(place: SinkPlace, schema: TableSchema, *, seed: int = 0) -> None:
    """Fail unless a reader gets the whole table."""
    found = place.read(ids_of(schema), schema.part)
    assert found is not None, "no table is visible"
    for name, values in values_of(schema, seed).items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
        assert found[name].shape == values.shape


def _write_until_killed(address: str, schema: TableSchema, num_rows: int, progress: Connection) -> None:
    sink = open_sink(address)
    sink.open(schema)
    feed(sink, schema, 0, num_rows)
    progress.send("written")
    signal.pause()


NUM_ROWS = 300


class SinkSuite:
    """Conformance tests of a sink; see the module."""

    @pytest.mark.parametrize("kind", ["string", "int"])
    def test_a_table_is_there_after_commit_and_not_before(self, place: SinkPlace, kind: str) -> None:
        """Ids of both kinds, vectors, scalars and integers, bit for bit."""
        schema = schema_of(place, NUM_ROWS, kind)
        sink = place.open()
        assert sink.open(schema) == 0
        assert place.read(ids_of(schema)) is None
        feed(sink, schema, 0, NUM_ROWS)
        assert place.read(ids_of(schema)) is None
        sink.commit()
        check(place, schema)

    def test_nothing_is_read_from_a_place_before_it_is_opened(self, place: SinkPlace) -> None:
        """Creating a sink changes nothing."""
        place.open()
        assert place.read([1]) is None

    @pytest.mark.parametrize("num_rows", [0, 1, 257])
    def test_tables_of_any_length(self, place: SinkPlace, num_rows: int) -> None:
        """None, one, and more than one portion."""
        schema = schema_of(place, num_rows)
        write(place, schema)
        check(place, schema)

    def test_rows_come_in_portions_of_any_size(self, place: SinkPlace) -> None:
        """The division into portions has no effect."""
        schema = schema_of(place, NUM_ROWS)
        sink = place.open()
        sink.open(schema)
        feed(sink, schema, 0, 1, step=1)
        feed(sink, schema, 1, 280, step=279)
        feed(sink, schema, 280, NUM_ROWS, step=3)
        sink.commit()
        check(place, schema)

    def test_an_attempt_that_is_ended_leaves_nothing_to_be_seen(self, place: SinkPlace) -> None:
        """Also one that was stopped immediately."""
        schema = schema_of(place, NUM_ROWS)
        sink = place.open()
        sink.open(schema)
        feed(sink, schema, 0, 120)
        sink.abort()
        assert place.read(ids_of(schema)) is None
        sink = place.open()
        sink.open(schema)
        sink.abort()
        assert place.read(ids_of(schema)) is None

    def test_the_same_run_goes_on_with_what_is_there_for_good(self, place: SinkPlace) -> None:
        """`open` returns the rows that need not be written again."""
        schema = schema_of(place, NUM_ROWS)
        sink = place.open()
        sink.open(schema)
        feed(sink, schema, 0, 200)
        sink.abort()
        sink = place.open()
        begin = sink.open(schema)
        assert begin <= 200
        assert begin >= place.resumes
        feed(sink, schema, begin, NUM_ROWS)
        sink.commit()
        check(place, schema)

    def test_another_run_begins_anew(self, place: SinkPlace) -> None:
        """Rows of one run never enter the table of another."""
        schema = schema_of(place, NUM_ROWS)
        sink = place.open()
        sink.open(schema)
        feed(sink, schema, 0, 200)
        sink.abort()
        other = dataclasses.replace(schema, run_id="fedcba9876543210")
        sink = place.open()
        assert sink.open(other) == 0
        feed(sink, other, 0, NUM_ROWS, seed=1)
        sink.commit()
        check(place, other, seed=1)

    def test_an_older_table_is_there_until_it_is_replaced_whole(self, place: SinkPlace) -> None:
        """Nothing of the old table remains then."""
        old = schema_of(place, NUM_ROWS)
        write(place, old)
        new = dataclasses.replace(old, run_id="fedcba9876543210", num_rows=200, graph_version="g2")
        sink = place.open()
        sink.open(new)
        feed(sink, new, 0, 200, seed=1)
        check(place, old)
        sink.abort()
        check(place, old)
        sink = place.open()
        feed(sink, new, sink.open(new), 200, seed=1)
        sink.commit()
        check(place, new, seed=1)
        with pytest.raises(KeyError):
            place.read(ids_of(old)[200:])

    def test_a_run_that_was_published_may_come_again(self, place: SinkPlace) -> None:
        """After a kill between `commit` and the end of the run."""
        schema = schema_of(place, NUM_ROWS)
        write(place, schema)
        sink = place.open()
        begin = sink.open(schema)
        check(place, schema)
        feed(sink, schema, begin, NUM_ROWS)
        sink.commit()
        check(place, schema)

    def test_tables_of_several_node_types_are_beside_each_other(self, place: SinkPlace) -> None:
        """Also of a type whose name has special characters."""
        parts = [
            schema_of(place, 100, part=part, node_type=part, run_id=f"{number:016x}")
            for number, part in enumerate(("user", "a/b"))
        ]
        for seed, schema in enumerate(parts):
            write(place, schema, seed=seed)
        for seed, schema in enumerate(parts):
            check(place, schema, seed=seed)

    def test_a_killed_writer_leaves_nothing_to_be_seen_and_the_next_goes_on(self, place: SinkPlace) -> None:
        """kill -9 during the replacement of an older table."""
        old = schema_of(place, 50, run_id="fedcba9876543210")
        write(place, old, seed=1)
        schema = schema_of(place, NUM_ROWS)
        here, there = multiprocessing.Pipe()
        spawn = multiprocessing.get_context("spawn")
        child = spawn.Process(target=_write_until_killed, args=(place.address, schema, 200, there))
        child.start()
        assert here.poll(60)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        child.close()
        here.close()
        there.close()
        check(place, old, seed=1)
        sink = place.open()
        feed(sink, schema, sink.open(schema), NUM_ROWS)
        sink.commit()
        check(place, schema)

    def test_wrong_places_are_refused_in_words(self, place: SinkPlace) -> None:
        """Before anything is computed; messages contain no password."""
        for address in place.wrong:
            with pytest.raises(SinkError) as raised:
                open_sink(address).open(schema_of(place, 10))
            assert len(str(raised.value)) > 20
            assert "secret" not in str(raised.value)
