"""Shapley values of a game whose values are computed elsewhere: exact, or from keyed orders of the players.

A coalition is a uint64: bit p is player p. Orders are drawn with integers alone, so that every machine
draws the same ones.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

Coalitions = NDArray[np.uint64]
Values = NDArray[np.float64]

#: Bits of a coalition; one is left free, so that sums of bits never wrap around.
MOST_PLAYERS = 62
_GOLDEN, _M1, _M2 = (
    np.uint64(each) for each in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


def full(num_players: int) -> np.uint64:
    """The coalition of all players."""
    return np.uint64((1 << num_players) - 1)


def every(num_players: int) -> Coalitions:
    """All coalitions, uint64 [2^P], each at its own number."""
    return np.arange(1 << num_players, dtype=np.uint64)


def exact(values: Values) -> Values:
    """Shapley values [P] of the values of all coalitions, [2^P] in the order of `every`."""
    num_players = (len(values) - 1).bit_length()
    if not num_players:
        return np.zeros(0)
    numbers = np.arange(len(values))
    sizes = np.bitwise_count(numbers)
    weights = 1.0 / (num_players * np.array([math.comb(num_players - 1, k) for k in range(num_players)]))
    found = np.empty(num_players)
    for player in range(num_players):
        without = numbers[numbers >> player & 1 == 0]
        found[player] = weights[sizes[without]] @ (values[without | 1 << player] - values[without])
    return found


def orders(key: str, num_players: int, num_pairs: int) -> NDArray[np.int64]:
    """Orders of the players, int64 [2 * pairs, P]: each drawn one is followed by its reverse.

    Args:
        key: the draws are a function of it, of their number and of the players' numbers.
    """
    start = np.uint64(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little"))
    cells = np.arange(1, num_pairs * num_players + 1, dtype=np.uint64).reshape(num_pairs, num_players)
    drawn = np.argsort(_mixed(start + cells * _GOLDEN), axis=1, kind="stable")
    return np.stack([drawn, drawn[:, ::-1]], axis=1).reshape(-1, num_players)


def coalitions_of(drawn: NDArray[np.int64]) -> Coalitions:
    """The coalitions that orders go through, uint64 [orders, P + 1]: from none of the players to all."""
    bits = np.uint64(1) << drawn.astype(np.uint64)
    return np.concatenate([np.zeros((len(drawn), 1), np.uint64), np.cumsum(bits, axis=1)], axis=1)


def sampled(drawn: NDArray[np.int64], values: Values) -> tuple[Values, Values]:
    """Means over pairs of orders, and their standard errors, both [P].

    Args:
        drawn: from `orders`, of at least two pairs.
        values: [orders, P + 1], of `coalitions_of`.
    """
    gains = np.empty(drawn.shape)
    np.put_along_axis(gains, drawn, np.diff(values, axis=1), axis=1)
    pairs = gains.reshape(-1, 2, drawn.shape[1]).mean(axis=1)
    return pairs.mean(axis=0), pairs.std(axis=0, ddof=1) / math.sqrt(len(pairs))


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser, as the sampler of neighbours has it."""
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)
