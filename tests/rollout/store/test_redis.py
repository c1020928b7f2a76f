"""The store of several hosts: what a Redis loses, and what becomes of members that are cut off."""

import signal
import time

import pytest

from hopline.errors import ConfigError, StoreUnavailable
from hopline.rollout.state import LifecycleState
from hopline.rollout.store import redis as redis_store
from hopline.rollout.store.base import Ack
from hopline.rollout.store.redis import RedisStore
from hopline.testing.state_stores import StateStoreSuite, eventually, serving
from tests.features.redis_servers import redis_process


@pytest.fixture
def server():
    with redis_process() as running:
        yield running


@pytest.fixture
def join(server, monkeypatch):
    """Opens members of one fleet, at short intervals."""
    monkeypatch.setattr(redis_store, "_BEAT_S", 0.02)
    monkeypatch.setattr(redis_store, "_LIFETIME_S", 0.6)
    monkeypatch.setattr(redis_store, "_RESTORE_S", 0.05)
    monkeypatch.setattr("hopline.rollout.store.redis_counts._JUDGE_READ_S", 0.0)
    monkeypatch.setattr("hopline.rollout.store.redis_counts._READ_S", 0.0)
    stores = []

    def join(names=()):
        store = RedisStore(f"{server.url}/0?prefix=t:", names)
        store.open()
        stores.append(store)
        return store

    yield join
    server.signal(signal.SIGCONT)
    for store in stores:
        store.close()


def die(store):
    """As a process that is killed: it says nothing any more."""
    store._closing = True
    store._thread.join()


class TestRedisStore(StateStoreSuite):
    @pytest.fixture
    def join(self, join):
        return join


def opened(url):
    store = RedisStore(url)
    try:
        store.open()
    finally:
        store.close()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "volatile-ttl", "allkeys-random"])
def test_a_server_that_may_evict_the_state_is_refused(server, policy):
    server.call("CONFIG", "SET", "maxmemory-policy", policy)
    with pytest.raises(ConfigError, match=rf"models.state: .* memory policy {policy}.* to noeviction"):
        opened(f"{server.url}/0?prefix=t:")
    server.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    opened(f"{server.url}/0?prefix=t:")


@pytest.mark.parametrize("forbidden", ["-info", "-config"])
def test_one_of_two_commands_that_tell_the_policy_is_enough(server, caplog, forbidden):
    server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    server.call("ACL", "SETUSER", "fleet", "on", ">pass", "~*", "&*", "+@all", forbidden)
    with pytest.raises(ConfigError, match="memory policy allkeys-lru"):
        opened(f"redis://fleet:pass@127.0.0.1:{server.port}/0?prefix=t:")
    assert caplog.text == ""


def test_a_server_that_does_not_tell_its_policy_is_warned_about_once(server, caplog):
    server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    server.call("ACL", "SETUSER", "fleet", "on", ">pass", "~*", "&*", "+@all", "-info", "-config")
    opened(f"redis://fleet:pass@127.0.0.1:{server.port}/0?prefix=t:")
    (said,) = [record for record in caplog.records if "memory policy" in record.message]
    assert said.levelname == "WARNING"
    assert "check that it is noeviction" in said.message


def test_fleets_with_other_prefixes_are_separate(server, join):
    join().update(serving("1"))
    other = RedisStore(f"{server.url}/0?prefix=u:")
    other.open()
    assert other.read()[0] == LifecycleState()
    other.close()


def test_a_member_that_dies_is_gone_and_its_counts_stay(join):
    first, other = join(), join()
    for member in (first, other):
        member.acknowledge(Ack(0, 0, {}))
        member.publish_counts("a-0", member.member.encode())
    eventually(lambda: len(first.acknowledgements()) == 1 and len(first.counts("a-0")) == 1)
    die(other)
    eventually(lambda: first.acknowledgements() == {})
    assert first.gone({other.member}) == {other.member}
    assert list(first.counts("a-0")) == [other.member.encode()]


def test_only_members_acknowledge_and_what_they_say_can_be_read(server, join, monkeypatch):
    first, other = join(), join()
    ack = Ack(1, 1, {})
    other.acknowledge(ack)
    eventually(lambda: first.acknowledgements() == {other.member: ack})
    server.call("HSET", "t:{fleet}:acks", "stranger", "rubbish")
    assert first.acknowledgements() == {other.member: ack}
    monkeypatch.setattr(other, "_ack", b"of another release")  # what its beats say from now on
    other.flush()
    with pytest.raises(
        StoreUnavailable, match=rf"{other.member} acknowledges cannot be read .*another release"
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
    with pytest.raises(StoreUnavailable, match="has not answered for"):
        first.check_up()
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        first.update(serving("2"))
    server.signal(signal.SIGCONT)
    eventually(lambda: first.status()["up"])
    first.check_up()
    assert first.acknowledgements().keys() == {other.member}
    assert first.read()[0].models["m"].serving == "1"


def test_a_change_that_waited_longer_than_its_caller_is_not_made(server, join, monkeypatch):
    member = join()
    member.update(serving("1"))
    load, replace = member._load, member._replace

    def replace_late(stored, wanted):
        server.signal(signal.SIGSTOP)
        monkeypatch.setattr(member, "_load", lambda: (_ for _ in ()).throw(StoreUnavailable("away")))
        try:
            return replace(stored, wanted)
        finally:
            monkeypatch.setattr(member, "_load", load)

    monkeypatch.setattr(member, "_replace", replace_late)
    with pytest.raises(StoreUnavailable, match="look whether it was made"):
        member.update(serving("2"))
    eventually(lambda: not member.status()["up"])  # a second: longer than the change may take
    server.signal(signal.SIGCONT)
    eventually(lambda: member.status()["up"])
    assert load().generation == 1


def test_a_change_whose_answer_was_lost_is_found_to_be_made(join, monkeypatch):
    member = join()
    script = member._replace_script

    def cut(keys, args):
        script(keys, args)
        raise ConnectionResetError("cut")

    monkeypatch.setattr(member, "_replace_script", cut)
    assert member.update(serving("1")).generation == 1
    assert member.read()[0].models["m"].serving == "1"


def test_members_give_back_what_a_server_lost(server, join):
    first, other = join(), join()
    first.update(serving("1"))
    other.read()
    after = first.update(serving("2"))
    server.call("FLUSHALL")
    eventually(lambda: other.read()[0] == after)
    assert first.read()[0] == after
    late = join()
    assert late.read()[0] == after


@pytest.mark.parametrize(
    "damage",
    [
        ("generation", "x"),
        ("generation", "99", "nonce", "other", "body", "{"),
        ("nonce", "other", "body", ""),
    ],
    ids=["generation", "body", "no body"],
)
def test_a_state_that_no_member_can_read_is_reported_and_never_given_back(server, join, damage):
    member, other = join(), join()
    member.update(serving("1"))
    eventually(lambda: other.heard().identity == member.read()[1])
    other.read()
    key = "t:{fleet}:state"
    server.call("HSET", key, *damage)
    for each in (member, other):
        eventually(lambda each=each: not each.status()["up"])
        assert key in each.status()["why"]
        with pytest.raises(StoreUnavailable, match="has not answered for"):
            each.check_up()
    server.call("DEL", key)
    eventually(lambda: member.status()["up"] and other.status()["up"])
    assert other.read()[0].models["m"].serving == "1"
    member.check_up()


def test_two_states_of_one_generation_become_one_that_is_newer(server, join):
    first, other = join(), join()
    first.update(serving("1"))
    eventually(lambda: first.heard().identity is not None)
    other.read()
    first.update(serving("2"))
    # The server goes back to generation 1, and another change is made there.
    body = other._newest.body
    server.call(
        "HSET",
        "t:{fleet}:state",
        "generation",
        "2",
        "nonce",
        "other",
        "body",
        body.replace(b'"generation": 1', b'"generation": 2'),
    )
    eventually(lambda: first.read()[0].generation == 3)
    assert first.read()[0].models["m"].serving == "1"
    eventually(lambda: first.heard().identity == first.read()[1] == other.heard().identity)


def test_models_that_the_settings_do_not_name_are_left_out(join):
    from hopline.rollout.state import FirstState, ModelState

    join().update(serving("1"))
    some = join(("n",))
    state, first = some.take_up(some.read()[0], lambda: FirstState({"n": ModelState(serving="2")}))
    assert state.models.keys() == {"m", "n"}
    assert first.left_out.keys() == {"m"}


def test_a_server_that_is_not_there_is_an_error_after_a_while(server, monkeypatch):
    monkeypatch.setattr(redis_store, "_START_S", 0.2)
    server.kill()
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="does not know what its fleet serves does not start"):
        RedisStore(f"{server.url}/0").open()
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
        RedisStore(url)


def test_a_wrong_password_is_an_error_immediately_and_a_right_one_is_not_shown():
    with redis_process("--requirepass", "sesame") as server:
        address = f"127.0.0.1:{server.port}/0"
        store = RedisStore(f"redis://:sesame@{address}")
        store.open()
        assert "sesame" not in store.address
        store.close()
        for login in ("", ":wrong@"):
            with pytest.raises(ConfigError, match="refuses this client"):
                RedisStore(f"redis://{login}{address}").open()
