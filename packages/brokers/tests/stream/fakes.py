"""A broker, a graph's writer and a dead-letter topic in memory, and a process that dies between steps."""

import asyncio
import json

from hopline.brokers.base import Gap, Health, Message
from hopline.errors import BrokerUnavailable
from hopline.graph.live.changes import Applied, Rejected
from hopline_brokers.stream.writer import Standing
from tests.events.events_of_people import SHOP, events_of


class Crash(Exception):
    """The process dies here."""


class Faults:
    """Dies at the `at`-th step; counts them."""

    def __init__(self, at=None):
        self.at = at
        self.count = 0
        self.dead = False

    def step(self):
        """A place where the process may die."""
        if self.dead:
            raise Crash
        self.count += 1
        if self.count == self.at:
            self.dead = True
            raise Crash


class Log:
    """A topic: what survives of a broker. Positions are numbers, of the message after."""

    def __init__(self, **partitions):
        self.partitions = {f"fake/{name}": list(payloads) for name, payloads in partitions.items()}
        self.acknowledged = {}

    def add(self, partition, *payloads):
        self.partitions[f"fake/{partition}"] += payloads


class FakeSource:
    """Reads a `Log`, partitions by turns."""

    def __init__(self, log, faults=None, step=3, timestamp_ms=0):
        self.log = log
        self.faults = faults or Faults()
        self.most = step
        self.timestamp_ms = timestamp_ms
        self.at = {}
        self.gaps = []
        self.reason = ""
        self.polls = 0

    async def open(self, positions):
        self.faults.step()
        self.at = {name: int(positions.get(name, 0)) for name in self.log.partitions}

    async def poll(self, max_messages, max_wait_s):
        await asyncio.sleep(0)
        self.faults.step()
        self.polls += 1
        found = []
        for name, payloads in self.log.partitions.items():
            room = min(max_messages - len(found), self.most)
            for payload in payloads[self.at[name] : self.at[name] + room]:
                self.at[name] += 1
                if isinstance(payload, Message):
                    found.append(payload)
                else:
                    found.append(Message(payload, name, self.at[name], timestamp_ms=self.timestamp_ms))
        if not found:
            await asyncio.sleep(0.001)
        return found

    async def acknowledge(self, positions):
        self.faults.step()
        self.log.acknowledged |= positions
        self.faults.step()

    async def lag(self):
        return {name: len(payloads) - self.at[name] for name, payloads in self.log.partitions.items()}

    def health(self):
        return Health(self.reason, 0.0)

    def take_gaps(self):
        gaps, self.gaps = self.gaps, []
        return gaps

    def is_first(self, position):
        return position == 1

    async def close(self):
        pass


class Disk:
    """What survives of a writer: the graph, ids that it saw, positions."""

    def __init__(self, schema=SHOP, nodes=None, room=10**9):
        self.schema = schema
        self.nodes = {name: {} for name in schema.node_types} | (nodes or {})
        self.edges = []
        self.history = []
        self.seen = set()
        self.positions = {}
        self.sequence = 0
        self.room = room
        self.touched = []


class FakeWriter:
    """Applies to a `Disk`, a batch at a time, as a writer promises."""

    def __init__(self, disk, faults=None, failures=()):
        self.disk = disk
        self.faults = faults or Faults()
        self.failures = list(failures)
        self.batches = []

    async def standing(self):
        self.faults.step()
        return Standing(self.disk.schema, self.disk.sequence, dict(self.disk.positions))

    async def apply(self, batches):
        self.faults.step()
        await asyncio.sleep(0)
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None and not failure.__notes__:
            raise failure
        answers = [self._apply(changes) for changes in batches]
        if failure is not None:  # it was done, and nobody hears of it
            raise failure
        self.faults.step()
        return answers

    async def affected(self, since):
        ids = {}
        for sequence, node_type, node in self.disk.touched:
            if sequence > since:
                ids.setdefault(node_type, {})[node] = None
        return self.disk.sequence, {name: list(found) for name, found in ids.items()}

    async def close(self):
        pass

    def _apply(self, changes):
        disk = self.disk
        if set(changes.edges) - set(disk.schema.edge_types):
            events = [{"op": "of no type"}] * changes.num_events
        else:
            events = events_of(changes, disk.schema) if changes.num_events else []
        ids = changes.event_ids or [""] * len(events)
        duplicates, rejected, applied = [], [], 0
        version = disk.sequence + 1
        for order, (event, event_id) in enumerate(zip(events, ids, strict=True)):
            if event_id and event_id in disk.seen:
                duplicates.append(order)
                continue
            code = self._one(event, version)
            if code:
                rejected.append(Rejected(order, code, f"{code}, said the writer"))
                continue
            applied += 1
            disk.history.append((event_id, event))
            if event_id:
                disk.seen.add(event_id)
        disk.positions |= changes.positions
        disk.sequence = version if applied else disk.sequence
        self.batches.append(len(events))
        return Applied(disk.sequence, applied, duplicates, rejected)

    def _one(self, event, version):
        disk = self.disk
        if event["op"] == "of no type":
            return "unknown_type"
        if "node" in event:
            known = disk.nodes[event["node_type"]]
            if event["op"] == "add_node":
                if event["node"] in known:
                    return "node_exists"
                if disk.room <= 0:
                    return "full"
                disk.room -= 1
            elif event["node"] not in known:
                return "unknown_node"
            known[event["node"]] = event["features"]
            disk.touched.append((version, event["node_type"], event["node"]))
            return ""
        kind = disk.schema.edge_types[event["edge_type"]]
        if event["src"] not in disk.nodes[kind.src] or event["dst"] not in disk.nodes[kind.dst]:
            return "unknown_node"
        edge = (event["edge_type"], event["src"], event["dst"])
        if event["op"] == "add_edge":
            disk.edges.append(edge)
        elif edge in disk.edges:
            disk.edges.remove(edge)
        else:
            return "no_edge"
        disk.touched.append((version, kind.dst, event["dst"]))
        return ""


class Kept:
    """A dead-letter topic."""

    def __init__(self, letters=None, faults=None, failures=0):
        self.letters = [] if letters is None else letters
        self.faults = faults or Faults()
        self.failures = failures
        self.closed = False

    async def open(self):
        pass

    async def write(self, letters):
        self.faults.step()
        if self.failures:
            self.failures -= 1
            raise BrokerUnavailable("the dead-letter topic does not answer")
        self.letters += letters
        self.faults.step()

    async def close(self):
        self.closed = True


class FakeSink:
    """Keeps what is sent."""

    def __init__(self, failures=()):
        self.sent = []
        self.failures = list(failures)

    async def open(self):
        pass

    async def send(self, messages):
        if self.failures:
            failure = self.failures.pop(0)
            if failure is not None:
                raise failure
        self.sent += messages

    def health(self):
        return Health("", 0.0)

    async def close(self):
        pass


def lost_answer(error):
    """The error comes after the batch was applied."""
    error.add_note("applied")
    return error


def refused(error):
    """The error comes before anything was done."""
    error.__notes__ = []
    return error


def gap(partition="fake/a"):
    return Gap(partition, 5, 3, "trimmed")


def text(event):
    return json.dumps(event).encode()
