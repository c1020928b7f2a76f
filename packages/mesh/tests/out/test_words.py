"""Numbers and names in words, as alerts have them."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hopline_mesh.incident import Evidence, Incident, Suspect
from hopline_mesh.out.alert import alert_of
from hopline_mesh.out.words import amount, clean, evidence_text, headline, summary, suspects_text
from hopline_mesh.schema import EDGE_FEATURES, NODE_FEATURES
from packages.mesh.tests.out.drawn import incident
from tests.thorough import thorough


@pytest.mark.parametrize(
    ("feature", "value", "text"),
    [
        ("p99_ms", 812.4, "812 ms"),
        ("p99_ms", 12_345.0, "12.3 s"),
        ("p50_ms", 0.0123, "0.0123 ms"),
        ("error_share", 0.0234, "2.34 %"),
        ("memory_bytes", 3 * 2**30, "3 GiB"),
        ("memory_bytes", 0.0, "0 B"),
        ("request_rate", 1234.5, "1234/s"),
        ("cpu_cores", 0.25, "0.25 cores"),
        ("anything_else", 7.0, "7"),
        ("p99_ms", None, "–"),
        ("p99_ms", float("nan"), "–"),
    ],
)
def test_values_have_three_digits_and_a_unit(feature: str, value: float | None, text: str) -> None:
    assert amount(feature, value) == text


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        (
            Evidence("client_ms", "shop/cart", "shop/web", 40.0, 812.0, 3.0),
            "shop/web → shop/cart: latency seen by the caller 812 ms, expected 40 ms",
        ),
        (
            Evidence("request_rate", "shop/cart", None, 12.0, None, 3.0),
            "shop/cart: requests gone, expected 12/s",
        ),
        (Evidence("oom_kill", "shop/cart", None, None, None, 1.0), "shop/cart: killed for memory"),
        (Evidence("crash_loop", "shop/cart", None, None, 6.0, 1.0), "shop/cart: crash loop 6"),
        (
            Evidence("crash_loop", "shop/cart", None, None, None, 1.0, "pod cart-1, app restarted 6 times"),
            "shop/cart: crash loop, pod cart-1, app restarted 6 times",
        ),
    ],
)
def test_evidence_reads_as_a_sentence(evidence: Evidence, text: str) -> None:
    assert evidence_text(evidence) == text


def test_incident_is_reported_in_one_line_and_in_full() -> None:
    assert summary(incident()) == "shop/cart: p99 latency 40 ms → 812 ms (and 1 more suspect)"
    assert suspects_text(incident().suspects, most=1, evidence=1) == (
        "1. shop/cart (71 % of the evidence)\n   shop/cart: p99 latency 812 ms, expected 40 ms\nand 1 more"
    )


def test_suspects_without_a_share_are_not_counted() -> None:
    some = (*incident().suspects, Suspect("shop/pay", 0.01, None, ()), Suspect("shop/db", 0.0, None, ()))
    going = Incident("i-1", 1000.0, None, 3.0, some)
    assert summary(going) == summary(incident())
    assert suspects_text(some, most=5, evidence=1) == suspects_text(incident().suspects, most=5, evidence=1)


def test_a_suspected_call_path_is_shown_with_its_own_evidence() -> None:
    other = Evidence("p99_ms", "shop/db", None, 40.0, 900.0, 9.0)
    own = Evidence("client_ms", "shop/db", "shop/cart", 41.0, 812.0, 3.0)
    going = Incident("i-1", 1000.0, None, 9.0, (Suspect("shop/db", 3.0, "shop/cart", (other, own)),))
    assert headline(going) == "latency seen by the caller 41 ms → 812 ms"
    assert summary(going, "shop/web") == (
        "shop/web, now suspected: shop/cart → shop/db: latency seen by the caller 41 ms → 812 ms"
    )


def test_a_headline_says_if_it_is_about_another_than_the_name() -> None:
    assert headline(incident(), "shop/cart") == "p99 latency 40 ms → 812 ms"
    assert headline(incident(), "shop/db") == "now suspected: shop/cart: p99 latency 40 ms → 812 ms"


def test_incident_without_suspects_is_an_alert_too() -> None:
    alert = alert_of(Incident("i-1", 1000.0, None, 1.2, ()), {})
    assert alert.labels == {"alertname": "MeshAnomaly", "incident": "i-1"}
    assert alert.posted(1000.0, 1240.0, "")["annotations"] == {
        "summary": "The mesh behaves unusually",
        "peak_score": "1.20",
    }


@settings(deadline=None, max_examples=thorough(50, 200))
@given(
    st.text(max_size=300),
    st.sampled_from([*NODE_FEATURES, *EDGE_FEATURES, "odd_delta"]),
    st.none() | st.floats(),
    st.none() | st.floats(),
)
@example("", "error_share", None, 1.8e306)  # more than a float can hold, as a percentage
def test_whatever_the_mesh_says_makes_an_alert_that_can_be_sent(
    name: str, feature: str, expected: float | None, seen: float | None
) -> None:
    evidence = (Evidence(feature, name, name, expected, seen, 1.0),)
    alert = alert_of(Incident(name, 0.0, None, 1.0, (Suspect(name, 1.0, name, evidence),)), {})
    for text in (*alert.labels.values(), *alert.posted(1.0, 2.0, "http://h")["annotations"].values()):
        assert text
        assert len(text.encode()) < 16_000
    assert clean(clean(name, 100), 100) == clean(name, 100)
