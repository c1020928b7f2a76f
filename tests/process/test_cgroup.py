"""Limits of containers: both versions of control groups, in folders like the kernel's, and real ones."""

import os
import subprocess
import sys

import pytest

from hopline.config.schema import Config
from hopline.process.cgroup import Cgroup, available_bytes, memory_bytes, overcommitted, usable_cpus
from tests.containers import limited


@pytest.fixture
def cgroup(tmp_path):
    def make(membership, files):
        for name, text in files.items():
            path = tmp_path / "tree" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        (tmp_path / "self").write_text(membership + "\n")
        return Cgroup(tmp_path / "tree", tmp_path / "self")

    return make


V1 = "5:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n0::/"


def quota(folder, quota_us, period_us=100_000):
    """The files of version 1."""
    return {f"{folder}/cpu.cfs_quota_us": f"{quota_us}", f"{folder}/cpu.cfs_period_us": f"{period_us}"}


@pytest.mark.parametrize(
    ("membership", "files", "cpus"),
    [
        ("0::/", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {}, None),
        ("0::/", {"cpu.max": "garbage"}, None),
        ("0::/", {"cpu.max": "50000"}, None),
        ("0::/", {"cpu.max": "50000 0"}, None),
        ("0::/", {"cpu.max": "-1 100000"}, None),
        ("0::/", {"cpu.max": "2500 100000"}, 0.025),
        ("0::/../../pod", {"cpu.max": "199900 100000"}, 1.999),
        # a group below another one: the smaller limit counts, wherever it stands
        ("0::/a/b", {"a/cpu.max": "100000 100000", "a/b/cpu.max": "400000 100000"}, 1.0),
        ("0::/a/b", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "150000 100000"}, 1.5),
        # a container that sees its own group as the root, under a path of the machine
        ("0::/kubepods/pod1", {"cpu.max": "200000 100000"}, 2.0),
        (V1, quota("cpu", 50_000), 0.5),
        (V1, quota("cpu", -1), None),
        (V1, quota("cpu,cpuacct/docker/ab", 3000, 1000), 3.0),
    ],
)
def test_the_quota_of_cpus(cgroup, membership, files, cpus):
    found = cgroup(membership, files)
    assert found.cpus() == cpus
    assert usable_cpus(found) == max(1, min(len(os.sched_getaffinity(0)), int(cpus or 10**6)))


def v2(folder, limit, used, stat="anon 0"):
    names = {"max": limit, "current": used, "stat": stat}
    return {f"{folder}/memory.{name}": f"{value}" for name, value in names.items()}


def v1(folder, limit, used, stat="cache 0"):
    names = {"limit_in_bytes": limit, "usage_in_bytes": used, "stat": stat}
    return {f"memory/{folder}/memory.{name}": f"{value}" for name, value in names.items()}


@pytest.mark.parametrize(
    ("membership", "files", "limit", "left"),
    [
        ("0::/", v2(".", 1000, 700, "anon 300\nactive_file 100\ninactive_file 300"), 1000, 700),
        ("0::/", v2(".", "max", 700), None, None),
        ("0::/", v2(".", 1000, 1200), 1000, 0),
        ("0::/a/b", v2("a", 500, 450) | v2("a/b", 800, 10), 500, 50),
        (V1, v1(".", 1000, 900, "active_file 0\ntotal_inactive_file 300"), 1000, 400),
        (V1, v1(".", 9223372036854771712, 9), None, None),
        (V1, v1("docker/ab", 100, 9), 100, 91),
    ],
)
def test_the_limit_of_memory(cgroup, membership, files, limit, left):
    found = cgroup(membership, files)
    assert found.memory_limit() == limit
    assert found.memory_left() == left
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_bytes(found) == (limit or machine)


def test_without_control_groups_the_machine_is_the_limit(tmp_path):
    found = Cgroup(tmp_path / "none", tmp_path / "none either")
    assert (found.cpus(), found.memory_limit(), found.memory_left()) == (None, None, None)
    assert usable_cpus(found) == len(os.sched_getaffinity(0))


def test_settings_beyond_the_limits_are_named(cgroup):
    group = cgroup("0::/", {"cpu.max": "150000 100000"} | v2(".", 1 << 30, 0))
    config = Config().replace(state_cache__memory_bytes=128 << 20)
    assert overcommitted(config, group) == []
    (cpus,) = overcommitted(config.replace(server__workers=2), group)
    assert "is 2, and the quota of this container is 1.5 CPUs" in cpus
    (memory,) = overcommitted(config.replace(state_cache__memory_bytes=768 << 20), group)
    assert "768 MiB of the 1024 MiB" in memory


def test_without_limits_nothing_is_named(tmp_path):
    many = Config().replace(server__workers=64, state_cache__memory_bytes=1 << 50)
    assert overcommitted(many, Cgroup(tmp_path / "none", tmp_path / "none")) == []


CHECK = """
import os, sys
for file in sys.argv[1:]:
    open(file, "w").write(str(os.getpid()))
from hopline.process.cgroup import Cgroup, memory_bytes, usable_cpus
print(Cgroup().cpus(), usable_cpus(), memory_bytes())
"""


def test_a_real_group_bounds_the_process_in_it():
    with limited(cpus=0.5, memory_bytes=256 << 20) as files:
        done = subprocess.run(
            [sys.executable, "-c", CHECK, *map(str, files)], capture_output=True, text=True, check=True
        )
    cpus, usable, memory = done.stdout.split()
    if files:  # tests may make groups here
        assert (cpus, usable, memory) == ("0.5", "1", str(256 << 20))
    assert int(usable) >= 1


def test_available_memory_is_the_machines_or_what_the_group_has_left(cgroup):
    assert available_bytes(cgroup("0::/", {})) > 1_000_000
    assert available_bytes(cgroup("0::/", v2(".", 1_000_000, 300_000))) == 700_000
