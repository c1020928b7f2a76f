"""What a caller asks to be loaded: checked before anything is loaded, whatever it says."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.answering.requested_unit import MAX_GROUPS, requested_unit
from hopline.answering.unit import Unit
from hopline.config.reader import load_config
from hopline.errors import BadRequest
from hopline.rollout import changes
from hopline.rollout.gates import Gates
from hopline.rollout.rollout import MAX_REASON, MAX_STEPS, RolloutRequest, begin
from hopline.rollout.state import ModelState
from hopline.transports.http import HttpApp
from tests import loaded_units_rig as rig
from tests.thorough import thorough
from turnserve.http1.messages import Request

WITH_STORE = load_config(overrides={"features.store": "memory:"})
WITHOUT = load_config(overrides={})


def refused(graph="", groups=(), config=WITH_STORE):
    with pytest.raises(BadRequest) as error:
        requested_unit("1", graph, tuple(groups), config)
    assert len(str(error.value)) < 500
    return str(error.value)


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        ("a\0b", "NUL character"),
        ("a" * 5_000, "longer than 4095 bytes"),
        ("/" + "b" * 300, "cannot be opened: File name too long"),
        ("é" * 3_000, "longer than 4095 bytes"),
        ("\ud800", "cannot be opened"),
        ("/dev/null", "is not a folder"),
        ("/dev/null/below", "is not a folder"),
        ("/nowhere/at/all", "is not a folder"),
    ],
)
def test_a_path_that_no_graph_is_at_is_refused(graph, text):
    assert text in refused(graph)


def test_a_path_through_a_loop_of_links_is_refused(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert "graph:" in refused(str(tmp_path / "a" / "graph"))


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        (["node"], "is not of the form"),
        (["=x"], "is not of the form"),
        (["node="], "is not of the form"),
        (["node=" + "x" * 300], "at most 200 printable characters"),
        (["node=\n"], "printable"),
        (["node=a", "node=b"], "is repeated"),
        ([f"t{i}=x" for i in range(MAX_GROUPS + 1)], f"at most {MAX_GROUPS}"),
    ],
)
def test_groups_that_cannot_be_are_refused(groups, text):
    assert text in refused(groups=groups)


def test_groups_are_refused_where_there_is_no_store_to_read_them_from():
    assert "features.store is not set" in refused(groups=["node=x"], config=WITHOUT)


def test_the_order_of_groups_makes_no_other_unit():
    units = {requested_unit("1", "", groups, WITH_STORE) for groups in [("a=x", "b=y"), ("b=y", "a=x")]}
    assert units == {Unit("1", "", ("a=x", "b=y"))}


def test_a_folder_is_named_by_its_real_path(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    assert requested_unit("1", str(tmp_path / "link"), (), WITHOUT) == Unit("1", str(tmp_path.resolve()))


@settings(max_examples=thorough(75, 300), deadline=None)
@given(st.text(max_size=300), st.lists(st.text(max_size=20), max_size=4))
def test_whatever_is_sent_is_a_unit_or_a_refusal(graph, groups):
    try:
        unit = requested_unit("1", graph, tuple(groups), WITH_STORE)
    except BadRequest:
        return
    assert isinstance(unit, Unit)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"steps": tuple(i / 3_000.1 for i in range(1, 300_001))}, f"at most {MAX_STEPS}"),
        ({"min_step_s": float("inf")}, "min_step_s is from 0"),
        ({"min_step_s": float("nan")}, "min_step_s is from 0"),
        ({"preflight": 10**30}, "preflight is from 0"),
        ({"gates": Gates(max_psi=float("inf"))}, "gates.max_psi is at most"),
        ({"gates": Gates(p99_ms=float("nan"))}, "gates.p99_ms"),
        ({"gates": Gates(min_requests=10**30)}, "gates.min_requests is at most"),
    ],
)
def test_a_rollout_that_would_fill_or_break_the_state_is_refused(fields, text):
    with pytest.raises(BadRequest) as error:
        RolloutRequest("sage", "2", **fields).check()
    assert text in str(error.value)
    assert len(str(error.value)) < 500


def test_a_rollout_stays_small_however_often_somebody_decides():
    state = ModelState((Unit("1"), Unit("2")), "1")
    asked = RolloutRequest("sage", "2", steps=tuple(float(i) for i in range(1, MAX_STEPS + 1)))
    for _ in range(30):
        state = changes.begun(state, asked, Unit("2"), 0.0)
        for _ in range(150):
            for verb in ("pause", "resume"):
                state = changes.decided_on(state, "sage", verb, "w" * MAX_REASON, 0.0)
        state = changes.decided_on(state, "sage", "rollback", "w" * MAX_REASON, 0.0)
    assert len(msgspec.json.encode(state)) < 200_000
    assert begin(asked, "1", "2", 0.0).steps == asked.steps


DEEP = b"[" * 100_000 + b"]" * 100_000
BODIES = {
    "/v2/repository/index": [DEEP, b'{"ready": %b}' % DEEP],
    "/v2/repository/models/sage/load": [
        DEEP,
        b'{"parameters": %b}' % DEEP,
        b'{"parameters": {"version": %b}}' % DEEP,
        b'{"parameters": {"groups": %b}}' % DEEP,
        b'{"parameters": {"groups": [%b]}}' % (b"[" * 900 + b"]" * 900),
        b'{"parameters": {"version": %b}}' % (b"[" * 900 + b"]" * 900),
        b'{"parameters": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        b'{"parameters": {"graph": "a\\u0000b"}}',
        b'{"parameters": {"graph": "%b"}}' % (b"a" * 5_000),
        b'{"parameters": {"graph": "/dev/null"}}',
        b'{"parameters": {"groups": ["x"]}}',
        b'{"parameters": {"groups": ["node=x"]}}',
        b'{"parameters": {"groups": [1]}}',
        b'{"parameters": {"groups": [%b]}}' % b",".join(b'"a%d=b"' % i for i in range(200_000)),
        b'{"parameters": {"serve": true, "serve": false}}',
        b'{"parameters": {"%b": 1}}' % (b"z" * 100_000),
    ],
    "/v2/repository/models/sage/unload": [DEEP, b'{"parameters": {"version": %b}}' % DEEP],
    f"/v2/repository/models/{'a' * 5_000}/load": [b"{}"],
    "/v1/rollouts": [
        DEEP,
        b'{"steps": "x", "gates": %b}' % DEEP,
        b'{"model": "sage", "version": "2", "steps": %b}' % DEEP,
        b'{"model": "sage", "version": "1", "graph": "a\\u0000b"}',
        b'{"model": "sage", "version": "2", "gates": {"max_psi": 1, "max_psi": 2}}',
        b'{"model": "sage", "version": "2", "min_step_s": 1e999}',
        b'{"model": "sa\\u0000ge", "version": "2"}',
        b'{"model": "sage", "version": "1", "steps": [%b]}' % b",".join(b"%d" % i for i in range(300_000)),
    ],
    "/v1/rollouts/sage/rollback": [DEEP, b'{"reason": %b}' % DEEP, b'{"reason": "%b"}' % (b"x" * 9_999)],
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", BODIES)
async def test_a_body_that_makes_no_sense_is_a_bad_request(path, root, caplog):
    service = await rig.started(root)
    app = HttpApp(service, service.config)
    for body in BODIES[path]:
        answer = app(Request(b"POST", path.encode(), {}, body))
        if hasattr(answer, "receiver"):
            await rig.until(lambda answer=answer: answer.response is not None)
            answer = answer.response
        assert answer.status == (413 if len(body) > 65536 else 400), (
            path,
            body[:60],
            bytes(answer.body)[:99],
        )
        assert len(answer.body) < 1_000, (path, body[:60])
    assert "Traceback" not in caplog.text
    assert await rig.version_of(service) == "1"
    assert not (root / "models" / ".hopline" / "lifecycle.json").exists()  # nothing was kept of it
    await rig.stop(service)
