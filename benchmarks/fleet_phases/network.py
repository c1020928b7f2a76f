"""Hosts as network namespaces of this machine: two networks, one to clients and one to the store.

    hub (balancer, store, load) ── bridge clients 10.77.1.0/24 ── host 1, host 2, …
                                └─ bridge store   10.77.2.0/24 ── host 1, host 2, …

Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_NETWORKS = ("clients", "store")


class Network:
    """The namespaces and their links.

    Args:
        num_hosts: besides the hub.
    """

    def __init__(self, num_hosts: int) -> None:
        self._tag = f"hop{os.getpid() % 100_000}"
        self.hosts = range(1, num_hosts + 1)

    def name(self, host: int) -> str:
        """The namespace of a host; 0 is the hub."""
        return f"{self._tag}-{host}"

    @staticmethod
    def address(network: str, host: int) -> str:
        """Of a host in a network; 0 is the hub."""
        return f"10.77.{_NETWORKS.index(network) + 1}.{host or 254}"

    def command(self, host: int, words: list[str]) -> list[str]:
        """A command line that runs on a host."""
        return ["ip", "netns", "exec", self.name(host), *words]

    def cut_store(self, host: int) -> None:
        """From now on, nothing passes between a host and the store; nothing is refused either."""
        self._hub("link", "set", f"store{host}", "down")

    def mend_store(self, host: int) -> None:
        """Undo `cut_store`."""
        self._hub("link", "set", f"store{host}", "up")

    @contextlib.contextmanager
    def built(self) -> Iterator[None]:
        """The namespaces exist meanwhile, and this thread is in the hub."""
        with contextlib.ExitStack() as undo:
            for host in (0, *self.hosts):
                _ip("netns", "add", self.name(host))
                undo.callback(_ip, "netns", "del", self.name(host))
                _ip("-n", self.name(host), "link", "set", "lo", "up")
            for network in _NETWORKS:
                bridge = f"br-{network}"
                self._hub("link", "add", bridge, "type", "bridge")
                self._hub("addr", "add", f"{self.address(network, 0)}/24", "dev", bridge)
                self._hub("link", "set", bridge, "up")
                for host in self.hosts:
                    name = self.name(host)
                    end = ("peer", "name", network, "netns", name)
                    self._hub("link", "add", f"{network}{host}", "type", "veth", *end)
                    self._hub("link", "set", f"{network}{host}", "master", bridge, "up")
                    _ip("-n", name, "addr", "add", f"{self.address(network, host)}/24", "dev", network)
                    _ip("-n", name, "link", "set", network, "up")
            before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
            undo.callback(os.close, before)
            _enter(Path("/run/netns", self.name(0)))
            undo.callback(_set_namespace, before)
            yield

    def _hub(self, *words: str) -> None:
        _ip("-n", self.name(0), *words)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, stdin=subprocess.DEVNULL)


def _enter(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _set_namespace(descriptor)
    finally:
        os.close(descriptor)


def _set_namespace(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


@contextlib.contextmanager
def process(words: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is killed at the end."""
    with log.open("ab") as file:
        running = subprocess.Popen(words, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
    try:
        yield running
    finally:
        if running.poll() is None:
            running.kill()
        running.wait()


@contextlib.contextmanager
def haproxy(network: Network, port: int, server_port: int, folder: Path) -> Iterator[None]:
    """A balancer in the hub over all hosts, that asks another host if one fails."""
    servers = "\n".join(
        f"  server s{host} {network.address('clients', host)}:{server_port} check" for host in network.hosts
    )
    file = folder / "haproxy.cfg"
    file.write_text(
        f"""
defaults
  mode http
  timeout connect 300ms
  timeout client 30s
  timeout server 5s
  retries 3
  option redispatch 1
  retry-on all-retryable-errors
frontend all
  bind {network.address("clients", 0)}:{port}
  default_backend hosts
backend hosts
  balance roundrobin
  option httpchk GET /v2/health/ready
  default-server inter 200ms fall 1 rise 1
{servers}
"""
    )
    with process(["haproxy", "-db", "-f", str(file)], folder / "haproxy.log"):
        yield


def temporary() -> tempfile.TemporaryDirectory[str]:
    """A folder for one run."""
    return tempfile.TemporaryDirectory(prefix="hopline-fleet-")
