from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hopline.jobs.batch.spans import count, leading, merged, missing

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def rows_of(spans):
    return {row for begin, end in spans for row in range(begin, end)}


@given(SPANS)
def test_merged_spans_are_the_same_rows_sorted_and_apart(spans):
    found = merged(spans)
    assert rows_of(found) == rows_of(spans)
    assert count(found) == len(rows_of(spans))
    assert all(a[1] < b[0] for a, b in pairwise(found))


@given(SPANS, st.integers(0, 70), st.integers(1, 20))
def test_what_is_missing_is_the_rest_in_short_spans(spans, num_rows, most):
    found = list(missing(spans, num_rows, most))
    assert sorted(row for span in found for row in range(*span)) == sorted(
        set(range(num_rows)) - rows_of(spans)
    )
    assert all(0 < end - begin <= most for begin, end in found)


@given(SPANS)
def test_leading_rows_are_all_there_and_the_next_one_is_not(spans):
    found, rows = leading(spans), rows_of(spans)
    assert set(range(found)) <= rows
    assert found not in rows
