"""What the units of a host are made of, and how that differs from the same units of other hosts.

A unit is a name: two hosts whose repositories or graph folders differ serve other answers under one name.
Each member of a fleet reports graph and artifact of its units in its acknowledgement; all of them compare.
"""

from __future__ import annotations

from collections.abc import Mapping

from hopline.rollout.served import Served
from hopline.rollout.store.base import Ack


def content_of(served: Served) -> str:
    """Graph and artifact of a loaded unit, for people; "" where it has neither, as a pipeline.

    The changes of a live graph are not part of it: hosts may be at different ones for a moment.
    """
    artifact = served.info((served.version,)).properties.get("artifact_hash")
    if not artifact:
        return ""
    graph = served.graph_version.partition("+")[0]
    return f"graph {graph or '–'}, artifact {artifact}"


def differences(mine: Mapping[str, str], others: Mapping[str, Ack]) -> dict[str, str]:
    """Units that other members have with another content: "model/unit" -> what differs, for people.

    Args:
        mine: "model/unit" -> content, of this member.
        others: acknowledgements of the other members.
    """
    found: dict[str, str] = {}
    for unit, content in sorted(mine.items()):
        theirs = {
            member: ack.contents[unit]
            for member, ack in sorted(others.items())
            if ack.contents.get(unit, content) != content
        }
        if theirs:
            listed = "; ".join(f"{member} has {other}" for member, other in theirs.items())
            found[unit] = f"this host has {content}; {listed}"
    return found
