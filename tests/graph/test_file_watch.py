"""A server's graph is compared with its digests, once on a host, and again when a file changes."""

import os
import random
import shutil
import time

import pytest

from hopline.errors import GraphError
from hopline.graph import Graph, digest, file_watch, integrity
from tests.engine import zoo


def flip(path, bit=None):
    """Flip one bit of a file where it is."""
    content = bytearray(path.read_bytes())
    bit = random.randrange(len(content) * 8) if bit is None else bit % (len(content) * 8)
    content[bit // 8] ^= 1 << bit % 8
    with path.open("r+b") as file:
        file.write(content)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return zoo.homogeneous(1).save(tmp_path_factory.mktemp("graph") / "graph").path


@pytest.fixture
def folder(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(file_watch, "_LOOK_S", 0.01)
    return shutil.copytree(saved, tmp_path / "graph")


@pytest.fixture
def watch(folder):
    """Opens a graph as a server does, and stops what it started."""
    opened = []

    def open_(shared=None):
        opened.append(file_watch.FileWatch(folder, shared))
        opened[-1].start(Graph.open(folder).version)
        return opened[-1]

    yield open_
    for each in opened:
        each.stop()


@pytest.fixture
def reads(monkeypatch):
    """Files that were read to be compared."""
    names = []
    real = digest.of_file
    monkeypatch.setattr(digest, "of_file", lambda path, *a: names.append(path.name) or real(path, *a))
    return names


@pytest.fixture
def large(monkeypatch):
    """Graphs of these tests are large ones."""
    monkeypatch.setattr(file_watch, "AT_START_BYTES", 0)
    monkeypatch.setattr(integrity, "_NOTED_BYTES", 1)


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_flipped_bit_in_any_file_is_refused_when_the_graph_is_opened(folder, watch):
    watch()
    for path in sorted(folder.rglob("*.npy")):
        content = path.read_bytes()
        for _ in range(4):
            flip(path)
            with pytest.raises(GraphError, match=path.name.removesuffix(".npy")):
                watch()
            path.write_bytes(content)
    watch()


def test_a_flipped_bit_of_graph_json_changes_nothing_or_is_refused(folder, watch):
    path, graph = folder / "graph.json", Graph.open(folder)
    content = path.read_bytes()
    for bit in random.Random(1).sample(range(len(content) * 8), 300):
        flip(path, bit)
        try:
            found = Graph.open(folder)
        except GraphError:
            pass
        else:
            assert found.version == graph.version
            assert (found.schema, found.num_nodes, found.num_edges) == (
                graph.schema,
                graph.num_nodes,
                graph.num_edges,
            )
        path.write_bytes(content)


def test_a_large_graph_is_open_at_once_and_damage_is_found_meanwhile(folder, watch, large, caplog):
    name = next(folder.rglob("features.npy"))
    flip(name, 8 * (name.stat().st_size - 3))
    found = watch()
    until(lambda: found.damage)
    assert str(name) in found.damage
    assert "its hash is" in caplog.text
    with pytest.raises(GraphError, match="features"):
        found.check()
    with pytest.raises(GraphError, match="features"):
        watch()  # another process need not read it again to know
    os.utime(name)
    watch()  # the file may be right by now


def test_a_large_graph_is_read_once_on_a_host(folder, watch, large, reads):
    first = watch()
    until(lambda: first._right)
    count = len(reads)
    assert count == len(list(folder.rglob("*.npy")))
    second = watch()
    until(lambda: second._right)
    assert len(reads) == count


def test_only_a_file_that_was_written_to_is_read_again(folder, watch, large, reads):
    found = watch()
    until(lambda: found._right)
    del reads[:]
    name = next(folder.rglob("indices.npy"))
    os.utime(name)
    until(lambda: reads)
    assert reads == ["indices.npy"]
    flip(name, 8 * (name.stat().st_size - 3))
    until(lambda: found.damage)
    assert str(name) in found.damage


def test_a_graph_that_was_built_again_under_its_name_does_no_harm(folder, watch, large, reads):
    found = watch()
    until(lambda: found._right)
    zoo.homogeneous(2).save(folder, overwrite=True)
    later = watch()
    until(lambda: later._right)
    assert not found.damage
    assert not later.damage


def test_a_graph_that_was_built_again_while_it_was_opened_is_refused(folder):
    files = file_watch.FileWatch(folder)
    with pytest.raises(GraphError, match="written again while it was opened"):
        files.start(zoo.homogeneous(2).save(folder, overwrite=True).version)


def test_a_graph_that_was_written_to_while_it_was_opened_is_opened_again(folder):
    files = file_watch.FileWatch(folder)
    os.utime(next(folder.rglob("indices.npy")))
    with pytest.raises(GraphError, match="written again while it was opened") as refused:
        files.start(Graph.open(folder).version)
    assert refused.value.may_pass


def test_the_rate_of_a_large_graph_is_limited(folder, large, monkeypatch, watch):
    monkeypatch.setattr(file_watch, "BYTES_PER_S", 1)
    found = watch()
    time.sleep(0.1)
    assert not found._right  # the second file is due after hours
    found.stop()


def test_without_a_cache_folder_the_workers_of_a_server_share_their_notes(
    folder, large, reads, tmp_path, watch
):
    (tmp_path / "cache").write_text("a file")
    for _ in range(2):
        found = watch(tmp_path / "shared")
        until(lambda found=found: found._right)
    assert len(reads) == len(set(folder.rglob("*.npy")))


def test_what_reads_all_of_a_large_graph_waits_until_it_was_compared(folder, large, reads):
    for _ in range(2):
        assert file_watch.open_compared(folder).version == Graph.open(folder).version
    assert len(reads) == len(set(folder.rglob("*.npy")))
    flip(next(folder.rglob("weight.npy")), -9)
    with pytest.raises(GraphError, match="weight"):
        file_watch.open_compared(folder)
