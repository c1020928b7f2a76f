"""Tables of a small shop as CSV files, drawn from a seed: what `hopline init` has without files."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

_BEGIN, _DAYS = datetime(2024, 1, 1, tzinfo=UTC), 120
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
    every = zip(range(1, rows + 1), who, what, amount, times, strict=True)
    persons = [(f"p{row}", each, age) for row, (each, age) in enumerate(zip(country, ages, strict=True))]
    goods = [(f"g{row}", each, cost) for row, (each, cost) in enumerate(zip(code, price, strict=True))]
    if kind == "fraud":
        odds = -4.5 + 3 * (code[what] == "7995") + 2 * (country[who] == "BR") + (amount > 30)
        fraud = random.random(rows) < 1 / (1 + np.exp(-odds))
        payments = [
            (number, f"p{one}", f"g{other}", cost, time, str(bool(yes)).lower())
            for (number, one, other, cost, time), yes in zip(every, fraud, strict=True)
        ]
        return {
            "account": _table(folder / "accounts.csv", ("id", "country", "age"), persons),
            "merchant": _table(folder / "merchants.csv", ("id", "mcc", "mean_price"), goods),
            "payment": _table(
                folder / "payments.csv", ("id", "account", "merchant", "amount", "at", "is_fraud"), payments
            ),
        }
    if kind == "relational":
        days = 2 + random.random(things)[what] * 6 + 3 * (country[who] == "JP") + random.random(rows)
        orders = [
            (number, f"p{one}", f"g{other}", cost, time, round(float(late), 1))
            for (number, one, other, cost, time), late in zip(every, days, strict=True)
        ]
        return {
            "customer": _table(folder / "customers.csv", ("id", "country", "age"), persons),
            "product": _table(folder / "products.csv", ("id", "category", "price"), goods),
            "order": _table(
                folder / "orders.csv",
                ("id", "customer", "product", "amount", "at", "delivery_days"),
                orders,
            ),
        }
    # People of a country like one category.
    likes = dict(zip(_COUNTRIES, [*_CODES, _CODES[0]], strict=True))
    of_code = {each: np.flatnonzero(code == each) for each in _CODES}
    liked = [
        int(random.choice(of_code[likes[country[one]]]))
        if len(of_code[likes[country[one]]])
        else int(other)
        for one, other in zip(who, what, strict=True)
    ]
    chosen = np.where(random.random(rows) < 0.7, liked, what)
    buys = [(f"p{one}", f"g{other}", time) for one, other, time in zip(who, chosen, times, strict=True)]
    return {
        "user": _table(folder / "users.csv", ("id", "country", "age"), persons),
        "item": _table(folder / "items.csv", ("id", "category", "price"), goods),
        "buys": _table(folder / "buys.csv", ("user", "item", "at"), buys),
    }


def _table(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([names, *rows])
    return path
