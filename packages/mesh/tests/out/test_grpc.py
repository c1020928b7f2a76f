"""gRPC on TCP and on a Unix socket, over real channels."""

from __future__ import annotations

import contextlib
import math
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from hopline.errors import ConfigError
from hopline.ingress.keys import new_key
from hopline_mesh.proto import message, methods
from packages.mesh.tests.out.drawn import incident, snapshot, verdict
from packages.mesh.tests.out.serving import Served, serving

MESH = "hopline.mesh.v1.Mesh"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    socket_path = tmp_path_factory.mktemp("run") / "mesh.sock"
    with serving(http_port=-1, socket=socket_path) as found:
        found.publish(verdict(985.0), snapshot(985.0))
        found.publish(verdict(1000.0, incident()), snapshot(1000.0, p99_ms=812.0))
        yield found


@contextlib.contextmanager
def calling(address: str) -> Iterator[Any]:
    """A function of service, method and request's fields."""
    with grpc.insecure_channel(address) as channel:

        def call(name: str, *, service: str = MESH, metadata: Any = None, **fields: Any) -> Any:
            method = next(each for each in methods(service) if each.name == name)
            request = message(method.input_type.full_name)
            kind = channel.unary_stream if method.server_streaming else channel.unary_unary
            stub = kind(
                f"/{service}/{name}",
                request.SerializeToString,
                message(method.output_type.full_name).FromString,
            )
            return stub(request(**fields), timeout=10, metadata=metadata)

        yield call


@pytest.fixture(params=["tcp", "unix"])
def call(served: Served, request: pytest.FixtureRequest) -> Iterator[Any]:
    port, path = served.outputs.grpc_port, served.outputs._settings.socket
    with calling(f"127.0.0.1:{port}" if request.param == "tcp" else f"unix:{path}") as found:
        yield found


def test_verdict_incident_and_graph_are_reported(call: Any) -> None:
    told = call("GetVerdict")
    assert (told.time_s, told.state, told.score) == (1000.0, 4, 3.0)
    (suspect, _) = told.incidents[0].suspects
    assert suspect.service == "shop/cart"
    assert not suspect.HasField("caller")
    assert suspect.evidence[1].caller == "shop/web"
    assert not told.incidents[0].HasField("end_s")
    record = call("GetIncident", id="i-1")
    assert [(point.time_s, point.seen) for point in record.series[0].points] == [
        (985.0, 40.0),
        (1000.0, 812.0),
    ]
    assert not record.series[0].points[0].HasField("expected")
    assert record.series[0].points[1].expected == 40.0
    assert [each.id for each in call("GetIncidents", open_only=True).incidents] == ["i-1"]
    graph = call("GetGraph")
    assert [node.service for node in graph.nodes] == ["shop/web", "shop/cart", "shop/pay", "shop/db"]
    assert math.isnan(graph.nodes[0].values[0])
    assert graph.nodes[0].values[list(graph.node_features).index("p99_ms")] == 812.0
    assert [edge.blamed for edge in graph.edges] == [True, False, False, False]
    assert call("GetGraph", around="shop/pay", limit=3).nodes[0].service == "shop/pay"


def test_a_graph_around_an_unknown_service_is_refused(call: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call("GetGraph", around="zz")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "service 'zz' was not in the last interval" in caught.value.details()


def test_absent_incident_is_not_found(call: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call("GetIncident", id="absent")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert dict(caught.value.trailing_metadata())["hopline-error"] == "incident_not_found"


def test_bytes_that_are_no_request_are_invalid_for_every_method(served: Served) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{served.outputs.grpc_port}") as channel:
        for service in (MESH, "grpc.health.v1.Health"):
            for method in methods(service):
                kind = channel.unary_stream if method.server_streaming else channel.unary_unary
                stub = kind(f"/{service}/{method.name}")
                with pytest.raises(grpc.RpcError) as caught:
                    list(stub(b"\xff\xff\xff", timeout=10))
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, method.name
                assert f"(3 bytes) is not a {method.input_type.full_name}" in caught.value.details()


def test_stream_begins_with_the_newest_verdict_and_goes_on(served: Served, call: Any) -> None:
    stream = call("WatchVerdicts")
    assert next(stream).verdict.time_s == 1000.0
    served.publish(verdict(1000.0, incident()), snapshot(1000.0, p99_ms=812.0))
    update = next(stream)
    assert (update.verdict.time_s, update.dropped) == (1000.0, 0)
    stream.cancel()


def test_slow_reader_misses_the_oldest_and_holds_nobody_up(served: Served, call: Any) -> None:
    slow, quick = call("WatchVerdicts"), call("WatchVerdicts")
    next(slow), next(quick)

    def publish_many() -> None:  # in one turn of the loop: no reader takes any meanwhile
        for _ in range(50):
            served.board.publish(verdict(1000.0, incident()), served.board.shown[0])

    begin = time.perf_counter()
    served.do(publish_many)
    assert time.perf_counter() - begin < 20  # the slow reader never reads
    assert next(slow).dropped == 50 - 16
    assert next(quick).dropped == 50 - 16
    assert next(quick).dropped == 0
    slow.cancel(), quick.cancel()
    deadline = time.monotonic() + 60
    while served.do(lambda: len(served.board._readers)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_health_follows_readiness() -> None:
    health = "grpc.health.v1.Health"
    with serving(http_port=-1) as found, calling(f"127.0.0.1:{found.outputs.grpc_port}") as call:
        assert call("Check", service=health).status == 2
        with pytest.raises(grpc.RpcError) as caught:
            call("GetVerdict")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        watch = call("Watch", service=health)
        assert next(watch).status == 2
        found.publish(verdict(1000.0), snapshot(1000.0))
        assert next(watch).status == 1
        watch.cancel()
        with pytest.raises(grpc.RpcError) as caught:
            check_unknown(found)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_health_watches_do_not_keep_readers_of_verdicts_out(served: Served, call: Any) -> None:
    watches = [call("Watch", service="grpc.health.v1.Health") for _ in range(64)]
    for each in watches:
        next(each)
    with pytest.raises(grpc.RpcError) as caught:
        next(call("Watch", service="grpc.health.v1.Health"))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    stream = call("WatchVerdicts")
    assert next(stream).verdict.time_s == 1000.0
    for each in (stream, *watches):
        each.cancel()


def check_unknown(found: Served) -> None:
    request, response = (
        message("grpc.health.v1.HealthCheckRequest"),
        message("grpc.health.v1.HealthCheckResponse"),
    )
    with grpc.insecure_channel(f"127.0.0.1:{found.outputs.grpc_port}") as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check", request.SerializeToString, response.FromString
        )
        check(request(service="other"), timeout=10)


def test_hostile_names_travel() -> None:
    name = "shop/<script>\ud800\n"
    with serving(http_port=-1) as found, calling(f"127.0.0.1:{found.outputs.grpc_port}") as call:
        found.publish(verdict(1000.0, incident(service=name)), snapshot(1000.0, (name,), ()))
        assert call("GetVerdict").incidents[0].suspects[0].service == "shop/<script>?\n"
        assert call("GetGraph").nodes[0].service == "shop/<script>?\n"


def test_keys_are_requested_where_there_are_clients(tmp_path: Path) -> None:
    key = new_key()
    clients = tmp_path / "clients.toml"
    clients.write_text(
        f'[clients.ops]\nread = true\nkeys = [{{ id = "{key.id}", sha256 = "{key.sha256}" }}]\n'
    )
    with serving(http_port=-1, clients_file=clients) as found:
        found.publish(verdict(1000.0), snapshot(1000.0))
        with calling(f"127.0.0.1:{found.outputs.grpc_port}") as call:
            for ask in (lambda: call("GetVerdict"), lambda: next(call("WatchVerdicts"))):
                with pytest.raises(grpc.RpcError) as caught:
                    ask()
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert call("GetVerdict", metadata=(("x-api-key", key.text),)).time_s == 1000.0
            assert call("Check", service="grpc.health.v1.Health").status == 1


def test_socket_of_a_watch_that_died_is_taken_over_and_gone_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "mesh.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with serving(http_port=-1, grpc_port=-1, socket=path) as found:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        found.publish(verdict(1000.0), snapshot(1000.0))
        with calling(f"unix:{path}") as call:
            assert call("GetVerdict").time_s == 1000.0
    assert not path.exists()


def test_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(ConfigError, match="is no socket"), serving(http_port=-1, socket=path):
        pass
    assert path.read_text() == "data"
    taken = tmp_path / "taken.sock"
    with serving(http_port=-1, grpc_port=-1, socket=taken):
        with (
            pytest.raises(ConfigError, match="another process listens at"),
            serving(http_port=-1, socket=taken),
        ):
            pass
        assert taken.exists()
    # A process that listens, and accepts no connection at present, is alive.
    busy = tmp_path / "busy.sock"
    with socket.socket(socket.AF_UNIX) as listening, contextlib.ExitStack() as waiting:
        listening.bind(str(busy))
        listening.listen(0)
        for _ in range(2):
            client = waiting.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(str(busy))
        with pytest.raises(ConfigError, match="another process listens at"), serving(socket=busy):
            pass
        assert busy.exists()
    with pytest.raises(ConfigError, match="longer than"), serving(socket=tmp_path / ("x" * 200)):
        pass


def test_client_in_the_guide_works_as_written(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    guide = Path(__file__).parents[2] / "docs" / "alerts.md"
    code = guide.read_text().split("```py\n")[1].split("```")[0]
    assert "127.0.0.1:9091" in code
    exec(code.replace("127.0.0.1:9091", f"127.0.0.1:{served.outputs.grpc_port}"), {})
    assert capsys.readouterr().out == "1000.0 i-1 shop/cart 3.0\n"
