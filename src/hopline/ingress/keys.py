"""API keys: made once, shown once, kept as a digest.

A key is 256 random bits, so SHA-256 is enough to keep it by: slow, salted hashes are for passwords, which
people choose and others guess, while one of 2^256 keys cannot be found by trying, at any speed. A
client is found by looking up its key's digest. The time of the look-up depends on the digest, which reveals
nothing of the key, so no constant-time comparison is needed.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple

#: Begins every key, so that scanners of repositories know one; the rest is id and secret.
PREFIX = "hopline_"


class NewKey(NamedTuple):
    """A key that was just made.

    Attributes:
        id: what people call it by, no secret.
        text: the key itself, which is kept nowhere.
        sha256: what is kept, in hexadecimal.
    """

    id: str
    text: str
    sha256: str


def new_key() -> NewKey:
    """Draw a key of 256 bits."""
    id = secrets.token_hex(4)
    text = f"{PREFIX}{id}_{secrets.token_urlsafe(32)}"
    return NewKey(id, text, digest(text))


def digest(key: str) -> str:
    """What a key is kept as, in hexadecimal."""
    return hashlib.sha256(key.encode()).hexdigest()
