"""The store of several hosts: what a Redis loses, and what becomes of members that are cut off."""

import signal
import time

import pytest

from hopline.errors import ConfigError, StoreUnavailable
from hopline.rollout.state import LifecycleState, decode_state, encode_state
from hopline.rollout.store import fleet as fleet_module
from hopline.rollout.store.fleet import Ack, Fleet
from hopline_stores.redis import state as redis_store
from hopline_stores.redis.state import RedisStateStore
from tests.redis_servers import redis_process
from tests.state_stores import StateStoreSuite, eventually, serving


@pytest.fixture
def server():
    with redis_process() as running:
        yield running


@pytest.fixture
def join(server, monkeypatch):
    """Opens members of one fleet, at short intervals."""
    monkeypatch.setattr(RedisStateStore, "beat_s", 0.02)
    monkeypatch.setattr(redis_store, "_LIFETIME_S", 0.6)
    monkeypatch.setattr(fleet_module, "_RESTORE_S", 0.05)
    monkeypatch.setattr(fleet_module, "_JUDGE_READ_S", 0.0)
    monkeypatch.setattr(fleet_module, "_READ_S", 0.0)
    fleets = []

    def join(names=()):
        fleet = Fleet(RedisStateStore(f"{server.url}/0?prefix=t:"), names)
        fleet.open()
        fleets.append(fleet)
        return fleet

    yield join
    server.signal(signal.SIGCONT)
    for fleet in fleets:
        fleet.close()


def die(fleet):
    """As a process that is killed: it says nothing any more."""
    fleet._closing = True
    fleet._thread.join()


class TestRedisStore(StateStoreSuite):
    @pytest.fixture
    def join(self, join):
        return join


def opened(url):
    fleet = Fleet(RedisStateStore(url))
    try:
        fleet.open()
    finally:
        fleet.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "volatile-ttl", "allkeys-random"])
def test_a_server_that_may_evict_the_state_is_refused(server, policy):
    server.call("CONFIG", "SET", "maxmemory-policy", policy)
    with pytest.raises(ConfigError, match=rf"models.state: .* memory policy {policy}.* to noeviction"):
        opened(f"{server.url}/0?prefix=t:")
    server.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    opened(f"{server.url}/0?prefix=t:")


@pytest.mark.parametrize("forbidden", ["-info", "-config"])
def test_one_of_two_commands_that_report_the_policy_is_enough(server, caplog, forbidden):
    server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    server.call("ACL", "SETUSER", "fleet", "on", ">pass", "~*", "&*", "+@all", forbidden)
    with pytest.raises(ConfigError, match="memory policy allkeys-lru"):
        opened(f"redis://fleet:pass@127.0.0.1:{server.port}/0?prefix=t:")
    assert caplog.text == ""


def test_a_server_that_does_not_report_its_policy_is_warned_about_once(server, caplog):
    server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    server.call("ACL", "SETUSER", "fleet", "on", ">pass", "~*", "&*", "+@all", "-info", "-config")
    opened(f"redis://fleet:pass@127.0.0.1:{server.port}/0?prefix=t:")
    (said,) = [record for record in caplog.records if "memory policy" in record.message]
    assert said.levelname == "WARNING"
    assert "check that it is noeviction" in said.message


def test_fleets_with_other_prefixes_are_separate(server, join):
    join().update(serving("1"))
    other = Fleet(RedisStateStore(f"{server.url}/0?prefix=u:"))
    other.open()
    assert other.newest().state == LifecycleState()
    other.close()


def test_a_member_that_dies_is_gone_and_its_counts_stay(join):
    first, other = join(), join()
    for member in (first, other):
        member.acknowledge(Ack(0, 0, {}))
        member.publish_counts("a-0", member.store.member.encode())
    eventually(lambda: len(first.acknowledgements()) == 1 and len(first.counts("a-0")) == 1)
    die(other)
    eventually(lambda: first.acknowledgements() == {})
    assert first.gone({other.store.member}) == {other.store.member}
    assert list(first.counts("a-0")) == [other.store.member.encode()]


def test_an_acknowledgement_that_cannot_be_read_is_an_error(join, monkeypatch):
    first, other = join(), join()
    ack = Ack(1, 1, {})
    other.acknowledge(ack)
    eventually(lambda: first.acknowledgements() == {other.store.member: ack})
    monkeypatch.setattr(other, "_ack", b"of another release")  # what its beats say from now on
    other.flush()
    with pytest.raises(
        StoreUnavailable, match=rf"{other.store.member} acknowledges cannot be read .*another release"
    ):
        first.acknowledgements()
    assert first.status()["up"]


def test_another_member_leads_when_the_leader_dies(join):
    first, other = join(), join()
    first.publish_counts("a-0", b"")
    eventually(first.leads)
    other.publish_counts("a-0", b"")
    die(first)
    eventually(other.leads)
    assert not first.leads()


def test_a_member_leads_only_while_it_renews_its_lease(join):
    """Another one may get the rest of the lease at any moment."""
    member = join()
    member.publish_counts("a-0", b"")
    eventually(member.leads)
    member.withdraw_counts("a-0")
    member.flush()
    assert not member.leads()
    member.publish_counts("a-0", b"")
    eventually(member.leads)


def test_a_server_that_stands_still_is_noticed_and_no_member_is_gone_after_it(server, join):
    first, other = join(), join()
    other.acknowledge(Ack(1, 1, {}))
    other.flush()
    first.update(serving("1"))
    first.publish_counts("a-0", b"")
    eventually(first.leads)
    server.signal(signal.SIGSTOP)
    eventually(lambda: not first.status()["up"])
    assert not first.leads()
    with pytest.raises(StoreUnavailable, match=r"has failed for .*requests are served meanwhile"):
        first.check_up()
    with pytest.raises(StoreUnavailable, match="does not answer"):
        first.update(serving("2"))
    server.signal(signal.SIGCONT)
    eventually(lambda: first.status()["up"])
    first.check_up()
    assert first.acknowledgements().keys() == {other.store.member}
    assert first.newest().state.models["m"].serving == "1"


def test_a_change_that_waited_longer_than_its_caller_is_not_made(server, join, monkeypatch):
    member = join()
    member.update(serving("1"))
    swap = member.store.swap

    def swap_late(stored, content):
        server.signal(signal.SIGSTOP)
        return swap(stored, content)

    monkeypatch.setattr(member.store, "swap", swap_late)
    with pytest.raises(StoreUnavailable, match="look whether it was made"):
        member.update(serving("2"))
    eventually(lambda: not member.status()["up"])  # a second: longer than the change may take
    server.signal(signal.SIGCONT)
    eventually(lambda: member.status()["up"])
    assert member.update(lambda whole: whole).generation == 1


def test_a_change_whose_answer_was_lost_is_found_to_be_made(join, monkeypatch):
    member = join()
    call = member.store._client.eval

    def cut(*words):
        call(*words)
        raise ConnectionResetError("cut")

    monkeypatch.setattr(member.store._client, "eval", cut)
    assert member.update(serving("1")).generation == 1
    assert member.update(lambda whole: whole).models["m"].serving == "1"


def test_members_give_back_what_a_server_lost(server, join):
    first, other = join(), join()
    first.update(serving("1"))
    other.flush()
    after = first.update(serving("2"))
    eventually(lambda: other.newest().state == after)
    server.call("FLUSHALL")
    eventually(lambda: other.store.read().content == encode_state(after))
    assert first.newest().state == other.newest().state == after
    late = join()
    assert late.newest().state == after


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "damage",
    [
        ("SET", b"x"),
        ("SET", encode_state(LifecycleState(99)).replace(b"99", b"98")),
        ("SET", encode_state(LifecycleState(99, format=2))),
        ("HSET", "generation", "3", "nonce", "other", "body", b"{}"),
        ("RPUSH", b"x"),
    ],
    ids=["no state", "damaged", "newer", "the format of another release", "another program"],
)
def test_a_state_that_no_member_can_read_is_reported_and_never_given_back(server, join, damage):
    member, other = join(), join()
    member.update(serving("1"))
    eventually(lambda: other.newest().stored == member.store.read())
    key = "t:{fleet}:state"
    with member._beating, other._beating:  # or a member gives the state back
        server.call("DEL", key)
        server.call(damage[0], key, *damage[1:])
    for each in (member, other):
        eventually(lambda each=each: not each.status()["up"])
        assert key in each.status()["why"] or "newer Hopline" in each.status()["why"]
        with pytest.raises(StoreUnavailable, match="has failed for"):
            each.check_up()
    with pytest.raises(ConfigError, match=r"t:\{fleet\}:state|newer Hopline"):
        join()
    server.call("DEL", key)
    eventually(lambda: member.status()["up"] and other.status()["up"])
    assert other.newest().state.models["m"].serving == "1"
    member.check_up()


def test_two_states_of_one_generation_become_one_that_is_newer(server, join):
    first, other = join(), join()
    first.update(serving("1"))
    older = first.store.read().content
    eventually(lambda: other.newest().stored == first.store.read())
    first.update(serving("2"))
    # The server goes back to generation 1, and another change is made there.
    state = decode_state(older, "", "")
    server.call("SET", "t:{fleet}:state", encode_state(type(state)(2, state.models)))
    eventually(lambda: first.newest().state.generation == 3)
    assert first.newest().state.models["m"].serving == "1"
    eventually(lambda: first.newest().stored == first.store.read() == other.newest().stored)


def test_models_that_the_settings_do_not_name_are_left_out(join):
    from hopline.rollout.state import FirstState, ModelState

    join().update(serving("1"))
    some = join(("n",))
    state, first = some.first_state(some.newest().state, lambda: FirstState({"n": ModelState(serving="2")}))
    assert state.models.keys() == {"m", "n"}
    assert first.left_out.keys() == {"m"}


def test_a_server_that_is_not_there_is_an_error_after_a_while(server, monkeypatch):
    monkeypatch.setattr(fleet_module, "_START_S", 0.2)
    server.kill()
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="does not know what its fleet serves does not start"):
        Fleet(RedisStateStore(f"{server.url}/0")).open()
    assert time.monotonic() - began > 0.2


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis+cluster://a,b/0", "in one Redis or Valkey, not in a cluster"),
        ("redis://a/0?ttl_s=3", "ttl_s is for rows of features"),
        ("redis://a/x", "database must be a number"),
        ("redis://a/0?prefx=x", "did you mean 'prefix'"),
    ],
)
def test_an_address_that_makes_no_sense_is_refused(url, text):
    with pytest.raises(ConfigError, match=text):
        RedisStateStore(url)


def test_a_wrong_password_is_an_error_immediately_and_a_right_one_is_not_shown():
    with redis_process("--requirepass", "sesame") as server:
        address = f"127.0.0.1:{server.port}/0"
        fleet = Fleet(RedisStateStore(f"redis://:sesame@{address}"))
        fleet.open()
        assert "sesame" not in fleet.status()["address"]
        fleet.close()
        for login in ("", ":wrong@"):
            with pytest.raises(ConfigError, match="refuses this client"):
                Fleet(RedisStateStore(f"redis://{login}{address}")).open()
