"""Memory of a model's own process, and its limits."""

from __future__ import annotations

import resource
from pathlib import Path

#: The kernel's score (0 to 1000) for which process to kill first when memory runs out.
_OOM_SCORE = 500
#: Of the limit at which a process is replaced: the one at which allocations fail.
_HARD_SHARE = 4


def anonymous_bytes(pid: int) -> int:
    """Private memory of a process that is not backed by a file (RssAnon); 0 once it has ended.

    Mapped graphs and features are not in it: they are the page cache's, one copy for all.
    """
    return _status(pid, "RssAnon")


def limit_growth(memory_bytes: int) -> None:
    """Make allocations of this process fail that would take it far above `memory_bytes`.

    The parent looks often and replaces a process above its limit at leisure: another one must be ready
    first, so there has to be room for what leaks until then. This is for one huge request:
    its allocation fails, and so does that request alone. Data is counted here when it is
    reserved, before it is used.
    """
    reserved = _status(None, "VmData") - _status(None, "RssAnon")
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = max(0, reserved) + _HARD_SHARE * memory_bytes
    resource.setrlimit(
        resource.RLIMIT_DATA, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most)
    )


def offer_first() -> None:
    """Let the kernel end this process before its server when the machine runs out of memory."""
    Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))


def _status(pid: int | None, name: str) -> int:
    try:
        text = Path(f"/proc/{pid or 'self'}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in text.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0  # a process that has ended, and was not waited for yet
