"""Shapley values against their definition: means over all orders of the players."""

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hopline_why import shapley

#: What `orders` draws for these arguments, on every machine.
ORDERS = [[4, 0, 1, 2, 3], [3, 2, 1, 0, 4], [1, 0, 2, 4, 3], [3, 4, 2, 0, 1]]

_NUMBERS = st.floats(-1e6, 1e6)
_GAMES = st.integers(0, 5).flatmap(lambda n: st.lists(_NUMBERS, min_size=2**n, max_size=2**n))


def by_definition(values):
    count = (len(values) - 1).bit_length()
    gains = np.zeros(count)
    for order in itertools.permutations(range(count)):
        coalition = 0
        for player in order:
            gains[player] += values[coalition | 1 << player] - values[coalition]
            coalition |= 1 << player
    return gains / math.factorial(count)


@given(_GAMES)
def test_exact_values_are_means_over_all_orders(values):
    found = shapley.exact(np.array(values))
    np.testing.assert_allclose(found, by_definition(values), rtol=1e-9, atol=1e-6)


@given(_GAMES)
def test_exact_values_sum_up_to_the_difference(values):
    assert math.isclose(math.fsum(shapley.exact(np.array(values))), values[-1] - values[0], abs_tol=1e-6)


@given(st.text(), st.integers(1, 62), st.integers(2, 5), st.integers(0, 2**32))
def test_sampled_values_sum_up_to_the_difference_whatever_the_game(key, count, pairs, seed):
    drawn = shapley.orders(key, count, pairs)
    assert (np.sort(drawn, axis=1) == np.arange(count)).all()
    assert (drawn[1::2] == drawn[::2, ::-1]).all()
    coalitions = shapley.coalitions_of(drawn)
    assert (coalitions[:, 0] == 0).all()
    assert (coalitions[:, -1] == shapley.full(count)).all()
    every, at = np.unique(coalitions, return_inverse=True)
    values = np.random.default_rng(seed).normal(size=len(every))
    found, errors = shapley.sampled(drawn, values[at].reshape(coalitions.shape))
    assert math.isclose(math.fsum(found), values[-1] - values[0], abs_tol=1e-9)
    assert (errors >= 0).all()


def test_the_stated_error_covers_exact_values_as_often_as_a_standard_error_does():
    rng, within = np.random.default_rng(5), []
    for number in range(60):
        values = rng.normal(size=2**6)
        exact = shapley.exact(values)
        drawn = shapley.orders(str(number), 6, 12)
        found, errors = shapley.sampled(drawn, values[shapley.coalitions_of(drawn).astype(int)])
        within.append(np.abs(found - exact) <= 2 * errors)
    assert 0.88 < np.mean(within) < 0.99


def test_a_pair_of_orders_is_exact_where_players_do_not_interact():
    weights = np.array([3.0, -1.0, 0.5])
    values = shapley.every(3)[:, None] >> np.arange(3, dtype=np.uint64) & np.uint64(1)
    drawn = shapley.orders("", 3, 2)
    found, errors = shapley.sampled(drawn, (values @ weights)[shapley.coalitions_of(drawn).astype(int)])
    np.testing.assert_allclose(found, weights, atol=1e-15)
    np.testing.assert_allclose(errors, 0, atol=1e-15)


def test_orders_are_a_function_of_the_key_and_the_same_on_every_machine():
    assert (shapley.orders("a", 9, 3) != shapley.orders("b", 9, 3)).any()
    assert shapley.orders("a", 5, 2).tolist() == ORDERS
