"""The generated network: drawn from a seed, rings planted, nothing that gives them away by itself."""

import numpy as np
import pytest

from hopline.errors import BadRequest
from hopline_demo.network import FEATURE_NAMES, Network, generate

ACCOUNTS, TRANSFERS = 6_000, 60_000


@pytest.fixture(scope="module")
def network() -> Network:
    return generate(ACCOUNTS, TRANSFERS, seed=3)


def test_same_seed_draws_the_same_network(network: Network) -> None:
    again = generate(ACCOUNTS, TRANSFERS, seed=3)
    for name in Network.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(network, name), getattr(again, name))
    assert not np.array_equal(network.payer, generate(ACCOUNTS, TRANSFERS, seed=4).payer)


def test_sizes_and_ranges_are_what_was_requested(network: Network) -> None:
    assert network.features.shape == (ACCOUNTS, len(FEATURE_NAMES))
    assert network.features.dtype == np.float32
    for column in (network.payer, network.payee, network.amount, network.time):
        assert len(column) == TRANSFERS
    for accounts in (network.payer, network.payee):
        assert accounts.min() >= 0
        assert accounts.max() < ACCOUNTS
    assert (network.payer != network.payee).all()
    assert (network.amount > 0).all()
    assert (np.diff(network.time) >= 0).all()
    assert np.isfinite(network.features).all()
    assert (network.features >= 0).all()


def test_members_are_a_realistic_minority(network: Network) -> None:
    assert 0.01 <= network.is_fraud.mean() <= 0.02


def test_every_ring_passes_money_in_cycles(network: Network) -> None:
    within = network.ring[network.payer] == network.ring[network.payee]
    within &= network.is_fraud[network.payer]
    sizes = np.bincount(network.ring[network.is_fraud])
    assert sizes.min() >= 3
    assert len(sizes) == network.num_rings
    # in a cycle everyone pays and is paid equally often; chance transfers between mates are rare
    paid = np.bincount(network.payee[within], minlength=ACCOUNTS)[network.is_fraud]
    pays = np.bincount(network.payer[within], minlength=ACCOUNTS)[network.is_fraud]
    assert paid.min() >= 3
    assert pays.min() >= 3
    assert np.abs(paid - pays).mean() < 0.1


def test_features_are_the_sums_of_the_transfers(network: Network) -> None:
    column = dict(zip(FEATURE_NAMES, network.features.T, strict=True))
    np.testing.assert_array_equal(column["transfers_in"], np.bincount(network.payee, minlength=ACCOUNTS))
    np.testing.assert_array_equal(column["transfers_out"], np.bincount(network.payer, minlength=ACCOUNTS))
    paid = np.bincount(network.payee, network.amount, ACCOUNTS)
    np.testing.assert_allclose(column["amount_in"], paid, rtol=1e-4, atol=0.01)
    hour = network.time // 3600 % 24
    night = np.bincount(network.payer, (hour >= 22) | (hour < 6), ACCOUNTS)
    share = night / np.maximum(column["transfers_out"], 1)
    np.testing.assert_allclose(column["night_share"], share, atol=0.001)


def test_no_single_feature_gives_members_away(network: Network) -> None:
    from sklearn.metrics import average_precision_score

    for values in network.features.T:
        for sign in (1, -1):
            assert average_precision_score(network.is_fraud, sign * values) < 0.2


def test_account_numbers_say_nothing(network: Network) -> None:
    members = np.flatnonzero(network.is_fraud)
    assert 0.35 < members.mean() / ACCOUNTS < 0.65
    assert abs(np.corrcoef(members, network.ring[members])[0, 1]) < 0.4


@pytest.mark.parametrize("accounts", [500, 501, 777, 1_000])
def test_small_networks_have_whole_rings(accounts: int) -> None:
    network = generate(accounts, 10 * accounts, seed=0)
    assert np.bincount(network.ring[network.is_fraud]).min() >= 3


@pytest.mark.parametrize(
    ("accounts", "transfers", "why"), [(499, 10_000, "500"), (1_000, 2_999, "at least 3")]
)
def test_sizes_that_hold_no_rings_are_refused(accounts: int, transfers: int, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        generate(accounts, transfers)
