"""Tables of a small shop as CSV files, drawn from a seed: what `hopline init` has without files."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

_BEGIN, _DAYS = datetime(2024, 1, 1, tzinfo=UTC), 120
_NAMES = {
    "fraud": ("account", "merchant", "payment"),
    "relational": ("customer", "product", "order"),
    "recommender": ("user", "item", "buys"),
}
_COUNTRIES, _CODES = ["DE", "FR", "JP", "BR", "US"], ["5411", "5812", "0742", "7995"]


def write(kind: str, folder: Path, rows: int = 3_000, seed: int = 0) -> dict[str, Path]:
    """Write the tables of a kind of project; some cells are empty.

    Args:
        rows: payments, orders or purchases; there are a sixth as many people, and fewer shops or things.
    Returns: table -> its file.
    """
    random = np.random.default_rng(seed)
    people, things = rows // 6, rows // 50
    who, what = random.integers(0, people, rows), random.integers(0, things, rows)
    at = np.sort(random.random(rows) * _DAYS)
    times = [(_BEGIN + timedelta(days=float(day))).strftime("%Y-%m-%dT%H:%M:%SZ") for day in at]
    country, code = random.choice(_COUNTRIES, people), random.choice(_CODES, things)
    ages = [None if random.random() < 0.05 else int(age) for age in random.integers(18, 80, people)]
    price = random.lognormal(3, 1, things).round(2)
    amount = (price[what] * random.lognormal(0, 0.3, rows)).round(2)
    persons = [(f"p{row}", each, age) for row, (each, age) in enumerate(zip(country, ages, strict=True))]
    goods = [(f"g{row}", each, cost) for row, (each, cost) in enumerate(zip(code, price, strict=True))]
    one, other, act = _NAMES[kind]
    columns: tuple[str, ...] = ("id", one, other, "amount", "at")
    labels: list[Any]
    if kind == "recommender":  # people of a country like one category
        likes = dict(zip(_COUNTRIES, [*_CODES, _CODES[0]], strict=True))
        of_code = {each: np.flatnonzero(code == each) for each in _CODES}
        liked = [
            int(random.choice(known)) if len(known := of_code[likes[country[row]]]) else int(item)
            for row, item in zip(who, what, strict=True)
        ]
        chosen, columns = np.where(random.random(rows) < 0.7, liked, what), (one, other, "at")
        acts: list[Any] = [(f"p{a}", f"g{b}", time) for a, b, time in zip(who, chosen, times, strict=True)]
    else:
        if kind == "fraud":
            odds = -4.5 + 3 * (code[what] == "7995") + 2 * (country[who] == "BR") + (amount > 30)
            fraud = random.random(rows) < 1 / (1 + np.exp(-odds))
            labels = [str(bool(yes)).lower() for yes in fraud]
        else:
            days = 2 + random.random(things)[what] * 6 + 3 * (country[who] == "JP") + random.random(rows)
            labels = [round(float(late), 1) for late in days]
        every = zip(range(1, rows + 1), who, what, amount, times, labels, strict=True)
        acts = [(number, f"p{a}", f"g{b}", *rest) for number, a, b, *rest in every]
        columns += ("is_fraud" if kind == "fraud" else "delivery_days",)
    kinds = ("id", "mcc", "mean_price") if kind == "fraud" else ("id", "category", "price")
    return {
        one: _table(folder / f"{one}s.csv", ("id", "country", "age"), persons),
        other: _table(folder / f"{other}s.csv", kinds, goods),
        act: _table(folder / f"{act.removesuffix('s')}s.csv", columns, acts),
    }


def _table(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([names, *rows])
    return path
