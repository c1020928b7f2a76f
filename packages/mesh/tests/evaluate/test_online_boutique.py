"""The loader of the real mesh, on a stand-in with the traps of the real files."""

import math

import numpy as np
import pytest

from packages.mesh.benchmarks.online_boutique_data import SCHEMA, load

POD = (
    "Time,TimeStamp,PodName,CpuUsage(m),CpuUsageRate(%),MemoryUsage(Mi),SyscallRead,SyscallWrite,"
    "NetworkReceiveBytes,NetworkTransmitBytes,PodClientLatencyP90(s),PodServerLatencyP90(s),"
    "PodClientLatencyP95(s),PodServerLatencyP95(s),PodClientLatencyP99(s),PodServerLatencyP99(s),"
    "PodWorkload(Ops),PodSuccessRate(%)\n"
)
T0 = 1661140260.0  # 03:51
MINUTES = 1209


def clock(minute):
    hour, rest = divmod(3 * 60 + 51 + minute, 60)
    return f"2022-08-22 {hour:02}:{rest:02}:19.799087274 +0000 UTC m=+0.3"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two services and a call path; the fifth minute has what is wrong in the real files."""
    folder = tmp_path_factory.mktemp("boutique")
    for service, limit in (("frontend", 0.2), ("adservice", 0.3)):
        rows = []
        for minute in range(MINUTES):
            stamp = 1861140279 + 60 * minute  # as wrong as the real one
            cpu, latency, reads, load = 5.0, "0.25", 100, 9.0
            if minute == 4:
                cpu, latency, reads, load = (0.0, "3600", 0, 9.0) if limit == 0.2 else (0.0, "", 0, 0.0)
            rows.append(
                f"{clock(minute)},{stamp},{service}-1,{cpu},{cpu / limit},2,{reads},7,8,9,"
                f"0.01,{latency},0.02,{latency},0,{latency},{load},0\n"
            )
        (folder / f"{service}-579b-t2_metric.csv").write_text(POD + "".join(rows))
    (folder / "front_service.csv").write_text(
        "Time,TimeStamp,ServiceName,SuccessRate(%),LatencyP50(s)\n"
        + "".join(f"{clock(minute)},1,Frontend,{97},0.2\n" for minute in range(MINUTES))
    )
    for name, seconds in (("source_50", 0.004), ("destination_50", 0.003)):
        rows = [f"{clock(minute)},1,{seconds if minute != 4 else ''}\n" for minute in range(MINUTES)]
        (folder / f"{name}.csv").write_text("time,timestamp,frontend_adservice\n" + "".join(rows))
    (folder / "dependency.csv").write_text(
        "Source,Target,Weight\nfrontend,adservice,1\nadservice,33.33.33.76,1\nloadgenerator,1.2.3.4,1\n"
    )
    (folder / "labels_utc.csv").write_text(
        "dataset,t_start_utc,service,pod,type,source_of_time\n"
        f"OB,{T0 + 600},frontend,frontend-579b-t2,cpu_contention,inject_timestamp\n"
    )
    return folder


@pytest.fixture(scope="module")
def early(folder):
    """Snapshots from 03:51 on, though they are played last."""
    return load(folder=folder).snapshots[-264:]


def column(snapshot, service, name):
    slot = snapshot.roster.find(service)
    return float(snapshot.node_features[slot, SCHEMA.node_features.index(name)])


def test_units_are_seconds_cores_bytes_and_milliseconds(early):
    first = early[0]
    first.check()
    assert column(first, "frontend", "cpu_cores") == pytest.approx(0.05)
    assert column(first, "frontend", "memory_bytes") == 2 * 2**20
    assert column(first, "frontend", "p99_ms") == pytest.approx(250)
    assert column(first, "frontend", "p50_ms") == pytest.approx(200)
    assert column(first, "frontend", "error_share") == pytest.approx(0.03)
    assert first.edge_features.tolist() == [pytest.approx([4.0, 3.0])]


def test_what_was_not_measured_is_missing(early):
    fifth = early[4]
    assert math.isnan(column(fifth, "frontend", "p99_ms"))  # 3,600 s
    assert math.isnan(column(fifth, "frontend", "cpu_cores"))  # 0 while it serves
    assert math.isnan(column(fifth, "frontend", "reads"))
    assert math.isnan(column(fifth, "adservice", "p99_ms"))  # idle
    assert column(fifth, "adservice", "cpu_cores") == 0.0  # and really at rest
    assert np.isnan(fifth.edge_features).all()
    assert math.isnan(column(early[0], "frontend", "client_p99_ms"))  # a latency of 0
    assert math.isnan(column(early[0], "adservice", "error_share"))  # 0 % success throughout means nothing


def test_times_are_those_of_the_time_column_and_faults_are_played_a_day_later(folder, early):
    one = load(folder=folder)
    assert early[0].time_s == pytest.approx(T0 + 19 + 86_400, abs=1)
    assert [event.start_s for event in one.test_events()] == [T0 + 600 + 86_400]
    assert one.events[0].end_s - one.events[0].start_s == 240.0
    assert one.cpu_limits == {"adservice": 0.3, "frontend": 0.2}


@pytest.mark.parametrize("split", ["default", "other"])
def test_both_splits_judge_nine_hours_that_were_not_learned_from(folder, split):
    one = load(split, folder=folder)
    trained, judged = (
        {snapshot.time_s for snapshot in part[0]} for part in (one.training(), one.testing())
    )
    assert not trained & judged
    assert (len(trained), len(judged)) == (651, 558)
    assert max(trained) < min(judged)


def test_data_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="set HOPLINE_DATA to the folder"):
        load(folder=tmp_path)
