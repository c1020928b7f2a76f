"""What `hopline rollout` shows of a model."""

from contextlib import contextmanager

import pytest
from rich.console import Console

from hopline.commands import rollout
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
    what = "this worker has graph g; worker b has graph h"
    up = {"up": True, "differing": {"risk/1": what, "other/1": "x"}}
    assert f"risk/1 is not the same in all workers: {what}" in shown(store=up)
    assert "other/1" not in shown(store=up)


class Decided:
    """An admin whose decision changes what it shows from `before` to `after`."""

    def __init__(self, before: dict[str, object], after: dict[str, object]) -> None:
        self.found, self.after = before, after

    def rollout(self, model: str) -> dict[str, object]:
        return self.found

    def decide(self, model: str, verb: str, reason: str) -> dict[str, object]:
        self.found = self.after
        return self.after


EARLIER = {
    "kind": "blue_green", "candidate": "2", "status": "rolled_back", "reason": "disagreement", "started": 0,
}  # fmt: skip
RUNNING = {"status": "running"}


@pytest.mark.parametrize(("underway", "past_is_shown"), [(None, False), (RUNNING, True)])
def test_a_rollback_of_a_load_does_not_show_the_result_of_an_earlier_rollout(
    underway, past_is_shown, monkeypatch, capsys
):
    common = {"model": "risk", "units": [{"id": "1"}, {"id": "2"}], "past": [EARLIER]}
    before = {**common, "serving": "1" if underway else "2", "rollout": underway}
    admin = Decided(before, {**common, "serving": "1", "rollout": None})

    @contextmanager
    def opened(*_):
        yield admin

    monkeypatch.setattr(rollout, "open_admin", opened)
    decide = next(
        command.callback for command in rollout.app.registered_commands if command.name == "rollback"
    )
    decide("risk")
    printed = capsys.readouterr().out
    assert "risk  serves 1; loaded: 1, 2" in printed
    assert ("disagreement" in printed) == past_is_shown
    assert ("rolled back from 2 to 1" in printed) != past_is_shown
