"""Names and addresses in the form of Kubernetes, derived from numbers."""

from __future__ import annotations

import hashlib
import uuid

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def split(service: str) -> tuple[str, str]:
    """Return namespace and name of a service."""
    namespace, _, name = service.rpartition("/")
    return namespace, name


def template_hash(service: str, revision: int) -> str:
    """Return the hash of a replica set, such as `7c9f8b6d5d`."""
    return _word(f"{service} {revision}", 10)


def replica_set(service: str, revision: int) -> str:
    """Return a replica set's name, without its namespace."""
    return f"{split(service)[1]}-{template_hash(service, revision)}"


def pod(service: str, revision: int, serial: int) -> str:
    """Return a pod's name, without its namespace."""
    return f"{replica_set(service, revision)}-{_word(f'pod {serial}', 5)}"


def machine(number: int) -> str:
    """Return a node's name."""
    return f"machine-{number + 1}"


def uid(*what: object) -> str:
    """Return an object's unique id, in the form of a UUID."""
    return str(uuid.UUID(bytes=hashlib.blake2s(repr(what).encode(), digest_size=16).digest()))


def address(serial: int) -> str:
    """Return a pod's address."""
    return f"10.{64 + serial // 65536 % 64}.{serial // 256 % 256}.{serial % 256}"


def _word(of: str, length: int) -> str:
    number = int.from_bytes(hashlib.blake2s(of.encode(), digest_size=8).digest(), "big")
    base = len(_LETTERS)
    return "".join(_LETTERS[number // base**place % base] for place in range(length))
