"""The watch against a server that lists and watches as the API server does, with its faults."""

import asyncio
import time

import pytest

from hopline_mesh.kubernetes import resources
from hopline_mesh.kubernetes.api import Timeouts
from hopline_mesh.kubernetes.credentials import from_files
from hopline_mesh.kubernetes.reflector import Pace
from hopline_mesh.kubernetes.resources import DEPLOYMENTS, ENDPOINT_SLICES, PODS
from hopline_mesh.kubernetes.watcher import KubernetesWatch
from hopline_mesh.scope import Scope
from packages.mesh.tests.kubernetes.api_server import api_server, status_line
from packages.mesh.tests.kubernetes.things import deployment, endpoints, pod, services, sizes

#: Quick, so that nobody waits; the order of events is what is tested.
PACE = Pace(first=0.01, longest=0.05, refused=0.05, grace=0.0)


@pytest.fixture
def token_file(tmp_path):
    file = tmp_path / "token"
    file.write_text("first\n")
    return file


async def a_shop(api):
    """One service with three pods."""
    await api.put(DEPLOYMENTS, deployment())
    for each in "abc":
        await api.put(PODS, pod(f"web-{each}"))
    await api.put(ENDPOINT_SLICES, endpoints("web", ["web-a", "web-b", "web-c"]))


def watch(url, token_file=None, **how):
    how = {"pace": PACE, **how}
    return KubernetesWatch(from_files(url, token_file, None), **how)


async def until(happened, within_s=60.0):
    """Wait for something that comes over the network."""
    end_s = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < end_s, "it did not happen"
        await asyncio.sleep(0.002)


async def follows(api, watched):
    """The watch hears of what happens from now on."""
    body = endpoints("later", [])
    await api.put(ENDPOINT_SLICES, body)
    await until(lambda: "shop/later" in services(watched.feed))
    await api.delete(ENDPOINT_SLICES, body)
    await until(lambda: "shop/later" not in services(watched.feed))


async def test_lists_come_in_pages_and_changes_follow(token_file):
    async with api_server() as (api, url):
        await a_shop(api)
        async with watch(url, token_file) as watched:
            assert await watched.wait_listed(5)
            assert sizes(watched.feed)["pods"] == 3
            assert watched.gaps() == ()
            # The pods came in two pages, and were asked for once.
            asked = [query for path, query in api.lists if path == PODS.path()]
            assert [query.get("continue") for query in asked] == [None, "2"]
            await api.put(DEPLOYMENTS, deployment(desired=7, generation=2, observed=1, replicas=3))
            await until(lambda: watched.context(time.time()).changes)
            (change,) = watched.context(time.time()).changes
            assert (change.kind, change.service, change.detail) == ("scale", "shop/web", "3 to 7 pods")


async def test_every_watch_requests_bookmarks_and_an_end(token_file):
    async with api_server() as (api, url), watch(url, token_file) as watched:
        assert await watched.wait_listed(5)
        await until(lambda: len(api.watches) == len(resources.RESOURCES))
        for _, query in api.watches:
            assert query["allowWatchBookmarks"] == "true"
            assert PACE.watch <= int(query["timeoutSeconds"]) <= 2 * PACE.watch


async def test_after_a_cut_the_watch_goes_on_from_the_last_bookmark_without_a_list(token_file):
    async with api_server() as (api, url):
        await a_shop(api)
        async with watch(url, token_file) as watched:
            assert await watched.wait_listed(5)
            await until(lambda: len(api.watches) == len(resources.RESOURCES))
            lists = len(api.lists)
            await api.bookmark()
            version = str(api.version)
            await until(lambda: all(each._version == version for each in watched._reflectors))
            # Without the bookmark the version of the list would be too old now.
            api.compact()
            api.cut()
            await follows(api, watched)
            assert len(api.lists) == lists


def lists_of(api, resource):
    """How often all objects of a kind were asked for."""
    return sum(path == resource.path() and "continue" not in query for path, query in api.lists)


def unread(caplog):
    return [each.getMessage() for each in caplog.records if "cannot be read" in each.getMessage()]


@pytest.mark.parametrize("where", ["answer", "stream"])
async def test_a_version_that_is_gone_is_listed_again(token_file, where):
    async with api_server() as (api, url):
        await a_shop(api)
        async with watch(url, token_file) as watched:
            assert await watched.wait_listed(5)
            await until(lambda: len(api.watches) == len(resources.RESOURCES))
            api.mute = True
            # These are missed.
            await api.delete(PODS, pod("web-a"))
            await api.put(PODS, pod("web-x"))
            api.mute = False
            if where == "answer":
                api.compact()
            else:
                api.lines = [status_line(410)]
            api.cut()
            await until(lambda: ("shop", "web-x") in watched.feed._backends.pods)
            assert ("shop", "web-a") not in watched.feed._backends.pods
            await follows(api, watched)
            await until(lambda: watched.gaps() == ())


async def test_a_list_whose_next_page_is_gone_begins_anew(token_file):
    async with api_server(lose_continue=True) as (api, url):
        await a_shop(api)
        async with watch(url, token_file) as watched:
            assert await watched.wait_listed(5)
            assert sizes(watched.feed)["pods"] == 3
            await follows(api, watched)


@pytest.mark.parametrize(
    "line",
    [
        b"this is no JSON\n",
        b'{"type": "ADDED"\n',
        b'{"type": "ADDED", "object": 7}\n',
        b"\xff\xfe\n",
        status_line(500, "etcd is away"),
        b'{"type": "MODIFIED", "object": {"metadata": {"name": "x"',
    ],
)
async def test_a_stream_that_cannot_be_read_is_opened_again(token_file, line):
    async with api_server() as (api, url):
        await a_shop(api)
        api.lines = [line]
        async with watch(url, token_file) as watched:
            assert await watched.wait_listed(5)
            await until(lambda: len(api.watches) > len(resources.RESOURCES))
            await follows(api, watched)
            await until(lambda: watched.gaps() == ())
            assert all(lists_of(api, each) == 1 for each in (DEPLOYMENTS, PODS, ENDPOINT_SLICES))


async def test_a_line_that_comes_again_and_again_is_got_around_by_a_list(token_file):
    async with api_server() as (api, url):
        await a_shop(api)
        async with watch(url, token_file) as watched:
            assert await watched.wait_listed(5)
            await until(lambda: len(api.watches) == len(resources.RESOURCES))
            lists = len(api.lists)
            for _ in range(30):
                api.lines = [b"garbage\n"]
                api.cut()
                if len(api.lists) > lists:
                    break
                await asyncio.sleep(0.02)
            api.lines = []
            await follows(api, watched)


async def test_an_object_that_cannot_be_read_spoils_no_other(token_file, caplog):
    async with api_server() as (api, url):
        await a_shop(api)
        odd = pod("web-odd")
        odd["status"]["containerStatuses"] = [{"name": "app", "restartCount": "many"}]
        await api.put(PODS, odd)
        async with watch(url, token_file) as watched:
            assert await watched.wait_listed(5)
            assert sizes(watched.feed)["pods"] == 3
            await api.put(PODS, odd)
            await until(lambda: len(unread(caplog)) == 2)
            await api.put(PODS, pod("web-d"))
            await until(lambda: sizes(watched.feed)["pods"] == 4)
            assert lists_of(api, PODS) == 1
            assert all("kubernetes pods: 1 objects cannot be read" in text for text in unread(caplog))


async def test_a_token_that_was_replaced_is_read_again(token_file):
    async with api_server() as (api, url):
        await a_shop(api)
        async with watch(url, token_file) as watched:
            assert await watched.wait_listed(5)
            api.token = "second"
            api.cut()
            await until(lambda: any("401" in gap.reason for gap in watched.gaps()))
            token_file.write_text("second")
            await follows(api, watched)
            await until(lambda: watched.gaps() == ())


async def test_what_is_forbidden_is_a_gap_and_the_rest_goes_on(token_file):
    refuse = {"statefulsets": 403, "horizontalpodautoscalers": 404}
    async with api_server(refuse=refuse) as (api, url):
        await a_shop(api)
        async with watch(url, token_file) as watched:
            started_s = time.monotonic()
            assert not await watched.wait_listed(60)
            assert time.monotonic() - started_s < 30
            gaps = {gap.what: gap.reason for gap in watched.gaps()}
            assert gaps.keys() == {"kubernetes.statefulsets", "kubernetes.horizontalpodautoscalers"}
            assert "403" in gaps["kubernetes.statefulsets"]
            assert "is forbidden" in gaps["kubernetes.statefulsets"]
            await follows(api, watched)
            # Whoever grants it later need not restart the watch.
            refuse.clear()
            await until(lambda: watched.gaps() == ())
            assert await watched.wait_listed(5)


async def test_a_server_that_is_busy_is_called_again_when_it_says(token_file):
    busy = [(429, {"retry-after": "1"})] * 8
    pace = Pace(first=0.01, longest=0.02, refused=0.1)
    async with api_server(answers=busy) as (api, url), watch(url, token_file, pace=pace) as watched:
        assert await watched.wait_listed(5)
        assert not api.answers


async def test_a_connection_that_falls_silent_is_given_up(token_file):
    async with api_server() as (api, url):
        await a_shop(api)
        async with watch(url, token_file, timeouts=Timeouts(idle=0.1)) as watched:
            assert await watched.wait_listed(5)
            lists = len(api.lists)
            await until(lambda: len(api.watches) >= 2 * len(resources.RESOURCES))
            await follows(api, watched)
            assert len(api.lists) == lists


async def test_without_a_server_it_says_so_and_keeps_trying(token_file):
    async with api_server() as (_, url):
        pass
    async with watch(url, token_file) as watched:
        await until(
            lambda: all("Connect" in gap.reason or "connect" in gap.reason for gap in watched.gaps())
        )
        assert len(watched.gaps()) == len(resources.RESOURCES)
        assert watched.context(time.time()).changes == ()


async def test_without_credentials_there_is_one_gap_and_no_change():
    async with KubernetesWatch(None, absent="not in a pod") as watched:
        assert [(gap.what, gap.reason) for gap in watched.gaps()] == [("kubernetes", "not in a pod")]
        assert watched.context(time.time()).changes == ()
        assert await watched.wait_listed(1)


async def test_a_token_that_is_gone_is_a_gap(token_file, tmp_path):
    async with api_server() as (api, url), watch(url, token_file) as watched:
        assert await watched.wait_listed(5)
        token_file.unlink()
        api.cut()
        await until(lambda: any("token of Kubernetes" in gap.reason for gap in watched.gaps()))


@pytest.mark.parametrize(
    ("token", "reason"), [("fi\u00e9rst\nsecond", "invalid characters"), ("\n", "is empty")]
)
async def test_a_token_that_is_damaged_is_a_gap(token_file, token, reason):
    async with api_server() as (api, url):
        token_file.write_text(token)
        async with watch(url, token_file) as watched:
            await until(lambda: all(reason in gap.reason for gap in watched.gaps()))
            token_file.write_text("first")
            assert await watched.wait_listed(5)
            assert api.tokens == ["bearer first"] * len(api.tokens)


async def test_a_server_that_is_too_slow_is_called_again(token_file):
    async with api_server(slow=[0.3] * 4) as (api, url):
        await a_shop(api)
        async with watch(url, token_file, timeouts=Timeouts(answer=0.1)) as watched:
            await until(lambda: any("ReadTimeout" in gap.reason for gap in watched.gaps()))
            assert await watched.wait_listed(5)
            await follows(api, watched)


async def test_an_answer_that_is_no_list_is_a_gap_until_it_is_one(token_file):
    answers = [(200, {}, "a proxy's page of welcome"), (200, {}, {"items": []}), (502, {}, "bad gateway")]
    async with api_server(answers=answers * 4) as (api, url):
        await a_shop(api)
        async with watch(url, token_file) as watched:
            assert await watched.wait_listed(5)
            assert not api.answers
            await follows(api, watched)


async def test_what_nobody_thought_of_begins_anew(token_file, monkeypatch):
    async with api_server() as (api, url):
        await a_shop(api)
        async with watch(url, token_file) as watched:
            assert await watched.wait_listed(5)
            understood = watched.feed.changed

            def stumbles(*told):
                monkeypatch.setattr(watched.feed, "changed", understood)
                raise RuntimeError("nobody thought of it")

            monkeypatch.setattr(watched.feed, "changed", stumbles)
            await api.put(PODS, pod("web-d"))
            await until(lambda: sizes(watched.feed)["pods"] == 4)
            assert lists_of(api, PODS) == 2
            await until(lambda: watched.gaps() == ())


async def test_namespaces_that_are_named_are_requested_alone(token_file):
    async with api_server() as (api, url):
        await a_shop(api)
        await api.put(PODS, pod("other", namespace="bank"))
        async with watch(url, token_file, scope=Scope(("shop",))) as watched:
            assert await watched.wait_listed(5)
            assert sizes(watched.feed)["pods"] == 3
            assert all("/namespaces/shop/" in path for path, _ in api.lists)


async def test_namespaces_that_are_left_out_are_not_sent(token_file):
    async with api_server() as (api, url):
        await a_shop(api)
        await api.put(PODS, pod("dns", namespace="kube-system"))
        await api.put(PODS, pod("ci", namespace="preview-7"))
        async with watch(url, token_file, scope=Scope((), ("kube-system", "preview-.*"))) as watched:
            assert await watched.wait_listed(5)
            assert sizes(watched.feed)["pods"] == 3
            asked = next(query for path, query in api.lists if path == PODS.path())
            assert "metadata.namespace!=kube-system" in asked["fieldSelector"]
            await api.put(PODS, pod("ci", namespace="preview-7"))
            await api.put(PODS, pod("web-d"))
            await until(lambda: sizes(watched.feed)["pods"] >= 4)
            assert sizes(watched.feed)["pods"] == 4
