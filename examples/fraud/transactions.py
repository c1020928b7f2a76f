"""Card transactions made from a seed, and which of them are fraud.

Every fraud is one of four patterns, and a pattern is several traits together: many payments in a day, tiny,
for digital goods, say. Honest customers have each of these traits too, and often all of a pattern but one.
So no single column shows fraud; the combination of columns does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hopline.types import IdArray

CATEGORIES = (
    *("grocery", "fuel", "restaurant", "fashion", "electronics", "travel"),
    *("gift_cards", "games", "health", "household"),
)
COUNTRIES = ("DE", "FR", "NL", "ES", "IT", "PL", "GB", "US")
ENTRIES = ("chip", "contactless", "online")

_USUAL_AMOUNT = np.array([35, 55, 28, 70, 180, 320, 40, 15, 25, 60], float)
_POPULARITY = np.array([26, 11, 17, 10, 6, 4, 3, 8, 6, 9], float)
_DAYS, _FRAUD, _DECOYS, _TRAIT_SHOWS = 60, 0.04, 0.05, 0.93
#: Payments by hour of the day: few at night, most in the evening.
_HOURS = np.array(
    [4, 2, 1, 1, 1, 2, 5, 12, 20, 24, 27, 31, 36, 33, 28, 27, 30, 37, 42, 40, 33, 24, 15, 8], float
)

Rows = IdArray
Rng = np.random.Generator


@dataclass(frozen=True, eq=False)
class Transactions:
    """Rows in the order of time.

    Attributes:
        frame: the columns that a request brings; absent values are NaN.
        is_fraud: int64 [n].
    """

    frame: pd.DataFrame
    is_fraud: IdArray

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, rows: slice) -> Transactions:
        return Transactions(self.frame.iloc[rows].reset_index(drop=True), self.is_fraud[rows])

    def parts(self) -> tuple[Transactions, Transactions, Transactions]:
        """The first 60 % to train on, the next 20 % to validate on, the last 20 % to test on."""
        a, b = len(self) * 6 // 10, len(self) * 8 // 10
        return self[:a], self[a:b], self[b:]


def generate(num_rows: int, seed: int = 0) -> Transactions:
    """Draw transactions of sixty days."""
    rng = np.random.default_rng(seed)
    columns = _honest(rng, num_rows)
    is_fraud = (rng.random(num_rows) < _FRAUD).astype(np.int64)
    which = rng.integers(0, len(PATTERNS), num_rows)
    for number, pattern in enumerate(PATTERNS):
        guilty = np.flatnonzero((is_fraud == 1) & (which == number))
        for trait in pattern:
            trait(rng, columns, guilty[rng.random(len(guilty)) < _TRAIT_SHOWS])
        decoys = np.flatnonzero((is_fraud == 0) & (rng.random(num_rows) < _DECOYS))
        lacking = rng.integers(0, len(pattern), len(decoys))
        for place, trait in enumerate(pattern):
            trait(rng, columns, decoys[lacking != place])
    columns["amount"] = columns["amount"].round(2)
    columns["amount_24h"] = columns["amount_24h"].round(2)
    # Shops on the internet have no place; old systems send no age of the address.
    columns["distance_km"][(columns["entry"] == "online") & (rng.random(num_rows) < 0.5)] = np.nan
    columns["email_age_days"][rng.random(num_rows) < 0.15] = np.nan
    return Transactions(pd.DataFrame(columns), is_fraud)


def _honest(rng: Rng, n: int) -> dict[str, NDArray[Any]]:
    category = rng.choice(len(CATEGORIES), n, p=_POPULARITY / _POPULARITY.sum())
    amount = _USUAL_AMOUNT[category] * rng.lognormal(0, 0.7, n)
    times = np.sort(rng.integers(0, _DAYS, n)) * 24 + rng.choice(24, n, p=_HOURS / _HOURS.sum())
    others = rng.poisson(1.6, n)
    return {
        "amount": amount,
        "merchant_category": np.array(CATEGORIES, object)[category],
        "country": np.array(COUNTRIES, object)[
            rng.choice(8, n, p=[0.4, 0.12, 0.1, 0.08, 0.1, 0.1, 0.06, 0.04])
        ],
        "entry": np.array(ENTRIES, object)[rng.choice(3, n, p=[0.3, 0.4, 0.3])],
        "hour": times % 24,
        "account_age_days": rng.gamma(2.0, 400.0, n).round(),
        "email_age_days": rng.gamma(2.0, 500.0, n).round(),
        "transactions_24h": others,
        "amount_24h": others * 45 * rng.lognormal(0, 0.6, n),
        "is_new_device": (rng.random(n) < 0.12).astype(np.int64),
        "distance_km": rng.lognormal(2.2, 1.4, n).round(1),
    }


# Traits: what a pattern does to some rows.
Trait = Callable[[Rng, dict[str, NDArray[Any]], Rows], None]


def _many(rng: Rng, columns: dict[str, NDArray[Any]], rows: Rows) -> None:
    columns["transactions_24h"][rows] = rng.integers(7, 25, len(rows))


def _tiny(rng: Rng, columns: dict[str, NDArray[Any]], rows: Rows) -> None:
    columns["amount"][rows] = rng.uniform(0.5, 4, len(rows))


def _large(rng: Rng, columns: dict[str, NDArray[Any]], rows: Rows) -> None:
    columns["amount"][rows] = rng.lognormal(6.3, 0.5, len(rows))


def _digital(rng: Rng, columns: dict[str, NDArray[Any]], rows: Rows) -> None:
    columns["merchant_category"][rows] = rng.choice(np.array(["games", "gift_cards"], object), len(rows))
    columns["entry"][rows] = "online"


def _easily_sold(rng: Rng, columns: dict[str, NDArray[Any]], rows: Rows) -> None:
    columns["merchant_category"][rows] = rng.choice(
        np.array(["electronics", "gift_cards"], object), len(rows)
    )


def _far(rng: Rng, columns: dict[str, NDArray[Any]], rows: Rows) -> None:
    columns["distance_km"][rows] = rng.lognormal(7.6, 0.5, len(rows)).round(1)


def _at_night(rng: Rng, columns: dict[str, NDArray[Any]], rows: Rows) -> None:
    columns["hour"][rows] = rng.integers(0, 6, len(rows))


def _new_device(rng: Rng, columns: dict[str, NDArray[Any]], rows: Rows) -> None:
    columns["is_new_device"][rows] = 1


def _new_email(rng: Rng, columns: dict[str, NDArray[Any]], rows: Rows) -> None:
    columns["email_age_days"][rows] = rng.integers(0, 15, len(rows))


def _new_account(rng: Rng, columns: dict[str, NDArray[Any]], rows: Rows) -> None:
    columns["account_age_days"][rows] = rng.integers(0, 40, len(rows))


def _spending(rng: Rng, columns: dict[str, NDArray[Any]], rows: Rows) -> None:
    columns["amount_24h"][rows] = rng.lognormal(7.3, 0.5, len(rows))


#: Cards tried out; a stolen card far from home; an account taken over; a new account run up immediately.
PATTERNS: tuple[tuple[Trait, ...], ...] = (
    (_many, _tiny, _digital),
    (_far, _large, _at_night),
    (_new_device, _new_email, _easily_sold),
    (_new_account, _spending, _large),
)
