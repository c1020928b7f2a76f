"""Objects with versions, and their changes, like etcd in Kubernetes.

Every change has a number. A client that knows its last number can request the later changes, while they are
stored.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from typing import Any, NamedTuple

#: Plural of the kind, namespace and name.
Key = tuple[str, str, str]
Body = dict[str, Any]


class Expired(LookupError):
    """The requested changes are not stored any more: the client must list again."""


class Happening(NamedTuple):
    """One change of one object."""

    version: int  # increases by one with each change of any object
    key: Key  # of the object
    body: Body  # after the change, with this version in `metadata.resourceVersion`; or the last state
    before: Body | None  # before the change; None for a new object
    deleted: bool


class Log:
    """All objects, and the newest changes. Thread-safe.

    Args:
        keep: number of stored changes.
        first: version before the first change; real clusters do not start at 1 either.

    Attributes:
        version: of the newest change.
        closed: whether waiting has no purpose any more.
    """

    def __init__(self, keep: int = 10_000, first: int = 1000) -> None:
        self._objects: dict[Key, Body] = {}
        self._changes: deque[Happening] = deque(maxlen=keep)
        self.version = first
        self._changed = threading.Condition()
        self.closed = False

    def put(self, plural: str, body: Body) -> Key:
        """Add or replace an object, unless it is unchanged; returns its key."""
        key = (plural, body["metadata"].get("namespace", ""), body["metadata"]["name"])
        with self._changed:
            before = self._objects.get(key)
            if before is None or before != _versioned(body, before["metadata"]["resourceVersion"]):
                self._note(key, body, before, deleted=False)
        return key

    def drop(self, key: Key) -> None:
        """Remove an object; does nothing if it is missing."""
        with self._changed:
            before = self._objects.pop(key, None)
            if before is not None:
                self._note(key, before, before, deleted=True)

    def listing(
        self, plural: str, namespace: str | None = None, version: int | None = None
    ) -> tuple[int, list[Body]]:
        """Return a version, by default the newest, and the objects of a kind then, by namespace and name.

        Raises:
            Expired: changes since this version are not stored any more.
        """
        with self._changed:
            version = self.version if version is None else version
            objects = self._objects.copy()
            for happening in reversed(self._since(version)):
                if happening.before is None:
                    del objects[happening.key]
                else:
                    objects[happening.key] = happening.before
            keys = sorted(key for key in objects if key[0] == plural and namespace in (None, key[1]))
            return version, [objects[key] for key in keys]

    def since(self, version: int, timeout_s: float = 0.0) -> list[Happening]:
        """Return the changes after a version, oldest first; waits for the next one if there is none.

        Returns: nothing after the timeout, or when the log is closed.

        Raises:
            Expired: some of them are not stored any more.
        """
        with self._changed:
            if self.version <= version and not self.closed:
                self._changed.wait(timeout_s)
            return self._since(version)

    def compact(self) -> None:
        """Forget all changes so far, as etcd does every five minutes."""
        with self._changed:
            self._changes.clear()

    def close(self) -> None:
        """Wake all waiting threads."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def _since(self, version: int) -> list[Happening]:
        oldest = self.version - len(self._changes)
        if version < oldest:
            raise Expired(f"too old resource version: {version} ({oldest})")
        return list(itertools.islice(self._changes, version - oldest, None))

    def _note(self, key: Key, body: Body, before: Body | None, *, deleted: bool) -> None:
        self.version += 1
        body = _versioned(body, str(self.version))
        if not deleted:
            self._objects[key] = body
        self._changes.append(Happening(self.version, key, body, before, deleted))
        self._changed.notify_all()


def _versioned(body: Body, version: str) -> Body:
    return {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
