"""Events as Arrow streams: refused or read, each event once."""

from __future__ import annotations

import pyarrow as pa  # what is imported on first use would count as an input's memory
import pyarrow.compute

from hopline.events.arrow_rows import MAGIC
from hopline.events.decode import Decoder
from tests.events.events_of_people import SHOP, arrow
from tests.fuzz.harnesses.json_events import check_refusals

_decoder = Decoder(SHOP)


def check(data: bytes) -> None:
    """Args: data: an IPC stream behind its first four bytes."""
    payload = MAGIC + data
    decoded = _decoder.decode([payload])
    check_refusals(decoded, payload)


check(arrow({"op": ["add_edge"], "edge_type": ["user__knows__user"], "src": ["a"], "dst": ["b"]})[4:])
assert pyarrow.compute.__name__ in pa.compute.__name__
