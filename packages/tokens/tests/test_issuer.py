"""Keys at a URL: fetched, rotated, kept while the issuer is down; and which keys are none."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from hopline.config.reader import load_config
from hopline.config.schema import AuthConfig
from hopline.errors import ConfigError, IssuerUnavailable, Unauthenticated
from hopline.ingress.exposure import check_exposure
from hopline_tokens.issuer import MIN_INTERVAL_S, IssuerKeys
from hopline_tokens.token_keys import read_set
from hopline_tokens.verifier import TokenVerifier
from packages.tokens.tests.issuers import AUDIENCE, Issuer, issuing, jwk
from tests.ingress.certificates import Authority

URL = "http://127.0.0.1:1"


class Rig:
    """Keys of an issuer whose fetches end when the test says so."""

    def __init__(self, issuer: Issuer, **settings: Any) -> None:
        self.issuer = issuer
        self.now = 1000.0
        self.held: list[Callable[[], None]] = []
        self.holds = False
        given = {"jwt_discovery": True, "jwt_issuer": issuer.url, "jwt_audience": AUDIENCE} | settings
        self.config = auth(**given)
        self.keys = IssuerKeys(self.config, issuer.fetch, self._spawn, lambda: self.now)
        self.verifier = TokenVerifier(self.config, time.time, self.keys)

    def _spawn(self, work: Callable[[], None]) -> None:
        if self.holds:
            self.held.append(work)
        else:
            work()

    def wait(self, seconds: float) -> bool:
        """Let time pass, and look once."""
        self.now += seconds
        return self.verifier.tick()

    def subject(self, token: str) -> str:
        return self.verifier.verify(token).subject


def auth(**values: Any) -> AuthConfig:
    return load_config(overrides={f"auth.{name}": value for name, value in values.items()}).auth


@pytest.fixture
def issuer() -> Issuer:
    found = Issuer(URL)
    found.rotate("a")
    return found


def test_the_keys_of_an_issuer_are_discovered(issuer: Issuer) -> None:
    rig = Rig(issuer)
    assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]
    assert rig.subject(issuer.token("a")) == "ada"


def test_the_url_of_a_key_set_needs_no_discovery(issuer: Issuer) -> None:
    rig = Rig(issuer, jwt_discovery=False, jwt_jwks_url=f"{URL}/keys")
    assert issuer.asked == ["/keys"]
    assert rig.subject(issuer.token("a")) == "ada"


def test_an_unknown_key_id_fetches_the_keys_and_the_next_request_is_answered(issuer: Issuer) -> None:
    rig = Rig(issuer)
    issuer.rotate("a", "b")
    rig.now += MIN_INTERVAL_S
    rig.holds = True
    for _ in range(3):
        with pytest.raises(IssuerUnavailable, match="key is new"):
            rig.subject(issuer.token("b"))
    assert len(rig.held) == 1  # one fetch for all
    rig.held.pop()()
    assert rig.subject(issuer.token("b")) == "ada"
    assert rig.subject(issuer.token("a")) == "ada"


def test_invented_key_ids_do_not_flood_the_issuer(issuer: Issuer) -> None:
    rig = Rig(issuer)
    stranger = Issuer(URL)
    stranger.rotate(*(f"invented-{i}" for i in range(20)))
    for step in range(20):
        rig.now += MIN_INTERVAL_S / 10
        with pytest.raises(Unauthenticated, match="no kid of the issuer's keys"):
            rig.subject(stranger.token(f"invented-{step}"))
    assert issuer.asked.count("/keys") == 1 + 2


def test_keys_are_fetched_again_and_a_removed_one_is_refused(issuer: Issuer) -> None:
    rig = Rig(issuer, jwt_refresh_s=60)
    old = issuer.token("a")
    assert not rig.wait(59)
    issuer.rotate("b")
    rig.wait(2)
    assert rig.wait(1)  # changed: what was remembered of tokens is forgotten
    with pytest.raises(Unauthenticated, match="no kid"):
        rig.subject(old)
    assert rig.subject(issuer.token("b")) == "ada"
    assert not rig.wait(61)
    assert not rig.wait(1)  # the same keys


def test_the_last_keys_stay_while_the_issuer_is_down(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(issuer, jwt_refresh_s=60)
    issuer.is_up = False
    with caplog.at_level(logging.INFO):
        for _ in range(10):
            rig.wait(61)
            assert rig.subject(issuer.token("a")) == "ada"
        issuer.is_up = True
        issuer.rotate("b")
        rig.wait(MIN_INTERVAL_S)
        rig.wait(1)
    assert rig.subject(issuer.token("b")) == "ada"
    said = [record.getMessage() for record in caplog.records]
    assert len([text for text in said if "answered 500; the last 1 keys stay in effect" in text]) == 1
    assert len([text for text in said if "can be fetched again" in text]) == 1


def test_a_server_starts_without_its_issuer_and_says_that_tokens_cannot_be_checked(issuer: Issuer) -> None:
    issuer.is_up = False
    rig = Rig(issuer)
    with pytest.raises(IssuerUnavailable, match="cannot be fetched"):
        rig.subject(issuer.token("a"))
    issuer.is_up = True
    rig.wait(MIN_INTERVAL_S)
    assert rig.subject(issuer.token("a")) == "ada"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"issuer": "https://other.example", "jwks_uri": f"{URL}/keys"}, "is of issuer 'https://other"),
        ({"issuer": URL}, "not a discovery document"),
        ([], "not a discovery document"),
        ({"issuer": URL, "jwks_uri": 7}, "jwks_uri is not text"),
        ({"issuer": URL, "jwks_uri": "http://keys.example/keys"}, "must be https"),
        ({"issuer": URL, "jwks_uri": "file:///etc/passwd"}, "is not a URL"),
    ],
)
def test_a_discovery_document_of_others_is_refused(
    issuer: Issuer, document: Any, said: str, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setattr("hopline_tokens.issuer.is_loopback", lambda host, _: host == "127.0.0.1")
    issuer.documents["/.well-known/openid-configuration"] = document
    rig = Rig(issuer)
    assert said in caplog.text
    with pytest.raises(IssuerUnavailable):
        rig.subject(issuer.token("a"))


@pytest.mark.parametrize("change", [{"iss": "https://other.example"}, {"aud": "elsewhere"}])
def test_issuer_and_audience_are_checked(issuer: Issuer, change: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated, match="another"):
        Rig(issuer).subject(issuer.token("a", **change))


def test_keys_that_cannot_be_used_are_ignored_beside_good_ones(issuer: Issuer) -> None:
    """As RFC 7517, 5 asks; a shared secret that everyone can read is no key."""
    secret = base64.urlsafe_b64encode(b"s" * 32).rstrip(b"=").decode()
    issuer.documents["/keys"]["keys"] += [
        {"kty": "oct", "kid": "secret", "k": secret},
        {"kty": "quantum", "kid": "future"},
        {"kty": "RSA", "kid": "bad", "n": "AQAB", "e": "AQAB"},
        {"kid": "none"},
        jwk(issuer.keys["a"], "sealed", use="enc"),
        jwk(issuer.keys["a"], "declared", alg="ES384"),
    ]
    rig = Rig(issuer, jwt_algorithms="ES256,HS256")
    assert set(rig.keys.keys) == {"a"}
    forged = jwt.encode(
        {"sub": "eve", "iss": URL, "aud": AUDIENCE, "exp": time.time() + 60},
        b"s" * 32,
        "HS256",
        headers={"kid": "secret"},
    )
    with pytest.raises(Unauthenticated):
        rig.subject(forged)


def test_a_declared_algorithm_pins_the_key(issuer: Issuer) -> None:
    key = rsa.generate_private_key(65537, 2048)
    issuer.documents["/keys"] = {"keys": [jwk(key, "r", alg="RS256")]}
    rig = Rig(issuer, jwt_algorithms="RS256,PS256")
    content = {"sub": "ada", "iss": URL, "aud": AUDIENCE, "exp": time.time() + 60}
    assert rig.subject(jwt.encode(content, key, "RS256", headers={"kid": "r"})) == "ada"
    with pytest.raises(Unauthenticated, match="not signed with an algorithm of its key: RS256"):
        rig.subject(jwt.encode(content, key, "PS256", headers={"kid": "r"}))


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
def test_a_public_key_is_no_secret_and_none_no_algorithm(issuer: Issuer, algorithm: str) -> None:
    """The two classical attacks (RFC 8725, 2.1), also with the algorithms accepted by the setting."""
    rig = Rig(issuer, jwt_algorithms="ES256,HS256,none")
    public = issuer.keys["a"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def part(value: Any) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    content = {"sub": "eve", "iss": URL, "aud": AUDIENCE, "exp": time.time() + 60}
    signed = part({"alg": algorithm, "kid": "a"}) + b"." + part(content)
    signature = b""
    if algorithm == "HS256":
        import hashlib
        import hmac

        signature = base64.urlsafe_b64encode(hmac.digest(public, signed, hashlib.sha256)).rstrip(b"=")
    with pytest.raises(Unauthenticated, match="not signed with an algorithm of its key: ES256"):
        rig.subject((signed + b"." + signature).decode())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"jwt_jwks_url": "http://keys.example/keys"}, "must be https"),
        ({"jwt_jwks_url": "keys.example"}, "is not a URL"),
        ({"jwt_jwks_url": "https://"}, "is not a URL"),
        ({"jwt_discovery": True, "jwt_issuer": "login"}, "auth.jwt_issuer: 'login' is not a URL"),
        ({"jwt_jwks_url": "https://[", "jwt_issuer": "x"}, "is not a URL"),
    ],
)
def test_an_address_that_is_not_safe_is_refused_at_start(
    settings: dict[str, Any], said: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr("hopline_tokens.issuer.is_loopback", lambda host, _: host == "127.0.0.1")
    with pytest.raises(ConfigError, match=said):
        IssuerKeys(auth(**({"jwt_issuer": URL, "jwt_audience": AUDIENCE} | settings)), lambda url: b"")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"jwt_jwks_url": "https://a", "jwt_discovery": True}, "not both"),
        ({"jwt_issuer": "https://a"}, "auth.jwt_jwks_url or auth.jwt_discovery"),
        ({"jwt_discovery": True, "jwt_issuer": "https://a"}, "auth.jwt_audience: must be set"),
        ({"jwt_ca_file": "ca.pem"}, "also needs"),
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    config = load_config(overrides={f"auth.{name}": value for name, value in settings.items()})
    with pytest.raises(ConfigError, match=said):
        check_exposure(config)


def test_keys_are_read_over_http_and_large_answers_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    with issuing() as issuer:
        issuer.rotate("a")
        config = auth(jwt_discovery=True, jwt_issuer=issuer.url, jwt_audience=AUDIENCE)
        assert set(IssuerKeys(config).keys) == {"a"}
        issuer.documents["/keys"]["padding"] = "x" * 2**20
        assert not IssuerKeys(config).keys
        assert "larger than 1048576 bytes" in caplog.text
        issuer.is_up = False
        assert not IssuerKeys(config).keys
        assert "answered 500" in caplog.text


def test_the_authority_of_an_issuer_may_be_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Within the life of a server, and first at the issuer."""
    now = 1000.0
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(first.file.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*first.for_localhost("one"))
    with issuing(context) as issuer:
        issuer.rotate("a")
        config = auth(jwt_discovery=True, jwt_issuer=issuer.url, jwt_audience=AUDIENCE, jwt_ca_file=trusted)
        keys = IssuerKeys(config, spawn=lambda work: work(), clock=lambda: now)
        assert set(keys.keys) == {"a"}
        context.load_cert_chain(*second.for_localhost("two"))
        issuer.rotate("a", "b")
        for written, expected in (
            (b"", {"a"}),
            (b"no certificate", {"a"}),
            (second.file.read_bytes(), {"a", "b"}),
        ):
            if written:
                trusted.write_bytes(written)
            now += config.jwt_refresh_s
            keys.tick()
            keys.tick()
            assert set(keys.keys) == expected
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text
    assert "the last 1 keys stay in effect" in caplog.text
    assert "auth.jwt_ca_file" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        b"<html>",
        b"[" * 2**19,
        b'{"keys":' + b"[" * 2**19,
        b'{"keys": null}',
        b'{"keys": [1]}',
        b'{"keys": [{"kid": "a", "kty": "RSA", "n": 1' + b"0" * 2**19 + b', "e": "AQAB"}]}',
        b'{"keys": [{"kid": [], "kty": "EC"}]}',
        b"\xff\xfe",
    ],
)
def test_content_that_is_no_key_set_is_an_error_with_its_address(content: bytes) -> None:
    for is_public in (True, False):
        with pytest.raises(ConfigError, match=r"^https://login/keys: ") as caught:
            read_set(content, auth(), "https://login/keys", is_public=is_public)
        assert len(str(caught.value)) < 300


def test_an_issuer_that_sends_a_byte_at_a_time_does_not_hold_a_fetch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each byte would begin a time limit of single reads again, and new keys would never be fetched."""
    monkeypatch.setattr("hopline_tokens.issuer._ANSWER_S", 0.2)
    closed = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
            while not closed.wait(0.02):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/keys"
        try:
            keys = IssuerKeys(auth(jwt_jwks_url=url, jwt_issuer=URL, jwt_audience=AUDIENCE))
            assert not keys.keys
            assert "the answer takes longer than 0.2 s" in caplog.text
        finally:
            closed.set()
            thread.join()
