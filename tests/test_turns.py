"""Quiet tests run while the other processes wait."""

from __future__ import annotations

import contextlib
import fcntl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.turns import Turns

MakeTurns = Callable[[], Turns]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[MakeTurns]:
    """Makes the turns of one more process: open files exclude each other within one process too."""
    door, room = tmp_path / "door", tmp_path / "room"
    door.touch()
    room.touch()
    with contextlib.ExitStack() as stack:

        def make() -> Turns:
            turns = Turns(door, room)
            stack.callback(turns.close)
            return turns

        yield make


class Beginning:
    """A turn that begins in a thread."""

    def __init__(self, turns: Turns, *, quiet: bool) -> None:
        self._thread = threading.Thread(target=turns.begin, kwargs={"quiet": quiet})
        self._thread.start()

    def waits(self) -> bool:
        self._thread.join(0.05)
        return self._thread.is_alive()

    def has_begun(self) -> bool:
        self._thread.join(30)
        return not self._thread.is_alive()


def test_others_share_the_room(process: MakeTurns) -> None:
    first, second = process(), process()
    first.begin(quiet=False)
    second.begin(quiet=False)
    first.end()
    second.end()


def test_a_quiet_test_waits_for_others_and_they_for_it(process: MakeTurns) -> None:
    other, quiet = process(), process()
    other.begin(quiet=False)
    beginning = Beginning(quiet, quiet=True)
    assert beginning.waits()
    other.end()
    assert beginning.has_begun()
    again = Beginning(other, quiet=False)
    assert again.waits()
    quiet.end()
    assert again.has_begun()
    other.end()


def test_a_quiet_test_that_waits_goes_before_those_that_come_later(
    process: MakeTurns, tmp_path: Path
) -> None:
    other, later, quiet = process(), process(), process()
    other.begin(quiet=False)
    beginning = Beginning(quiet, quiet=True)
    assert beginning.waits()
    with (tmp_path / "door").open("rb") as door, pytest.raises(BlockingIOError):
        fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
    too_late = Beginning(later, quiet=False)
    assert too_late.waits()
    other.end()
    assert beginning.has_begun()
    assert too_late.waits()
    quiet.end()
    assert too_late.has_begun()
    later.end()


def test_turns_of_one_kind_go_on_until_they_end(process: MakeTurns) -> None:
    quiet, other = process(), process()
    quiet.begin(quiet=True)
    beginning = Beginning(other, quiet=False)
    quiet.begin(quiet=True)
    assert beginning.waits()
    quiet.end()
    assert beginning.has_begun()
    other.end()


def test_a_process_that_ends_leaves_the_room(tmp_path: Path, process: MakeTurns) -> None:
    quiet = process()
    ended = Turns(tmp_path / "door", tmp_path / "room")
    ended.begin(quiet=False)
    beginning = Beginning(quiet, quiet=True)
    assert beginning.waits()
    ended.close()
    assert beginning.has_begun()
    quiet.end()
