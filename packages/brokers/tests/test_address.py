"""Addresses, and what is said of wrong ones."""

import re

import pytest

from hopline.brokers.registry import DOOR, Broker, open_queue, open_sink, open_source, reader
from hopline.errors import ConfigError
from hopline_brokers.address import Address
from hopline_brokers.kafka_source import KafkaSource
from hopline_brokers.nats_sink import NatsSink
from hopline_brokers.redis_queue import RedisQueue


def parse(text, default_port=0):
    return Address.parse(text, "s.t", ["kafka"], default_port)


def test_every_part_is_read():
    address = parse("KAFKAS://me:p%40ss@h1:1,[::1]:2/topic?group=g&ssl.x=y")
    assert (address.scheme, address.encrypted) == ("kafka", True)
    assert address.servers == (("h1", 1), ("::1", 2))
    assert address.path == "topic"
    assert address.options == {"group": "g", "ssl.x": "y", "username": "me", "password": "p@ss"}
    assert str(address) == "kafkas://h1:1,[::1]:2/topic"
    assert "p@ss" not in repr(address)
    assert address.hidden("login with p@ss failed") == "login with … failed"


def test_options_may_come_from_a_file_and_the_address_goes_before(tmp_path):
    file = tmp_path / "options.toml"
    file.write_text('password = "secret"\ngroup = "file"\nverify = false\n"sasl.mechanism" = "PLAIN"\n')
    address = parse(f"kafka://h:1/t?group=query&options_file={file}")
    assert address.text("group") == "query"
    assert address.text("password") == "secret"
    assert address.flag("verify", True) is False
    assert address.text("sasl.mechanism") == "PLAIN"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[sasl]\nmechanism = 'PLAIN'", "names with dots need quotes"),
        ("not toml", "is not TOML"),
        (None, "does not exist"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, content, said):
    file = tmp_path / "options.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=rf"^s\.t: options_file: .*{said}"):
        parse(f"kafka://h:1/t?options_file={file}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not the address of a broker"),
        ("kafak://h:1/t", "did you mean 'kafka'"),
        ("kafka://u:secret@h/t", "'h' is not the address of a server; expected host:port"),
        ("kafka://h:0/t", "'h:0' is not the address of a server"),
        ("kafka://h:99999/t", "is not the address of a server"),
        ("kafka:///t", "'' is not the address of a server"),
        ("kafka://h:1,/t", "'' is not the address of a server"),
        ("kafka://h:1/t?group=a&group=b", "option 'group' is repeated"),
        ("kafka://h:1/t?group", "cannot be read"),
        ("kafka://[::1/t", "is not a URL"),
    ],
)
def test_wrong_addresses_are_refused_by_name_and_without_the_password(text, said):
    with pytest.raises(ConfigError, match=r"^s\.t: ") as raised:
        parse(text)
    assert said in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kafka://h:1", "must name one topic"),
        ("kafka://h:1/a/b", "must name one topic"),
        ("kafka://h:1/t?grup=g", "unknown option 'grup' of kafka://; did you mean 'group'"),
        ("kafka://h:1/t?partition=first", "partition must be a number, 0 or more; got 'first'"),
        ("kafka://h:1/t?start=first", "start must be 'earliest' or 'latest'; got 'first'"),
        ("kafka://h:1/t?group.id=x", "group.id is set by Hopline"),
        ("kafka://h:1/t?no.such.setting=x", "no.such.setting"),
        ("kafkas://h:1/t?ca_file=/nowhere", "ca_file: '/nowhere' does not exist"),
        ("redis://h/0", "needs the option stream"),
        ("redis://h/zero?stream=s", "the database must be a number; got 'zero'"),
        ("redis://h,i/0?stream=s", "a stream is on one server"),
        ("nats://h", "must name one stream"),
        ("nats://h/A.B", "must name one stream"),
        ("nats://h/A?durable=a.b", "durable must not contain spaces"),
        ("nats://h/A%25B", "the stream's name must not contain %: the server delivers nothing"),
        ("nats://h/A?durable=a%25b", "durable must not contain %"),
        ("nats://h/A?group=%25", "group must not contain %"),
        ("natss://h/A?ca_file=/nowhere", "ca_file: '/nowhere' does not exist"),
        ("nats://h/A?ack=1", "unknown option 'ack' of nats://"),
    ],
)
async def test_each_broker_says_what_it_needs(text, said):
    async def attempt():
        await open_source(text, "s.t").open({})

    with pytest.raises(ConfigError, match=r"^s\.t: ") as raised:
        await attempt()
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("redis://h/0?stream=s&claim_after_s=x", "queue", "claim_after_s must be a number"),
        ("redis://h/0?stream=s&max_len=-1", "sink", "max_len must be a number from 0"),
        ("nats://h/s?ack_wait_s=0", "queue", "ack_wait_s must be a number from 0.05"),
        ("kafka://h/s?timeout_s=nan", "sink", "timeout_s must be a number from 0.1"),
    ],
)
def test_numbers_have_bounds(text, name, said):
    with pytest.raises(ConfigError, match=rf"^s\.t: {said}"):
        {"queue": open_queue, "sink": open_sink}[name](text, "s.t")


def test_the_scheme_says_the_class_and_nothing_is_connected():
    assert isinstance(open_source("kafka://h/t", "s"), KafkaSource)
    assert isinstance(open_queue("redis://h/0?stream=s", "s"), RedisQueue)
    assert isinstance(open_sink("natss://h/s", "s"), NatsSink)


def test_an_unknown_scheme_comes_with_the_known_ones():
    with pytest.raises(
        ConfigError, match=r"^s\.t: 'amqp://…@h/x' is not the address of a broker"
    ) as raised:
        open_source("amqp://u:secret@h/x?password=hidden", "s.t")
    assert all(f"{scheme}://" in str(raised.value) for scheme in DOOR.packages)
    assert "secret" not in str(raised.value)
    assert "hidden" not in str(raised.value)


def test_packages_bring_schemes_of_their_own(monkeypatch):
    class Mine:
        name = "mine"

        def load(self):
            return Broker(*["hopline_brokers.kafka_source:KafkaSource"] * 3)

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Mine()])
    with pytest.raises(ConfigError, match="'mine://h' is not the address of a broker"):
        open_source("mine://h", "s")


@pytest.mark.parametrize(("scheme", "requirement"), DOOR.packages.items())
def test_a_server_alone_names_the_package_of_a_broker(monkeypatch, scheme, requirement):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    message = re.escape(f"s: {scheme}:// needs a package; install it with: pip install {requirement}")
    with pytest.raises(ConfigError, match=f"^{message}$"):
        open_source(f"{scheme}://h/s", "s")


@pytest.mark.parametrize("name", ["requests", "stream"])
@pytest.mark.parametrize(
    ("scheme", "requirement"), [("nats", "'hopline[nats]'"), ("mine", "hopline-brokers")]
)
def test_a_server_alone_names_the_package_of_a_reader(monkeypatch, name, scheme, requirement):
    assert reader(name, f"{scheme}://h/s", "s").load() is not None
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    message = re.escape(f"s: {scheme}:// needs a package; install it with: pip install {requirement}")
    with pytest.raises(ConfigError, match=f"^{message}$"):
        reader(name, f"{scheme}://h/s", "s")


def test_a_library_that_is_not_installed_is_named(monkeypatch):
    def missing(target):
        raise ModuleNotFoundError("No module named 'nats'", name="nats")

    monkeypatch.setattr("hopline.brokers.registry.imported", missing)
    with pytest.raises(ConfigError, match=r"^s: nats:// needs nats; .*pip install 'hopline\[nats\]'"):
        open_source("nats://h/s", "s")
