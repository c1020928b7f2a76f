"""Names of versions: what they look like, which is later, and that equal names mean equal histories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopline.errors import BadRequest, LogFull
from hopline.graph import Graph
from hopline.graph.live.changes import Changes
from hopline.graph.live.version import (
    MESSAGES,
    NO_OFFSET,
    OFFSET,
    PLAIN,
    StreamOffset,
    digest_of,
    offset_at,
    read_offset,
    read_version,
    version_name,
)
from tests.graph.live.keepers import Kept, base_graph, numbered

LINEAGE = "9c1f0b7e52d4a386"


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return base_graph().save(tmp_path_factory.mktemp("base") / "graph")


def of_stream(begin: int, end: int, *, step: int = 1, at: int | None = None) -> Changes:
    """Events begin … end - 1 in messages of `step`; message k has position k + 1."""
    numbers = range(begin, end, step)
    messages = [
        [number // step + 1 if at is None else at, digest_of(b"%d" % number), min(step, end - number)]
        for number in numbers
    ]
    changes = numbered(begin, end)
    return Changes(changes.edges, {}, changes.num_events, changes.event_ids, positions={MESSAGES: messages})


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        (LINEAGE, NO_OFFSET),
        (f"{LINEAGE}+7", StreamOffset(PLAIN, 7)),
        (f"{LINEAGE}+7.00000000000a", StreamOffset(PLAIN, 7, 10)),
        (f"{LINEAGE}+1700000000000-3.ffffffffffff", StreamOffset(1700000000000, 3, 2**48 - 1)),
    ],
)
def test_a_name_is_read_as_it_was_written(text: str, offset: StreamOffset) -> None:
    assert read_version(text, "min_version") == (LINEAGE, offset)
    assert version_name(LINEAGE, 0, offset) == text


@pytest.mark.parametrize(
    "text", ["", "7", "+7", f"{LINEAGE}+", f"{LINEAGE}+x", f"{LINEAGE}+7.1", f"{LINEAGE}+7 ", "g" * 16]
)
def test_other_text_is_no_name(text: str) -> None:
    with pytest.raises(BadRequest, match="expected a graph_version"):
        read_version(text, "min_version")


def test_offsets_of_one_stream_have_an_order() -> None:
    assert offset_at(9).reaches(offset_at(9))
    assert offset_at(10).reaches(offset_at(9))
    assert offset_at(8).reaches(offset_at(9)) is False
    assert offset_at("5-2@77").reaches(offset_at("5-1"))
    assert offset_at("5-2").reaches(offset_at(1)) is None
    assert NO_OFFSET.reaches(offset_at(1)) is None
    assert read_offset("9.00000000000a").reaches(read_offset("9.00000000000b")) is None


@pytest.mark.parametrize("splits", [[40], [10, 20], [1, 2, 3, 39], list(range(1, 40))])
def test_the_name_does_not_depend_on_how_messages_were_batched(
    tmp_path: Path, graph: Graph, splits: list[int]
) -> None:
    one = Kept(tmp_path / "one", graph, follows=True)
    one.apply(of_stream(0, 40))
    many = Kept(tmp_path / "many", graph, follows=True)
    for begin, end in zip([0, *splits], [*splits, 40], strict=True):
        if begin < end:
            many.apply(of_stream(begin, end))
    with one.view, many.view:
        assert one.view.version == many.view.version
        assert one.view.version.startswith(f"{graph.version}+40.")
    assert one.view.snapshot().version == many.view.snapshot().version
    one.close()
    many.close()


def test_other_messages_or_outcomes_have_another_name(tmp_path: Path, graph: Graph) -> None:
    names = set()
    for number, first in enumerate([of_stream(0, 2), of_stream(1, 3), of_stream(0, 2, step=2)]):
        kept = Kept(tmp_path / str(number), graph, follows=True)
        kept.apply(first)
        with kept.view:
            names.add(kept.view.version.partition(".")[2])
        kept.close()
    # the same messages, but their first event was judged otherwise
    kept = Kept(tmp_path / "other", graph, follows=True)
    repeated = of_stream(0, 2)
    repeated = Changes(repeated.edges, {}, 2, ["event-0", "event-0"], positions=repeated.positions)
    kept.keeper.apply([repeated])
    with kept.view:
        names.add(kept.view.version.partition(".")[2])
    kept.close()
    assert len(names) == 4


def test_the_name_survives_restarts_and_snapshots(tmp_path: Path, graph: Graph) -> None:
    kept = Kept(tmp_path / "live", graph, follows=True)
    kept.apply(of_stream(0, 5))
    kept.snapshot()
    assert kept.home.snapshots[0].name.startswith(f"{graph.version}+5.")
    kept.apply(of_stream(5, 9))
    with kept.view:
        wanted = kept.view.version
    kept.close()
    again = Kept(tmp_path / "live", graph, follows=True)
    with again.view:
        assert again.view.version == wanted
    assert again.keeper.positions[OFFSET] == wanted.partition("+")[2]
    assert MESSAGES not in again.keeper.positions
    again.close()


def test_messages_that_change_nothing_move_the_offset(tmp_path: Path, graph: Graph) -> None:
    kept = Kept(tmp_path / "live", graph, follows=True)
    kept.apply(of_stream(0, 3))
    empty = Changes(positions={MESSAGES: [[4, digest_of(b"not an event"), 0]]})
    (applied,) = kept.keeper.apply([empty])
    assert (applied.sequence, applied.num_applied) == (2, 0)
    with kept.view:
        wanted = kept.view.version
    assert wanted.startswith(f"{graph.version}+4.")
    kept.close()
    again = Kept(tmp_path / "live", graph, follows=True)
    with again.view:
        assert again.view.version == wanted
    again.close()


def test_only_the_stream_changes_a_graph_that_follows_it(tmp_path: Path, graph: Graph) -> None:
    kept = Kept(tmp_path / "live", graph, follows=True)
    with pytest.raises(BadRequest, match="send the event to the stream"):
        kept.send(0, 1)
    kept.apply(of_stream(0, 3))
    with pytest.raises(BadRequest, match="has message 3 already"):
        kept.apply(of_stream(2, 3))
    assert kept.numbers == [0, 1, 2]
    kept.close()


def test_a_folder_with_changes_of_no_stream_follows_none(tmp_path: Path, graph: Graph) -> None:
    kept = Kept(tmp_path / "live", graph)
    kept.send(0, 3)
    with pytest.raises(BadRequest, match="has changes that no stream names"):
        kept.apply(of_stream(3, 4))
    kept.close()


def test_a_batch_of_a_stream_fits_wholly_or_not_at_all(tmp_path: Path, graph: Graph) -> None:
    kept = Kept(tmp_path / "live", graph, follows=True, positions=400)
    kept.apply(of_stream(0, 3))
    with kept.view:
        before = kept.view.version
    with pytest.raises(LogFull, match="does not fit"):
        kept.keeper.apply([of_stream(3, 4_000)])
    with kept.view:
        assert kept.view.version == before
    assert np.array_equal(kept.numbers, [0, 1, 2])
    kept.close()
