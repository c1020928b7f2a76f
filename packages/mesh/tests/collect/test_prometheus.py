"""The client: how it is let in, and what it says when it is not."""

import base64
import datetime
import http.server
import ssl
import threading

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hopline.errors import ConfigError
from hopline_mesh.collect import Prometheus
from hopline_mesh.errors import QueryFailed, SourceUnavailable

URL = "http://prometheus:9090"


class Recording:
    """Answers all, and keeps what it was asked."""

    def __init__(self):
        self.requests = []

    def __call__(self, request):
        self.requests.append(request)
        return httpx.Response(200, json={"status": "success"})


async def sent(url=URL, **access):
    """The request that a query makes."""
    there = Recording()
    async with Prometheus(url, transport=httpx.MockTransport(there), **access) as client:
        await client.query("up", 1_800_000_000.1234, 2.5)
    return there.requests[0]


async def test_a_query_is_a_form_with_its_time():
    request = await sent()
    assert (request.method, str(request.url)) == ("POST", f"{URL}/api/v1/query")
    assert request.content == b"query=up&time=1800000000.123&timeout=2500ms"
    assert "authorization" not in request.headers


async def test_a_path_before_the_api_stays():
    assert str((await sent(f"{URL}/prom/")).url) == f"{URL}/prom/api/v1/query"


async def test_token_and_password_are_sent(tmp_path):
    file = tmp_path / "token"
    file.write_text("abc\n")
    assert (await sent(token_file=file)).headers["authorization"] == "Bearer abc"
    request = await sent("http://me:secret@prometheus")
    password = base64.b64encode(b"me:secret").decode()
    assert request.headers["authorization"] == f"Basic {password}"
    assert "secret" not in str(request.url)


async def test_a_token_that_is_renewed_is_read_again(tmp_path):
    file, there = tmp_path / "token", Recording()
    file.write_text("one\n")
    async with Prometheus(URL, token_file=file, transport=httpx.MockTransport(there)) as client:
        await client.query("up", 1.0, 1.0)
        file.write_text("two\n")
        await client.query("up", 1.0, 1.0)
        file.write_text("\n")
        with pytest.raises(ConfigError, match="token is empty"):
            await client.query("up", 1.0, 1.0)
        file.unlink()
        with pytest.raises(ConfigError, match="token cannot be read: No such file"):
            await client.query("up", 1.0, 1.0)
    assert [request.headers["authorization"] for request in there.requests] == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize(
    ("url", "token", "ca_file", "said"),
    [
        ("prometheus:9090", None, None, "is not a URL such as http://host:9090"),
        ("ftp://prometheus", None, None, "is not a URL"),
        ("http://", None, None, "is not a URL"),
        ("http://a:port", None, None, "is no URL|is not a URL"),
        ("http://b@prometheus", "a", None, "a bearer token and a user name are set"),
        (URL, "a\nb", None, "blanks or other invalid characters"),
        ("https://prometheus", None, "/nowhere.pem", "/nowhere.pem cannot be read as PEM"),
    ],
)
def test_what_cannot_work_is_refused_at_once(tmp_path, url, token, ca_file, said):
    file = None
    if token is not None:
        file = tmp_path / "token"
        file.write_text(token)
    with pytest.raises(ConfigError, match=said):
        Prometheus(url, token_file=file, ca_file=ca_file)


async def test_no_message_has_the_password():
    def refuse(request):
        return httpx.Response(403, text="no")

    transport = httpx.MockTransport(refuse)
    async with Prometheus("http://me:secret@prometheus", transport=transport) as client:
        with pytest.raises(QueryFailed) as caught:
            await client.query("up", 1.0, 1.0)
    assert "secret" not in str(caught.value)
    assert "HTTP 403: a token or password is missing, wrong or has no permission: no" in str(caught.value)


async def test_nobody_there_is_said_with_the_address():
    async with Prometheus("http://127.0.0.1:1") as client:
        with pytest.raises(SourceUnavailable, match=r"Prometheus at http://127.0.0.1:1 is unavailable: "):
            await client.query("up", 1.0, 1.0)


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """URL and certificate of a server with TLS."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "certificate.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = folder / "key.pem"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, private)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://localhost:{server.server_port}", pem
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_certificate_is_checked_against_the_file(secured):
    url, pem = secured
    async with Prometheus(url, ca_file=pem) as client:
        assert (await client.query("up", 1.0, 1.0)).body == b"{}"
    async with Prometheus(url) as client:
        with pytest.raises(SourceUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await client.query("up", 1.0, 1.0)
