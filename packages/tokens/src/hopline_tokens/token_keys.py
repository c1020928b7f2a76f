"""Keys for checking tokens: one PEM public key, one shared secret, or a JSON Web Key Set.

Each key has the algorithms that it may be used for; a token cannot change them.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from hopline.config.schema import AuthConfig
from hopline.errors import ConfigError

logger = logging.getLogger("hopline.tokens")

#: Algorithms by type of key; a curve has one.
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_HMAC = ("HS256", "HS384", "HS512")
#: Shorter keys can be factored (NIST SP 800-131A). Longer ones take the event loop longer for each token.
_RSA_BITS = range(2048, 16_384 + 1)


class TokenKey(NamedTuple):
    """A key and its algorithms.

    Attributes:
        key: in PyJWT's form.
        algorithms: never empty.
    """

    key: Any
    algorithms: tuple[str, ...]


def read_keys(config: AuthConfig) -> dict[str, TokenKey]:
    """Read the keys by id; the only key of a key file has the id "", which matches any id.

    Raises: ConfigError: with the setting and what is wrong.
    """
    if config.jwt_key_file is not None:
        content = _read(config.jwt_key_file, "auth.jwt_key_file")
        place = f"auth.jwt_key_file: {config.jwt_key_file}"
        return {"": _usable(_from_file(content, place), config, place)}
    assert config.jwt_jwks_file is not None
    place = f"auth.jwt_jwks_file: {config.jwt_jwks_file}"
    return read_set(_read(config.jwt_jwks_file, "auth.jwt_jwks_file"), config, place)


def read_set(
    content: bytes, config: AuthConfig, place: str, *, is_public: bool = False
) -> dict[str, TokenKey]:
    """Read a JSON Web Key Set (RFC 7517): key id -> key.

    Args:
        content: the set.
        config: accepted algorithms.
        place: for messages.
        is_public: others can read the set, so that a shared secret in it is no key. Keys that cannot be
            used are ignored, as RFC 7517, section 5, asks; else they are errors.

    Raises: ConfigError: with what is wrong.
    """
    try:
        listed = [data for data in json.loads(content)["keys"] if data.get("use", "sig") == "sig"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{place}: not a JSON Web Key Set: {type(error).__name__}") from None
    found: dict[str, TokenKey] = {}
    for data in listed:
        try:
            name, key = _of_set(data, config, place, is_public=is_public)
        except ConfigError as error:
            if not is_public:
                raise
            logger.debug("ignored: %s", error)
            continue
        if name in found:
            raise ConfigError(f"{place}: two keys have the same kid")
        found[name] = key
    if not found:
        raise ConfigError(
            f"{place}: has no key for signatures with {', '.join(config.jwt_algorithms) or 'no algorithm'} "
            "(auth.jwt_algorithms)"
        )
    return found


def _of_set(
    data: dict[str, Any], config: AuthConfig, place: str, *, is_public: bool
) -> tuple[str, TokenKey]:
    """Return id and key of an entry of a set."""
    name = data.get("kid")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{place}: a key has no kid")
    if is_public and data.get("kty") == "oct":
        raise ConfigError(f"{place}: key {name!r} is a shared secret that others can read")
    try:
        key = jwt.PyJWK(data).key
    except (jwt.PyJWTError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{place}: not a JSON Web Key Set: {type(error).__name__}") from None
    usable = _usable(key, config, f"{place}: key {name!r}")
    declared = data.get("alg")
    if declared is not None and declared not in usable.algorithms:
        raise ConfigError(
            f"{place}: key {name!r} is for {declared!r}, but auth.jwt_algorithms accepts "
            f"{', '.join(usable.algorithms)} for it"
        )
    return name, usable if declared is None else TokenKey(key, (declared,))


def _usable(key: Any, config: AuthConfig, place: str) -> TokenKey:
    """Return the key with those of the accepted algorithms that it supports."""
    fitting = _fitting(key, place)
    algorithms = tuple(name for name in config.jwt_algorithms if name in fitting)
    if not algorithms:
        raise ConfigError(
            f"{place}: this key supports {', '.join(fitting)}, but auth.jwt_algorithms accepts "
            f"{', '.join(config.jwt_algorithms) or 'none'}"
        )
    return TokenKey(key, algorithms)


def _fitting(key: Any, place: str) -> tuple[str, ...]:
    if isinstance(key, RSAPublicKey):
        if key.key_size not in _RSA_BITS:
            raise ConfigError(
                f"{place}: an RSA key of {key.key_size} bits; expected {_RSA_BITS[0]} to {_RSA_BITS[-1]}"
            )
        return _RSA
    if isinstance(key, EllipticCurvePublicKey) and key.curve.name in _CURVES:
        return (_CURVES[key.curve.name],)
    if isinstance(key, Ed25519PublicKey):
        return ("EdDSA",)
    if isinstance(key, bytes):
        fitting = tuple(name for name in _HMAC if len(key) * 8 >= int(name[2:]))
        if not fitting:
            raise ConfigError(
                f"{place}: a secret of {len(key)} bytes can be guessed; at least 32 are required"
            )
        return fitting
    raise ConfigError(f"{place}: neither an RSA, P-256, P-384, P-521 or Ed25519 public key nor a secret")


def _from_file(content: bytes, place: str) -> Any:
    if b"-----BEGIN" not in content:
        return content.strip()
    if b"PRIVATE KEY" in content:
        raise ConfigError(f"{place}: has a private key; the server needs only the public key")
    try:
        return load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{place}: not a PEM public key: {error}") from None


def _read(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting}: {path} cannot be read: {error.strerror}") from None
