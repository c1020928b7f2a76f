"""The window of rates that fits a measured scrape interval."""

import pytest

from hopline_mesh.collect.promql import window_for


@pytest.mark.parametrize(
    ("scrape_s", "window_s"),
    [(0.1, 1), (0.5, 2), (1.0, 4), (1.02, 4), (1.25, 5), (14.98, 60), (15.0, 60), (15.03, 60), (30.0, 120)],
)
def test_four_scrapes_are_in_the_window(scrape_s, window_s):
    assert window_for(scrape_s) == window_s
