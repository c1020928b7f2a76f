"""What versions and rollouts of one model should do, from `docs/guides/rollouts.md`: no code of Hopline.

An operation is a generator: each step is one moment at which the state changes for everybody; between two
steps anything else may happen, also a crash. `outcomes` are all that may come of operations at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Believed:
    """Attributes:
    loaded: versions. serving: that answers requests which name none. before: that a rollback returns to.
    canary: that has a part of the requests.
    """

    loaded: frozenset[str]
    serving: str = ""
    before: str = ""
    canary: str = ""

    @property
    def answering(self) -> set[str]:
        return {self.serving, self.canary} - {""}


class Refused(Exception):
    pass


class Box:
    def __init__(self, now: Believed) -> None:
        self.now = now

    def change(self, **fields: object) -> None:
        self.now = replace(self.now, **fields)  # type: ignore[arg-type]


Operation = Callable[[Box], Generator[None, None, None]]


def check(fits: bool) -> None:
    if not fits:
        raise Refused


def with_version(version: str, breaks: str, then: Callable[[Box], None]) -> Operation:
    """Load a version everywhere, then do something with it, at one moment.

    Args:
        breaks: "" | "here" | "there": where it cannot be loaded.
    """

    def steps(box: Box) -> Generator[None, None, None]:
        check(not box.now.canary)
        yield
        check(breaks != "here" and not box.now.canary)
        yield
        check(breaks != "there" and not box.now.canary)
        then(box)

    return steps


def load(version: str, breaks: str = "", serve: bool = True) -> Operation:
    def take_in(box: Box) -> None:
        now = box.now
        box.change(loaded=now.loaded | {version})
        if now.serving != version and (serve or not now.serving):
            box.change(serving=version, before=now.serving)

    return with_version(version, breaks, take_in)


def begin(version: str, breaks: str = "") -> Operation:
    def checks(box: Box) -> None:
        now = box.now
        check(bool(now.serving) and now.serving != version and not now.canary)

    def start(box: Box) -> None:
        checks(box)
        box.change(loaded=box.now.loaded | {version}, canary=version)

    def steps(box: Box) -> Generator[None, None, None]:
        checks(box)
        yield from with_version(version, breaks, start)(box)

    return steps


def unload(version: str | None) -> Operation:
    def steps(box: Box) -> Generator[None, None, None]:
        now = box.now
        check(bool(now.loaded) and not now.canary)
        if version is None or now.loaded == {version}:
            box.change(loaded=frozenset(), serving="", before="")
        else:
            check(version in now.loaded and version != now.serving)
            before = "" if now.before == version else now.before
            box.change(loaded=now.loaded - {version}, before=before)
        return
        yield

    return steps


def rollback(box: Box) -> Generator[None, None, None]:
    now = box.now
    if now.canary:
        box.change(canary="", before="")
        return
    check(now.before in now.loaded)
    box.change(serving=now.before, before="")
    return
    yield


def promote(box: Box) -> Generator[None, None, None]:
    now = box.now
    check(bool(now.canary))
    box.change(serving=now.canary, before=now.serving, canary="")
    return
    yield


Outcome = tuple[tuple[str, ...], Believed]


def outcomes(now: Believed, operations: list[Operation]) -> set[Outcome]:
    """Results ("ok" or "refused", one an operation) and state, of every order of their steps."""
    found: set[Outcome] = set()

    def explore(schedule: list[int]) -> None:
        results, state = _run(now, operations, schedule)
        if all(results):
            found.add((tuple(results), state))
            return
        for at, result in enumerate(results):
            if not result:
                explore([*schedule, at])

    explore([])
    return found


def prefixes(now: Believed, operation: Operation) -> set[Believed]:
    """States in which an operation may be left by a crash."""
    found = {now}
    for count in range(1, 8):
        found.add(_run(now, [operation], [0] * count)[1])
    return found


def _run(now: Believed, operations: list[Operation], schedule: list[int]) -> tuple[list[str], Believed]:
    box = Box(now)
    running: list[Iterator[None]] = [operation(box) for operation in operations]
    results = [""] * len(operations)
    for at in schedule:
        if results[at]:
            continue
        try:
            next(running[at])
        except StopIteration:
            results[at] = "ok"
        except Refused:
            results[at] = "refused"
    return results, box.now
