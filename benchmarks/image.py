"""The server's image: its size, and how soon a container of it answers when nothing is warm.

    python -m benchmarks.image --models FOLDER [--root FOLDER] [--starts N]

`--root` is the root file system of the image (`buildah mount`, or `docker export` unpacked). Without it,
`scripts/image` builds one first, in some minutes. `--models` is a folder with `graph` and `repository`. A
start is as deploy/server/base says: user 65532, a read-only root, folders for /tmp and state, one CPU and
1 GiB of memory by control groups. The page cache is dropped before every other start. Needs root. Prints a
table; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.machine import commit, machine

_ROOT = Path(__file__).resolve().parents[1]
_USER = 65532
_MEMORY = 1 << 30
_TREE = Path("/sys/fs/cgroup")
_MOUNTS = {"/tmp": "64m", "/var/lib/hopline": "64m"}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--starts", type=int, default=6)
    arguments = parser.parse_args()
    if arguments.root is not None:
        measure(arguments.root.resolve(), arguments.models.resolve(), arguments.starts)
        return
    with tempfile.TemporaryDirectory(prefix="hopline-image-") as folder:
        subprocess.run([_ROOT / "scripts" / "image", folder], check=True)
        measure(Path(folder) / "root", arguments.models.resolve(), arguments.starts)


def measure(root: Path, models: Path, num_starts: int) -> None:
    """Measure starts of an image's root, and print them."""
    rows = []
    for number in range(num_starts):
        is_cold = number % 2 == 0
        if is_cold:
            _drop_page_cache()
        with control_groups(1, _MEMORY) as files:
            found = _start(root, models, files)
        rows.append({"page_cache": "cold" if is_cold else "warm", **found})
    names = ("ready_s", "first_ms", "second_ms", "tenth_ms", "memory_mb", "throttled")
    print(f"{'page cache':12}" + "".join(f"{name:>12}" for name in names))
    for row in rows:
        print(f"{row['page_cache']:12}" + "".join(f"{row[name]:12.2f}" for name in names))
    sizes = {"image_mb": _size_mb(root), "hopline_mb": _size_mb(root / "opt/hopline")}
    print(", ".join(f"{name} {size:.0f}" for name, size in sizes.items()))
    medians = {
        kind: {name: _median([row[name] for row in rows if row["page_cache"] == kind]) for name in names}
        for kind in ("cold", "warm")
    }
    print(json.dumps({"machine": machine(), "commit": commit(), **sizes, **medians}))


def _start(root: Path, models: Path, files: list[Path]) -> dict[str, float]:
    began = time.perf_counter()
    process = subprocess.Popen(_command(root, models, files), stdout=subprocess.PIPE, text=True)
    try:
        return _measured(process, began, models, files)
    finally:
        process.kill()  # no effect on one that has ended
        process.wait()


def _measured(
    process: subprocess.Popen[str], began: float, models: Path, files: list[Path]
) -> dict[str, float]:
    assert process.stdout is not None
    line = process.stdout.readline()
    ready_s = time.perf_counter() - began
    found = re.search(r":(\d+) grpc", line)
    if found is None:
        raise SystemExit(f"the server did not start: {line!r}, exit code {process.wait()}")
    connection = http.client.HTTPConnection("127.0.0.1", int(found[1]))
    model = next(path.parts[-3] for path in sorted((models / "repository").glob("[!.]*/*/model.json")))
    times_ms = []
    for node in range(10):
        began = time.perf_counter()
        connection.request("POST", f"/v1/models/{model}/score", json.dumps({"nodes": [37 * node]}))
        answer = connection.getresponse()
        body = answer.read()
        times_ms.append(1e3 * (time.perf_counter() - began))
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {body[:300]!r}")
    used = _stat(files, "memory", "memory.max_usage_in_bytes", "memory.peak")
    throttled = _stat(files, "cpu", "cpu.stat", "cpu.stat")
    process.send_signal(signal.SIGTERM)
    if process.wait() != 0:
        raise SystemExit(f"exit code {process.returncode} after SIGTERM")
    return {
        "ready_s": ready_s,
        "first_ms": times_ms[0],
        "second_ms": times_ms[1],
        "tenth_ms": times_ms[9],
        "memory_mb": used / 2**20,
        "throttled": throttled,
    }


def _command(root: Path, models: Path, files: list[Path]) -> list[str]:
    settings = {
        "PATH": "/opt/hopline/bin:/usr/local/bin:/usr/bin:/bin",
        "OMP_NUM_THREADS": "1",
        "HOPLINE__GRAPH__PATH": "/mnt/models/graph",
        "HOPLINE__MODELS__REPOSITORY": "/mnt/models/repository",
        "HOPLINE__MODELS__STATE": "/var/lib/hopline",
        "HOPLINE__AUTH__ALLOW_ANONYMOUS": "true",
        "HOPLINE__SERVER__HOST": "127.0.0.1",
        "HOPLINE__SERVER__HTTP_PORT": "0",
        "HOPLINE__SERVER__GRPC_PORT": "0",
        "HOPLINE__SERVER__DRAIN_DELAY_S": "0",
    }
    mounts = "".join(
        f"mkdir -p {root}{place}; mount -t tmpfs -o size={size},mode=1777 tmpfs {root}{place}; "
        for place, size in _MOUNTS.items()
    )
    enter = "".join(f"echo $$ > {file}; " for file in files)
    script = (
        f"set -e; mount --make-rprivate /; mkdir -p {root}/mnt/models; mount --bind {root} {root}; {mounts}"
        f"mount --bind {models} {root}/mnt/models; mount -o remount,bind,ro {root}/mnt/models; "
        f"mount -t proc proc {root}/proc; mount --rbind /dev {root}/dev; mount --rbind /sys {root}/sys; "
        f"mount -o remount,bind,ro {root}; {enter}"
        f'exec chroot --userspec={_USER}:{_USER} {root} env -i "$@" hopline serve'
    )
    words = [f"{name}={value}" for name, value in settings.items()]
    return ["unshare", "--mount", "sh", "-c", script, "sh", *words]


@contextlib.contextmanager
def control_groups(cpus: float, memory: int | None, period_us: int = 100_000) -> Iterator[list[Path]]:
    """Control groups with limits of CPUs and, unless None, bytes of memory; files to enter them by."""
    name = f"hopline-bench-{uuid.uuid4().hex[:8]}"
    quota, period = str(round(cpus * period_us)), str(period_us)
    if (_TREE / "cgroup.controllers").exists():
        wanted = {_TREE / name: {"cpu.max": f"{quota} {period}", "memory.max": memory}}
    else:
        wanted = {
            _TREE / "cpu" / name: {"cpu.cfs_period_us": period, "cpu.cfs_quota_us": quota},
            _TREE / "memory" / name: {"memory.limit_in_bytes": memory},
        }
    for folder, limits in wanted.items():
        folder.mkdir()
        for file, value in limits.items():
            if value is not None:
                (folder / file).write_text(str(value))
    try:
        yield [folder / "cgroup.procs" for folder in wanted]
    finally:
        for folder in wanted:
            folder.rmdir()


def _stat(files: list[Path], controller: str, *names: str) -> float:
    """A number that the control groups tell: a whole file, or `nr_throttled` of cpu.stat; 0 for none."""
    for file in files:
        for name in names:
            path = file.with_name(name)
            if path.exists() and (controller in path.parts or (_TREE / "cgroup.controllers").exists()):
                text = path.read_text()
                found = re.search(r"nr_throttled (\d+)", text)
                return float(found[1] if found else text)
    return 0.0


def _drop_page_cache() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")


def _size_mb(folder: Path) -> float:
    done = subprocess.run(["du", "-sx", "-B1", folder], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0]) / 1e6


def _median(values: list[Any]) -> float:
    ordered = sorted(values)
    return float(ordered[len(ordered) // 2])


if __name__ == "__main__":
    main()
