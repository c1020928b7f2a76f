"""The look-alike of the Kubernetes API: lists, watches, bookmarks, 410, selectors."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline_mesh.simulate.cluster import web
from hopline_mesh.simulate.cluster.log import Expired, Log
from hopline_mesh.simulate.http_server import Server


def thing(name: str, space: str = "shop", phase: str = "Running", **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": space, "labels": labels},
        "status": {"phase": phase},
    }


class Api:
    def __init__(self, log: Log, url: str) -> None:
        self.log, self.url = log, url

    def get(self, path: str, **query: object) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", params=dict(query), timeout=10)

    def watch(self, path: str, until: int, **query: object) -> list[dict[str, Any]]:
        """The first so many events, or all until the end."""
        found = []
        with httpx.stream("GET", f"{self.url}{path}", params={"watch": "1", **query}, timeout=10) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                found.append(msgspec.json.decode(line))
                if len(found) == until:
                    break
        return found


@pytest.fixture
def api() -> Iterator[Api]:
    log = Log()
    server = Server("127.0.0.1", 0, web.handler(log, bookmark_s=0.2))
    yield Api(log, f"http://127.0.0.1:{server.port}")
    log.close()
    server.close()


PODS = "/api/v1/pods"


def test_a_list_has_what_there_is_and_its_version(api):
    api.log.put("pods", thing("b"))
    api.log.put("pods", thing("a", "core"))
    api.log.put("deployments", thing("other"))
    found = api.get(PODS).json()
    assert found["kind"] == "PodList"
    assert [item["metadata"]["name"] for item in found["items"]] == ["a", "b"]
    assert found["metadata"] == {"resourceVersion": str(api.log.version)}
    one_space = api.get("/api/v1/namespaces/shop/pods").json()
    assert [item["metadata"]["name"] for item in one_space["items"]] == ["b"]
    assert api.get("/api/v1/namespaces/shop/pods/b").json()["metadata"]["name"] == "b"
    assert api.get("/apis/apps/v1/statefulsets").json()["items"] == []


def test_a_watch_reports_all_that_comes_after_its_version(api):
    api.log.put("pods", thing("a"))
    version = api.log.version
    api.log.put("pods", thing("a", phase="Failed"))
    api.log.put("pods", thing("b"))
    api.log.drop(("pods", "shop", "a"))
    events = api.watch(PODS, 3, resourceVersion=version)
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in events] == [
        ("MODIFIED", "a"),
        ("ADDED", "b"),
        ("DELETED", "a"),
    ]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == [version + 1, version + 2, version + 3]


def test_a_watch_gets_what_happens_while_it_is_open(api):
    version = api.log.version
    timer = threading.Timer(0.1, api.log.put, ("pods", thing("late")))
    timer.start()
    events = api.watch(PODS, 1, resourceVersion=version)
    timer.join()
    assert events[0]["object"]["metadata"]["name"] == "late"


def test_a_watch_without_a_version_begins_with_what_there_is(api):
    api.log.put("pods", thing("a"))
    assert [event["type"] for event in api.watch(PODS, 1)] == ["ADDED"]
    events = api.watch(PODS, 2, sendInitialEvents="true", resourceVersionMatch="NotOlderThan")
    assert [event["type"] for event in events] == ["ADDED", "BOOKMARK"]
    assert events[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_bookmarks_come_where_they_are_requested_and_carry_the_version(api):
    version = api.log.version
    api.log.put("deployments", thing("elsewhere"))
    event = api.watch(PODS, 1, resourceVersion=version, allowWatchBookmarks="true")[0]
    assert event["type"] == "BOOKMARK"
    assert event["object"]["metadata"]["resourceVersion"] == str(version + 1)
    assert event["object"]["kind"] == "Pod"
    silent = api.watch(PODS, 1, resourceVersion=version, timeoutSeconds=1)
    assert silent == []


def test_a_version_that_is_forgotten_is_gone(api):
    version = api.log.version
    api.log.put("pods", thing("a"))
    api.log.compact()
    event = api.watch(PODS, 1, resourceVersion=version)[0]
    assert event["type"] == "ERROR"
    assert event["object"]["code"] == 410
    assert event["object"]["reason"] == "Expired"
    listed = api.get(PODS).json()["metadata"]["resourceVersion"]
    assert api.watch(PODS, 1, resourceVersion=listed, timeoutSeconds=1) == []


def test_old_changes_are_forgotten_when_there_are_too_many():
    log = Log(keep=3)
    first = log.version
    for number in range(5):
        log.put("pods", thing(str(number)))
    assert [happening.version for happening in log.since(first + 2)] == [first + 3, first + 4, first + 5]
    with pytest.raises(Expired):
        log.since(first + 1)


def test_pages_are_of_one_moment(api):
    for name in "abcde":
        api.log.put("pods", thing(name))
    first = api.get(PODS, limit=2).json()
    assert first["metadata"]["remainingItemCount"] == 3
    api.log.drop(("pods", "shop", "e"))
    api.log.put("pods", thing("aa"))
    token = first["metadata"]["continue"]
    second = api.get(PODS, limit=9, **{"continue": token}).json()
    assert [item["metadata"]["name"] for item in second["items"]] == ["c", "d", "e"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "continue" not in second["metadata"]
    api.log.compact()
    gone = api.get(PODS, limit=9, **{"continue": token})
    assert gone.status_code == 410
    assert gone.json()["reason"] == "Expired"


def test_selectors_choose_what_is_listed_and_watched(api):
    api.log.put("pods", thing("a", app="cart"))
    api.log.put("pods", thing("b", phase="Failed", app="web"))
    version = api.log.version

    def names(**query):
        return [item["metadata"]["name"] for item in api.get(PODS, **query).json()["items"]]

    assert names(fieldSelector="status.phase!=Succeeded,status.phase!=Failed") == ["a"]
    assert names(fieldSelector="metadata.name=b") == ["b"]
    assert names(labelSelector="app=web") == ["b"]
    assert names(labelSelector="app!=web") == ["a"]
    api.log.put("pods", thing("a", phase="Failed", app="cart"))
    api.log.put("pods", thing("b", app="web"))
    events = api.watch(PODS, 2, resourceVersion=version, fieldSelector="status.phase!=Failed")
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in events] == [
        ("DELETED", "a"),
        ("ADDED", "b"),
    ]


@pytest.mark.parametrize(
    ("path", "query", "code"),
    [
        ("/api/v1/nonsense", {}, 404),
        ("/api/v1/namespaces/shop/pods/none", {}, 404),
        ("/apis/who.knows/v1/pods", {}, 404),
        (PODS, {"limit": "many"}, 400),
        (PODS, {"limit": "9" * 5000}, 400),
        (PODS, {"continue": f"1.{'9' * 5000}"}, 400),
        (PODS, {"watch": "1", "resourceVersion": "new"}, 400),
        (PODS, {"continue": "x"}, 400),
        (PODS, {"fieldSelector": "nothing"}, 400),
    ],
)
def test_what_cannot_be_answered_is_a_status(api, path, query, code):
    answer = api.get(path, **query)
    assert answer.status_code == code
    assert answer.json()["kind"] == "Status"
    assert answer.json()["code"] == code


def test_clients_find_out_what_there_is(api):
    assert api.get("/version").json()["major"] == "1"
    assert api.get("/readyz").text == "ok"
    assert "v1" in api.get("/api").json()["versions"]
    groups = {group["name"] for group in api.get("/apis").json()["groups"]}
    assert groups == {"apps", "discovery.k8s.io", "autoscaling"}
    names = {resource["name"] for resource in api.get("/apis/apps/v1").json()["resources"]}
    assert {"deployments", "replicasets"} <= names


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["Running", "Failed", None])), max_size=30),
    st.integers(0, 30),
)
def test_a_list_and_all_that_follows_give_what_there_is(steps, cut):
    """The promise of list-then-watch, for any history and any moment of the list."""
    log = Log()
    known: dict[str, Any] = {}
    version = log.version
    for at, (name, phase) in enumerate(steps):
        if at == cut:
            version, bodies = log.listing("pods")
            known = {body["metadata"]["name"]: body for body in bodies}
        if phase is None:
            log.drop(("pods", "shop", name))
        else:
            log.put("pods", thing(name, phase=phase))
    _, listed = log.listing("pods", version=version)
    if cut < len(steps):
        assert {body["metadata"]["name"]: body for body in listed} == known
    for happening in log.since(version):
        name = happening.body["metadata"]["name"]
        if happening.deleted:
            del known[name]
        else:
            known[name] = happening.body
    assert known == {body["metadata"]["name"]: body for body in log.listing("pods")[1]}


def test_the_same_object_again_is_no_change():
    log = Log()
    log.put("pods", thing("a"))
    version = log.version
    log.put("pods", thing("a"))
    log.drop(("pods", "shop", "b"))
    assert log.version == version
