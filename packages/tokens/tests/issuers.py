"""An issuer of tokens on loopback: its keys, its discovery document, and tokens that it signs."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

AUDIENCE = "hopline"


class Issuer:
    """What it answers may change at any time.

    Attributes:
        is_up: answers with the documents; else with 500.
        documents: path -> JSON.
        asked: paths of all requests.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_up = True
        self.asked: list[str] = []
        self.keys: dict[str, Any] = {}
        self.documents: dict[str, Any] = {
            "/.well-known/openid-configuration": {"issuer": url, "jwks_uri": f"{url}/keys"},
            "/keys": {"keys": []},
        }

    def rotate(self, *names: str) -> None:
        """Have these keys, new ones where there were none."""
        self.keys = {name: self.keys.get(name) or new_key() for name in names}
        self.documents["/keys"] = {"keys": [jwk(key, name) for name, key in self.keys.items()]}

    def token(self, name: str, sub: str = "ada", **claims: Any) -> str:
        content = {"sub": sub, "iss": self.url, "aud": AUDIENCE, "exp": time.time() + 600, **claims}
        return jwt.encode(content, self.keys[name], "ES256", headers={"kid": name})

    def fetch(self, url: str) -> bytes:
        """As HTTP would."""
        path = url.removeprefix(self.url)
        self.asked.append(path)
        if not self.is_up:
            raise OSError(f"{url}: answered 500")
        return json.dumps(self.documents[path]).encode()


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def jwk(key: Any, name: str, **members: Any) -> dict[str, Any]:
    """The public key as an entry of a set."""
    kind: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    found: dict[str, Any] = kind.to_jwk(key.public_key(), as_dict=True)
    return found | {"kid": name, "use": "sig"} | members


@contextlib.contextmanager
def issuing(context: ssl.SSLContext | None = None) -> Iterator[Issuer]:
    """An issuer behind HTTP, or HTTPS with a context."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                status, content = 200, issuer.fetch(issuer.url + self.path)
            except OSError:
                status, content = 500, b""
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        issuer = Issuer(f"{scheme}://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()
