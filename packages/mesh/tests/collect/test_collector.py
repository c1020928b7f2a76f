"""What a collector makes of answers that are not what they should be."""

import asyncio
import email.utils

import httpx
import numpy as np
import pytest

from hopline_mesh.collect import Collector, Query, QuerySet
from hopline_mesh.roster import Roster
from packages.mesh.tests.collect.fake import (
    NOW,
    QUERIES,
    SERVICE,
    Fake,
    Ticking,
    client_of,
    collector_of,
    named,
    paths,
    vector,
)


def names(snapshot):
    return {snapshot.roster.name(slot).removeprefix("shop/") for slot in snapshot.nodes.tolist()}


def column(snapshot, name):
    """A column by service."""
    index = snapshot.schema.node_features.index(name)
    return {
        snapshot.roster.name(slot).removeprefix("shop/"): value
        for slot, value in zip(
            snapshot.nodes.tolist(), snapshot.node_features[:, index].tolist(), strict=True
        )
    }


def reasons(snapshot, what):
    return [gap.reason for gap in snapshot.gaps if gap.what == what]


async def taken(fake, now_s=NOW, **options):
    snapshot = await collector_of(fake, **options).collect(now_s)
    snapshot.check()
    return snapshot


SOME = {
    "rates": vector(*named("a", "b", "c", value="4")),
    "failures": vector(*named("a", value="1")),
    "latencies": vector(*named("a", "b", "c", value="20")),
    "paths": vector(*paths(("a", "b"), ("b", "c"))),
}


async def test_a_service_without_series_of_failures_has_none():
    snapshot = await taken(Fake(**SOME))
    assert column(snapshot, "error_share") == {"a": 0.25, "b": 0.0, "c": 0.0}
    assert reasons(snapshot, "node.error_share") == []


async def test_what_only_calls_has_the_rate_of_its_calls():
    gateway = vector(*paths(("in", "a"), ("in", "b"), value="3"), *paths(("b", "c")))
    fake = Fake(**{**SOME, "paths": gateway})
    one = collector_of(fake)
    assert column(await one.collect(NOW), "request_rate") == {"a": 4.0, "b": 4.0, "c": 4.0, "in": 6.0}
    # A service that was counted itself, or may have been, is not guessed.
    fake.answers["rates"] = vector(*named("a", "c", "in", value="4"))
    found = column(await one.collect(NOW + 15), "request_rate")
    assert found["in"] == 4.0
    assert np.isnan(found["b"])
    for answer in (httpx.Response(503), vector(*named("a", "c", value="4"))):
        fake.answers["rates"] = answer
        found = column(await one.collect(NOW + 30), "request_rate")
        assert np.isnan([found["in"], found["b"]]).all()
    fake.answers["rates"] = httpx.Response(503)
    assert np.isnan(list(column(await collector_of(fake).collect(NOW), "request_rate").values())).all()


async def test_without_the_answer_on_failures_none_are_claimed():
    snapshot = await taken(Fake(**{**SOME, "failures": httpx.Response(503)}))
    assert np.isnan(list(column(snapshot, "error_share").values())).all()
    assert "HTTP 503" in reasons(snapshot, "node.error_share")[0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.ConnectError("refused"), "is unavailable: refused"),
        (httpx.ReadTimeout(""), "ReadTimeout"),
        (httpx.Response(503, json={"status": "error", "error": "starting up"}), "HTTP 503: starting up"),
        (httpx.Response(429), "HTTP 429"),
    ],
)
async def test_a_prometheus_that_is_down_is_one_gap_and_no_service_vanishes(answer, said):
    fake = Fake(**SOME)
    one = collector_of(fake)
    before = await one.collect(NOW)
    fake.answers = {query.promql: answer for query in QUERIES.queries}
    after = await one.collect(NOW + 15)
    after.check()
    assert names(after) == names(before)
    assert len(after.edge_src) == len(before.edge_src)
    assert np.isnan(after.node_features).all()
    assert np.isnan(after.edge_features).all()
    assert said in reasons(after, "prometheus")[0]
    assert [gap.what for gap in after.gaps] == ["prometheus", "services"]
    assert {query.outcome for query in one.report.queries} == {"unavailable"}
    assert one.report.failed == 4
    fake.answers = SOME
    again = await one.collect(NOW + 30)
    assert names(again) == names(before)
    assert again.gaps == ()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(400, json={"status": "error", "error": "parse error: x"}), "HTTP 400: parse error"),
        (httpx.Response(401), "a token or password is missing"),
        (httpx.Response(302, headers={"location": "http://login/"}), "'http://login/'; configure that URL"),
        ({"status": "error", "errorType": "execution", "error": "too many samples"}, "too many samples"),
        ("<html>hello</html>", "not a response of Prometheus"),
        ("", "not a response of Prometheus"),
        (b"\xff\xfe\x00", "not a response of Prometheus"),
        ("[" * 200_000, "not a response of Prometheus"),
        (b'{"status":"error","error":"\xff"}', "not a response of Prometheus"),
        ("[1, 2]", "not a response of Prometheus"),
        ('{"status": "success"}', "no data"),
        ({"status": "success", "data": {"resultType": "matrix", "result": []}}, "type matrix; an instant"),
        ({"status": "success", "data": {"resultType": "scalar", "result": [NOW, "1"]}}, "of type scalar"),
        (
            {"status": "success", "data": {"resultType": "vector", "result": {"a": 1}}},
            "not a list of series",
        ),
        ({"status": "success", "data": {"resultType": "vector", "result": None}}, "not a list of series"),
    ],
)
async def test_an_answer_that_is_none_costs_its_column_only(answer, said):
    fake = Fake(**{**SOME, "latencies": answer})
    one = collector_of(fake)
    snapshot = await one.collect(NOW)
    snapshot.check()
    assert np.isnan(list(column(snapshot, "p99_ms").values())).all()
    assert column(snapshot, "request_rate") == {"a": 4.0, "b": 4.0, "c": 4.0}
    assert said in reasons(snapshot, "node.p99_ms")[0]
    assert len(snapshot.gaps) == 1
    assert [query.outcome for query in one.report.queries].count("refused") == 1


async def test_values_that_are_no_numbers_are_left_out_and_counted():
    odd = [
        ({"app": "a", "namespace": "shop"}, "12.5"),
        ({"app": "b", "namespace": "shop"}, "many"),
        ({"app": "c", "namespace": "shop"}, "1_000"),
        ({"app": "d", "namespace": "shop"}, " 7 "),
        ({"app": "e", "namespace": "shop"}, 8),
        ({"app": "f", "namespace": "shop"}, None),
        ({"app": "g", "namespace": "shop"}, "-1.5"),
        ({"app": "h", "namespace": "shop"}, "+Inf"),
        ({"app": "i", "namespace": "shop"}, "1e39"),
        ({"app": "j", "namespace": "shop"}, "NaN"),
        ({"app": "k", "namespace": "shop"}, "1.5e-7"),
    ]
    answer = vector(*odd)
    answer["data"]["result"] += [{"metric": {"app": "l"}}, 7, {"value": [NOW, "1"]}]
    everyone = vector(*named(*"abcdefghijk"))
    snapshot = await taken(Fake(rates=everyone, latencies=answer))
    found = {name: value for name, value in column(snapshot, "p99_ms").items() if not np.isnan(value)}
    assert found == {"a": 12.5, "e": 8.0, "k": pytest.approx(1.5e-7)}
    said = reasons(snapshot, "node.p99_ms")
    assert "7 series have a value that is not a number" in said
    assert "1 values are infinite" in said
    assert "1 values are too large; up to 3.4e38" in said
    assert "1 values are not at least 0" in said


async def test_nan_alone_is_nothing_to_speak_of():
    answer = vector(*named("a", value="NaN"), *named("b", value="3"))
    snapshot = await taken(Fake(rates=vector(*named("a", "b")), latencies=answer))
    assert np.isnan(column(snapshot, "p99_ms")["a"])
    assert reasons(snapshot, "node.p99_ms") == []


async def test_a_share_beyond_its_bounds_is_no_share():
    queries = QuerySet("shares", (Query("node", "error_share", "shares", SERVICE),))
    values = vector(*named("a", value="0.5"), *named("b", value="1.5"), *named("c", value="1.0000001"))
    snapshot = await taken(Fake(shares=values), queries=queries)
    found = column(snapshot, "error_share")
    assert (found["a"], found["c"]) == (0.5, 1.0)
    assert np.isnan(found["b"])
    assert reasons(snapshot, "node.error_share") == ["1 values are not within 0 to 1"]


async def test_several_series_of_a_service_become_one():
    twice = [
        ({"app": "a", "namespace": "shop", "zone": "x"}, "1"),
        ({"app": "a", "namespace": "shop", "zone": "y"}, "2.5"),
        ({"app": "a", "namespace": "shop", "zone": "z"}, "NaN"),
    ]
    snapshot = await taken(Fake(rates=vector(*twice), latencies=vector(*twice)))
    assert column(snapshot, "request_rate") == {"a": 3.5}
    assert column(snapshot, "p99_ms") == {"a": 2.5}


async def test_an_answer_for_another_moment_is_not_used():
    fake = Fake(**SOME)
    fake.answers["latencies"] = vector(*named("a", "b", "c", value="20"), time_s=NOW - 600)
    snapshot = await taken(fake)
    assert np.isnan(list(column(snapshot, "p99_ms").values())).all()
    assert "3 series have the time " in reasons(snapshot, "node.p99_ms")[0]


async def test_a_warning_is_reported_and_nothing_counts_as_gone():
    fake = Fake(**SOME)
    one = collector_of(fake)
    await one.collect(NOW)
    fake.answers["rates"] = vector(*named("a"), warnings=["partial response: store down\n<b>"])
    fake.answers["paths"] = vector()
    snapshot = await one.collect(NOW + 15)
    snapshot.check()
    assert names(snapshot) == {"a", "b", "c"}
    assert "Prometheus warns: partial response: store down <b>" in reasons(snapshot, "node.request_rate")


async def test_a_part_that_is_missing_is_no_part_that_is_gone():
    everyone = [f"s{i}" for i in range(20)]
    fake = Fake(rates=vector(*named(*everyone)))
    one = collector_of(fake)
    await one.collect(NOW)
    fake.answers["rates"] = vector(*named(*everyone[1:]), isPartial=True)
    snapshot = await one.collect(NOW + 15)
    assert len(snapshot.nodes) == 20
    assert "a part of the response is missing" in reasons(snapshot, "node.request_rate")[0]


async def test_paths_that_vanish_together_are_held_and_said_to_be():
    crowd = [f"s{i}" for i in range(10)]
    fake = Fake(rates=vector(*named(*crowd)), paths=vector(*paths(*((a, "s0") for a in crowd[1:]))))
    one = collector_of(fake)
    await one.collect(NOW)
    fake.answers["paths"] = vector(*paths(("s1", "s0")))
    snapshot = await one.collect(NOW + 15)
    snapshot.check()
    assert len(snapshot.edge_src) == 9
    assert np.isnan(snapshot.edge_features[:, 0]).sum() == 8
    assert "8 of 9 call paths are in no response (shop/s2 to shop/s0, " in reasons(snapshot, "edges")[0]


async def test_a_question_that_is_never_answered_hides_nothing_for_ever():
    everyone = [f"s{i}" for i in range(20)]
    fake = Fake(rates=vector(*named(*everyone)), latencies=httpx.Response(422))
    one = collector_of(fake, stale_s=1000.0)
    await one.collect(NOW)
    fake.answers["rates"] = vector(*named(*everyone[1:]))
    sizes = [len((await one.collect(NOW + 15 * step)).nodes) for step in range(1, 25)]
    assert sizes[0] == 20
    assert sizes[-1] == 19


async def test_half_of_all_series_gone_is_missing_data_and_no_outage():
    everyone = [f"s{i}" for i in range(20)]
    fake = Fake(rates=vector(*named(*everyone)))
    one = collector_of(fake)
    await one.collect(NOW)
    fake.answers["rates"] = vector(*named(*everyone[:10]))
    for step in range(1, 4):
        snapshot = await one.collect(NOW + 15 * step)
        assert len(snapshot.nodes) == 20
        assert np.isnan([column(snapshot, "request_rate")[name] for name in everyone[10:]]).all()
        assert "10 of 20 services are in no response" in reasons(snapshot, "services")[0]
        assert reasons(snapshot, "node.request_rate")[0].startswith("10 series instead of the usual ")


async def test_what_is_held_is_let_go_after_its_time():
    fake = Fake(**SOME)
    steady = Ticking()
    one = collector_of(fake, steady=steady, keep_missing_s=100)
    await one.collect(NOW)
    fake.answers = {}
    for elapsed, left in ((90.0, 3), (101.0, 0)):
        steady.now = elapsed
        assert len((await one.collect(NOW + elapsed)).nodes) == left


async def test_a_single_service_that_is_gone_is_gone():
    everyone = [f"s{i}" for i in range(20)]
    fake = Fake(rates=vector(*named(*everyone)))
    one = collector_of(fake)
    await one.collect(NOW)
    fake.answers["rates"] = vector(*named(*everyone[1:]))
    snapshot = await one.collect(NOW + 15)
    assert names(snapshot) == set(everyone[1:])
    assert reasons(snapshot, "services") == reasons(snapshot, "node.request_rate") == []


async def test_a_column_that_stops_is_said_to_have_stopped():
    fake = Fake(**SOME)
    one = collector_of(fake)
    await one.collect(NOW)
    fake.answers = {**SOME, "latencies": vector()}
    snapshot = await one.collect(NOW + 15)
    assert reasons(snapshot, "node.p99_ms") == ["no series any more"]
    assert names(snapshot) == {"a", "b", "c"}


async def test_a_slow_prometheus_costs_what_is_late_and_no_more_than_the_deadline():
    never = asyncio.Event()

    async def late():
        await never.wait()

    fake = Fake(**{**SOME, "latencies": late})
    one = collector_of(fake, deadline_s=0.5)
    begin = asyncio.get_running_loop().time()
    snapshot = await one.collect(NOW)
    assert asyncio.get_running_loop().time() - begin < 10
    assert reasons(snapshot, "node.p99_ms") == ["Prometheus did not respond within 0.5 s"]
    assert column(snapshot, "request_rate") == {"a": 4.0, "b": 4.0, "c": 4.0}
    assert [query.outcome for query in one.report.queries] == ["ok", "ok", "late", "ok"]


async def test_a_collection_that_is_cancelled_leaves_nothing_behind():
    asked, never = asyncio.Event(), asyncio.Event()

    async def late():
        asked.set()
        await never.wait()

    fake = Fake(rates=late)
    one = collector_of(fake, deadline_s=60)
    collecting = asyncio.ensure_future(one.collect(NOW))
    await asked.wait()
    collecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collecting
    assert len(asyncio.all_tasks()) == 1
    fake.answers = SOME
    assert names(await one.collect(NOW + 15)) == {"a", "b", "c"}


async def test_an_endless_answer_is_not_read_to_its_end():
    fake = Fake(**{**SOME, "latencies": b"x" * 5_000_000})
    one = Collector(client_of(fake, max_bytes=2**20), QUERIES)
    snapshot = await one.collect(NOW)
    assert "longer than 1 MiB" in reasons(snapshot, "node.p99_ms")[0]


async def test_a_connection_that_was_closed_meanwhile_is_made_anew():
    answers = [httpx.RemoteProtocolError("Server disconnected"), SOME["rates"]]

    async def second_time():
        return answers.pop(0)

    snapshot = await taken(Fake(**{**SOME, "rates": second_time}))
    assert column(snapshot, "request_rate") == {"a": 4.0, "b": 4.0, "c": 4.0}


async def test_ten_thousand_new_services_at_once():
    fake = Fake(**SOME)
    one = collector_of(fake, max_services=2000)
    before = await one.collect(NOW)
    crowd = [f"new-{i}" for i in range(10_000)]
    fake.answers["rates"] = vector(*named("a", "b", "c", *crowd, value="4"))
    after = await one.collect(NOW + 15)
    after.check()
    assert len(after.nodes) == 2000
    assert names(before) <= names(after)
    assert len(after.roster) == 8000  # no more names than four times as many
    assert any(
        "are not watched: the limit is max_services" in reason for reason in reasons(after, "services")
    )
    assert any("a restart forgets them" in reason for reason in reasons(after, "services"))
    assert one.report.left_out == 8003
    fake.answers["rates"] = SOME["rates"]
    quiet = await one.collect(NOW + 30)
    assert {"a", "b", "c"} <= names(quiet)


HOSTILE = (
    "<script>alert(1)</script>",
    "a\nb",
    "a\x00b",
    "a/b",
    "x" * 10_000,
    "x" * 10_001,
    "pаyment",  # with a Cyrillic letter
    "payment",
    "pay\u202ement",
    '"},{"',
    "  ",
    "~",
)


async def test_hostile_names_are_tame_and_stay_apart():
    snapshot = await taken(Fake(rates=vector(*named(*HOSTILE))))
    found = names(snapshot)
    assert len(found) == len(HOSTILE)
    assert "payment" in found
    for name in snapshot.roster.names:
        assert len(name) < 256
        assert name.isascii()
        assert name.isprintable()
        assert not set(name.removeprefix("shop/")) & set("<>\"'& /")


async def test_a_name_that_is_no_text_is_no_service():
    body = (
        b'{"status":"success","data":{"resultType":"vector","result":['
        b'{"metric":{"app":"a\xff"},"value":[1800000000,"1"]},'
        b'{"metric":{"app":7},"value":[1800000000,"1"]},'
        b'{"metric":"app","value":[1800000000,"1"]},'
        b'{"metric":{"app":"b"},"value":[1800000000,"1"]}]}}'
    )
    assert names(await taken(Fake(rates=body))) == {"b"}


async def test_labels_without_a_service_are_said_to_lack_it():
    answer = vector(({"job": "x"}, "1"), ({"app": ""}, "1"), ({"app": "unknown"}, "1"))
    snapshot = await taken(Fake(**{**SOME, "latencies": answer}))
    assert reasons(snapshot, "node.p99_ms")[0] == "none of its 3 series has the label app"


async def test_namespaces_are_included_and_excluded():
    series = [({"app": "a", "namespace": space}, "1") for space in ("shop", "shop-test", "kube-system")]
    series.append(({"app": "bank.example"}, "1"))
    fake = Fake(rates=vector(*series))
    some = await taken(fake, namespaces=("shop.*",), exclude_namespaces=(".*-test",))
    assert set(some.roster.names) == {"shop/a", "bank.example"}


@pytest.mark.parametrize("ahead_s", [600.0, -600.0])
async def test_a_clock_that_differs_is_queried_by_its_own_time(ahead_s):
    fake, steady = Fake(**SOME), Ticking()
    one = collector_of(fake, steady=steady)
    for step in range(3):
        steady.now = 15.0 * step
        now_s = NOW + steady.now
        fake.date = email.utils.formatdate(now_s + ahead_s, usegmt=True)
        for name in ("rates", "latencies"):
            fake.answers[name] = vector(*named("a", "b", "c", value="4"), time_s=now_s + ahead_s)
        snapshot = await one.collect(now_s)
        assert snapshot.time_s == now_s
    assert fake.asked_s() == pytest.approx(now_s + ahead_s, abs=1)
    assert column(snapshot, "request_rate") == {"a": 4.0, "b": 4.0, "c": 4.0}
    assert one.report.ahead_s == pytest.approx(ahead_s, abs=1)
    assert ("ahead of" if ahead_s > 0 else "behind") in reasons(snapshot, "clock")[0]


async def test_a_second_of_difference_is_none():
    fake = Fake(**SOME)
    fake.date = email.utils.formatdate(NOW + 1, usegmt=True)
    one = collector_of(fake)
    assert reasons(await one.collect(NOW), "clock") == []
    assert one.report.ahead_s == 0.0


async def test_when_our_clock_goes_back_the_right_moment_is_requested():
    fake, steady = Fake(**SOME), Ticking()
    one = collector_of(fake, steady=steady)
    await one.collect(NOW)
    for step in range(1, 4):
        steady.now = 15.0 * step
        fake.date = email.utils.formatdate(NOW + steady.now, usegmt=True)
        snapshot = await one.collect(NOW + steady.now - 3600)
        assert fake.asked_s() == pytest.approx(NOW + steady.now, abs=1)
        assert names(snapshot) == {"a", "b", "c"}


async def test_slots_stay_those_of_a_roster_that_was_kept():
    roster = Roster(["shop/z", "shop/b"])
    one = Collector(client_of(Fake(**SOME)), QUERIES, roster=roster)
    snapshot = await one.collect(NOW)
    assert roster.names[:2] == ["shop/z", "shop/b"]
    assert names(snapshot) == {"a", "b", "c"}
