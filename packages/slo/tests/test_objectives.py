"""The SLO file: what it may say, and what is said of what it may not."""

import pytest

from hopline import errors
from hopline.errors import ConfigError, HoplineError
from hopline_slo.objectives import NOT_VALID, REFUSALS, codes, read_objectives


def read(tmp_path, text):
    file = tmp_path / "slo.toml"
    file.write_text(text)
    return read_objectives(file)


def test_each_entry_is_an_objective_with_its_budget(tmp_path):
    found = read(
        tmp_path,
        '[models.risk]\np99_ms = 5\navailability = 0.999\nerror_rate = 0.0005\n[models."a b"]\n'
        'p99_ms = 1.5\nwindow = "2w"\n',
    )
    assert [(o.model, o.kind, o.target, o.window_days) for o in found] == [
        ("risk", "p99_ms", 5, 30),
        ("risk", "availability", 0.999, 30),
        ("risk", "error_rate", 0.0005, 30),
        ("a b", "p99_ms", 1.5, 14),
    ]
    assert [o.budget for o in found] == pytest.approx([0.01, 0.001, 0.0005, 0.01])
    assert found[1].text == "availability ≥ 99.9 %"


def test_the_stream_has_an_objective_of_its_own(tmp_path):
    (found,) = read(tmp_path, "[stream]\nfreshness_p99_ms = 100")
    assert (found.model, found.kind, found.target, found.budget) == (
        "stream",
        "freshness_p99_ms",
        100,
        0.01,
    )
    assert found.text == "freshness p99 ≤ 100 ms"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no objectives"),
        ("[models]", "no objectives"),
        ("[model.risk]\np99_ms = 5", "model: unknown.*did you mean 'models'"),
        ("[models]\nrisk = 5", r"models.risk: 5 is not a section"),
        ("[models.risk]", r"models.risk: no objective"),
        ('[models.risk]\nwindow = "7d"', r"models.risk: no objective"),
        ("[models.risk]\np99 = 5", r"models.risk.p99: unknown; did you mean 'p99_ms'"),
        ("[models.risk]\np99_ms = 0", r"models.risk.p99_ms: 0 is not above 0"),
        ("[models.risk]\np99_ms = 20000", r"at most 10000"),
        ("[models.risk]\np99_ms = true", r"True is not a number"),
        ("[models.risk]\navailability = 99.9", r"availability: 99.9 is not a share.*mean 0.999"),
        ("[models.risk]\nerror_rate = 0", r"error_rate: 0 is not a share"),
        ('[models.risk]\nerror_rate = "1%"', r"'1%' is not a number"),
        ("[models.risk]\np99_ms = 5\nwindow = 30", r"window: 30 is not a period of at least 3 days"),
        ('[models.risk]\np99_ms = 5\nwindow = "30 days"', r"window: '30 days' is not a period"),
        ('[models.risk]\np99_ms = 5\nwindow = "2d"', r"window: '2d' is not a period of at least 3 days"),
        ("[models.risk", "not valid TOML"),
        (
            "[stream]\nfreshness_p99_ms = 70000",
            r"stream.freshness_p99_ms: 70000 is not above 0 and at most 60000",
        ),
        ("[stream]\np99_ms = 5", r"stream.p99_ms: unknown"),
        ("[streams]\nfreshness_p99_ms = 5", r"streams: unknown.*did you mean 'stream'"),
        ("[models.risk]\nfreshness_p99_ms = 5", r"models.risk.freshness_p99_ms: unknown"),
        ("stream = 5", r"stream: 5 is not a section; write \[stream\]"),
    ],
)
def test_a_wrong_entry_is_named_by_its_path(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"slo.toml: no such file"):
        read_objectives(tmp_path / "slo.toml")


def test_every_error_is_the_callers_a_refusal_or_a_failure():
    everything = codes(HoplineError)
    assert everything > REFUSALS
    assert not NOT_VALID & REFUSALS
    assert "rate_limited" in NOT_VALID
    assert {"overloaded", "deadline_exceeded", "unavailable"} <= REFUSALS
    failures = everything - NOT_VALID - REFUSALS
    assert {"internal", "runtime_failure"} <= failures
    assert errors.NodeNotFound.code in NOT_VALID
