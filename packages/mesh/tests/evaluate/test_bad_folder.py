"""What is wrong with a folder of snapshots is named with its place, and what would be right."""

import pytest

from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate.folder import read_folder
from packages.mesh.tests.evaluate.files import EDGES, LABELS, NODES, files


@pytest.fixture
def folder(tmp_path):
    return files(tmp_path)


def changed(text: str, line: int, new: str) -> str:
    lines = text.splitlines()
    lines[line - 1] = new
    return "\n".join(lines) + "\n"


BAD = {
    "no nodes": ({"nodes": None}, ["no nodes.csv or nodes.parquet; it has a row for each service"]),
    "no edges": ({"edges": None}, ["no edges.csv or edges.parquet", "(a header alone: no call paths)"]),
    "no labels": ({"labels": None}, ["no labels.csv or labels.parquet; it has the events that went wrong"]),
    "empty file": (
        {"nodes": ""},
        ["nodes.csv: is empty; its first line must have the names of the columns"],
    ),
    "header alone": (
        {
            "nodes": "time,service,p99_ms\n",
            "edges": "time,source,destination\n",
            "labels": "start,end,kind,service\n",
        },
        ["nodes.csv: has no rows"],
    ),
    "no time column": (
        {"nodes": NODES.replace("time,", "when,", 1)},
        ["nodes.csv: no column 'time'; it has when, service"],
    ),
    "no values": (
        {"nodes": "time,service\n2026-01-01,cart\n", "edges": "time,source,destination\n"},
        ["no column of measurements"],
    ),
    "column twice": (
        {"nodes": NODES.replace("error_share", "p99_ms", 1)},
        ["nodes.csv, line 1: column p99_ms is repeated"],
    ),
    "column without a name": (
        {"nodes": NODES.replace("error_share", "", 1)},
        ["nodes.csv, line 1: a column has no name"],
    ),
    "short row": (
        {"nodes": changed(NODES, 3, "2026-01-01T00:00:00Z,shop")},
        ["nodes.csv, line 3: has 2 cells; the first line has 4"],
    ),
    **{
        f"number {text}": (
            {"nodes": changed(NODES, 2, f"2026-01-01T00:00:00Z,cart,{text},0")},
            [f"nodes.csv, line 2, p99_ms: {text!r} is not a number; leave the cell empty"],
        )
        for text in ("1_000", "٣", "１２", "1\u00a0", "0x10")
    },
    **{
        f"time {text}": (
            {"nodes": changed(NODES, 2, f"{text},cart,1,0")},
            [f"nodes.csv, line 2, time: {text!r} is not a time"],
        )
        for text in ("1_767_225_600", "١٧٦٧٢٢٥٦٠٠", "٢٠٢٦-٠١-٠١T٠٠:٠٠:٠٠Z", "1_767_225_600_000")
    },
    **{
        f"pods {text[:9]}": (
            {"changes": f"start,service,kind,before,after\n2026-01-01,cart,scale,3,{text}\n"},
            [f"changes.csv, line 2, after: {text!r} is not a number of pods"],
        )
        for text in ("٣", "1_0", "-1", "9" * 5000)
    },
    "bad time": (
        {"nodes": changed(NODES, 2, "noon,cart,1,0")},
        ["nodes.csv, line 2, time: 'noon' is not a time; it must be Unix seconds"],
    ),
    "milliseconds": (
        {"nodes": changed(NODES, 2, "1767225600000,cart,1,0")},
        ["'1767225600000' is not a time", "this looks like milliseconds: divide it by 1,000"],
    ),
    "text for a number": (
        {"nodes": changed(NODES, 4, "2026-01-01T00:01:00Z,cart,fast,0")},
        ["nodes.csv, line 4, p99_ms: 'fast' is not a number; leave the cell empty if it is missing"],
    ),
    "infinite": (
        {"nodes": changed(NODES, 4, "2026-01-01T00:01:00Z,cart,inf,0")},
        ["nodes.csv, line 4, p99_ms: inf is not finite"],
    ),
    "too large": (
        {"nodes": changed(NODES, 4, "2026-01-01T00:01:00Z,cart,1e300,0")},
        ["p99_ms: 1e300 is too large; a value may be up to 3.4e38"],
    ),
    "negative": (
        {"nodes": changed(NODES, 4, "2026-01-01T00:01:00Z,cart,-3,0")},
        ["line 4, p99_ms: -3 is less than 0; only columns that end in _delta may be"],
    ),
    "percent": (
        {"nodes": changed(NODES, 4, "2026-01-01T00:01:00Z,cart,3,50")},
        ["line 4, error_share: 50 is more than 1; a column that ends in _share is within 0 to 1"],
    ),
    "no service": (
        {"nodes": changed(NODES, 4, "2026-01-01T00:01:00Z,,3,0")},
        ["nodes.csv, line 4, service: is empty"],
    ),
    "out of order": (
        {"nodes": changed(NODES, 4, "2025-12-31T23:00:00Z,cart,3,0")},
        ["line 4, time: 2025-12-31 23:00:00 comes after 2026-01-01 00:00:00; sort the rows by time"],
    ),
    "service twice": (
        {"nodes": changed(NODES, 3, "2026-01-01T00:00:00Z,cart,3,0")},
        ["nodes.csv, line 3, service: 'cart' already has a row for that time, at line 2"],
    ),
    "edge twice": (
        {"edges": EDGES + "2026-01-01T00:03:00Z,shop,cart,1\n"},
        ["edges.csv, line 5, destination: 'cart' already has a row for that time, at line 4"],
    ),
    "edge of a stranger": (
        {"edges": changed(EDGES, 2, "2026-01-01T00:00:00Z,shop,card,1")},
        ["edges.csv, line 2, destination: 'card' is not a service of the nodes"],
    ),
    "edge at no time": (
        {"edges": changed(EDGES, 3, "2026-01-01T00:01:30Z,shop,cart,1")},
        ["edges.csv, line 3, time: nodes.csv has no row of 2026-01-01 00:01:30"],
    ),
    "edge of an absent one": (
        {"nodes": NODES.replace("2026-01-01T00:03:00Z,cart,11,0\n", "")},
        ["edges.csv, line 4, destination: 'cart' has no row in nodes.csv at that time"],
    ),
    "label of a stranger": (
        {"labels": LABELS.replace("cart", "card")},
        ["labels.csv, line 2, service: 'card' is not a service of the nodes; did you mean 'cart'?"],
    ),
    "label back in time": (
        {"labels": LABELS.replace("00:03", "00:01")},
        ["labels.csv, line 2, end: is not after the start"],
    ),
    "label of nobody": (
        {"labels": LABELS.replace("cart", "")},
        ["labels.csv, line 2, service: is empty; a label needs a service, or a call path"],
    ),
    "half a path": (
        {"labels": LABELS.replace("cart,,", "cart,shop,")},
        ["labels.csv, line 2, destination: is empty; a call path needs a source and a destination"],
    ),
    "neither end": (
        {"labels": LABELS.replace("cart,,", "cart,shop,shop")},
        ["is 'cart'; for a call path it must be the root cause"],
    ),
    "label column": (
        {"labels": LABELS.replace("kind", "kind,why").replace("cpu", "cpu,x")},
        ["labels.csv, why: unknown column; allowed are start, end, service"],
    ),
    "change kind": (
        {"changes": "start,service,kind\n2026-01-01,cart,deploy\n"},
        ["changes.csv, line 2, kind: 'deploy' is not one of scale, rollout, drain, added, removed"],
    ),
    "change without a number of pods": (
        {"changes": "start,service,kind,before,after\n2026-01-01,cart,scale,3,2.5\n"},
        ["changes.csv, line 2, after: '2.5' is not a number of pods"],
    ),
    "trouble with pods": (
        {"troubles": "start,service,kind,before\n2026-01-01,cart,crash_loop,3\n"},
        ["troubles.csv, before: unknown column; allowed are start, end, service, kind, detail"],
    ),
    "change back in time": (
        {"changes": "start,end,service,kind\n2026-01-02,2026-01-01,cart,scale\n"},
        ["changes.csv, line 2, end: is before the start"],
    ),
    "trouble kind": (
        {"troubles": "start,service,kind\n2026-01-01,cart,tired\n"},
        ["troubles.csv, line 2, kind: 'tired' is not one of stuck_rollout"],
    ),
    "no toml": ({"mesh": "train = [["}, ["mesh.toml: is not valid TOML"]),
    "toml key": (
        {"mesh": "interval = 3"},
        ["mesh.toml, interval: unknown key; allowed are name, interval_s"],
    ),
    "toml digits": ({"mesh": f"interval_s = {'9' * 5000}"}, ["mesh.toml: is not valid TOML"]),
    "toml large": (
        {"mesh": f"interval_s = {'9' * 400}"},
        ["mesh.toml: is not valid TOML: interval_s: an integer must be within 64 bits"],
    ),
    "toml large float": (
        {"mesh": "interval_s = 1e999"},
        ["mesh.toml, interval_s: inf is not a number above 0"],
    ),
    "toml interval": ({"mesh": "interval_s = 0"}, ["mesh.toml, interval_s: 0 is not a number above 0"]),
    "toml period": (
        {"mesh": 'train = ["2026-01-01"]'},
        ["mesh.toml, train: '2026-01-01' is not a period; it must be [[start, end], ...]"],
    ),
    "toml period back": (
        {"mesh": "train = [[1767225700, 1767225600]]"},
        ["mesh.toml, train: ['1767225700', '1767225600'] is not a period"],
    ),
    "train without snapshots": (
        {"mesh": "train = [[1767300000, 1767300600]]"},
        ["mesh.toml, train: no snapshot is in this period; the recording is from 2026-01-01 00:00:00 to"],
    ),
    "no time without events": (
        {"labels": LABELS.replace("00:02:00Z", "00:00:00Z").replace("00:03:00Z", "00:09:00Z")},
        ["labels: no snapshot outside of the events is left for the training; the recording"],
    ),
    "semicolons": (
        {"nodes": NODES.replace(",", ";")},
        ["nodes.csv, line 1: cells are separated by ';'; separate them by commas"],
    ),
    "tabs": (
        {"edges": EDGES.replace(",", "\t")},
        ["edges.csv, line 1: cells are separated by '\\t'; separate them by commas"],
    ),
    "label of a path without calls": (
        {"labels": LABELS.replace("cart,,", ",cart,shop")},
        ["labels.csv, line 2, source: no row of the edges is from 'cart' to 'shop'"],
    ),
    "toml interval of another recording": (
        {"mesh": "interval_s = 15"},
        ["mesh.toml, interval_s: is 15, but the snapshots are 60 s apart; correct it, or leave it out"],
    ),
    "train in test": (
        {"mesh": "train = [[1767225600, 1767225700]]\ntest = [[1767225600, 1767229200]]"},
        ["mesh.toml, train: overlaps the test from 2026-01-01 00:00:00"],
    ),
    "limits": (
        {"mesh": "[cpu_limits]\ncart = -1"},
        ["mesh.toml, cpu_limits: must be a table of service = cores"],
    ),
    "two at once": ({"nodes": changed(NODES, 2, "noon,cart,fast,0")}, ["line 2, time", "line 2, p99_ms"]),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_what_is_wrong_is_named_with_its_place(case, tmp_path):
    content, said = BAD[case]
    with pytest.raises(SnapshotInvalid) as caught:
        read_folder(files(tmp_path, **content))
    for part in said:
        assert part in str(caught.value)


def test_a_file_in_two_formats_is_refused(folder):
    (folder / "nodes.parquet").write_bytes(b"")
    with pytest.raises(SnapshotInvalid, match=r"has both nodes.csv and nodes.parquet; keep one"):
        read_folder(folder)


def test_what_is_no_parquet_or_no_utf8_is_named(tmp_path):
    (files(tmp_path, edges=None) / "edges.parquet").write_bytes(b"PAR1 torn")
    (tmp_path / "labels.csv").write_bytes(b"start,end,kind\xff\n")
    with pytest.raises(SnapshotInvalid, match=r"labels.csv: is not UTF-8 at byte 14") as caught:
        read_folder(tmp_path)
    assert "edges.parquet: is not a Parquet file" in str(caught.value)


def test_what_cannot_be_read_is_named(folder):
    (folder / "mesh.toml").mkdir()
    (folder / "nodes.csv").write_text("time,service," + "x" * 200_000 + "\n")
    with pytest.raises(SnapshotInvalid, match=r"mesh.toml: cannot be read: Is a directory") as caught:
        read_folder(folder)
    assert "nodes.csv, line 1: is not CSV: field larger than field limit" in str(caught.value)


def test_of_many_problems_the_first_of_each_kind_is_named_with_their_number(folder):
    rows = "".join(f"2026-01-01T00:00:00Z,s{k},fast{k},{2 + k}\n" for k in range(100))
    (folder / "nodes.csv").write_text("time,service,p99_ms,error_share\n" + rows)
    with pytest.raises(SnapshotInvalid) as caught:
        read_folder(folder)
    lines = str(caught.value).splitlines()
    assert len(lines) < 8
    named = [line for line in lines if "(and 99 more of this kind)" in line]
    assert [line.split(":")[0] for line in named] == [
        "nodes.csv, line 2, p99_ms", "nodes.csv, line 2, error_share",
    ]  # fmt: skip


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SnapshotInvalid, match="nowhere: no such folder"):
        read_folder(tmp_path / "nowhere")


def times_of(*parts: tuple[int, int]) -> list[int]:
    """Times from steps and how often each is taken."""
    found = [1767225600]
    for step, count in parts:
        found += [found[-1] + step * (k + 1) for k in range(count)]
    return found


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            [(60, 100), (300, 20)],
            "20 of 120 steps are not about 60 s, such as 300 s from 2026-01-01 01:40:00",
        ),
        (
            [(15, 100), (60, 1000)],
            "100 of 1100 steps are not about 60 s, such as 15 s from 2026-01-01 00:00:00",
        ),
        ([(15, 1000), (60, 12)], "12 of 1012 steps are not about 15 s"),
        ([(60, 2), (180, 1)] * 20, "20 of 60 steps are not about 60 s"),
    ],
)
def test_another_interval_half_way_is_named(folder, parts, said):
    rows = "".join(f"{time},{name},9,0\n" for time in times_of(*parts) for name in ("cart", "shop"))
    files(folder, nodes="time,service,p99_ms,error_share\n" + rows, edges="time,source,destination\n")
    with pytest.raises(SnapshotInvalid, match=said):
        read_folder(folder)


def test_a_time_for_each_service_is_named(folder):
    rows = "".join(
        f"{time + late},{name},9,0\n"
        for time in times_of((60, 20))
        for name, late in (("cart", 0), ("shop", 2))
    )
    files(folder, nodes="time,service,p99_ms,error_share\n" + rows, edges="time,source,destination\n")
    with pytest.raises(
        SnapshotInvalid, match="41 of 41 times have no service in common with the time before"
    ):
        read_folder(folder)


def test_missing_snapshots_are_allowed(folder):
    times = times_of((60, 50), (7200, 1), (60, 50), (120, 5), (60, 50), (61, 9))
    rows = "".join(f"{time},{name},9,0\n" for time in times for name in ("cart", "shop"))
    files(folder, nodes="time,service,p99_ms,error_share\n" + rows, edges="time,source,destination\n")
    assert len(read_folder(folder).snapshots) == len(times)


def test_services_that_are_only_named_in_other_tables_are_noted(folder):
    files(
        folder,
        changes="start,service,kind\n2026-01-01,kart,scale\n2026-01-01,shop,scale\n",
        troubles="start,service,kind\n2026-01-01,cart,oom_kill\n",
        mesh="[cpu_limits]\nshopp = 1.0\nwarehouse = 1.0\n",
    )
    assert read_folder(folder).notes == (
        "changes: no row of the nodes has 'kart'; did you mean 'cart'?",
        "cpu_limits: no row of the nodes has 'shopp' and 1 more; did you mean 'shop'?",
    )
