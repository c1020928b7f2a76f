"""What came of a call is given back in order, whatever it came in."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from turnserve.grpc.incoming import Arriving

pieces = st.one_of(
    st.binary(max_size=8), st.integers(0, 2_500_000).map(lambda size: bytes([size % 251]) * size)
)


@settings(deadline=None)
@given(st.lists(st.tuples(pieces, st.integers(0, 5), st.integers(0, 3_000_000)), max_size=8))
def test_what_is_taken_is_what_came(steps: list[tuple[bytes, int, int]]) -> None:
    arriving, expected = Arriving(), b""
    for data, head, size in steps:
        arriving.append(data)
        expected += data
        assert arriving.head(head) == expected[:head]
        size = min(size, len(expected))
        assert arriving.take(size) == expected[:size]
        expected = expected[size:]
        assert len(arriving) == len(expected)
        assert bool(arriving) == bool(expected)


def test_a_byte_at_a_time_makes_few_blocks() -> None:
    arriving = Arriving()
    for _ in range(300_000):
        arriving.append(b"x")
    assert len(arriving._blocks) == 1


def test_blocks_that_were_taken_go() -> None:
    arriving = Arriving()
    for number in range(8):
        arriving.append(bytes([number]) * 1_000_000)
    assert [arriving.take(1_000_000)[0] for _ in range(7)] == list(range(7))
    assert len(arriving._blocks) <= 2
    assert arriving.take(1_000_000) == bytes([7]) * 1_000_000
    assert not arriving._blocks
