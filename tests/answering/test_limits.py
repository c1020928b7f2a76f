"""What serving.toml may say, and what is said of what it may not."""

import dataclasses

import pytest

from hopline.answering.limits import DEFAULTS, ModelLimits, read_limits
from hopline.config.reader import load_config
from hopline.errors import ConfigError

CONFIG = load_config(overrides={"batching.max_rows": 77, "limits.default_timeout_ms": 123.0})


def write(tmp_path, text):
    (tmp_path / "serving.toml").write_text(text)
    return tmp_path / "serving.toml"


def test_a_model_that_says_nothing_has_the_servers_settings(tmp_path):
    for file in (None, tmp_path, tmp_path / "serving.toml", write(tmp_path, "")):
        limits = read_limits(file, CONFIG)
        assert limits == ModelLimits.of(CONFIG)
        assert (limits.max_batch_rows, limits.timeout_ms) == (77, 123.0)
        assert limits.max_queue_rows == CONFIG.batching.max_queue_rows
        assert (limits.max_concurrency, limits.rate_per_s, limits.isolate) == (0, 0.0, False)


def test_what_it_says_stands_above_them(tmp_path):
    text = """
    max_queue_rows = 1000
    rate_per_s = 50
    burst = 10
    max_batch_rows = 64
    priority = "high"
    isolate = true
    memory_bytes = "1.5 GiB"
    """
    limits = read_limits(write(tmp_path, text), CONFIG)
    assert (limits.max_queue_rows, limits.rate_per_s, limits.burst) == (1000, 50.0, 10)
    assert (limits.max_batch_rows, limits.priority, limits.isolate) == (64, "high", True)
    assert limits.memory_bytes == 1.5 * 2**30
    assert read_limits(tmp_path, CONFIG) == limits


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_concurency = 3", r"max_concurency: unknown key; did you mean 'max_concurrency'\?"),
        ("zzz = 3", "zzz: unknown key; keys are max_queue_ms, max_queue_rows, max_concurrency"),
        ("max_concurrency = -1", "max_concurrency: -1 .* is not at least 0"),
        ("max_concurrency = 'many'", "max_concurrency: 'many' .* is not an integer"),
        ("priority = 'hihg'", r"priority: 'hihg' .* 'high', 'normal', 'low'; did you mean 'high'\?"),
        ("memory_bytes = '2 GiB'", "memory_bytes: .* add isolate = true"),
        ("burst = 5", "burst: means nothing without rate_per_s"),
        ("[limits]\nmax_concurrency = 3", r"\[limits\]: there are no tables here"),
        ("max_concurrency = ", "not valid TOML"),
    ],
)
def test_mistakes_are_named_with_file_and_key(tmp_path, text, message):
    file = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as raised:
        read_limits(file, CONFIG)
    assert str(raised.value).startswith(str(file))


def test_every_key_is_described():
    assert all(item.metadata["help"] for item in dataclasses.fields(ModelLimits))
    assert DEFAULTS["timeout_ms"] == "limits.default_timeout_ms"
