"""Names that Kubernetes would give to pods, replica sets and addresses; the same for the same numbers."""

from __future__ import annotations

import hashlib

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def split(service: str) -> tuple[str, str]:
    """Namespace and name of a service."""
    namespace, _, name = service.rpartition("/")
    return namespace, name


def template_hash(service: str, revision: int) -> str:
    """Of a replica set, such as `7c9f8b6d5d`."""
    return _word(f"{service} {revision}", 10)


def replica_set(service: str, revision: int) -> str:
    """A replica set's name, without its namespace."""
    return f"{split(service)[1]}-{template_hash(service, revision)}"


def pod(service: str, revision: int, serial: int) -> str:
    """A pod's name, without its namespace."""
    return f"{replica_set(service, revision)}-{_word(f'pod {serial}', 5)}"


def machine(number: int) -> str:
    """A machine's name."""
    return f"machine-{number + 1}"


def uid(*what: object) -> str:
    """An object's unique id, in the form of a UUID."""
    digest = hashlib.blake2s(repr(what).encode(), digest_size=16).hexdigest()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:]))


def address(serial: int) -> str:
    """A pod's address."""
    return f"10.{64 + serial // 65536 % 64}.{serial // 256 % 256}.{serial % 256}"


def _word(of: str, length: int) -> str:
    number = int.from_bytes(hashlib.blake2s(of.encode(), digest_size=8).digest(), "big")
    letters = []
    for _ in range(length):
        number, place = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[place])
    return "".join(letters)
