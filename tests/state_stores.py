"""Conformance tests of stores of rollout state. Subclass, and define the fixture `join`.

class TestMine(StateStoreSuite):
    @pytest.fixture
    def join(self):
        ...  # () -> an open `Fleet`, another member over one store at each call; closed at the end
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
import pytest

from hopline.answering.unit import Unit
from hopline.errors import Conflict
from hopline.rollout import state as state_module
from hopline.rollout.state import FirstState, LifecycleState, ModelState, encode_state
from hopline.rollout.store.base import Stored
from hopline.rollout.store.fleet import Ack, Fleet

_PATIENCE_S = 10.0
_STEP, _NEXT = "a1b2-0", "a1b2-1"

Join = Callable[[], Fleet]


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.002)


def serving(version: str) -> Callable[[LifecycleState], LifecycleState]:
    """A change after which model m serves a version."""
    return lambda whole: with_model(whole, "m", version)


def with_model(whole: LifecycleState, name: str, version: str) -> LifecycleState:
    """The state with another version of a model."""
    models = {**whole.models, name: ModelState((Unit(version),), version)}
    return msgspec.structs.replace(whole, models=models)


class StateStoreSuite:
    """Behaviour of every store."""

    @pytest.fixture
    def join(self) -> Join:
        """Define this: see the module."""
        raise NotImplementedError

    # The state

    def test_a_change_is_what_every_member_reads(self, join: Join) -> None:
        """And what each of them hears of."""
        first, other = join(), join()
        assert first.newest()[:2] == (LifecycleState(), Stored())
        after = first.update(serving("1"))
        assert after.generation == 1
        for member in (first, other):
            eventually(lambda member=member: member.newest().state == after)  # type: ignore[misc]
            assert member.newest().stored == member.store.read()

    def test_each_change_has_another_identity_and_a_higher_generation(self, join: Join) -> None:
        """Whichever member makes it."""
        first, other = join(), join()
        seen = set()
        for turn in range(6):
            after = (first, other)[turn % 2].update(serving(str(turn)))
            assert after.generation == turn + 1
            seen.add(first.store.read().identity)
        assert len(seen) == 6

    def test_a_change_that_raises_or_changes_nothing_leaves_the_state(self, join: Join) -> None:
        """A refused change has no effect."""
        member = join()
        member.update(serving("1"))
        before = member.newest()[:2]

        def refuse(whole: LifecycleState) -> LifecycleState:
            raise Conflict("no")

        with pytest.raises(Conflict):
            member.update(refuse)
        assert member.update(lambda whole: whole) == before[0]
        assert (member.newest()[:2], member.store.read()) == (before, before[1])

    def test_of_two_swaps_of_one_content_one_is_made(self, join: Join) -> None:
        """The other member has to read again."""
        first, other = join(), join()
        contents = [encode_state(LifecycleState(generation)) for generation in (1, 2, 3)]
        read = first.store.swap(Stored(), contents[0])
        assert read is not None
        made = first.store.swap(read, contents[1])
        for overtaken in (read, Stored()):
            assert other.store.swap(overtaken, contents[2]) is None
        assert first.store.read() == other.store.read() == made != read

    def test_changes_of_several_members_at_once_are_all_made(self, join: Join) -> None:
        """A change that was overtaken is made again, on the newer state."""
        members = [join() for _ in range(3)]

        def work(member: Fleet, number: int) -> None:
            for name in (f"m{number}.{turn}" for turn in range(8)):
                member.update(lambda whole, name=name: with_model(whole, name, "1"))  # type: ignore[misc]

        threads = [threading.Thread(target=work, args=pair) for pair in zip(members, range(3), strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        members[0].flush()
        state = members[0].newest().state
        assert len(state.models) == state.generation == 24

    def test_what_would_make_it_too_large_is_refused_and_the_rest_is_not(
        self, join: Join, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A rollback is never refused for its size."""
        monkeypatch.setattr(state_module, "MAX_BYTES", 300)
        member = join()
        large = LifecycleState(models={str(i): ModelState(serving="1") for i in range(20)})
        with pytest.raises(Conflict, match="more than 300; unload versions"):
            member.update(lambda whole: large, adds=True)
        assert member.store.read() == Stored()
        assert len(member.update(lambda whole: large).models) == 20

    def test_a_later_member_goes_by_what_the_first_one_found(self, join: Join) -> None:
        """Not by what is in the repository when it starts."""
        first, later = join(), join()
        served = []
        for member, version in ((first, "1"), (later, "2")):
            found = FirstState({"m": ModelState((Unit(version),), version)})
            state, of_server = member.first_state(member.newest().state, lambda found=found: found)  # type: ignore[misc]
            served.append((of_server.models | state.models)["m"].serving)
        assert served == ["1", "1"]

    def test_clocks_of_members_agree(self, join: Join) -> None:
        """Times of steps are compared by any member."""
        first, other = join(), join()
        assert abs(first.now() - other.now()) < 1.0

    # Members

    def test_an_acknowledgement_is_read_by_the_others_until_its_member_leaves(self, join: Join) -> None:
        """A member does not wait for itself. A member that lives is not gone; an unknown one is."""
        first, other, third = join(), join(), join()
        assert first.acknowledgements() == {}
        acks = [Ack(3, 2, {"m/1": "damaged"}), Ack(4, 4, {})]
        for ack in acks:
            other.acknowledge(ack)
            other.flush()
            assert first.acknowledgements() == {other.store.member: ack}
            assert other.acknowledgements() == {}
        assert first.gone({first.store.member, other.store.member, "nobody"}) == {"nobody"}
        third.acknowledge(acks[0])
        third.flush()
        assert first.acknowledgements().keys() == {other.store.member, third.store.member}
        other.close()
        assert first.acknowledgements().keys() == {third.store.member}

    def test_one_member_leads_and_another_one_when_it_leaves(self, join: Join) -> None:
        """Never two at the same time."""
        members = [join() for _ in range(3)]
        for member in members:
            member.publish_counts(_STEP, b"0")
        eventually(lambda: any(member.leads() for member in members))
        for _ in range(20):
            assert sum(member.leads() for member in members) == 1
        leader = next(member for member in members if member.leads())
        leader.close()
        others = [member for member in members if member is not leader]
        eventually(lambda: sum(member.leads() for member in others) == 1)

    def test_a_member_that_wants_to_leads_though_nothing_is_judged(self, join: Join) -> None:
        """One of them."""
        members = [join() for _ in range(3)]
        for member in members[1:]:
            member.wants_lead = True
        eventually(lambda: any(member.leads() for member in members[1:]))
        assert sum(member.leads() for member in members[1:]) == 1

    # Counts

    def test_counts_of_the_others_are_read_as_they_are_now(self, join: Join) -> None:
        """The newest counts replace those before."""
        first, other, third = join(), join(), join()
        for text in ("1", "2"):
            wanted = {f"other {text}".encode(), f"third {text}".encode()}
            first.publish_counts(_STEP, text.encode())
            other.publish_counts(_STEP, f"other {text}".encode())
            third.publish_counts(_STEP, f"third {text}".encode())
            eventually(lambda wanted=wanted: set(first.counts(_STEP)) == wanted)  # type: ignore[misc]
        assert len(first.counts(_NEXT)) == 0

    def test_counts_stay_when_their_member_leaves_and_go_when_it_withdraws_them(self, join: Join) -> None:
        """Counts are kept."""
        first, other, third = join(), join(), join()
        for member in (first, other, third):
            member.publish_counts(_STEP, member.store.member.encode())
        eventually(lambda: len(first.counts(_STEP)) == 2)
        other.close()
        third.withdraw_counts(_STEP)
        eventually(lambda: list(first.counts(_STEP)) == [other.store.member.encode()])

    def test_the_first_slow_verdict_stays(self, join: Join) -> None:
        """All members leave out the same answers."""
        first, other = join(), join()
        for member in (first, other):
            member.publish_counts(_STEP, b"0")
            assert member.slow_latency(_STEP) is None
        first.mark_slow(_STEP, b"slow")
        assert first.slow_latency(_STEP) == b"slow"
        eventually(lambda: other.slow_latency(_STEP) == b"slow")
        other.mark_slow(_STEP, b"later")
        assert other.slow_latency(_STEP) == b"slow"
        assert first.slow_latency(_NEXT) is None

    def test_nothing_of_a_rollout_that_is_over_is_left(self, join: Join) -> None:
        """Counts and slow verdicts are removed."""
        first, other = join(), join()
        first.publish_counts(_STEP, b"0")
        other.publish_counts(_STEP, b"1")
        first.mark_slow(_STEP, b"slow")
        eventually(lambda: list(other.counts(_STEP)) == [b"0"] and other.slow_latency(_STEP) == b"slow")
        for member in (first, other):
            member.forget_counts([_STEP, _NEXT])
            member.flush()
        late = join()
        late.publish_counts(_STEP, b"2")
        late.flush()
        assert list(late.counts(_STEP)) == []
        assert late.slow_latency(_STEP) is None
