"""A keeper opens another process for one that was lost, hangs or takes too much memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pytest

from hopline.errors import RuntimeFailure
from hopline.process import keeper as keeper_module
from hopline.process.keeper import Keeper
from hopline.process.silence import Silence
from hopline.retry import Backoff


class FakeSilence(Silence):
    """Hangs when the test says so."""

    hangs = False

    def look(self, deadlines: Iterable[float], now: float) -> bool:
        """See `Silence.look`."""
        return self.hangs


class Fake:
    """A process that only counts what is done to it; killed, it is lost."""

    def __init__(self, rig: Rig, pid: int) -> None:
        self._rig = rig
        self.looks = FakeSilence(pid, 0.04)
        self.silence: Silence = self.looks
        self.why = ""
        self.done: list[str] = []

    def deadlines(self) -> Iterable[float]:
        """As `Kept.deadlines`."""
        return ()

    def kill(self, why: str) -> None:
        """As `Kept.kill`."""
        self.why = why
        self._rig.keeper.lost(self, "signal 9")

    async def retire(self) -> None:
        """As `Kept.retire`."""
        self.done.append("retired")

    async def end(self) -> None:
        """As `Kept.end`."""
        self.done.append("ended")


class Rig:
    """A keeper of fakes.

    Attributes:
        reasons: as each opening got them.
        failures: raised by the next openings, unless None.
        memory: bytes of each process, by its number.
    """

    def __init__(self, memory_bytes: int = 0) -> None:
        self.reasons: list[str] = []
        self.failures: list[Exception | None] = []
        self.memory: dict[int, int] = {}
        self.reported: list[float] = []
        self.opened: list[Fake] = []
        self.keeper = Keeper("m/1", self.open, 0.04, memory_bytes, self.reported.append)

    async def open(self, why: str) -> Fake:
        """Open a fake, or fail."""
        self.reasons.append(why)
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        self.opened.append(Fake(self, len(self.opened)))
        return self.opened[-1]

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(30):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "Backoff", lambda *_, **__: Backoff(0.001, 0.002, spread=0.0))


async def test_the_reason_of_a_loss_is_given_once_however_often_opening_fails() -> None:
    rig = Rig()
    first = await rig.keeper.start()
    rig.failures = [RuntimeFailure("no room"), OSError("no process"), None]
    rig.keeper.lost(first, "exit code 3")
    assert rig.keeper.reason == "its process ended (exit code 3); another one is started"
    await rig.until(lambda: "no room" in rig.keeper.reason)
    await rig.until(lambda: rig.keeper.process is not None)
    assert (rig.keeper.reason, rig.reasons) == ("", ["", "died", "", ""])
    await rig.keeper.stop()
    assert [fake.done for fake in rig.opened] == [[], ["ended"]]


async def test_a_process_that_hangs_is_killed_and_another_one_is_opened() -> None:
    rig = Rig()
    first = await rig.keeper.start()
    first.looks.hangs = True
    await rig.until(lambda: rig.keeper.process not in (None, first))
    assert (first.why, rig.reasons) == ("hung", ["", "hung"])
    await rig.keeper.stop()


async def test_a_process_above_its_memory_serves_until_another_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(memory_bytes=100)
    monkeypatch.setattr(keeper_module, "anonymous_bytes", lambda pid: rig.memory.get(pid, 7))
    first = await rig.keeper.start()
    rig.memory[0] = 101

    def is_replaced() -> bool:
        assert rig.keeper.process is not None
        return rig.keeper.process is not first

    await rig.until(is_replaced)
    await rig.until(lambda: first.done)
    assert (first.done, first.why, rig.reasons) == (["retired"], "", ["", "memory"])
    assert 101.0 in rig.reported
    await rig.keeper.stop()
    assert rig.reported[-1] == 0.0


async def test_one_that_serves_no_more_is_lost_without_another_one() -> None:
    rig = Rig()
    first = await rig.keeper.start()
    rig.keeper.lost(first, "exit code 0", renew=False)
    rig.keeper.lost(first, "exit code 0")
    assert rig.keeper.process is None
    await rig.keeper.stop()
    assert rig.reasons == [""]
