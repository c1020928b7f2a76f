"""A payment network drawn from a seed, with fraud rings planted in it.

Most accounts are people: they buy from businesses, are paid by an employer and send money to others in
their town. Three groups matter:

    ring members    a few accounts that pass money around in cycles, A → B → C → A, and otherwise behave
                    like everyone else
    freelancers     honest, but their own figures look the same: young accounts, as much money out as in,
                    paid and paying by night; many more of them than of ring members
    everyone else

The figures of one account distinguish the first two groups from the third. Only the payers distinguish a
ring member from a freelancer: a member's payers are members, a freelancer's payers are any accounts. That
is in the graph only, so a model of the features alone does badly here.

Knows NumPy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest
from hopline.types import FloatArray, IdArray

#: Columns of the features, over the whole period; amounts in euros.
FEATURE_NAMES = (
    "age_days",
    "is_business",
    "transfers_in",
    "transfers_out",
    "amount_in",
    "amount_out",
    "night_share",
    "devices",
)
#: Version of the generated data: raise it when the numbers below change, so that cached data is redrawn.
RECIPE = 1

_START = 1_735_689_600  # 2025-01-01 00:00 UTC
_DAYS = 90
_SHARE_RING, _SHARE_FREELANCE, _SHARE_BUSINESS = 0.015, 0.12, 0.05
_RING_SIZES = (5, 14)
_ROUNDS = (3, 8)
_TOWN = 200
#: Shares of transfers without rings and freelancers: purchases, salaries; the remainder is between people.
_SPLIT = (0.55, 0.15)
#: Share of freelance work that freelancers pay to each other.
_AMONG_FREELANCERS = 0.2
#: Log of the median, and spread, of the amounts in rings and of freelance work.
_SUM = (6.3, 0.6)


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Accounts 0 to n-1 and the transfers between them.

    Attributes:
        features: float32 [n, 8], columns FEATURE_NAMES, as a bank would store them (not scaled).
        ring: int64 [n], the ring that an account is a member of, -1 for none.
        payer, payee: int64 [m].
        amount: float32 [m], euros.
        time: int64 [m], Unix seconds.
    """

    features: FloatArray
    ring: IdArray
    payer: IdArray
    payee: IdArray
    amount: FloatArray
    time: IdArray

    @property
    def is_fraud(self) -> NDArray[np.bool_]:
        """bool [n], true for members of rings."""
        return self.ring >= 0

    @property
    def num_rings(self) -> int:
        """Number of rings."""
        return int(self.ring.max(initial=-1)) + 1


@dataclass(frozen=True, slots=True, eq=False)
class _Transfers:
    payer: IdArray
    payee: IdArray
    amount: FloatArray
    #: probability that a transfer is made by night
    night: float

    def __len__(self) -> int:
        return len(self.payer)


def generate(num_accounts: int, num_transfers: int, seed: int = 0) -> Network:
    """Draw a network; equal arguments give equal networks.

    Args:
        num_accounts: at least 500.
        num_transfers: exact number; at least three per account.

    Raises: BadRequest: the sizes are too small for rings among other accounts.
    """
    if num_accounts < 500:
        raise BadRequest(
            f"{num_accounts} accounts are too few for rings among honest accounts; use at least 500"
        )
    if num_transfers < 3 * num_accounts:
        raise BadRequest(
            f"{num_transfers} transfers for {num_accounts} accounts are too few; use at least 3 per account"
        )
    rng = np.random.default_rng(seed)
    # Roles are ranges of row numbers; a permutation at the end hides them.
    num_members = round(num_accounts * _SHARE_RING)
    num_freelancers = round(num_accounts * _SHARE_FREELANCE)
    num_businesses = round(num_accounts * _SHARE_BUSINESS)
    freelancers = np.arange(num_members, num_members + num_freelancers)
    businesses = np.arange(num_accounts - num_businesses, num_accounts)
    people = np.arange(num_accounts - num_businesses)

    ring_of = _rings(rng, num_members)
    rings = _cycles(rng, ring_of)
    work = _freelance_work(rng, people, businesses, freelancers)
    rest = num_transfers - len(rings) - len(work)
    purchases, salaries = (int(rest * share) for share in _SPLIT)
    groups = [
        rings,
        work,
        _purchases(rng, people, businesses, purchases),
        _salaries(rng, people, businesses, salaries),
        _between_people(rng, people, rest - purchases - salaries),
    ]
    payer = np.concatenate([group.payer for group in groups])
    payee = np.concatenate([group.payee for group in groups])
    amount = np.concatenate([group.amount for group in groups]).round(2)
    by_night = rng.random(len(payer)) < np.repeat([g.night for g in groups], [len(g) for g in groups])
    time = _times(rng, by_night)

    age = rng.gamma(2.5, 700.0, num_accounts)
    young = np.concatenate([np.arange(num_members), freelancers])
    age[young] = rng.gamma(2.0, 300.0, len(young))
    devices = 1 + rng.poisson(0.4, num_accounts)
    devices[young] += rng.poisson(0.5, len(young))
    is_business = np.zeros(num_accounts)
    is_business[businesses] = 1
    features = _features(payer, payee, amount, by_night, age, is_business, devices)

    new_row = rng.permutation(num_accounts)
    ring = np.full(num_accounts, -1)
    ring[new_row[:num_members]] = ring_of
    order = np.argsort(time, kind="stable")
    shuffled = np.empty_like(features)
    shuffled[new_row] = features
    return Network(shuffled, ring, new_row[payer[order]], new_row[payee[order]], amount[order], time[order])


def _rings(rng: np.random.Generator, num_members: int) -> IdArray:
    """The ring of each member, int64 [num_members]: consecutive members, sizes drawn from _RING_SIZES."""
    low, high = _RING_SIZES
    sizes = rng.integers(low, high + 1, num_members // low + 1)
    ring = np.repeat(np.arange(len(sizes)), sizes)[:num_members]
    # The last ring may be too small for a cycle.
    if np.count_nonzero(ring == ring[-1]) < 3 and ring[-1] > 0:
        ring[ring == ring[-1]] -= 1
    return ring


def _cycles(rng: np.random.Generator, ring: IdArray) -> _Transfers:
    """Transfers within rings: each ring passes a sum around several times, each time in another order."""
    rounds_of = rng.integers(_ROUNDS[0], _ROUNDS[1] + 1, ring[-1] + 1)
    member = np.repeat(np.arange(len(ring)), rounds_of[ring])
    first = np.cumsum(rounds_of[ring]) - rounds_of[ring]
    turn = np.arange(len(member)) - first[member]
    # Sorted by (ring, round, random key): each pays the next in this order, the last pays the first.
    order = np.lexsort((rng.random(len(member)), turn, ring[member]))
    payer = member[order]
    cycle = ring[payer] * (_ROUNDS[1] + 1) + turn[order]
    starts = np.flatnonzero(np.diff(cycle, prepend=-1))
    lengths = np.diff(starts, append=len(payer))
    payee = np.roll(payer, -1)
    payee[starts + lengths - 1] = payer[starts]
    # One sum is passed around; each member keeps a little.
    step = np.arange(len(payer)) - np.repeat(starts, lengths)
    amount = np.repeat(rng.lognormal(*_SUM, len(starts)), lengths) * 0.98**step
    return _Transfers(payer, payee, amount.astype(np.float32), night=0.3)


def _purchases(rng: np.random.Generator, people: IdArray, businesses: IdArray, n: int) -> _Transfers:
    return _Transfers(
        rng.choice(people, n), _popular(rng, businesses, n), _amounts(rng, 3.6, 0.9, n), night=0.12
    )


def _salaries(rng: np.random.Generator, people: IdArray, businesses: IdArray, n: int) -> _Transfers:
    employer = _popular(rng, businesses, len(people))
    payee = rng.integers(0, len(people), n)
    return _Transfers(employer[payee], people[payee], _amounts(rng, 7.6, 0.35, n), night=0.02)


def _freelance_work(
    rng: np.random.Generator, people: IdArray, businesses: IdArray, freelancers: IdArray
) -> _Transfers:
    """Freelancers are paid, and pay, as often as members in a ring, but by and to any account."""
    times = rng.integers(_ROUNDS[0], _ROUNDS[1] + 1, len(freelancers))
    own = np.repeat(freelancers, times)
    n = len(own)
    customers = np.where(rng.random(n) < 0.3, rng.choice(businesses, n), rng.choice(people, n))
    among = rng.random(n) < _AMONG_FREELANCERS
    suppliers = np.where(among, rng.choice(freelancers, n), rng.choice(people, n))
    payer, payee = np.concatenate([customers, own]), np.concatenate([own, suppliers])
    sums = _amounts(rng, *_SUM, len(freelancers))
    return _Transfers(*_no_loops(payer, payee, people), np.tile(np.repeat(sums, times), 2), night=0.3)


def _between_people(rng: np.random.Generator, people: IdArray, n: int) -> _Transfers:
    """Transfers between people with close row numbers, as in a town."""
    street = rng.permutation(people)
    at = rng.integers(0, len(street), n)
    town = at // _TOWN * _TOWN
    other = town + (rng.random(n) * np.minimum(_TOWN, len(street) - town)).astype(np.int64)
    return _Transfers(*_no_loops(street[at], street[other], people), _amounts(rng, 4.2, 1.0, n), night=0.15)


def _popular(rng: np.random.Generator, accounts: IdArray, n: int) -> IdArray:
    """Draw n accounts, a few of them very often (power law)."""
    weight = rng.pareto(1.3, len(accounts)) + 0.2
    return rng.choice(accounts, n, p=weight / weight.sum())


def _no_loops(payer: IdArray, payee: IdArray, people: IdArray) -> tuple[IdArray, IdArray]:
    """Replace payees that are the payer by the next person."""
    return payer, np.where(payer == payee, people[(payee + 1) % len(people)], payee)


def _amounts(rng: np.random.Generator, log_median: float, spread: float, n: int) -> FloatArray:
    return rng.lognormal(log_median, spread, n).astype(np.float32)


def _times(rng: np.random.Generator, by_night: NDArray[np.bool_]) -> IdArray:
    """Unix seconds: by night from 22 to 6 o'clock, else in between."""
    n = len(by_night)
    within = rng.random(n)
    seconds = np.where(by_night, 22 * 3600 + within * 8 * 3600, 6 * 3600 + within * 16 * 3600) % 86_400
    return _START + rng.integers(0, _DAYS, n) * 86_400 + seconds.astype(np.int64)


def _features(
    payer: IdArray,
    payee: IdArray,
    amount: FloatArray,
    by_night: NDArray[np.bool_],
    age: NDArray[np.float64],
    is_business: NDArray[np.float64],
    devices: IdArray,
) -> FloatArray:
    n = len(age)
    num_in, num_out = np.bincount(payee, minlength=n), np.bincount(payer, minlength=n)
    columns = (
        age.round(),
        is_business,
        num_in,
        num_out,
        np.bincount(payee, amount, n).round(2),
        np.bincount(payer, amount, n).round(2),
        (np.bincount(payer, by_night, n) / np.maximum(num_out, 1)).round(3),
        devices,
    )
    return np.stack(columns, axis=1).astype(np.float32)
