"""Objects with versions, and their changes, like etcd in Kubernetes.

Every change has a number. A client that knows its last number can request the later changes, while they are
stored.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Key = tuple[str, str, str]
Body = dict[str, Any]


class Expired(LookupError):
    """The requested changes are not stored any more: the client must list again."""


@dataclass(frozen=True, slots=True)
class Happening:
    """One change of one object.

    Attributes:
        version: increases by one with each change of any object.
        plural: kind of object.
        body: the object after the change, with its version in `metadata.resourceVersion`; for a deleted
            one, its last state.
        before: the object before the change; None for a new one.
        deleted: whether it was deleted.
    """

    version: int
    plural: str
    body: Body
    before: Body | None
    deleted: bool

    @property
    def type(self) -> Literal["ADDED", "MODIFIED", "DELETED"]:
        """Type of the event in a watch."""
        return "DELETED" if self.deleted else "ADDED" if self.before is None else "MODIFIED"


class Log:
    """All objects, and the newest changes. Thread-safe.

    Args:
        keep: number of stored changes.
        first: version of the first change; real clusters do not start at 1 either.
    """

    def __init__(self, keep: int = 10_000, first: int = 1000) -> None:
        self._objects: dict[Key, Body] = {}
        self._changes: deque[Happening] = deque(maxlen=keep)
        self._version = first
        self._oldest = first
        self._changed = threading.Condition()
        self._closed = False

    @property
    def version(self) -> int:
        """Version of the newest change."""
        return self._version

    def put(self, plural: str, body: Body) -> None:
        """Add or replace an object; does nothing if it is unchanged."""
        meta = body["metadata"]
        key = (plural, meta.get("namespace", ""), meta["name"])
        with self._changed:
            before = self._objects.get(key)
            if before is not None and _same(before, body):
                return
            self._version += 1
            body = {**body, "metadata": {**meta, "resourceVersion": str(self._version)}}
            self._objects[key] = body
            self._note(Happening(self._version, plural, body, before, False))

    def drop(self, plural: str, namespace: str, name: str) -> None:
        """Remove an object; does nothing if it is missing."""
        with self._changed:
            before = self._objects.pop((plural, namespace, name), None)
            if before is not None:
                self._version += 1
                gone = {**before, "metadata": {**before["metadata"], "resourceVersion": str(self._version)}}
                self._note(Happening(self._version, plural, gone, before, True))

    def listing(self, plural: str, namespace: str | None = None) -> tuple[int, list[Body]]:
        """Return the version of the list, and the objects, ordered by namespace and name."""
        with self._changed:
            keys = sorted(key for key in self._objects if key[0] == plural and namespace in (None, key[1]))
            return self._version, [self._objects[key] for key in keys]

    def listing_of(self, version: int, plural: str, namespace: str | None = None) -> list[Body]:
        """Return the objects at a version.

        Raises:
            Expired: changes since then are not stored any more.
        """
        with self._changed:
            objects = {key: body for key, body in self._objects.items() if key[0] == plural}
            for happening in reversed(self._since(version)):
                meta = happening.body["metadata"]
                key = (happening.plural, meta.get("namespace", ""), meta["name"])
                if happening.plural == plural:
                    if happening.before is None:
                        objects.pop(key, None)
                    else:
                        objects[key] = happening.before
            return [objects[key] for key in sorted(objects) if namespace in (None, key[1])]

    def since(self, version: int) -> list[Happening]:
        """Return the changes after a version, oldest first.

        Raises:
            Expired: some of them are not stored any more.
        """
        with self._changed:
            return self._since(version)

    def wait(self, version: int, timeout_s: float) -> list[Happening]:
        """Return the changes after a version, of any kind; waits for the next one if there is none.

        Returns: nothing after the timeout, or when the log is closed.

        Raises:
            Expired: some of them are not stored any more.
        """
        with self._changed:
            if self._version <= version and not self._closed:
                self._changed.wait(timeout_s)
            return self._since(version)

    def compact(self) -> None:
        """Forget all changes so far, as etcd does every five minutes."""
        with self._changed:
            self._changes.clear()
            self._oldest = self._version

    def close(self) -> None:
        """Wake all waiting threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether the log is closed."""
        return self._closed

    def _since(self, version: int) -> list[Happening]:
        if version < self._oldest:
            raise Expired(f"too old resource version: {version} ({self._oldest})")
        return list(self._newer(version))

    def _newer(self, version: int) -> Iterator[Happening]:
        count = sum(1 for _ in _until(reversed(self._changes), version))
        for place in range(len(self._changes) - count, len(self._changes)):
            yield self._changes[place]

    def _note(self, happening: Happening) -> None:
        if len(self._changes) == self._changes.maxlen:
            self._oldest = self._changes[0].version
        self._changes.append(happening)
        self._changed.notify_all()


def _until(newest_first: Iterator[Happening], version: int) -> Iterator[Happening]:
    for happening in newest_first:
        if happening.version <= version:
            return
        yield happening


def _same(known: Body, body: Body) -> bool:
    meta = {name: value for name, value in known["metadata"].items() if name != "resourceVersion"}
    return meta == body["metadata"] and all(
        known.get(name) == value for name, value in body.items() if name != "metadata"
    )
