"""What is too much at once is refused before it is built; what is much is read as what is little."""

import contextlib
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.brokers.base import Message
from hopline.events import arrow_bounds
from hopline.events.decode import Decoder
from hopline.events.payloads import MAX_UNREADABLE
from hopline.events.wire import MAX_EVENTS
from hopline_brokers.stream.batch import MOST_LETTERS, read_batch
from tests.events.events_of_people import PLAIN, SHOP, arrow, events_of
from tests.events.hostile import good_streams, stream
from tests.thorough import thorough

ADD = {"op": "add_edge", "src": 1, "dst": 2}
NODE = {"op": "add_node", "node": 1, "features": [1.0, 2.0]}


def decode(payload, schema=PLAIN):
    return Decoder(schema).decode([payload])


def lines(events):
    return b"\n".join(json.dumps(event).encode() for event in events)


def whole(decoded):
    """The refusal of a payload of which nothing is read."""
    (refused,) = decoded.refused
    assert (refused.index, decoded.changes.num_events) == (-1, 0)
    return refused


# JSON


@pytest.mark.parametrize("written", [lines, lambda events: json.dumps(events).encode()])
def test_large_payloads_are_read_as_small_ones(written):
    """More bytes and events than one call of compiled code reads, with bad ones among them."""
    events = [{**NODE, "node": at, "id": "x" * 60} if at % 3 else {**ADD, "dst": at} for at in range(9000)]
    events[4095], events[8000] = {"op": "dance"}, 5
    events[5000] = {**ADD, "src": "a"}
    decoded = decode(written(events))
    assert [(each.index, each.code) for each in decoded.refused] == [
        (4095, "malformed"),
        (8000, "malformed"),
        (5000, "bad_id"),
    ]
    bad = {4095, 5000, 8000}
    assert decoded.index.tolist() == [at for at in range(9000) if at not in bad]
    found = events_of(decoded.changes, PLAIN)
    assert [event.get("node", event.get("dst")) for event in found] == decoded.index.tolist()
    assert decoded.changes.event_ids == ["x" * 60 if at % 3 else "" for at in decoded.index.tolist()]


@pytest.mark.sample(2)
@pytest.mark.parametrize("count", [MAX_EVENTS, MAX_EVENTS + 1])
@pytest.mark.parametrize("written", [lines, lambda events: json.dumps(events).encode()])
def test_more_events_than_are_taken_are_refused_whole(written, count):
    decoded = decode(written([ADD] * count))
    if count == MAX_EVENTS:
        assert (decoded.changes.num_events, list(decoded.refused)) == (count, [])
    else:
        assert (whole(decoded).code, "at most 100000" in whole(decoded).reason) == ("too_large", True)


def test_a_long_list_of_what_is_no_object_is_refused_by_its_place():
    refused = whole(decode(json.dumps([ADD, 7] * MAX_EVENTS).encode()))
    assert refused.code == "malformed"
    assert "got `int` - at `$[1]`" in refused.reason


@pytest.mark.parametrize("bad", [MAX_UNREADABLE - 1, MAX_UNREADABLE])
def test_a_payload_of_many_lines_that_cannot_be_read_is_refused_whole(bad):
    decoded = decode(lines([ADD, ADD]) + b"\nx" * bad + b"\n" + lines([ADD]))
    if bad < MAX_UNREADABLE:
        assert (decoded.changes.num_events, len(decoded.refused)) == (3, bad)
    else:
        assert "1000 of 1003 events cannot be read" in whole(decoded).reason
        assert "the first, at 2: not an event" in whole(decoded).reason


@pytest.mark.parametrize(
    "halves",
    [
        b'{"op":"add_edge","src":1\n"dst":2}',
        b'{"op":"add_edge","src":1,"dst":2},{"op":"add_edge","src":1\n"dst":2},{"op":"add_edge","src":3,"dst":4}',
    ],
)
def test_halves_of_events_on_two_lines_are_no_event(halves):
    decoded = decode(halves)
    assert decoded.changes.num_events == 0
    assert [each.index for each in decoded.refused] == [0, 1]


# Arrow


def test_dictionaries_of_batches_and_messages_go_together():
    """Each index has 8 bits, and all words together more than those can count."""

    def message(first):
        names = (
            pa.array([f"u{first + at}" for at in range(100)]).dictionary_encode().indices.cast(pa.int8())
        )
        words = pa.array([f"u{first + at}" for at in range(100)])
        return pa.table(
            {
                "op": ["add_edge"] * 100,
                "edge_type": ["user__knows__user"] * 100,
                "src": pa.DictionaryArray.from_arrays(names, words),
                "dst": ["bob"] * 100,
            }
        )

    both = stream(pa.concat_tables([message(0), message(100)]))
    decoded = Decoder(SHOP).decode([both, stream(message(200)), stream(message(300))])
    found = [event["src"] for event in events_of(decoded.changes)]
    assert found == [f"u{at}" for at in range(400)]


def test_what_follows_the_end_of_a_stream_is_not_dropped_in_silence():
    """A reader stops at the end of the first stream."""
    payload = arrow({"op": ["add_edge"], "src": [1], "dst": [2]})
    for more in (payload, b"junk", payload[:-8] + b"\xff" * 4):
        (refused,) = decode(payload + more).refused
        assert (refused.code, "send one stream in a body" in refused.reason) == ("malformed", True)
    for same in (payload[:-8], payload[:-8] + bytes(4), payload + bytes(8)):  # ends that readers know
        assert decode(same).changes.num_events == 1


@pytest.mark.parametrize(("unit", "each"), [("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)])
def test_times_come_in_any_unit_and_zone_even_one_that_is_no_text(unit, each):
    at = pa.array([1_700_000_000 * each, None, 2**62], pa.timestamp(unit, "UTC"))
    payload = arrow({"op": ["add_edge"] * 3, "src": [1] * 3, "dst": [2] * 3, "at": at})
    for zone in (b"UTC", b"\xffTC"):
        decoded = decode(payload.replace(b"UTC", zone))
        rest = [] if unit == "ns" else [(2, "malformed")]  # 2^62 ns are of 2116
        assert decoded.changes.event_time_ms.tolist()[:2] == [1_700_000_000_000, 0]
        assert [(each.index, each.code) for each in decoded.refused] == rest


@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
def test_as_many_rows_as_are_taken_come_through(codec):
    """Ids as they are, which a compressor makes a third of."""
    ids = np.random.default_rng(1).integers(0, 2**40, (2, MAX_EVENTS))
    columns = {"op": pa.array(["add_edge"] * MAX_EVENTS).dictionary_encode(), "src": ids[0], "dst": ids[1]}
    decoded = decode(stream(pa.table(columns), codec))
    (edges,) = decoded.changes.edges.values()
    assert np.array_equal([edges.src, edges.dst], ids)
    longer = {"op": ["add_edge"] * (MAX_EVENTS + 1), "src": [1] * (MAX_EVENTS + 1)}
    assert whole(decode(arrow(longer))).code == "too_large"


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"op": pa.nulls(2_000_000_000)}, "2000000000 values"),
        ({f"c{at}": [1] for at in range(20_000)}, "more than 1000 columns"),
        ({"op": ["add_edge"] * 5000, "x": pa.nulls(5000)}, ""),
    ],
)
def test_what_is_declared_is_bounded(columns, reason):
    refused = whole(decode(arrow(columns)))
    assert reason in refused.reason
    assert refused.code == ("too_large" if reason else "schema_changed")


def test_what_buffers_become_is_bounded():
    table = pa.table({"op": ["add_edge" * 1_000_000]})
    for codec in ("zstd", "lz4"):
        assert "more than 4194304 bytes" in whole(decode(stream(table, codec))).reason


def test_ids_of_a_dictionary_are_bounded_by_what_is_written_of_them():
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int8()), pa.array(["x" * 9_000]))
    columns = {"op": ["add_node"] * 2000, "node": words, "id": words}
    assert "ids have 36000000 bytes" in whole(decode(arrow(columns))).reason


@pytest.mark.parametrize(("name", "payload"), list(good_streams()))
@settings(max_examples=thorough(10, 40), deadline=None)
@given(data=st.data())
def test_metadata_is_read_or_refused_whatever_it_says(name, payload, data):
    """By itself, without what pyarrow says of it."""
    arrow_bounds.check(payload, 1000, 128)
    at = data.draw(st.integers(0, min(len(payload), 1500) - 1))
    there = data.draw(st.binary(min_size=1, max_size=8))
    changed = payload[:at] + there + payload[at + len(there) :]
    with contextlib.suppress(arrow_bounds.TooMuch, arrow_bounds.Malformed):
        arrow_bounds.check(changed[: data.draw(st.integers(0, len(changed)))], 1000, 128)


# Dead letters


@pytest.mark.parametrize("form", ["list", "lines", "arrow"])
def test_events_beyond_the_first_thousand_share_a_dead_letter(form):
    """Which is a message of its own, that can be sent again."""
    count = MOST_LETTERS + 50
    events = [{"op": "add_edge", "src": "bad", "dst": f"{at}"} for at in range(count)]
    payload = {
        "list": json.dumps(events, indent=1).encode(),
        "lines": lines(events),
        "arrow": arrow({name: [event[name] for event in events] for name in events[0]}),
    }[form]
    message = Message(payload, "kafka/edges/0", 7)
    letters = read_batch([message], Decoder(PLAIN)).letters([])
    assert len(letters) == MOST_LETTERS + 1
    assert [each.index for each in letters] == list(range(MOST_LETTERS + 1))
    assert letters[-1].reason.startswith("50 further events; the first: src 'bad' is a string")
    again = read_batch([Message(letters[-1].payload, "kafka/edges/0", 8)], Decoder(PLAIN))
    assert len(again.refused) == 50
    if form != "arrow":
        assert [json.loads(letter.payload)["dst"] for letter in letters[:3]] == ["0", "1", "2"]
