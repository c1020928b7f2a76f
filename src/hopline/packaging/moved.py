"""The same program at another time and place: its clock, process and environment variables moved.

Only names that the user's code sees are replaced, and only the thread that runs it sees other values:
other threads may wait for a time.
"""

from __future__ import annotations

import builtins
import datetime
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from hopline.packaging.watch import SOURCES

#: Seconds by which clocks are moved: other months and years, later and earlier, by 3, 1 and 5 days of the
#: week and by 8, 16 and 0 hours. From any moment one of them crosses the weekend, working hours, and noon.
#: The last one, of 61 days, 1 1/2 hours and 30.5 s, crosses the half of an hour and of a minute.
SHIFTS = (289_381.7, 17_683_200.2, -86_053_019.4, 5_275_830.5)
#: Values of an environment variable; None is absent.
SETTINGS = (None, "0", "1", "2.5")


@dataclass(frozen=True, slots=True)
class Place:
    """Another process on another host.

    Attributes:
        salt: change of the hashes of text, as by PYTHONHASHSEED.
        pid: the process id, from that of this one.
        folder, host: working directory, and name of the host.
    """

    salt: int
    pid: Callable[[int], int]
    folder: str
    host: str


#: A value computed from one place may be the same by chance, such as a remainder, a length or a bit. Of
#: process ids, the next one changes each remainder, 1 is that in a container, and two change all bits.
PLACES = (
    Place(0x5DEECE66D, lambda pid: pid + 1, "/", "elsewhere"),
    Place(0x2545F4914F, lambda pid: 1, "/srv", "node-1"),
    Place(0x106689D45, lambda pid: pid ^ 0x2AAAAA, "/home/else/where", "another-host"),
    Place(0x369DEA0F3, lambda pid: pid ^ 0x155555, "/var/lib/elsewhere", "db7"),
)
_DATED = {"localtime", "gmtime", "ctime", "asctime", "strftime"}


@contextmanager
def moved_clock(shift: float, namespaces: Iterable[dict[str, Any]]) -> Iterator[None]:
    """Move all clocks of this thread.

    Args:
        shift: seconds. namespaces: globals of the user's functions.
    """
    pairs: list[tuple[Any, Any]] = [
        (real, _later(real, shift)) for real in SOURCES if real.__module__ == "time"
    ]
    days = datetime.timedelta(seconds=shift)
    pairs += [(datetime.datetime, _datetime(days)), (datetime.date, _date(days))]
    with _replaced(pairs, [vars(time), vars(datetime), *namespaces]):
        yield


@contextmanager
def moved_process(namespaces: Iterable[dict[str, Any]], place: Place = PLACES[0]) -> Iterator[None]:
    """Give this thread another process id, working directory, host name and hashes of text."""
    pid, salt = place.pid(os.getpid()), place.salt
    pairs: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
        (os.getpid, lambda: pid),
        (os.getcwd, lambda: place.folder),
        (os.uname, lambda: os.uname_result((place.host,) * 5)),
        (socket.gethostname, lambda: place.host),
        (hash, lambda value, real=hash: real(value) ^ (0 if isinstance(value, int | float) else salt)),
    ]
    fakes = [(real, _of_this_thread(real, fake)) for real, fake in pairs]
    with _replaced(fakes, [vars(os), vars(socket), vars(builtins), *namespaces]):
        yield


@contextmanager
def moved_variable(name: str, value: str | None) -> Iterator[None]:
    """Set an environment variable, or remove it."""
    before = os.environ.get(name)
    _put(name, value)
    try:
        yield
    finally:
        _put(name, before)


def _put(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


@contextmanager
def _replaced(pairs: list[tuple[Any, Any]], namespaces: list[dict[str, Any]]) -> Iterator[None]:
    """Replace each first of a pair by the second, under whatever name a namespace has it."""
    with ExitStack() as stack:
        for names in {id(names): names for names in namespaces}.values():
            for name, value in list(names.items()):
                for real, fake in pairs:
                    if value is real:
                        stack.callback(names.__setitem__, name, value)
                        names[name] = fake
        yield


def _of_this_thread(real: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    mine = threading.get_ident()

    def function(*args: Any) -> Any:
        return (fake if threading.get_ident() == mine else real)(*args)

    return function


def _later(real: Callable[..., Any], shift: float) -> Callable[..., Any]:
    """A function of `time`, moved."""
    name, now, local = real.__name__, time.time, time.localtime
    takes = 1 if name == "strftime" else 0
    step: float = round(shift * 1e9) if name.endswith("_ns") else shift

    def fake(*args: Any) -> Any:
        if name not in _DATED:
            return real(*args) + step
        if len(args) > takes:  # it formats a given time
            return real(*args)
        moment: Any = now() + shift
        return real(*args, moment if name in ("localtime", "gmtime", "ctime") else local(moment))

    return _of_this_thread(real, fake)


def _instances(real: type) -> type:
    """A metaclass for which instances of `real` are instances."""
    return type("_Moved", (type,), {"__instancecheck__": lambda _, value: isinstance(value, real)})


def _datetime(shift: datetime.timedelta) -> type:
    real, mine = datetime.datetime, threading.get_ident()

    def moved(name: str) -> Any:
        def read(*args: Any, **kwargs: Any) -> Any:
            now = getattr(real, name)(*args, **kwargs)
            return now + shift if threading.get_ident() == mine else now

        return staticmethod(read)

    body: Mapping[str, Any] = {name: moved(name) for name in ("now", "utcnow", "today")}
    return _instances(real)("datetime", (real,), dict(body))


def _date(shift: datetime.timedelta) -> type:
    real, moment, mine = datetime.date, datetime.datetime, threading.get_ident()

    def today() -> Any:
        now: datetime.datetime = getattr(moment, "now")()  # noqa: B009
        return real.fromordinal((now + shift if threading.get_ident() == mine else now).toordinal())

    return _instances(real)("date", (real,), {"today": staticmethod(today)})
