"""The names of fallbacks, and their order."""

import pytest

from hopline.engine import fallbacks


def test_fallbacks_are_in_the_order_in_which_they_are_tried():
    used = {fallbacks.MEAN_FEATURES, fallbacks.STALE_ROW, fallbacks.SMALLER_FANOUT}
    assert fallbacks.in_order(used) == ("stale_row", "smaller_fanout", "mean_features")


def test_every_fallback_has_a_place_in_the_order_and_a_text():
    names = [each.name for each in fallbacks.FALLBACKS]
    assert fallbacks.in_order(set(names)) == tuple(names)
    assert len(set(names)) == len(names)
    assert all(each.text and each.modules for each in fallbacks.FALLBACKS)


@pytest.mark.parametrize("name", ["stale", "filled:gnn"])
def test_an_unknown_fallback_is_an_error_and_not_dropped(name):
    with pytest.raises(ValueError, match=f"unknown fallback '{name}'"):
        fallbacks.in_order({fallbacks.STALE_ROW, name})
