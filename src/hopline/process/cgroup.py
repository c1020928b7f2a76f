"""CPUs and memory that the control group of this process allows, as containers and systemd units set them.

Linux has two versions. Version 2 has one tree; version 1 has one tree for each controller:

    /proc/self/cgroup               0::/pod/main          4:memory:/pod/main, 1:cpu:/pod/main
    /sys/fs/cgroup/…/pod/main/      cpu.max               cpu.cfs_quota_us, cpu.cfs_period_us
                                    memory.max            memory.limit_in_bytes

Groups above limit this one too, so the smallest limit counts. A container often sees its own group as the
root of the tree, under a path that its `/proc/self/cgroup` does not name: the root is always read.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hopline.config.schema import Config

#: Version 1 writes about 2**63 for "no limit".
_NO_LIMIT = 1 << 60
#: Pages of files that the kernel can give to others, as `memory.stat` names them.
_FILE_PAGES = ("active_file", "inactive_file")


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The control group of this process; every limit is read when it is asked for.

    Attributes:
        tree: where control groups are mounted.
        membership: the file that names the group of this process.
    """

    tree: Path = Path("/sys/fs/cgroup")
    membership: Path = Path("/proc/self/cgroup")

    def cpus(self) -> float | None:
        """CPUs' worth of time that the group may use, such as 0.5; None for no limit."""
        return min(self._cpu_limits(), default=None)

    def memory_limit(self) -> int | None:
        """Bytes of memory that the group may use; None for no limit."""
        return min((limit for _, limit in self._memory_limits()), default=None)

    def memory_left(self) -> int | None:
        """Bytes that the group may still take; page cache counts as free. None for no limit."""
        left = []
        for folder, limit in self._memory_limits():
            used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
            left.append(max(0, limit - used + _file_bytes(folder / "memory.stat")))
        return min(left, default=None)

    def _cpu_limits(self) -> Iterator[float]:
        for folder in self._folders("cpu"):
            found = [(_number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us"))]
            with contextlib.suppress(OSError, ValueError):  # "max" is no number
                quota, period = map(int, (folder / "cpu.max").read_text().split())
                found.append((quota, period))
            yield from (quota / period for quota, period in found if quota > 0 and period > 0)

    def _memory_limits(self) -> Iterator[tuple[Path, int]]:
        for folder in self._folders("memory"):
            limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes", missing=_NO_LIMIT)
            if 0 < limit < _NO_LIMIT:
                yield folder, limit

    def _folders(self, controller: str) -> Iterator[Path]:
        """Folders of the group and of all above it, in the trees that have the controller."""
        seen = set()
        for tree, group in self._trees(controller):
            place = group.strip("/")
            while True:
                folder = tree / place
                if folder not in seen and folder.is_dir():
                    seen.add(folder)
                    yield folder
                if not place:
                    break
                place = os.path.dirname(place)

    def _trees(self, controller: str) -> Iterator[tuple[Path, str]]:
        """Each tree that may have the controller, and the group of this process in it."""
        yield self.tree, ""
        yield self.tree / controller, ""
        try:
            lines = self.membership.read_text().splitlines()
        except OSError:
            return
        for line in lines:
            _, _, rest = line.partition(":")
            controllers, _, group = rest.partition(":")
            if not controllers:
                yield self.tree, group
            elif controller in controllers.split(","):
                yield self.tree / controller, group
                yield self.tree / controllers, group


def usable_cpus(cgroup: Cgroup | None = None) -> int:
    """CPUs that this process can keep busy: those that it may run on, or its quota if that is less.

    A quota is rounded down, to 1 at least: one thread more would spend it before the period ends, and all
    of them would then wait.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = (cgroup or Cgroup()).cpus()
    return allowed if quota is None else max(1, min(allowed, math.floor(quota)))


def memory_bytes(cgroup: Cgroup | None = None) -> int:
    """Memory that this process may use: the machine's, or the limit of its control group."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = (cgroup or Cgroup()).memory_limit()
    return machine if limit is None else min(machine, limit)


def available_bytes(cgroup: Cgroup | None = None) -> int:
    """Free memory and page cache, of the machine or of the container's limit if that is less; all physical
    memory where the kernel does not say.
    """
    left = (cgroup or Cgroup()).memory_left()
    return _machine_bytes() if left is None else min(_machine_bytes(), left)


def overcommitted(config: Config, cgroup: Cgroup | None = None) -> list[str]:
    """Settings that exceed the limits of a server's control group, each in a sentence."""
    group = cgroup or Cgroup()
    found = []
    cpus, threads = group.cpus(), config.server.workers * config.compute.threads
    if cpus is not None and threads > max(1.0, cpus):
        found.append(
            f"server.workers x compute.threads is {threads}, and the quota of this container is {cpus:g} "
            "CPUs: they will be stopped for a part of each period"
        )
    limit = group.memory_limit()
    rows = config.features.memory_bytes if config.features.store else 0
    caches = config.state_cache.memory_bytes + rows
    if limit is not None and 2 * caches > limit:
        found.append(
            f"caches may take {caches >> 20} MiB of the {limit >> 20} MiB that this container is limited "
            "to (state_cache.memory_bytes, features.memory_bytes): it may be killed for lack of memory"
        )
    return found


def _machine_bytes() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _number(*files: Path, missing: int = 0) -> int:
    """The integer in the first of these files that has one."""
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            return int(file.read_text())
    return missing


def _file_bytes(stat: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        rows = dict(line.split() for line in stat.read_text().splitlines())
        # Version 1 has both the group's own pages and, as `total_`, those of groups below.
        return max(
            sum(int(rows.get(prefix + name, 0)) for name in _FILE_PAGES) for prefix in ("", "total_")
        )
    return 0
