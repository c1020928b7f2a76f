"""Stands for the parts of a watch: a detector that looks at one number, a mesh, and who is told."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np

from hopline_mesh.changes import Context
from hopline_mesh.errors import SourceUnavailable
from hopline_mesh.incident import Incident, Suspect, Verdict
from hopline_mesh.roster import Roster
from packages.mesh.tests.meshes import snapshot


class FakeDetector:
    """Says "anomalous" while the first service's first feature is above 10; ids by the time it began."""

    def __init__(self):
        self.steps = 0
        self.began_s = None
        self.broken = False
        self._scores = np.zeros(0, np.float32)

    def step(self, snapshot, context):
        if self.broken:
            raise ZeroDivisionError("a bug")
        self.steps += 1
        values = snapshot.node_features[:, 0]
        self._scores = (values / 10).astype(np.float32)
        if np.isnan(values).all():
            return Verdict(snapshot.time_s, "blind", 0.0, gaps=snapshot.gaps)
        score = float(np.nanmax(values)) / 10
        incidents = ()
        if score > 1:
            self.began_s = snapshot.time_s if self.began_s is None else self.began_s
            incidents = (self._incident(score, None),)
        elif self.began_s is not None:
            incidents, self.began_s = (self._incident(1.5, snapshot.time_s),), None
        state = "learning" if self.steps <= 3 else "anomalous" if score > 1 else "normal"
        return Verdict(snapshot.time_s, state, score, incidents, gaps=snapshot.gaps)

    def _incident(self, score, end_s):
        return Incident(
            f"fault-{self.began_s:.0f}", self.began_s, end_s, score, (Suspect("ns/s0", score, None, ()),)
        )

    def scores(self, snapshot):
        return self._scores

    def adopt(self, before):
        pass

    def export(self):
        meta = {"steps": self.steps, "began_s": self.began_s}
        return meta, {"steps": np.array([self.steps], np.int64)}

    @classmethod
    def restore(cls, meta, arrays):
        assert int(arrays["steps"][0]) == meta["steps"]
        detector = cls()
        detector.steps, detector.began_s = meta["steps"], meta["began_s"]
        return detector


class FakeSource:
    """A mesh that can be down, slow, or have a fault."""

    def __init__(self, roster=None):
        self.roster = Roster() if roster is None else roster
        self.down = None
        self.fault = False
        self.asked = []

    async def collect(self, now_s):
        self.asked.append(now_s)
        if self.down is not None:
            raise self.down
        found = snapshot(now_s, self.roster)
        if self.fault:
            found.node_features[0, 0] = 50.0
        return found


DOWN = SourceUnavailable("http://prometheus:9090: connection refused")


class FakeAlerts:
    """Keeps what it is sent."""

    def __init__(self):
        self.sent = []
        self.next = asyncio.Semaphore(0)
        self.broken = False

    async def send(self, verdict):
        if self.broken:
            raise ValueError("no")
        self.sent.append(verdict)
        self.next.release()

    def export(self):
        return {"sent": len(self.sent)}

    def incidents(self):
        """(id, whether over) of what was sent, without repetitions."""
        return list(dict.fromkeys((i.id, i.end_s is not None) for v in self.sent for i in v.incidents))


def calm(now_s):
    """Nothing is known of changes, and nothing is missing."""
    return Context(), ()


def without_features(found):
    """The same snapshot, of which nothing was measured."""
    return dataclasses.replace(found, node_features=np.full_like(found.node_features, np.nan))
