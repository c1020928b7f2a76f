"""Reading metrics back, against what was written and against prometheus_client."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from hopline.errors import BadRequest
from hopline.observe.metrics import Metrics
from hopline_slo.scrape import Scrape

LABEL = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=8)


@given(st.dictionaries(st.tuples(LABEL, LABEL), st.floats(0, 1e12), max_size=6))
def test_what_is_written_is_read_back(values):
    metrics = Metrics()
    for (model, version), value in values.items():
        metrics.queue_rows(model, version).set(value)
    text = metrics.render().decode()
    scrape = Scrape(text)
    assert scrape.by("hopline_queue_rows", "model", "version") == values
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            (found,) = [
                r for r in scrape.samples(sample.name, **sample.labels) if r.labels == sample.labels
            ]
            assert found.value == sample.value


def test_sums_go_over_the_labels_that_are_not_named():
    scrape = Scrape('a{m="x",o="ok"} 2\na{m="x",o="bad"} 3 1700000000\na{m="y",o="ok",} 5\nb +Inf\n')
    assert scrape.total("a") == 10
    assert scrape.total("a", o="ok") == 7
    assert scrape.by("a", "m") == {("x",): 5, ("y",): 5}
    assert scrape.total("absent") == 0
    assert scrape.total("b") == float("inf")
    assert "a" in scrape
    assert "c" not in scrape


@pytest.mark.parametrize("line", ["<html>", 'a{m="x" 3', "a{m=x} 3", 'a{m="x"}', "a b"])
def test_what_is_not_metrics_is_refused_with_its_line(line):
    with pytest.raises(BadRequest, match="line 2"):
        Scrape(f"a 1\n{line}\n")
