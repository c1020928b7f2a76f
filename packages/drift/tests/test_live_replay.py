"""The log of a server on a live graph, replayed version by version: each answer is equal, bit for bit."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from hopline.client import Client
from hopline.client.admin import Admin
from hopline.config.reader import load_config
from hopline.errors import GraphError, HoplineError
from hopline.graph.live.codec import decode_entry, encode_entry
from hopline.graph.live.history import LiveHistory
from hopline.graph.live.log import Log
from hopline.graph.live.log import replay as records
from hopline.graph.live.manifest import read_manifest, write_manifest
from hopline.graph.live.version import read_offset, version_name
from hopline.live.snapshots import open_graph, open_present
from hopline.records.entry import Entry, EntryWriter
from hopline_drift.log_reader import LogReader
from hopline_drift.replay import OTHER_GRAPH, ReplayReport, by_graph, replay
from hopline_drift.targets import LiveTarget
from tests.engine import zoo
from tests.packaged import package
from tests.server.live_rig import FANOUTS, Live, World, row, same, serving, until

#: Gates of rollouts that only a person decides.
OPEN = {
    "max_error_rate": 1,
    "max_p99_ratio": 1e9,
    "max_p50_ratio": 1e9,
    "max_disagreement": 1,
    "max_psi": 1e9,
}


class Caller(threading.Thread):
    """Sends requests of several kinds, each with a key, until it is stopped."""

    def __init__(self, world: World, url: str, seed: int) -> None:
        super().__init__()
        self._world, self._rng, self._client = world, np.random.default_rng(seed), Client(url)
        self._going, self.count = True, 0
        self.start()

    def run(self) -> None:
        while self._going:
            self.count += 1
            time.sleep(0.01)
            try:
                self._ask()
            except HoplineError:  # a node whose event is not applied yet
                continue
        self._client.close()

    def _ask(self) -> None:
        rng, client = self._rng, self._client
        names = [str(name) for name in rng.choice(list(self._world.nodes.copy()), 8)]
        key = f"customer-{rng.integers(40)}"
        match self.count % 7:
            case 0:
                client.score_pairs("link", list(zip(names[:4], names[4:], strict=True)), key=key)
            case 1:
                client.score("plain", names, as_of=60, key=key)
            case 2:
                node = described(rng, "", names[:3])
                client.score_inline("plain", [node], names[3:], outputs=["logits"], key=key)
            case 3 | 4:
                client.score(("apart", "looked")[self.count % 2], names, key=key)
            case _:
                client.score("plain", names, outputs=["logits", "embedding"], key=key)

    def stop(self) -> None:
        self._going = False
        self.join()


def described(rng: np.random.Generator, name: str, neighbors: list[str]) -> dict[str, Any]:
    """A node that is not in the graph."""
    attr, weight = [row(rng, 2).tolist() for _ in neighbors], [1.5] * len(neighbors)
    ends = {"neighbors": neighbors, "edge_attr": attr, "edge_weight": weight}
    return {"features": row(rng, 6).tolist(), **ends} | ({"id": name} if name else {})


def send(live: Live, events: list[dict[str, Any]]) -> None:
    """Send events until a writer takes them; a new one may have to start."""
    until(lambda: live.workers[0].send(events).status_code == 200, pause=0.02)


@dataclasses.dataclass
class Day:
    """What a server left: folders, and the ids of requests that a graph built again answered alike."""

    root: Path
    log: Path
    versions: int
    checked: list[str]

    @property
    def folder(self) -> Path:
        return self.root / "graph.live"

    def config(self, **changes: Any) -> Any:
        paths = {"graph.path": self.root / "graph", "models.repository": self.root / "models"}
        return load_config(overrides=paths).replace(**changes)

    def replay(self, log: Path | None = None, folder: Path | None = None, **options: Any) -> ReplayReport:
        async def run() -> ReplayReport:
            async with LiveTarget(self.config(), folder or self.folder) as target:
                return await replay(LogReader(log or self.log), target, **options)

        return asyncio.run(run())


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Day:
    """Events in batches between and beside requests, two rollouts, two snapshots, writers killed; the nodes
    keep the rows that they had, and a part of the requests asks for them.

    One model is in processes of its own, and of one there is a table of rows of the original graph.
    """
    root = tmp_path_factory.mktemp("day")
    world = World(root, copies=("apart", "looked"), history=True)
    (world.repository / "apart" / "serving.toml").write_text("isolate = true\n")
    world.tabulate("looked", root / "looked.precomputed")
    for seed, version in ((11, "2"), (12, "3")):
        zoo.torch.manual_seed(seed)
        package(zoo.Plain().eval(), world.graph, world.repository, name="plain", version=version,
                fanouts=FANOUTS, task="multiclass", check_nodes=20)  # fmt: skip
    log, checked = root / "log", list[str]()
    settings = {"prediction_log__path": log, "models__state": root / "state"}
    with serving(workers=2, **world.settings(), **settings) as live:
        with Client(live.server.url) as client:
            admin = Admin(client)
            admin.load("plain", "1")
            callers = [Caller(world, live.server.url, seed) for seed in range(2)]
            until(lambda: all(caller.count > 5 for caller in callers))
            for number in range(60):
                send(live, world.events(15 * (1 + number % 7)))
                if number == 10:
                    admin.begin_rollout("plain", "2", "ab", steps=[50], gates=OPEN)
                elif number == 25:
                    admin.decide("plain", "promote")
                elif number == 35:
                    options = {"steps": [30, 100], "auto": False, "preflight": 0, "gates": OPEN}
                    admin.begin_rollout("plain", "3", "canary", **options)
                elif number == 50:
                    admin.decide("plain", "promote")
                elif number in (20, 40):
                    open_graph(root / "graph.live", fresh=True)
                elif number == 33:
                    present = open_present(root / "graph.live")
                    assert present.version.endswith("+34")
                    assert present.path is None
                elif number in (15, 30, 45):
                    os.kill(live.writer, signal.SIGKILL)
                elif number % 12 == 6:
                    names = [str(name) for name in world.rng.choice(list(world.nodes), 20)]
                    found = live.workers[1].score("plain", nodes=names, version="1")
                    same(found, world.wanted("plain", nodes=names))
                    checked.append(found["graph_version"])
                time.sleep(0.02)
            node = described(world.rng, "kept", [str(name) for name in list(world.nodes)[:3]])
            live.workers[0].score("plain", inline=[node], keep=True, as_of=130)
            live.workers[0].score("plain", nodes=["kept"])
            for caller in callers:
                caller.stop()
        sequence = live.workers[0].graph()["sequence"]
        time.sleep(0.3)  # the log is written ten times a second
    assert len(read_manifest(root / "graph.live").snapshots) == 2
    assert [entry.sequence for entry in read_manifest(root / "graph.live").snapshots] == [41, 21]
    return Day(root, log, sequence, checked)


def entries_of(log: Path) -> list[Entry]:
    return list(LogReader(log))


def number_of(entry: Entry) -> int:
    """The number of its version of the graph; 0 for the original graph, or none."""
    return int(entry.graph_version.partition("+")[2] or 0)


def rewritten(entries: list[Entry], folder: Path) -> Path:
    """A log of these entries."""
    folder.mkdir()
    writer, lines = EntryWriter(lambda: None), bytearray()
    for entry in entries:
        writer.append(entry, lines)
    (folder / "predictions-20261130T000000.000000Z-w0-1.jsonl").write_bytes(lines)
    return folder


def test_every_answer_is_repeated_bit_for_bit(day: Day) -> None:
    entries = entries_of(day.log)
    answered = [entry for entry in entries if entry.outcome == "ok" and not entry.is_copy]
    assert len({entry.graph_version for entry in answered}) > 40
    assert day.versions == 61
    assert {entry.model for entry in answered} == {"plain", "link", "apart", "looked"}
    assert {entry.version for entry in answered if entry.model == "plain"} == {"1", "2", "3"}
    assert {entry.graph_version for entry in answered} >= {*day.checked}  # equal to a graph built again
    report = day.replay()
    assert report.all_identical, (report.not_compared, report.examples)
    assert (report.read, report.identical) == (len(entries), len(answered))
    assert report.inexact == []
    assert len(report.answered_by) >= 41


@pytest.mark.release
def test_late_answers_begin_with_a_snapshot(day: Day, tmp_path: Path) -> None:
    late = [entry for entry in entries_of(day.log) if number_of(entry) >= 45 and entry.outcome == "ok"]
    report = day.replay(rewritten(late, tmp_path / "log"), concurrency=1)
    assert report.all_identical
    with LiveHistory(day.folder, read_offset("45")) as history:
        assert history.start.state.sequence == 41


def test_a_planted_difference_is_found(day: Day, tmp_path: Path) -> None:
    entries = entries_of(day.log)
    one = next(entry for entry in entries if "logits" in entry.outputs and number_of(entry) >= 30)
    logits = one.outputs["logits"]
    logits[0, 0] = np.nextafter(logits[0, 0], np.float32(np.inf))
    report = day.replay(rewritten(entries, tmp_path / "log"))
    assert report.compared - report.identical == 1
    assert [each.request_id for each in report.worst] == [one.request_id]


@pytest.mark.release
def test_an_answer_under_another_version_of_the_graph_is_found(day: Day, tmp_path: Path) -> None:
    """Answers of version 30, said to be of version 50, differ where the graph has changed."""
    entries = entries_of(day.log)
    lineage = read_manifest(day.folder).lineage
    moved = [entry for entry in entries if entry.graph_version == f"{lineage}+30" and entry.outcome == "ok"]
    for entry in moved:
        entry.graph_version = f"{lineage}+50"
    report = day.replay(rewritten(entries, tmp_path / "log"))
    assert 0 < report.compared - report.identical <= len(moved)
    assert {each.request_id for each in report.worst} <= {entry.request_id for entry in moved}


@pytest.mark.release
def test_another_event_in_the_changes_is_found(day: Day, tmp_path: Path) -> None:
    manifest = read_manifest(day.folder)
    folder, changed = tmp_path / "graph.live", 0
    folder.mkdir()
    log = Log.open(folder / "log", manifest.lineage)
    for sequence, payload in records(day.folder / "log", 1, manifest.lineage):
        entry = decode_entry(payload)
        for name, nodes in [*entry.changes.nodes.items()]:
            if not changed and sequence > 20:
                other = dataclasses.replace(nodes, features=nodes.features + 1)
                entry = dataclasses.replace(
                    entry, changes=dataclasses.replace(entry.changes, nodes={name: other})
                )
                changed = sequence
        log.append(sequence, encode_entry(entry))
    log.close()
    write_manifest(folder, msgspec.structs.replace(manifest, snapshots=()))
    report = day.replay(folder=folder)
    assert report.compared - report.identical > 0
    versions = {entry.request_id: number_of(entry) for entry in entries_of(day.log)}
    assert changed
    assert all(versions[each.request_id] >= changed for each in report.worst)


@pytest.mark.release
def test_what_cannot_be_reached_any_more_is_listed_with_the_reason(day: Day, tmp_path: Path) -> None:
    folder = tmp_path / "graph.live"
    shutil.copytree(day.folder, folder)
    for file in (folder / "log").glob("*.wal"):
        file.unlink()
    report = day.replay(folder=folder)
    lineage = read_manifest(folder).lineage
    reached = {version_name(lineage, number) for number in (0, 21, 41)}
    answered = [entry for entry in entries_of(day.log) if entry.outcome == "ok" and not entry.is_copy]
    left = [entry for entry in answered if entry.graph_version not in reached]
    assert report.identical == report.compared == len(answered) - len(left) > 0
    assert report.not_compared == {OTHER_GRAPH: len(left)}
    assert {each.request_id for each in report.inexact} == {entry.request_id for entry in left}
    early = next(each for each in report.inexact if each.graph_version == f"{lineage}+5")
    assert f"no version {early.graph_version}: its log ends with {lineage}" in early.reason
    assert "the log is gone, the oldest snapshot is 21" in early.reason


def test_answers_on_another_graph_are_listed(day: Day, tmp_path: Path) -> None:
    entries = [entry for entry in entries_of(day.log) if entry.outcome == "ok"][:3]
    entries[0].graph_version = "0123456789abcdef+1"
    first = entries[1].graph_version
    entries[1].graph_version = f"{first},{first}+1"
    report = day.replay(rewritten(entries, tmp_path / "log"))
    assert (report.compared, report.identical, report.not_compared) == (1, 1, {OTHER_GRAPH: 2})
    assert "answered on graph 0123456789abcdef" in report.inexact[0].reason
    assert "a pipeline read several versions" in report.inexact[1].reason


def test_a_folder_that_is_not_live_is_refused(day: Day) -> None:
    with pytest.raises(GraphError, match="is not a folder of a live graph"):
        day.replay(folder=day.root / "graph")


# The commands


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command line: (exit code, stdout, stderr)."""
    from hopline import cli

    monkeypatch.setenv("COLUMNS", "250")

    def command(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["hopline", *map(str, words)])
        try:
            cli.main()
            code: Any = 0
        except SystemExit as ended:
            code = ended.code or 0
        captured = capsys.readouterr()
        return int(code), captured.out, captured.err

    return command


@pytest.mark.release
def test_the_command_takes_a_live_folder_one_version_or_settings(
    day: Day, run: Any, tmp_path: Path
) -> None:
    given = ("replay", day.log, "--repository", day.root / "models", "--require-identical", "--graph")
    code, out, _ = run(*given, day.folder)
    assert code == 0
    assert "answers are identical, bit for bit" in out
    code, out, _ = run(*given, day.root / "graph@+30", "--json")
    found = json.loads(out)
    of_30 = [entry for entry in entries_of(day.log) if number_of(entry) == 30 and entry.outcome == "ok"]
    assert (code, found["compared"], found["identical"]) == (1, len(of_30), len(of_30))
    assert "the replay stays at" in found["inexact"][0]["reason"]
    code, out, _ = run(*given, day.root / "graph")
    assert code == 1
    assert "--graph FOLDER.live" in out.replace("\n", " ")
    (tmp_path / "hopline.toml").write_text(
        f'[graph]\npath = "{day.root}/graph"\n[models]\nrepository = "{day.root}/models"\n'
        "[live]\nenabled = true\n"
    )
    code, out, _ = run("replay", day.log, "--config", tmp_path / "hopline.toml", "--limit", 50)
    assert code == 0
    assert "All 50 answers are identical" in out
    assert run(*given, day.root / "models")[0] == 1


def test_a_version_is_described_and_scored(day: Day, run: Any, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    lineage = read_manifest(day.folder).lineage
    for named, version in (
        (day.folder, "+61"),
        (day.root / "graph@+30", "+30"),
        (day.root / "graph@+0", ""),
    ):
        _, out, _ = run("graph", "info", named, "--json")
        found, graph = json.loads(out), open_graph(named)
        assert (found["version"], found["path"]) == (f"{lineage}{version}", str(named))
        assert (found["num_nodes"], found["num_edges"]) == (graph.num_nodes, graph.num_edges)
        assert run("graph", "info", named)[0] == 0
    entry = next(
        e
        for e in entries_of(day.log)
        if number_of(e) > 21 and "embedding" in e.outputs and e.model == "plain"
    )
    code, _, err = run(
        "batch", "--graph", day.root / f"graph@+{number_of(entry)}", "--repository", day.root / "models",
        "--model", "plain", "--version", entry.version, "--to", tmp_path / "scores.parquet",
        "--outputs", "embedding",
    )  # fmt: skip
    assert code == 0, err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["scores.parquet"]
    table = pq.read_table(tmp_path / "scores.parquet").to_pylist()
    rows = {each["id"]: each["embedding"] for each in table}
    wanted = np.array([rows[name] for name in entry.inputs.nodes], np.float32)
    assert wanted.tobytes() == entry.outputs["embedding"].tobytes()


def shown(run: Any, day: Day, *words: object) -> list[Entry]:
    code, out, _ = run("log", "show", day.log, "--json", "-n", 1_000_000, *words)
    assert code == 0
    return [msgspec.json.decode(line, type=Entry) for line in out.splitlines()]


@pytest.mark.release
def test_entries_are_found(day: Day, run: Any) -> None:
    entries = entries_of(day.log)
    lineage = read_manifest(day.folder).lineage
    middle = entries[len(entries) // 2]
    moment = datetime.fromtimestamp(middle.time, UTC).isoformat()
    wanted = {
        ("--model", "link"): lambda e: e.model == "link",
        ("--model", "plain/2"): lambda e: (e.model, e.version) == ("plain", "2"),
        ("--outcome", "failed"): lambda e: e.outcome != "ok",
        ("--outcome", "ok"): lambda e: e.outcome == "ok",
        ("--request-key", "customer-7"): lambda e: e.key == "customer-7",
        ("--request-id", middle.request_id): lambda e: e.request_id == middle.request_id,
        ("--since", moment): lambda e: e.time >= middle.time,
        ("--until", moment): lambda e: e.time < middle.time,
        ("--graph", day.folder): lambda e: e.graph_version.startswith(lineage),
        ("--graph", day.root / "graph@+30"): lambda e: e.graph_version == f"{lineage}+30",
        ("--graph", day.root / "graph"): lambda e: e.graph_version == lineage,
        ("--graph", f"{lineage}+30"): lambda e: e.graph_version == f"{lineage}+30",
        ("--node", "n7"): lambda e: '"n7"' in json.dumps(msgspec.to_builtins(e.inputs)),
        ("--node", "kept"): lambda e: '"kept"' in json.dumps(msgspec.to_builtins(e.inputs)),
    }
    for words, is_wanted in wanted.items():
        expected = [entry.request_id for entry in entries if is_wanted(entry)]
        found = [entry.request_id for entry in shown(run, day, *words)]
        assert sorted(found) == sorted(expected), words
        assert expected, words
    code, _, err = run("log", "show", day.log, "--since", "yesterday")
    assert code == 1
    assert "write a time such as" in err


# The order


def test_entries_come_in_the_order_of_their_versions_and_as_logged_within_one() -> None:
    rng = np.random.default_rng(0)
    names = ["", "a" * 16, *(f"{'a' * 16}+{n}" for n in (1, 2, 9, 10, 11)), "f,g"]
    entries = [Entry(str(i), float(i), "m", "1", str(rng.choice(names))) for i in range(500)]
    order = ["a" * 16, *(f"{'a' * 16}+{n}" for n in (1, 2, 9, 10, 11)), "", "f,g"]
    wanted = sorted(entries, key=lambda entry: order.index(entry.graph_version))
    assert list(by_graph(entries, Counter(entry.graph_version for entry in entries))) == wanted


def test_only_entries_before_their_turn_are_held() -> None:
    read: list[int] = []

    def log() -> Iterator[Entry]:
        for number in range(100):
            read.append(number)
            yield Entry(str(number), float(number), "m", "1", f"{'a' * 16}+{number // 10 + 1}")

    counts = {f"{'a' * 16}+{number}": 10 for number in range(1, 11)}
    for entry in by_graph(log(), counts):
        assert len(read) == int(entry.request_id) + 1
