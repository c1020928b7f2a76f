"""/openapi.json and /docs: valid, complete, and true of real answers."""

import json
from html.parser import HTMLParser
from importlib.metadata import EntryPoint, EntryPoints

import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from hopline.config.reader import load_config
from hopline.transports.http import HttpApp
from hopline.transports.http_operations import all_operations, operations_of
from hopline.transports.openapi import describe
from tests.fake_service import FakeService
from turnserve.http1.messages import Request

SECURED = {"auth.jwt_key_file": "x", "auth.jwt_issuer": "i", "auth.jwt_audience": "a"}


def document(**overrides):
    config = load_config(overrides=overrides)
    return describe(operations_of(config.server), config)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "settings",
    [{}, SECURED, {"server.health_route": "/ping", "server.predict_route": "/invocations"}],
    ids=["open", "secured", "platform"],
)
def test_the_document_is_valid_openapi(settings):
    OpenAPIV31SpecValidator(document(**settings)).validate()


def test_the_document_says_what_a_seed_promises():
    schemas = document()["components"]["schemas"]
    for name in ("ChatBody", "CompletionBody"):
        assert "and the seed alone" in schemas[name]["properties"]["seed"]["description"]


def test_the_document_lists_the_kinds_of_models_of_all_installed_packages(monkeypatch):
    def kinds():
        return document()["components"]["schemas"]["ModelInfo"]["properties"]["kind"]["enum"]

    assert kinds() == ["generative", "link", "node", "pipeline", "tabular"]
    installed = [EntryPoint("forest", "my_package.kind:FOREST", "hopline.model_kinds")]
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: EntryPoints(installed).select(group=group)
    )
    assert kinds() == ["forest", "link", "node"]


def test_every_route_is_described_with_its_method_and_permission():
    found = document(**SECURED)
    for each in all_operations():
        for path in each.paths:
            described = found["paths"][path][each.method.lower()]
            roles = [role for every in described.get("security", ()) for role in every.values()]
            wanted = {"open": [], "any": [[], []]}.get(each.required, [[each.required]] * 2)
            assert roles == wanted, path
            assert ("401" in described["responses"]) == (each.required != "open")
    assert sum(len(methods) for methods in found["paths"].values()) == sum(
        len(each.paths) for each in all_operations()
    )


def test_without_authentication_no_route_needs_credentials():
    found = document()
    assert "securitySchemes" not in found["components"]
    assert all(
        "security" not in each and "401" not in each["responses"]
        for methods in found["paths"].values()
        for each in methods.values()
    )


def test_docstrings_become_descriptions():
    schemas = document()["components"]["schemas"]
    assert "Attributes" not in json.dumps(schemas)
    assert schemas["Scores"]["properties"]["missing"]["description"] == "ids that became null."
    long = schemas["RolloutRequest"]["properties"]["preflight"]["description"]
    assert long.endswith("0 goes without.")


def test_events_of_a_graph_are_described_with_the_fields_that_each_takes():
    """As docs/http-api.md lists them."""
    found = document()
    body = found["paths"]["/v1/graph/events"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    names = [each["$ref"].rpartition("/")[2] for each in body["anyOf"] if "$ref" in each]
    described = [found["components"]["schemas"][name] for name in names]
    fields = {each["properties"]["op"]["enum"][0]: set(each["properties"]) for each in described}
    edge, node = (
        {"op", "id", "at", "src", "dst", "edge_type", "time"},
        {"op", "id", "at", "node", "node_type"},
    )
    assert fields == {
        "add_edge": edge | {"weight", "attr", "columns"},
        "remove_edge": edge,
        "add_node": node | {"features", "columns", "time"},
        "set_features": node | {"features", "columns", "time"},
        "remove_node": node,
    }
    for each in described:
        assert each["additionalProperties"] is False
        assert all("description" in kind for name, kind in each["properties"].items() if name != "op")


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.links, self.tags, self.text = set(), set(), set(), ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        named = dict(attrs)
        self.ids.add(named.get("id"))
        self.links.add(named.get("href", "#"))
        assert "src" not in named

    def handle_data(self, data):
        self.text += data


def test_the_page_shows_every_route_and_needs_nothing_else():
    config = load_config()
    answer = HttpApp(FakeService(config), config)(Request(b"GET", b"/docs", {}))
    assert answer.content_type.startswith(b"text/html")
    page = Page()
    page.feed(answer.body.decode())
    for each in all_operations():
        assert each.id in page.ids
        assert all(path in page.text for path in each.paths)
        assert each.summary in page.text
    assert not page.tags & {"script", "link", "img", "iframe"}
    assert "url(" not in answer.body.decode()
    links = page.links - {"#"}
    assert {link[1:] for link in links if link.startswith("#")} <= page.ids
    assert [link for link in links if not link.startswith("#")] == ["/openapi.json"]


def test_the_document_is_served_as_json():
    config = load_config()
    app = HttpApp(FakeService(config), config)
    served = msgspec.json.decode(app(Request(b"GET", b"/openapi.json", {})).body)
    assert served == json.loads(json.dumps(describe(operations_of(config.server), config)))
    head = app(Request(b"HEAD", b"/openapi.json", {}))
    assert head.status == 200
