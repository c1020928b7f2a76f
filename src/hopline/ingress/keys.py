"""API keys: created once, shown once, stored as a digest.

A key is 256 random bits, so SHA-256 is enough to store it. Slow, salted hashes are for passwords, which are
guessable; one of 2^256 keys cannot be found by trying. A client is found by a lookup of its key's digest.
The time of the lookup depends on the digest, which reveals nothing about the key, so no comparison must
take constant time.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple

#: Prefix of every key, so that repository scanners recognise keys; id and secret follow.
PREFIX = "hopline_"


class NewKey(NamedTuple):
    """A new key.

    Attributes:
        id: public name of the key, not secret.
        text: the key itself, which is not stored.
        sha256: the stored digest, hexadecimal.
    """

    id: str
    text: str
    sha256: str


def new_key() -> NewKey:
    """Create a random key of 256 bits."""
    id = secrets.token_hex(4)
    text = f"{PREFIX}{id}_{secrets.token_urlsafe(32)}"
    return NewKey(id, text, digest(text))


def digest(key: str) -> str:
    """Return the stored form of a key, hexadecimal."""
    return hashlib.sha256(key.encode()).hexdigest()
