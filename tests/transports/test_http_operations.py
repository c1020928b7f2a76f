"""The declarations of routes: every one has a handler, a permission and a place in the table."""

import pytest

from hopline.config.reader import load_config
from hopline.errors import ConfigError
from hopline.transports.http import HttpApp
from hopline.transports.http_access import OPEN
from hopline.transports.http_operations import all_operations, operations_of, table_of
from hopline.transports.http_routes import access_of
from hopline.transports.path_table import split_path
from tests.fake_service import FakeService

PLATFORM = {"server.health_route": "/ping", "server.predict_route": "/invocations"}


def access(path, **options):
    entries, values = table_of(all_operations()).find(split_path(path))
    return access_of(entries, values.get("model", ""), **options)


def test_every_operation_has_a_handler_and_every_handler_an_operation():
    config = load_config(overrides=PLATFORM)
    handlers = HttpApp(FakeService(config), config)._handlers
    assert {each.id for each in operations_of(config.server)} == set(handlers)


def test_a_method_of_a_path_is_declared_once():
    declared = [(each.method, path) for each in all_operations() for path in each.paths]
    assert len(declared) == len(set(declared))
    assert len({each.id for each in all_operations()}) == len(all_operations())


def test_every_path_leads_to_its_own_operation():
    """A literal part is not taken for a parameter."""
    table = table_of(all_operations())
    for each in all_operations():
        for path in each.paths:
            entries, _ = table.find(split_path(path))
            assert each in entries, path


def test_only_probes_are_open():
    assert {each.id for each in all_operations() if each.required == "open"} == {
        "healthz",
        "readyz",
        "server_live",
        "server_ready",
        "model_ready",
    }


def test_a_permission_is_for_the_model_of_the_path():
    assert access("/v1/rollouts/fraud/promote").model == "fraud"
    assert access("/v1/rollouts/fraud/promote").change == "admin"
    assert access("/v1/drift/fraud") == ("read", "admin", "fraud", False)
    assert access("/v1/models/fraud/versions/2/score").change == "score"
    assert access("/v1/models") == (None, "admin", "", False)
    assert access("/v1/rollouts") == (None, None, "", False)  # the body names the model
    assert access("/v1/graph/nodes/account/a17").change == "admin"
    assert access("/metrics", open_metrics=True) is OPEN
    assert access("/metrics").view == "read"


@pytest.mark.parametrize("route", ["/v1/models", "/v1/models/x", "/docs", "/v2/models/a/versions/1/infer"])
def test_a_path_of_a_setting_must_not_hide_a_route(route):
    with pytest.raises(ConfigError, match="is a route of Hopline's own"):
        operations_of(load_config(overrides={"server.health_route": route}).server)
