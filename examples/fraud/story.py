"""The story in order: checkouts, crowd workers, a sale that alarms, versions that come and go."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

import hopline
from examples import torch_free
from examples.fraud import build, rules, sale, trees
from examples.fraud.administration import Administrator, Keys, Outcome, may_change
from examples.fraud.build import Built
from examples.fraud.payments import PaymentService, Traffic
from hopline.errors import Unauthenticated
from hopline_demo.process import Served, serving

Say = Callable[[str], object]
_COMMAND = (sys.executable, "-m", "examples.torch_free")
_NODES_OF_A_REQUEST = 1000


@dataclass(frozen=True)
class Scale:
    """Amounts of the story.

    Attributes:
        calls: timed, of one transaction each.
        copies: that the shadow compares. steps: of canaries, percent.
        min_step_s: seconds that each step lasts at least.
        min_requests: that a candidate answers in each.
    """

    calls: int = 4000
    copies: int = 2000
    steps: tuple[float, ...] = (5, 25, 50, 100)
    min_step_s: float = 3.0
    min_requests: int = 200


SMALL = Scale(calls=600, copies=400, steps=(25, 100), min_step_s=0.5, min_requests=100)


def tell(built: Built, folder: Path, scale: Scale, say: Say) -> dict[str, Any]:
    """Serve what was built and go through it; returns the figures."""
    clients, drift = folder / "clients.toml", folder / "drift"
    keys = Keys.written(clients)
    usual = built.checkout.validation.frame
    sale.write_training_reference(usual, trees.scores(built.checkout.first, usual), drift)
    settings = [f"auth.clients_file={clients}", *sale.settings(drift)]
    with serving(built.graph, built.repository, settings=settings, command=_COMMAND) as served:
        if torch_free.PROOF not in served.output:
            raise RuntimeError("the server did not prove that training libraries are blocked")
        say(f"serving: {torch_free.PROOF}")
        # Models are loaded at low priority: a machine with other work may take a minute.
        with hopline.Client(served.url, api_key=keys.admin, timeout=120.0) as admin:
            return {
                **_checkout(built, served, keys, scale, say),
                **_permissions(served, keys, say),
                **_risk(built, admin, say),
                **_sale(built, served, keys, admin, say),
                **_rollouts(built, served, keys, admin, scale, say),
            }


def _checkout(built: Built, served: Served, keys: Keys, scale: Scale, say: Say) -> dict[str, Any]:
    """Decisions on the test transactions, against the estimator's own; then single calls, timed."""
    test = built.checkout.test
    service = PaymentService(served.grpc, keys.payments)
    answers = [service.ask(test.frame.iloc[at : at + 500]) for at in range(0, len(test), 500)]
    scores = np.concatenate([answer.scores for answer in answers])
    decisions = [decision for answer in answers for decision in answer.decisions]
    expected = trees.scores(built.checkout.first, test.frame)
    service.ask(test.frame[:1])
    times = [service.ask(test.frame.iloc[at % len(test) :][:1]).seconds for at in range(scale.calls)]
    service.close()
    p50, p99 = (float(value) * 1e3 for value in np.quantile(times, [0.5, 0.99]))
    counts = rules.counted(decisions)
    say(f"{len(test):,} transactions over gRPC: {counts}; one at a time p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    return {
        "decisions": counts,
        "decisions_equal": decisions == rules.decided(scores).tolist(),
        "fraud_auc": float(roc_auc_score(test.is_fraud, scores)),
        "fraud_max_abs_diff": float(np.abs(scores - expected).max()),
        "grpc_ms": {"p50": round(p50, 3), "p99": round(p99, 3)},
    }


def _permissions(served: Served, keys: Keys, say: Say) -> dict[str, Any]:
    service = PaymentService(served.grpc, keys.payments)
    payments = hopline.Client(served.url, api_key=keys.payments)
    found = {
        "payments_may_score_workers": service.may_score(build.RISK, 0),
        "payments_may_change": may_change(payments),
        "strangers_may_ask": True,
    }
    service.close()
    payments.close()
    with hopline.Client(served.url) as stranger:
        try:
            stranger.score(build.RISK, [0])
        except Unauthenticated:
            found["strangers_may_ask"] = False
    say(f"permissions: {found}")
    return {"permissions": found}


def _risk(built: Built, admin: hopline.Client, say: Say) -> dict[str, Any]:
    """Crowd workers: with all neighbours the served scores must be those computed without a server."""
    data, nodes = built.risk.data, built.risk.split.test
    found: dict[str, Any] = {"tolokers_auc_offline": built.risk.auc}
    for name, key in ((build.RISK, "served"), (build.RISK_SAMPLED, "served_sampled")):
        parts = [
            admin.score(name, nodes[at : at + _NODES_OF_A_REQUEST]).outputs["score"]
            for at in range(0, len(nodes), _NODES_OF_A_REQUEST)
        ]
        scores = np.concatenate(parts)
        found[f"tolokers_auc_{key}"] = float(roc_auc_score(data.y[nodes], scores))
        if name == build.RISK:
            found["tolokers_max_abs_diff"] = float(np.abs(scores - built.risk.scores[nodes]).max())
    say(
        f"crowd workers, split 1: AUC {found['tolokers_auc_served']:.4f} as served, "
        f"{found['tolokers_auc_served_sampled']:.4f} with fanouts {build.FANOUTS}, "
        f"{built.risk.auc:.4f} without a server"
    )
    return found


def _sale(built: Built, served: Served, keys: Keys, admin: hopline.Client, say: Say) -> dict[str, Any]:
    service = PaymentService(served.grpc, keys.payments)
    found = sale.alarmed(service, admin, built.checkout.test.frame)
    service.close()
    say(f"flash sale: {sale.COLUMN} at {found['before']!r} before, {found['after']!r} after {found['s']} s")
    return {"sale": found}


def _rollouts(
    built: Built, served: Served, keys: Keys, client: hopline.Client, scale: Scale, say: Say
) -> dict[str, Any]:
    """Version 2 in the shadow, then as a canary; then version 3, which is wrong."""
    checkout, admin = built.checkout, Administrator(client)
    outcomes: list[Outcome] = []
    steps, min_step_s, least = list(scale.steps), scale.min_step_s, scale.min_requests
    better, broken = checkout.better(), checkout.broken()
    with Traffic(served.grpc, keys.payments, checkout.test.frame) as traffic:
        checkout.publish(better, "2")
        outcomes.append(_told(admin.shadow("2", scale.copies), say))
        outcomes.append(_told(admin.canary("2", steps, min_step_s, least), say))
        checkout.publish(broken, "3")
        outcomes.append(_told(admin.canary("3", steps, min_step_s, least), say))
        serving = admin.serving()
    by_version = {version: traffic.answered_by(version) for version in "123"}
    count, errors = len(traffic.answers), traffic.errors
    say(f"meanwhile {count:,} checkouts, {len(errors)} errors, by version {by_version}")
    shadow, canary, wrong = outcomes
    candidate = shadow.seen["candidate"]
    return {
        "rollouts": {
            "shadow": {
                "status": shadow.status,
                "compared": candidate["compared"],
                "differing": candidate["differing"],
                "reason": shadow.reason,
                "mean_difference": round(candidate["mean_difference"], 5),
            },
            "canary": {"status": canary.status, "reason": canary.reason, "s": round(canary.seconds, 1)},
            "broken": {
                "status": wrong.status,
                "reason": wrong.reason,
                "s": round(wrong.seconds, 1),
                "harmed": by_version["3"],
            },
        },
        "serving": serving,
        "meanwhile": {"requests": count, "errors": errors[:3], **by_version},
        "fraud_auc_by_version": {
            version: float(roc_auc_score(checkout.test.is_fraud, trees.scores(each, checkout.test.frame)))
            for version, each in (("1", checkout.first), ("2", better), ("3", broken))
        },
    }


def _told(outcome: Outcome, say: Say) -> Outcome:
    for step in outcome.steps:
        say(f"  {outcome.kind} of version {outcome.version}: {step}")
    return outcome
