"""Pages of other sites cannot use a server through someone's browser; other clients are not hindered.

The headers are those that browsers send (Fetch, 3.1; W3C Fetch Metadata).
"""

from __future__ import annotations

import asyncio

import pytest

from hopline.config.reader import load_config
from hopline.config.schema import Config
from hopline.errors import BadRequest, PermissionDenied
from hopline.transports.http import HttpApp
from hopline.transports.http_access import OPEN, BrowserRules
from tests.fake_service import FakeService
from turnserve.http1.messages import Request, Response

SCORE = b"/v1/models/sage/score"
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
#: As curl -d, wget and most other programs send.
CALLERS = [
    {"host": "127.0.0.1:8700"},
    {"host": "127.0.0.1:8700", "content-type": FORM},
    {"host": "127.0.0.1:8700", "content-type": JSON, "user-agent": "python-requests/2"},
    {"host": "localhost:8700", "content-type": JSON},
    {"host": "models.localhost:8700"},
    {"host": "[::1]:8700"},
    {"host": "10.2.3.4"},
    {"host": "hopline:8700"},  # a name of Compose, or of the same namespace in Kubernetes
    {"host": "hopline."},
    {"host": ""},
    {},  # HTTP/1.0
    {"host": "10.2.3.4", "content-type": "application/octet-stream"},
    {"host": "10.2.3.4", "content-type": JSON, "sec-fetch-mode": "cors"},  # Node.js
]
OWN_PAGES = [
    {"host": "localhost:8700", "origin": "http://localhost:8700", "sec-fetch-site": "same-origin"},
    {"host": "10.2.3.4:8700", "origin": "http://10.2.3.4:8700"},
    {"host": "10.2.3.4", "origin": "http://10.2.3.4"},
    {"host": "10.2.3.4:443", "origin": "https://10.2.3.4"},
    # Behind a proxy that sets its own Host.
    {"host": "127.0.0.1:8700", "origin": "https://ml.example", "sec-fetch-site": "same-origin"},
    {"host": "localhost:8700", "sec-fetch-site": "none"},
]
OTHER_PAGES = [
    {"host": "127.0.0.1:8700", "origin": "https://evil.example", "sec-fetch-site": "cross-site"},
    {"host": "127.0.0.1:8700", "sec-fetch-site": "cross-site"},
    {"host": "10.2.3.4", "origin": "http://evil.example"},
    {"host": "10.2.3.4", "origin": "null"},  # a sandboxed frame, or a page without referrers
    {"host": "127.0.0.1:8700", "origin": "http://127.0.0.1:3000", "sec-fetch-site": "same-site"},
    {"host": "127.0.0.1:8700", "origin": "http://127.0.0.1:3000"},
    {"host": "127.0.0.1:8700", "origin": "http://evil.127.0.0.1:8700"},
    {"host": "10.2.3.4", "origin": "http://10.2.3.4:80.evil.example"},
    {"host": "10.2.3.4", "origin": "ftp://10.2.3.4:21"},
    {"host": "127.0.0.1:8700", "sec-fetch-site": "cross-site", "content-type": FORM},
    {"host": "127.0.0.1:8700", "sec-fetch-site": "cross-site", "content-type": JSON},
    {"host": "127.0.0.1:8700", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    # A page whose name leads here.
    {"host": "evil.example:8700"},
    {"host": "evil.example:8700", "origin": "http://evil.example:8700", "sec-fetch-site": "same-origin"},
    {"host": "127.0.0.1.evil.example"},
    {"host": "localhost.evil.example"},
    {"host": "evil.example."},
    {"host": "0x7f.1"},
]


def request(headers: dict[str, str], method: str = "POST", target: bytes = SCORE) -> Request:
    found = {name.encode(): value.encode() for name, value in headers.items()}
    return Request(method.encode(), target, found, b'{"nodes":[1]}' if method == "POST" else b"")


def is_allowed(rules: BrowserRules, sent: Request) -> bool:
    try:
        rules.admit(sent, OPEN)
    except PermissionDenied:
        return False
    return True


@pytest.mark.parametrize("headers", [*CALLERS, *OWN_PAGES])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_callers_and_pages_of_the_server_are_allowed(headers: dict[str, str], method: str) -> None:
    assert is_allowed(BrowserRules(), request(headers, method))


@pytest.mark.parametrize("headers", OTHER_PAGES)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_pages_of_other_sites_are_refused(headers: dict[str, str], method: str) -> None:
    assert not is_allowed(BrowserRules(), request(headers, method))


def test_a_link_of_another_site_leads_to_a_page_of_the_server() -> None:
    link = {"host": "localhost:8700", "sec-fetch-site": "cross-site"}
    link |= {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert is_allowed(BrowserRules(), request(link, "GET", b"/docs"))
    assert not is_allowed(BrowserRules(), request(link, "POST"))
    frame = link | {"sec-fetch-dest": "iframe"}
    assert not is_allowed(BrowserRules(), request(frame, "GET", b"/docs"))


@pytest.mark.parametrize(
    ("hosts", "host", "allowed"),
    [
        (["ml.example"], "ml.example:8700", True),
        (["ML.example."], "ml.EXAMPLE", True),
        (["ml.example"], "a.ml.example", False),
        (["ml.example"], "xml.example", False),
        ([".ml.example"], "a.b.ml.example", True),
        ([".ml.example"], "ml.example", False),
        ([".svc", ".cluster.local"], "hopline.models.svc.cluster.local:8700", True),
        (["*"], "anything.example", True),
    ],
)
def test_listed_hosts_are_names_of_the_server(hosts: list[str], host: str, allowed: bool) -> None:
    assert is_allowed(BrowserRules(hosts), request({"host": host})) is allowed


def test_the_name_that_the_server_listens_on_is_its_own() -> None:
    assert is_allowed(BrowserRules((), "gpu1.example"), request({"host": "gpu1.example:8700"}))
    local = {"host": "127.0.0.1:8700", "origin": "http://127.0.0.1:3000"}
    assert not is_allowed(BrowserRules((), "127.0.0.1"), request(local))


def test_pages_of_a_listed_host_are_allowed() -> None:
    rules = BrowserRules(["app.example"])
    headers = {"host": "127.0.0.1:8700", "origin": "https://app.example", "sec-fetch-site": "cross-site"}
    assert is_allowed(rules, request(headers))
    assert not is_allowed(rules, request(headers | {"origin": "https://evil.example"}))


@pytest.mark.parametrize(
    "kind", ["text/plain", "Text/Plain;charset=UTF-8", "multipart/form-data; boundary=x"]
)
def test_bodies_of_types_that_pages_send_are_refused(kind: str) -> None:
    """Old browsers send neither of the headers."""
    with pytest.raises(BadRequest, match="send JSON as application/json"):
        BrowserRules().admit(request({"host": "localhost", "content-type": kind}), OPEN)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", SCORE),
        ("POST", b"/v1/graph/events"),
        ("DELETE", b"/v1/graph/nodes/node/1"),
        ("POST", b"/v1/rollouts"),
        ("POST", b"/v2/models/sage/infer"),
        ("POST", b"/v2/repository/models/sage/unload"),
        ("POST", b"/v2/repository/models/sage/load"),
        ("POST", b"/v2/repository/index"),
        ("GET", b"/v1/models"),
        ("GET", b"/metrics"),
    ],
)
def test_every_route_has_the_rules(method: str, target: bytes) -> None:
    config = load_config()
    app = HttpApp(FakeService(config), config)
    for headers in (OTHER_PAGES[0], {"host": "evil.example"}):
        answer = app(request(headers, method, target))
        assert isinstance(answer, Response)
        assert answer.status == 403
        assert b"server.hosts" in answer.body


def test_a_large_body_of_another_page_is_refused_before_it_is_read() -> None:
    app = HttpApp(FakeService(Config()), Config())
    refused = app.screen(request(OTHER_PAGES[0]))
    assert refused is not None
    assert refused.status == 403
    assert app.screen(request(CALLERS[0])) is None


def test_the_setting_reaches_the_rules() -> None:
    config = load_config(overrides={"server.hosts": "ml.example,.internal"})

    async def status(host: str) -> int:
        service = FakeService(config)
        await service.start()
        answer = HttpApp(service, config)(request({"host": host}, "GET", b"/v1/models"))
        assert isinstance(answer, Response)
        return answer.status

    assert asyncio.run(status("ml.example")) == asyncio.run(status("gpu.internal")) == 200
    assert asyncio.run(status("other.example")) == 403


def test_known_hosts_do_not_fill_memory() -> None:
    rules = BrowserRules(["*"])
    for number in range(3000):
        assert is_allowed(rules, request({"host": f"n{number}.example"}))
    assert len(rules._known) <= 1024
