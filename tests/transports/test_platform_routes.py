"""SageMaker's and Vertex AI's routes: probed and asked as those platforms do."""

import json

import pytest

from hopline.config.reader import load_config
from hopline.errors import ConfigError
from hopline.transports.http import HttpApp
from hopline.transports.score_json import ScoreBody
from tests.fake_service import FakeService
from tests.transports.http_rig import hosted

SAGEMAKER = {"server.health_route": "/ping", "server.predict_route": "/invocations", "models.names": "sage"}


async def ask(host, method, path, body=b""):
    connection = await host.connect()
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.send(head.encode() + body)
    status, _, content = await connection.answer()
    return status, json.loads(content)


def only_sage(host, monkeypatch):
    monkeypatch.setattr(host.service, "model_names", lambda: ("sage",))


async def test_sagemaker_is_answered_at_ping_and_invocations(monkeypatch):
    async with hosted(load_config(overrides=SAGEMAKER)) as host:
        only_sage(host, monkeypatch)
        assert (await ask(host, "GET", "/ping"))[0] == 200
        status, answer = await ask(host, "POST", "/invocations", b'{"nodes": [1, 2]}')
        wanted = await ask(host, "POST", "/v1/models/sage/score", b'{"nodes": [1, 2]}')
        assert (status, answer) == wanted
        assert status == 200
        host.app.draining = True
        assert (await ask(host, "GET", "/ping"))[0] == 503


async def test_vertex_gets_a_prediction_for_each_instance(monkeypatch):
    env = {"AIP_HEALTH_ROUTE": "/v1/endpoints/1/health", "AIP_PREDICT_ROUTE": "/v1/p:predict"}
    config = load_config(env=env | {"AIP_HTTP_PORT": "8080"})
    assert config.server.http_port == 8080
    async with hosted(config) as host:
        only_sage(host, monkeypatch)
        assert (await ask(host, "GET", "/v1/endpoints/1/health"))[0] == 200
        status, answer = await ask(host, "POST", "/v1/p:predict", b'{"instances": [1, 2]}')
        assert status == 200
        _, scores = await ask(host, "POST", "/v1/models/sage/score", b'{"nodes": [1, 2]}')
        names = scores["outputs"]
        assert answer == {"predictions": [{name: names[name][i] for name in names} for i in range(2)]}
        body = b'{"instances": [1], "parameters": {"outputs": ["label"]}}'
        _, answer = await ask(host, "POST", "/v1/p:predict", body)
        assert [set(each) for each in answer["predictions"]] == [{"label"}]


@pytest.mark.parametrize("body", [b'{"nodes": [1], "tags": ["instances"]}', b'{"nodes": ["instances"]}'])
async def test_the_word_instances_in_another_field_is_no_list_of_instances(body, monkeypatch):
    async with hosted(load_config(overrides=SAGEMAKER)) as host:
        only_sage(host, monkeypatch)
        answer = await ask(host, "POST", "/invocations", body)
        assert answer == await ask(host, "POST", "/v1/models/sage/score", body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"instances": [1.5]}', "instances"),
        (b'{"instances": [1], "instances": [2]}', "is repeated"),
        (b'{"instances": [1], "other": 1}', "other"),
        (b'{"instances": [1], "parameters": {"colour": 1}}', "colour"),
    ],
)
async def test_bodies_that_are_wrong_are_refused(body, said, monkeypatch):
    async with hosted(load_config(overrides=SAGEMAKER)) as host:
        only_sage(host, monkeypatch)
        status, answer = await ask(host, "POST", "/invocations", body)
        assert status == 400
        assert said in answer["error"]["message"]


#: A value for each field of the score route's body.
PARAMETERS = {
    "nodes": [3],
    "inline": [{"features": [0.0] * 16, "neighbors": [1]}],
    "pairs": [[1, 2]],
    "rows": [{"a": 1.0}],
    "columns": {"a": [1.0, 2.0, 3.0]},
    "timeout_ms": 10_000,
    "version": "1",
    "outputs": ["label"],
    "as_of": None,
    "on_missing": "null",
    "degraded": "allow",
    "attributes": {"country": "de"},
    "key": "user-7",
    "priority": "high",
    "tags": ["nightly"],
    "min_version": "9c1f0b7e52d4a386+7",
    "node_type": "node",
    "keep": False,
    "context": [{"type": "shop", "features": [1.0]}],
    "exclude_seed_edges": "self",
    "if": [{"remove_edge": {"from": 1, "to": 2}}],
    "edges": [{"from": 1, "to": 2, "attr": [1.0]}],
}
#: Those that the fake service answers; every other one has to be refused.
ANSWERED = {
    *("timeout_ms", "version", "outputs", "as_of", "on_missing", "degraded", "attributes", "key"),
    *("priority", "tags", "min_version", "context", "node_type", "keep", "if", "exclude_seed_edges"),
}


@pytest.mark.parametrize("name", sorted(ScoreBody.__struct_encode_fields__))
async def test_predictions_are_as_many_as_instances_whatever_parameters_say(name, monkeypatch):
    async with hosted(load_config(overrides=SAGEMAKER)) as host:
        only_sage(host, monkeypatch)
        body = {"instances": [1, 2], "parameters": {name: PARAMETERS[name]}}
        status, answer = await ask(host, "POST", "/invocations", json.dumps(body).encode())
        if name in ANSWERED:
            assert status == 200
            assert len(answer["predictions"]) == 2
        else:
            assert status == 400
            assert f"parameters: '{name}' names what is scored" in answer["error"]["message"]


async def test_parameters_that_are_null_are_as_missing(monkeypatch):
    async with hosted(load_config(overrides=SAGEMAKER)) as host:
        only_sage(host, monkeypatch)
        body = {"instances": [1, 2], "parameters": dict.fromkeys(ScoreBody.__struct_encode_fields__)}
        status, answer = await ask(host, "POST", "/invocations", json.dumps(body).encode())
        assert status == 200
        assert len(answer["predictions"]) == 2


async def test_with_several_models_the_prediction_route_is_refused(monkeypatch):
    async with hosted(load_config(overrides=SAGEMAKER)) as host:
        monkeypatch.setattr(host.service, "model_names", lambda: ("gat", "sage"))
        status, answer = await ask(host, "POST", "/invocations", b'{"nodes": [1]}')
        assert status == 400
        assert "this one has 2" in answer["error"]["message"]


async def test_without_settings_there_are_no_such_routes():
    async with hosted(load_config()) as host:
        assert (await ask(host, "GET", "/ping"))[0] == 404
        assert (await ask(host, "POST", "/invocations", b'{"nodes": [1]}'))[0] == 404


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"server.health_route": "ping"}, "is not a path such as /ping"),
        ({"server.health_route": "/metrics"}, "is a route of Hopline's own"),
        ({"server.health_route": "/p", "server.predict_route": "/p"}, "is server.health_route as well"),
    ],
)
def test_routes_that_cannot_be_are_refused_by_their_settings(settings, said):
    config = load_config(overrides=settings)
    with pytest.raises(ConfigError, match=said):
        HttpApp(FakeService(config), config)


def test_own_variables_win_over_those_of_the_platform():
    env = {"AIP_HTTP_PORT": "8080", "HOPLINE__SERVER__HTTP_PORT": "9000"}
    assert load_config(env=env).server.http_port == 9000
