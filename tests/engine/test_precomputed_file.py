"""Precomputed files: what is written is what is read, whole or not at all."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hopline.artifact import Head, ModelSpec
from hopline.engine.final_rows import Cold, FinalRows
from hopline.engine.precomputed import no_counts
from hopline.engine.precomputed_file import PrecomputedFile, PrecomputedWriter
from hopline.engine.precomputed_file.header import MAGIC, PAGE, packed
from hopline.engine.precomputed_file.identity import hashes_of_nodes, id_hashes
from hopline.errors import PrecomputedFileError
from hopline.graph import Graph
from tests.engine import zoo
from tests.engine.precomputed_rows import C, D, N, content, plan
from tests.thorough import thorough


def write(path, *, seed=0, computed_at=7, **changes):
    state, logits, ids = content(seed)
    with PrecomputedWriter(path, plan(**changes)) as writer:
        writer.write(0, state, logits, ids=ids, computed_at=computed_at)
        writer.commit()
    return path


def check(path, seed=0):
    file = PrecomputedFile.open(path)
    file.verify()
    for found, wanted in zip((file.state, file.logits, file.ids), content(seed), strict=True):
        np.testing.assert_array_equal(found, wanted)
    return file


def test_a_file_reads_back(tmp_path):
    file = check(write(tmp_path / "a.precomputed"))
    assert file.header.plan == plan()
    assert (file.computed_at == 7).all()
    assert not file.state.flags.writeable
    assert [section.offset % PAGE for section in file.header.sections] == [0] * 4
    assert os.listdir(tmp_path) == ["a.precomputed"]


def test_a_file_without_logits_has_no_such_section(tmp_path):
    state, _, _ = content()
    with PrecomputedWriter(tmp_path / "a.precomputed", plan(output_dim=0)) as writer:
        writer.write(0, state)
        writer.commit()
    file = PrecomputedFile.open(tmp_path / "a.precomputed")
    assert file.logits is None
    np.testing.assert_array_equal(file.state, state)


def test_an_empty_file_is_valid(tmp_path):
    with PrecomputedWriter(tmp_path / "a.precomputed", plan(num_nodes=0)) as writer:
        writer.commit()
    file = PrecomputedFile.open(tmp_path / "a.precomputed")
    file.verify()
    assert file.state.shape == (0, D)


@given(
    cuts=st.lists(st.integers(0, N), max_size=8),
    order=st.randoms(use_true_random=False),
    twice=st.booleans(),
)
@settings(
    max_examples=thorough(10, 40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_rows_may_be_written_in_any_order_and_again(tmp_path, cuts, order, twice):
    edges = sorted({0, N, *cuts})
    ranges = list(pairwise(edges))
    order.shuffle(ranges)
    state, logits, ids = content()
    with PrecomputedWriter(tmp_path / "a.precomputed", plan()) as writer:
        if twice:
            writer.write(5, state[:50] + 1, logits[:50] + 1, ids=ids[:50])
        for a, b in ranges:
            writer.write(a, state[a:b], logits[a:b], ids=ids[a:b], computed_at=a + 1)
        writer.commit()
    file = check(tmp_path / "a.precomputed")
    wanted = np.concatenate([np.full(b - a, a + 1) for a, b in pairwise(edges)])
    np.testing.assert_array_equal(file.computed_at, wanted)


def test_rows_that_were_not_written_have_no_computed_at(tmp_path):
    state, logits, _ = content()
    with PrecomputedWriter(tmp_path / "a.precomputed", plan(), clock_ms=lambda: 99) as writer:
        writer.write(10, state[10:20], logits[10:20])
        writer.commit()
    computed_at = PrecomputedFile.open(tmp_path / "a.precomputed").computed_at
    assert np.flatnonzero(computed_at).tolist() == list(range(10, 20))
    assert set(computed_at[10:20]) == {99}


@pytest.mark.parametrize(
    ("begin", "state", "logits", "message"),
    [
        (N - 1, (2, D), (2, C), "not within 300"),
        (-1, (2, D), (2, C), "not within 300"),
        (0, (2, D + 1), (2, C), "state has shape"),
        (0, (2, D), (3, C), "logits has shape"),
        (0, (2, D), None, "output_dim"),
    ],
)
def test_rows_of_another_shape_are_refused(tmp_path, begin, state, logits, message):
    with (
        PrecomputedWriter(tmp_path / "a.precomputed", plan()) as writer,
        pytest.raises(ValueError, match=message),
    ):
        writer.write(
            begin, np.zeros(state, np.float32), None if logits is None else np.zeros(logits, np.float32)
        )


# Whole or not at all


def test_nothing_is_visible_before_commit_and_what_was_there_stays(tmp_path):
    path = write(tmp_path / "a.precomputed", seed=1)
    with PrecomputedWriter(path, plan()) as writer:
        writer.write(0, *content(2)[:2])
        check(path, 1)
    check(path, 1)
    assert os.listdir(tmp_path) == ["a.precomputed"]


def test_a_reader_keeps_what_it_mapped(tmp_path):
    path = write(tmp_path / "a.precomputed", seed=1)
    file = PrecomputedFile.open(path)
    assert not file.is_replaced()
    write(path, seed=2)
    assert file.is_replaced()
    np.testing.assert_array_equal(file.state, content(1)[0])
    check(path, 2)
    path.unlink()
    assert not file.is_replaced()


def test_two_runs_do_not_write_one_file(tmp_path):
    path = tmp_path / "a.precomputed"
    with PrecomputedWriter(path, plan()) as writer:
        with pytest.raises(PrecomputedFileError, match="another run"):
            PrecomputedWriter(path, plan())
        writer.write(0, *content()[:2])
        writer.commit()
    write(path)


def test_a_finished_file_is_not_taken_for_a_draft(tmp_path, monkeypatch):
    path = tmp_path / "a.precomputed"
    first = PrecomputedWriter(path, plan())
    first.write(0, *content()[:2])
    lock = fcntl.flock

    def ended_between(handle, how):
        monkeypatch.setattr(fcntl, "flock", lock)
        first.commit()
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", ended_between)
    with pytest.raises(PrecomputedFileError, match="just now"):
        PrecomputedWriter(path, plan())
    PrecomputedFile.open(path).verify()


def test_a_full_disk_is_reported_before_anything_is_computed(tmp_path, monkeypatch):
    def no_room(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(PrecomputedFileError, match="No space left"):
        PrecomputedWriter(tmp_path / "a.precomputed", plan())


KILLED = """
import os, signal, sys, numpy as np
from pathlib import Path
from tests.engine.precomputed_rows import content, plan
from hopline.engine.precomputed_file import PrecomputedWriter
state, logits, ids = content()
writer = PrecomputedWriter(Path(sys.argv[1]), plan(), "run 1")
for begin in range(writer.num_done, 300, 50):
    if begin == 200 and sys.argv[2] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    rows = slice(begin, begin + 50)
    writer.write(begin, state[rows], logits[rows], ids=ids[rows], computed_at=7)
    if begin == 100:
        writer.checkpoint(150)
writer.commit()
"""


def test_a_killed_run_continues_and_its_file_is_the_same(tmp_path):
    path, whole = tmp_path / "a.precomputed", tmp_path / "b.precomputed"
    words = [sys.executable, "-c", KILLED]
    died = subprocess.run([*words, path, "die"], check=False)
    assert died.returncode == -signal.SIGKILL
    assert not path.exists()
    resumed = PrecomputedWriter(path, plan(), "run 1")
    assert resumed.num_done == 150
    resumed.abort(keep=True)
    subprocess.run([*words, path, "live"], check=True)
    subprocess.run([*words, whole, "live"], check=True)
    assert path.read_bytes()[PAGE:] == whole.read_bytes()[PAGE:]
    check(path)


@pytest.mark.parametrize("other", [{"run": "run 2"}, {"graph_version": "g1"}, {"num_nodes": N + 1}])
def test_a_draft_of_another_run_is_begun_anew(tmp_path, other):
    path = tmp_path / "a.precomputed"
    first = PrecomputedWriter(path, plan(), "run 1")
    first.write(0, *content()[:2])
    first.checkpoint(N)
    first.abort(keep=True)
    run = other.pop("run", "run 1")
    second = PrecomputedWriter(path, plan(**other), run)
    assert second.num_done == 0
    second.abort()
    assert os.listdir(tmp_path) == []


def test_a_run_may_begin_with_an_older_file(tmp_path):
    base = PrecomputedFile.open(write(tmp_path / "old.precomputed", computed_at=5))
    with PrecomputedWriter(
        tmp_path / "new.precomputed", plan(num_nodes=N + 10, graph_version="g1")
    ) as writer:
        writer.copy(base)
        state, logits, ids = content(9, 20)
        writer.write(N - 10, state, logits, ids=ids, computed_at=6)
        writer.commit()
    file = PrecomputedFile.open(tmp_path / "new.precomputed")
    np.testing.assert_array_equal(file.state[: N - 10], content()[0][: N - 10])
    np.testing.assert_array_equal(file.state[N - 10 :], state)
    assert file.computed_at.tolist() == [5] * (N - 10) + [6] * 20
    with (
        PrecomputedWriter(tmp_path / "other.precomputed", plan(state_dim=4)) as writer,
        pytest.raises(PrecomputedFileError, match="8 and 3 columns"),
    ):
        writer.copy(base)


# What is not a file of precomputed answers


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "a.precomputed"
    with pytest.raises(PrecomputedFileError, match="No such file"):
        PrecomputedFile.open(path)
    for text in (b"", b"PK", b"parquet" * 1000):
        path.write_bytes(text)
        with pytest.raises(PrecomputedFileError, match="is not a precomputed file"):
            PrecomputedFile.open(path)
    with pytest.raises(PrecomputedFileError, match="cannot be"):
        PrecomputedFile.open(tmp_path)


def test_a_newer_format_is_refused(tmp_path, monkeypatch):
    from hopline.engine.precomputed_file import header

    with monkeypatch.context() as patch:
        patch.setattr(header, "FORMAT_VERSION", 2)
        path = write(tmp_path / "a.precomputed")
    with pytest.raises(PrecomputedFileError, match="format 2 is newer than 1"):
        PrecomputedFile.open(path)


@given(size=st.integers(0, 10**6))
@settings(
    max_examples=thorough(10, 40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_truncated_file_is_refused(tmp_path, size):
    path = write(tmp_path / "a.precomputed")
    whole = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size % whole)
    with pytest.raises(PrecomputedFileError):
        PrecomputedFile.open(path)


@given(at=st.integers(0, 400), bit=st.integers(0, 7))
@example(at=8, bit=0)  # format 0
@settings(
    max_examples=thorough(20, 80),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_header_with_a_wrong_bit_is_refused(tmp_path, at, bit):
    path = write(tmp_path / "a.precomputed")
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << bit
    path.write_bytes(raw)
    with pytest.raises(PrecomputedFileError):
        PrecomputedFile.open(path)


@given(place=st.floats(0, 1, exclude_max=True))
@settings(
    max_examples=thorough(7, 30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_wrong_bit_in_a_section_is_found_by_verify(tmp_path, place):
    path = write(tmp_path / "a.precomputed")
    raw = bytearray(path.read_bytes())
    sections = PrecomputedFile.open(path).header.sections
    section = sections[int(place * len(sections))]
    raw[section.offset + int(place * section.num_bytes)] ^= 1
    path.write_bytes(raw)
    with pytest.raises(PrecomputedFileError, match=f"{section.name} differ"):
        PrecomputedFile.open(path).verify()


def test_sections_that_do_not_fit_the_plan_are_refused(tmp_path):
    path = write(tmp_path / "a.precomputed")
    header = PrecomputedFile.open(path).header
    for changed in (
        {"plan": plan(num_nodes=10**9)},
        {"sections": header.sections[:3]},
        {"sections": header.sections[:1] * 4},
        {"file_bytes": 10**9},
    ):
        raw = path.read_bytes()
        head = packed(MAGIC, msgspec.structs.replace(header, **changed))
        (tmp_path / "b.precomputed").write_bytes(head + raw[len(head) :])
        with pytest.raises(PrecomputedFileError):
            PrecomputedFile.open(tmp_path / "b.precomputed")


# Ids


def test_hashes_distinguish_ids_and_are_those_of_the_format():
    assert id_hashes(np.arange(3)).tolist() == [0, 6238072747940578789, 15839785061582574730]
    assert id_hashes(["a", "b", "n1"]).tolist() == [
        198367012849983736,
        4482684837372322821,
        17934566338607214163,
    ]
    assert len(set(id_hashes([f"n{i}" for i in range(10_000)]).tolist())) == 10_000
    assert id_hashes([]).shape == (0,)


def test_rows_of_a_graph_have_the_hashes_of_their_ids():
    graph = zoo.homogeneous(1)
    ids = graph.nodes["node"].ids
    np.testing.assert_array_equal(hashes_of_nodes(ids, zoo.N), id_hashes([f"n{i}" for i in range(zoo.N)]))
    plain = Graph.from_edges((np.zeros(1, np.int64), np.zeros(1, np.int64)), num_nodes=9)
    np.testing.assert_array_equal(
        hashes_of_nodes(plain.nodes["node"].ids, 9, 2), id_hashes(np.arange(2, 9))
    )


# Which rows are good


def spec(cases):
    from hopline.artifact import read_spec

    return read_spec(cases["sage"].folder)


@given(data=st.data())
@settings(
    max_examples=thorough(15, 60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_rows_are_good_where_they_are_there_young_and_unchanged(cases, tmp_path_factory, data):
    some = st.lists(st.booleans(), min_size=N, max_size=N).map(np.array)
    there, young, unchanged = data.draw(some), data.draw(some), data.draw(some)
    path = tmp_path_factory.mktemp("good") / "a.precomputed"
    state, logits, _ = content()
    with PrecomputedWriter(path, plan()) as writer:
        writer.write(0, state, logits, computed_at=np.where(there, np.where(young, 5_000, 1_000), 0))
        writer.commit()
    rows = FinalRows(
        PrecomputedFile.open(path),
        spec(cases),
        ttl_s=3,
        unchanged=lambda ids: unchanged[ids],
        clock_ms=lambda: 6_000.0,
    )
    ids = np.array(data.draw(st.lists(st.integers(0, N + 20), min_size=1, max_size=40)))
    inside = ids < N
    own = np.where(inside, ids, 0)
    wanted = inside & there[own] & young[own] & unchanged[own]
    counts = no_counts()
    np.testing.assert_array_equal(rows.good(ids, counts), wanted)
    assert [rows.holds(int(row)) for row in ids] == wanted.tolist()
    assert counts == {
        "looked_up": wanted.sum(),
        "new": (~inside).sum(),
        "absent": (inside & ~there[own]).sum(),
        "expired": (inside & there[own] & ~young[own]).sum(),
        "changed": (inside & there[own] & young[own] & ~unchanged[own]).sum(),
    }


# Memory and disk


def test_a_row_that_is_near_can_be_read_without_waiting(tmp_path):
    path = tmp_path / "a.precomputed"
    big = plan(num_nodes=20_000, state_dim=64, output_dim=0)
    with PrecomputedWriter(path, big) as writer:
        writer.write(0, np.ones((20_000, 64), np.float32))
        writer.commit()
    handle = os.open(path, os.O_RDONLY)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    file = PrecomputedFile.open(path)
    rows = FinalRows(file, _SPEC)
    strip = file.sections["state"].offset
    names = ("embedding",)
    would_wait = [
        row
        for row in range(0, 20_000, 97)
        if rows.cold(names, np.array([row])) is None and _would_wait(handle, strip + row * 256)
    ]
    assert would_wait == []
    ids = np.arange(0, 20_000, 13)
    cold = rows.cold(names, ids)
    if cold is not None:
        cold.read_ahead()
    assert rows.cold(names, ids) is None
    assert rows.cold(names, np.array([-1, 20_000])) is None
    os.close(handle)


def test_rows_in_a_file_system_without_residency_are_cold_unless_the_file_was_read_when_opened():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = write(Path(folder) / "a.precomputed")
        with path.open("rb") as file:
            if not isinstance(_refusal(file.fileno()), OSError):
                pytest.skip("this kernel's tmpfs can tell")
        rows = FinalRows(PrecomputedFile.open(path), _SPEC)
        cold = rows.cold(("embedding",), np.arange(5))
        assert cold is not None
        cold.read_ahead()
        rows.populate()
        assert rows.cold(("embedding",), np.arange(5)) is None


def test_a_row_that_cannot_be_read_is_an_error_and_not_a_fault_of_the_map(tmp_path):
    rows = FinalRows(PrecomputedFile.open(write(tmp_path / "a.precomputed")), _SPEC)
    cold = Cold(rows._of_all, np.array([N + 10_000]))
    with pytest.raises(OSError, match="ends before entry"):
        cold.read_ahead()


def _refusal(handle):
    try:
        os.preadv(handle, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        return error


def _would_wait(handle, offset):
    """As the kernel says when it is asked to read without waiting; False where it cannot say."""
    try:
        os.preadv(handle, [bytearray(256)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


_SPEC = ModelSpec(
    name="states", version="1", task="embedding", num_layers=0, graph_schema={}, fanouts={},
    head=Head("node", D),
)  # fmt: skip
