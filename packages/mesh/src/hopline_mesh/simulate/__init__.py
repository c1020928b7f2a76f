"""A simulated mesh, for tests, training, benchmarks and the demo.

In memory, fast:

    run = high_churn(hours=24, services=30, seed=1)  # or calm(...), or simulate(MeshPlan(...), seed)
    for snapshot, context in run: ...  # iterating again gives the same values
    run.faults  # labels: kind, service, caller, roots, start_s, end_s
    run.operations  # planned changes
    run.world  # present state of the newest iteration: pods, flows, topology

Times of `run.faults` and `run.operations` are Unix seconds, as those of snapshots. A fault of one
service has `caller == ""`; a fault of a call path has caller and callee (`service`). `fault.roots` are the
services that count as the root cause, the actual one first.
"""

from hopline_mesh.simulate.plan import (
    EDGE_FAULTS,
    FAULTS,
    OPERATIONS,
    Fault,
    FaultKind,
    MeshPlan,
    Operation,
    OperationKind,
)
from hopline_mesh.simulate.presets import MEASURED, calm, high_churn, unkind, unkind_plan
from hopline_mesh.simulate.simulation import Simulation, simulate
from hopline_mesh.simulate.traits import Traits

__all__ = [
    "EDGE_FAULTS",
    "FAULTS",
    "MEASURED",
    "OPERATIONS",
    "Fault",
    "FaultKind",
    "MeshPlan",
    "Operation",
    "OperationKind",
    "Simulation",
    "Traits",
    "calm",
    "high_churn",
    "simulate",
    "unkind",
    "unkind_plan",
]
