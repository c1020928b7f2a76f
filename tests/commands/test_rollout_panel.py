"""What `hopline rollout status` shows of the store of a fleet."""

from rich.console import Console

from hopline.commands.rollout import _panel


def shown(**store: object) -> str:
    found = {"model": "risk", "serving": "1", "units": [{"id": "1"}], "rollout": None, "past": []}
    console = Console(width=200)
    with console.capture() as captured:
        console.print(_panel(found | store))
    return captured.get()


def test_a_store_that_is_lost_is_shown_and_one_that_answers_is_not():
    lost = {"up": False, "silent_s": 12.3, "address": "redis://a:6379", "why": "Timeout"}
    assert "not confirmed for 12 s: no answer of redis://a:6379 (Timeout)" in shown(store=lost)
    assert "not confirmed" not in shown(store=lost | {"up": True})
    assert "not confirmed" not in shown()


def test_units_that_other_hosts_have_with_another_content_are_shown():
    up = {"up": True, "differing": {"risk/1": "this host has graph g; b has graph h", "other/1": "x"}}
    assert "risk/1 is not the same on all hosts: this host has graph g; b has graph h" in shown(store=up)
    assert "other/1" not in shown(store=up)
