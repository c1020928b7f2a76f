"""What a container does to a process, without an engine: limits, a read-only root, a user without a home.

Needs root, as engines do. Where tests may not do a part of it, the part is left out, and they say less.
"""

import contextlib
import os
import shutil
import subprocess
import uuid
from pathlib import Path

TREE = Path("/sys/fs/cgroup")
#: Of nobody on any machine.
UID = 654_321


@contextlib.contextmanager
def limited(cpus=None, memory_bytes=None):
    """A control group; yields files into which a process writes its id to enter, [] without the right."""
    name = f"hopline-test-{uuid.uuid4().hex[:8]}"
    is_v2 = (TREE / "cgroup.controllers").exists()
    period = 100_000
    if is_v2:
        limits = {
            "cpu.max": None if cpus is None else f"{int(cpus * period)} {period}",
            "memory.max": memory_bytes,
        }
        wanted = {TREE / name: {key: value for key, value in limits.items() if value is not None}}
    else:
        wanted = {}
        if cpus is not None:
            quota = {"cpu.cfs_period_us": period, "cpu.cfs_quota_us": int(cpus * period)}
            wanted[TREE / "cpu" / name] = quota
        if memory_bytes is not None:
            wanted[TREE / "memory" / name] = {"memory.limit_in_bytes": memory_bytes}
    made = []
    try:
        for folder, limits in wanted.items():
            folder.mkdir()
            made.append(folder)
            for file, value in limits.items():
                (folder / file).write_text(str(value))
    except OSError:
        _remove(made)
        made = []
    try:
        yield [folder / "cgroup.procs" for folder in made]
    finally:
        _remove(made)


def _remove(folders):
    for folder in folders:
        folder.rmdir()


def entering(files, command):
    """The command that enters the groups of `limited` and then becomes another one."""
    enter = " ".join(f"echo $$ > {file};" for file in files)
    return ["sh", "-c", f'{enter} exec "$@"', "sh", *map(str, command)]


def is_root():
    return os.geteuid() == 0 and shutil.which("unshare") is not None and shutil.which("setpriv") is not None


def confined(command, *, writable=(), environment=None, uid=UID):
    """A command as another user, without a home folder, on a read-only root.

    Args:
        writable: folders that it may write all the same; they must exist.
        environment: all of it.

    Returns: the command; run it as root. Without root, the command itself.
    """
    words = [f"{key}={value}" for key, value in (environment or {}).items()]
    if not is_root():
        return ["env", "-i", *words, *map(str, command)]
    keep = " ".join(f"mount --bind {folder} {folder};" for folder in writable)
    script = (
        f"set -e; mount --make-rprivate /; {keep} "
        # Each mount is made read-only on its own: a remount does not reach those below.
        "mount -o remount,bind,ro /; "
        "for place in /tmp /work /var /root /home /dev/shm; do "
        'if mountpoint -q "$place"; then mount -o remount,bind,ro "$place"; fi; done; '
        + " ".join(f"mount -o remount,bind,rw {folder};" for folder in writable)
        # The interpreter of a developer may lie in a home folder: this user may read it, and write nothing.
        + f"exec setpriv --reuid {uid} --regid {uid} --clear-groups --no-new-privs "
        + " ".join(
            f"--{kind} -all,+dac_read_search" for kind in ("bounding-set", "inh-caps", "ambient-caps")
        )
        + ' env -i "$@"'
    )
    return ["unshare", "--mount", "sh", "-c", script, "sh", *words, *map(str, command)]


def run_confined(command, **options):
    """Run it to its end; returns the completed process with its texts."""
    return subprocess.run(confined(command, **options), capture_output=True, text=True, timeout=120)
