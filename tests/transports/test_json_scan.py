"""Counts of JSON against what Python's and msgspec's readers make of it."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hopline.errors import BadRequest
from hopline.json_faults import repeated_name
from hopline.transports import json_scan
from hopline.transports.json_scan import count, refuse_repeated
from tests.transports.bounded_arrays import bounded

names = st.one_of(
    st.text(max_size=3), st.sampled_from(["nodes", "a", "b", 'a"', "\\", "é", "😀", ":", "a:b", "{", "\n"])
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(names, inner, max_size=5)),
    max_leaves=30,
)


def num_names(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(num_names, value.values()))
    return sum(map(num_names, value)) if isinstance(value, list) else 0


def longest_object(value: Any, depth: int) -> int:
    """Of the first eight levels."""
    if not isinstance(value, dict | list) or depth == 7:
        return 0
    inner = value.values() if isinstance(value, dict) else value
    most = max((longest_object(each, depth + 1) for each in inner), default=0)
    return max(most, len(value)) if isinstance(value, dict) else most


def weight(value: Any) -> int:
    """Of short values: objects and lists are more than what is in them."""
    if isinstance(value, dict):
        return 32 + sum(2 + weight(item) for item in value.values())
    return 20 + sum(map(weight, value)) if isinstance(value, list) else 1


@settings(deadline=None)  # the first example loads the kernel
@given(st.dictionaries(names, values, max_size=5), st.booleans(), st.sampled_from([None, 1]))
def test_counts_are_those_of_a_reader(value: dict[str, Any], is_ascii: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode(errors="replace")
    counts = count(text)
    assert counts.num_names == num_names(value)
    assert counts.weight >= weight(value)
    assert counts.longest_object == longest_object(value, 0)
    for name, items in value.items():
        if isinstance(items, list | dict) and name.isascii() and name.isalnum():
            inner = items.values() if isinstance(items, dict) else ()
            longest = max((len(each) for each in inner if isinstance(each, list)), default=0)
            wanted = len(items) if isinstance(items, list) else longest
            assert counts.lists[name.encode()] == wanted
    refuse_repeated(text, counts.num_names)


def test_blanks_between_values_have_a_weight() -> None:
    """They take a reader's time: a megabyte of them as long as 131,072 integers."""
    text = b'{"nodes":[1]}'
    assert count(text.replace(b"[", b"[" + b" \n" * 2**19)).weight == count(text).weight + 2**17
    assert count(b'{"nodes":["' + b" " * 2**10 + b'"]}').weight < count(text).weight + 2**7  # in a string


@settings(deadline=None)  # the first example loads the kernel
@given(st.lists(st.tuples(names, values), min_size=1, max_size=20), st.lists(st.booleans(), min_size=20))
def test_a_name_that_comes_twice_is_found_as_python_finds_it(
    items: list[tuple[str, Any]], escaped: list[bool]
) -> None:
    inner = ",".join(
        f"{json.dumps(name, ensure_ascii=is_ascii)}:{json.dumps(value)}"
        for (name, value), is_ascii in zip(items, escaped, strict=False)
    )
    text = f'[{{"a":{{{inner}}},"b":1}}]'.encode(errors="replace")
    expected = repeated_name(text)
    if expected or len({name for name, _ in items}) < len(items):
        with pytest.raises(BadRequest, match="is repeated in one object"):
            refuse_repeated(text, count(text).num_names)
    else:
        refuse_repeated(text, count(text).num_names)


@pytest.mark.parametrize("num", [2, 12, 13, 5000])
@pytest.mark.parametrize("name", ["x", "\\u0078", "é", "\\ud83d\\ude00"])
def test_the_repeated_name_is_reported(num: int, name: str) -> None:
    inner = ",".join(f'"{name}"' + ":1" if i in (0, num - 1) else f'"{i}":1' for i in range(num))
    text = f'{{"rows":[{{{inner}}}]}}'.encode()
    told = json.loads(f'"{name}"')
    with pytest.raises(BadRequest, match=f"field '{told}' is repeated"):
        refuse_repeated(text, count(text).num_names)


@settings(deadline=None)  # the first example loads the kernel
@given(st.binary(max_size=60) | st.text(alphabet='{}[]:,"\\ua01-. \n', max_size=60).map(str.encode))
def test_what_is_no_json_is_counted_too(text: bytes) -> None:
    counts = count(text)
    refuse = counts.num_names > 1
    try:
        refuse_repeated(text, counts.num_names)
    except BadRequest:
        assert refuse
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    assert counts.weight >= weight(value)


@pytest.mark.parametrize(
    "text", [b"", b"{", b'"', b'"\\', b'{"a', b'{"a":[', b"]]]]", b"}", b'{"a":1}}}', b":"]
)
def test_text_that_ends_early_is_counted(text: bytes) -> None:
    refuse_repeated(text, count(text).num_names)


@given(st.text('[]{}",:\\ 1au', max_size=80).map(str.encode) | st.binary(max_size=80))
@example(b"}}{" * 20)
@example(b"]" * 20 + b'{"a":1}')
@example(b'{"\\u')
@pytest.mark.filterwarnings("ignore:overflow encountered")  # of hashes, which NumPy's own numbers report
def test_no_text_leads_out_of_an_array(text: bytes) -> None:
    """A write beyond an array damages memory that others use, and nothing shows it."""
    patch = bounded(json_scan)
    try:
        with contextlib.suppress(BadRequest):
            refuse_repeated(text, count(text).num_names)
    finally:
        patch.undo()
