"""What a column is, by its name."""

import pytest

from hopline_mesh.detect.series import least_spread
from hopline_mesh.roles import load_column, role_of


@pytest.mark.parametrize(
    ("column", "role"),
    [
        ("request_rate", "load"),
        ("requests_per_second", "load"),
        ("error_share", "errors"),
        ("error_rate", "errors"),
        ("failedRequests", "errors"),
        ("latency_p95_ms", "latency"),
        ("client_ms", "outgoing"),
        ("calls_per_request", "calls"),
        ("cpu_share", "resource"),
        ("memory_bytes", "memory"),
        ("connections", "traffic"),
    ],
)
def test_the_name_of_a_column_says_its_role(column, role):
    assert role_of(column) == role


def test_failures_per_second_are_not_the_load():
    assert load_column(("error_rate", "request_rate")) == 1
    assert load_column(("error_rate",)) == -1


def test_only_a_share_of_failures_has_the_small_spread_of_a_share():
    assert least_spread("error_share") < least_spread("cpu_share")
    assert least_spread("error_rate") == least_spread("request_rate")
