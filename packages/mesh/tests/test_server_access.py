"""Tokens on unencrypted connections: told at the start."""

import pytest

from hopline_mesh.server_access import is_sent_in_clear, warn_of_token


@pytest.mark.parametrize(
    ("url", "is_clear"),
    [
        ("http://prometheus.monitoring:9090", True),
        ("http://10.0.0.1", True),
        ("http://[fd00::1]:9090", True),
        ("https://10.0.0.1", False),
        ("http://127.0.0.1:8001", False),
        ("http://[::1]:8001", False),
        ("http://localhost:8001", False),
        ("http://localhost.example:8001", True),
    ],
)
def test_only_this_machine_and_tls_keep_a_token(url, is_clear):
    assert is_sent_in_clear(url) == is_clear


def test_a_configured_token_is_warned_of(caplog):
    warn_of_token("prometheus_token_file", "https://prometheus:9090")
    assert not caplog.records
    warn_of_token("prometheus_token_file", "http://prometheus:9090")
    assert "prometheus_token_file: the token is sent unencrypted to http://prometheus:9090" in caplog.text
