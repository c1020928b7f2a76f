"""A flash sale: what customers buy changes within minutes, and drift of merchant categories is reported.

Neither the model nor the rules have changed, but scores of a mix that was not trained on deserve a look.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import hopline
from examples.fraud.payments import PaymentService
from examples.fraud.trees import MODEL
from hopline.types import FloatArray
from hopline_drift.reference import write_reference
from hopline_drift.training import Choice, from_table

COLUMN = "merchant_category"
#: An hour is right where sales last for hours.
_WINDOW_S = 1.5
_SHARE, _ROWS, _PAUSE_S, _LONGEST_S = 0.4, 20, 0.01, 30.0


def settings(folder: Path) -> list[str]:
    """The server's settings: monitor drift, and store windows in a folder."""
    values = {"enabled": "true", "path": folder, "window_s": _WINDOW_S, "sample_per_s": 5000}
    return [f"drift.{name}={value}" for name, value in values.items()]


def write_training_reference(frame: pd.DataFrame, scores: FloatArray, folder: Path) -> None:
    """Reference for the traffic of version 1; `hopline drift reference --table` makes it for people."""
    place = folder / MODEL / "1"
    place.mkdir(parents=True)
    table = place / "training.csv"
    frame.assign(score=scores).to_csv(table, index=False)
    made = from_table(table, Choice(len(frame), 0, len(frame.columns), ()), time.time(), "score")
    write_reference(place / "reference.json", made)


def on_sale(frame: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """The same customers, most of which now buy electronics."""
    chosen = np.random.default_rng(seed).random(len(frame)) < _SHARE
    return frame.assign(**{COLUMN: frame[COLUMN].where(~chosen, "electronics")})


def alarmed(service: PaymentService, client: hopline.Client, frame: pd.DataFrame) -> dict[str, Any]:
    """Ask as on any day until a window was judged, then as on the day of the sale until the alarm.

    Returns: the level of the categories before, and whether and after how many seconds they were at alert.
    """
    shuffled = frame.sample(frac=1.0, random_state=0)
    # Two windows: what was asked before in the order of the day has left the last one.
    end = time.monotonic() + 2 * _WINDOW_S
    before = _asked_until(lambda level: time.monotonic() > end, service, client, shuffled)
    began = time.monotonic()
    after = _asked_until(lambda level: level == "alert", service, client, on_sale(shuffled))
    return {"before": before, "after": after, "s": round(time.monotonic() - began, 1)}


def _asked_until(
    enough: Callable[[str], bool], service: PaymentService, client: hopline.Client, frame: pd.DataFrame
) -> str:
    """Continue to ask until the categories' level is what it should be; the last level."""
    end = time.monotonic() + _LONGEST_S
    at, level = 0, ""
    while time.monotonic() < end:
        service.ask(frame.iloc[at : at + _ROWS])
        at = (at + _ROWS) % (len(frame) - _ROWS)
        if at % (20 * _ROWS) == 0:
            level = _level(client)
            if enough(level):
                break
        time.sleep(_PAUSE_S)
    return level


def _level(client: hopline.Client) -> str:
    """Of version 1's merchant categories: ok, watch or alert; "" before the first window."""
    report = json.loads(client.send("GET", f"/v1/drift/{MODEL}"))
    for version in report["versions"]:
        for quantity in version["quantities"] if version["version"] == "1" else ():
            if (quantity["kind"], quantity["name"]) == ("input", COLUMN):
                return str(quantity["level"])
    return ""
