"""What a cluster's objects say about its services: stories of planned changes, and of those gone wrong."""

import pytest

from hopline_mesh.kubernetes.resources import (
    AUTOSCALER_EVENTS,
    AUTOSCALERS,
    DAEMON_SETS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    NODE_EVENTS,
    PODS,
    STATEFUL_SETS,
)
from packages.mesh.tests.kubernetes.things import (
    Story,
    T,
    autoscaler,
    container,
    daemon_set,
    deployment,
    endpoints,
    event,
    names_of_workload,
    pod,
    services,
    sizes,
    stateful_set,
    web,
)

NEW = "shop/web:2"


def test_what_was_there_at_the_start_is_no_change():
    assert web().context().changes == ()
    assert web().context().troubles == ()


def test_scale_out_lasts_until_all_pods_are_available():
    story = web().after(60)
    began_s = story.now_s
    story.says(DEPLOYMENTS, deployment(desired=7, generation=2, observed=1, replicas=3))
    assert story.changes() == {("scale", "shop/web")}
    story.says(DEPLOYMENTS, deployment(desired=7, generation=2, replicas=3))
    story.after(15).says(DEPLOYMENTS, deployment(desired=7, generation=2, replicas=7, available=5))
    assert story.changes() == {("scale", "shop/web")}
    story.after(15).says(DEPLOYMENTS, deployment(desired=7, generation=2))
    assert story.changes() == set()
    (change,) = story.context().changes
    assert (change.start_s, change.end_s, change.detail) == (began_s, story.now_s, "3 to 7 pods")
    assert (change.before, change.after) == (3, 7)


def test_a_scaling_with_another_aim_goes_from_where_it_began():
    story = web().after(60)
    for number, desired in enumerate((5, 9)):
        story.says(DEPLOYMENTS, deployment(desired=desired, generation=2 + number, observed=1, replicas=3))
        (change,) = story.context().changes
        assert (change.before, change.after, change.detail) == (3, desired, f"3 to {desired} pods")


def test_scaling_in_ends_pods_without_a_drain():
    story = web().after(60)
    story.says(DEPLOYMENTS, deployment(desired=2, generation=2, observed=1, replicas=3))
    story.says(PODS, pod("web-c", ending_s=story.now_s))
    story.says(DEPLOYMENTS, deployment(desired=2, generation=2))
    assert story.changes() == set()
    story.gone(PODS, pod("web-c", ending_s=story.now_s))
    assert story.ended() == {("scale", "shop/web")}


def test_a_pod_that_is_reported_before_its_deployment_is_part_of_the_same_change():
    story = web().after(60)
    began_s = story.now_s
    story.says(PODS, pod("web-c", ending_s=story.now_s))
    assert story.changes() == {("drain", "shop/web")}
    story.now_s += 2
    story.says(DEPLOYMENTS, deployment(desired=2, generation=2, observed=1, replicas=3))
    (change,) = story.context().changes
    assert (change.kind, change.start_s) == ("scale", began_s)


def test_a_pod_that_is_reported_after_its_deployment_is_part_of_the_same_change():
    story = web().after(60)
    story.says(DEPLOYMENTS, deployment(desired=2, generation=2, observed=1, replicas=3))
    story.says(DEPLOYMENTS, deployment(desired=2, generation=2))
    story.now_s += 1
    story.says(PODS, pod("web-c", ending_s=story.now_s))
    assert story.changes() == set()
    assert story.ended() == {("scale", "shop/web")}


def test_a_service_that_is_scaled_to_nothing_is_meant_to_serve_nobody():
    story = web().after(60)
    story.says(DEPLOYMENTS, deployment(desired=0, generation=2, observed=1, replicas=3))
    for each in "abc":
        story.says(PODS, pod(f"web-{each}", ending_s=story.now_s))
    story.says(DEPLOYMENTS, deployment(desired=0, generation=2))
    for each in "abc":
        story.gone(PODS, pod(f"web-{each}"))
    story.says(ENDPOINT_SLICES, endpoints("web", []))
    assert story.after(7200).changes() == {("scale", "shop/web")}
    assert story.troubles() == set()
    story.says(DEPLOYMENTS, deployment(desired=1, generation=3, observed=2, replicas=0))
    story.says(DEPLOYMENTS, deployment(desired=1, generation=3))
    assert story.changes() == set()


def test_the_autoscalers_reason_is_reported():
    story = web()
    story.listed(AUTOSCALERS, autoscaler("web-hpa", 3, 3)).after(60)
    message = "New size: 7; reason: cpu resource utilization above target"
    story.says(DEPLOYMENTS, deployment(desired=7, generation=2, observed=1, replicas=3))
    story.says(
        AUTOSCALER_EVENTS,
        event("SuccessfulRescale", "HorizontalPodAutoscaler", "web-hpa", message, seen_s=story.now_s),
    )
    (change,) = story.context().changes
    assert change.detail == f"3 to 7 pods; autoscaler: {message}"


def test_an_autoscaler_speaks_for_workloads_of_kinds_that_are_not_watched():
    owner = {"kind": "ReplicaSet", "name": "cart-9f", "controller": True}
    cart = pod("cart-1", "cart", owners=[owner])
    cart["metadata"]["labels"] = {"rollouts-pod-template-hash": "9f"}
    story = Story()
    story.listed(PODS, cart).listed(ENDPOINT_SLICES, endpoints("cart-service", ["cart-1"]))
    story.listed(AUTOSCALERS, autoscaler("cart", 1, 1, "Rollout", "cart"))
    story.says(AUTOSCALERS, autoscaler("cart", 1, 4, "Rollout", "cart"))
    assert story.changes() == {("scale", "shop/cart"), ("scale", "shop/cart-service")}
    story.says(AUTOSCALERS, autoscaler("cart", 2, 6, "Rollout", "cart"))
    change = next(each for each in story.context().changes if each.service == "shop/cart")
    assert (change.before, change.after, change.detail) == (1, 6, "1 to 6 pods")
    story.says(AUTOSCALERS, autoscaler("cart", 6, 6, "Rollout", "cart"))
    assert story.changes() == set()


def test_a_rollout_lasts_until_old_pods_are_gone_and_new_ones_available():
    story = web().after(60)
    going = {"image": NEW, "generation": 2, "progress": "ReplicaSetUpdated"}
    story.says(DEPLOYMENTS, deployment(generation=2, observed=1, image=NEW))
    assert story.changes() == {("rollout", "shop/web")}
    story.says(PODS, pod("web-x", hash_="77"), "ADDED")
    story.says(DEPLOYMENTS, deployment(**going, replicas=4, updated=1, available=3))
    story.says(PODS, pod("web-a", ending_s=story.now_s)).after(30).gone(PODS, pod("web-a"))
    story.says(DEPLOYMENTS, deployment(**going, replicas=4, updated=3, available=3))
    assert story.changes() == {("rollout", "shop/web")}
    story.after(30).says(DEPLOYMENTS, deployment(generation=2, image=NEW))
    assert story.changes() == set()
    assert story.ended() == {("rollout", "shop/web")}


def test_a_rollout_is_seen_from_a_list_alone():
    story = Story()
    story.listed(PODS, pod("web-a")).listed(ENDPOINT_SLICES, endpoints("web", ["web-a"]))
    story.listed(DEPLOYMENTS, deployment(replicas=4, updated=2, available=3, progress="ReplicaSetUpdated"))
    assert story.changes() == {("rollout", "shop/web")}


def test_pods_that_are_not_ready_are_no_change():
    story = web().after(60)
    story.says(DEPLOYMENTS, deployment(available=1)).after(60)
    assert story.context().changes == ()


def test_a_rollout_that_is_paused_is_none():
    story = web().after(60)
    story.says(DEPLOYMENTS, deployment(generation=2, image=NEW, replicas=4, updated=1, paused=True))
    assert story.after(3600).changes() == set()
    assert story.troubles() == set()


def test_an_eviction_is_a_drain_until_the_pod_is_replaced():
    story = web().after(60)
    story.says(NODE_EVENTS, event("NodeNotSchedulable", "Node", "n1", namespace="default"))
    story.says(PODS, pod("web-a", ending_s=story.now_s, disruption="EvictionByEvictionAPI"))
    assert story.context().changes[0].detail == "pods move away from n1, which is cordoned"
    story.says(DEPLOYMENTS, deployment(replicas=2, available=2)).says(DEPLOYMENTS, deployment(available=2))
    assert story.changes() == {("drain", "shop/web")}
    story.after(30).gone(PODS, pod("web-a"))
    assert story.changes() == {("drain", "shop/web")}
    story.says(DEPLOYMENTS, deployment()).after(15)
    assert story.changes() == set()
    assert story.ended() == {("drain", "shop/web")}


def test_pods_that_are_moved_one_after_the_other_are_one_drain():
    story = web().after(60)
    began_s = story.now_s
    for each in "abc":
        story.says(PODS, pod(f"web-{each}", ending_s=story.now_s)).after(15)
        story.gone(PODS, pod(f"web-{each}")).says(DEPLOYMENTS, deployment()).after(15)
        assert story.changes() == set()
    (change,) = story.context().changes
    assert (change.kind, change.start_s) == ("drain", began_s)


def test_pods_that_are_replaced_all_day_are_not_one_drain_that_never_ends():
    story = web().after(60)
    for _ in range(60):
        story.says(PODS, pod("web-a", ending_s=story.now_s)).after(15).gone(PODS, pod("web-a"))
        story.says(PODS, pod("web-a"), "ADDED").after(30)
    assert all(story.now_s - each.start_s < 1000 for each in story.context().changes)


@pytest.mark.parametrize(
    "reason", ["DeletionByTaintManager", "TerminationByKubelet", "PreemptionByScheduler", "DeletionByPodGC"]
)
def test_a_pod_that_ends_because_something_broke_is_no_planned_change(reason):
    story = web().after(60)
    story.says(PODS, pod("web-a", ending_s=story.now_s, disruption=reason))
    story.says(DEPLOYMENTS, deployment(available=2)).after(60).gone(PODS, pod("web-a"))
    assert story.context().changes == ()


def test_a_pod_that_is_gone_without_a_word_is_no_planned_change():
    story = web().after(60).gone(PODS, pod("web-a"))
    assert story.context().changes == ()


def test_a_pod_that_takes_hours_to_end_keeps_nothing_in_change():
    story = web().after(60).says(PODS, pod("web-a", ending_s=T + 60))
    story.says(DEPLOYMENTS, deployment()).after(300)
    assert story.changes() == set()


def test_a_service_is_added_and_removed():
    story = web().after(60)
    story.says(ENDPOINT_SLICES, endpoints("cart", []), "ADDED")
    assert story.changes() == {("added", "shop/cart")}
    story.after(30).says(ENDPOINT_SLICES, endpoints("cart", ["cart-1"]))
    assert story.changes() == set()
    assert story.ended() == {("added", "shop/cart")}
    story.after(900).gone(ENDPOINT_SLICES, endpoints("cart", ["cart-1"]))
    assert story.changes() == {("removed", "shop/cart")}
    assert services(story.feed) == {"shop/web"}
    assert story.after(900).context().changes == ()


def test_a_service_without_endpoints_is_not_removed():
    story = web().after(60)
    story.says(ENDPOINT_SLICES, endpoints("web", []))
    assert story.context().changes == ()


def test_a_service_is_gone_with_its_last_slice_only():
    story = web()
    story.says(ENDPOINT_SLICES, endpoints("web", ["web-a"], suffix="v6"), "ADDED")
    story.gone(ENDPOINT_SLICES, endpoints("web", []))
    assert story.changes() == set()
    story.gone(ENDPOINT_SLICES, endpoints("web", [], suffix="v6"))
    assert story.changes() == {("removed", "shop/web")}


def test_a_deleted_deployment_is_meant_to_leave_its_service_empty():
    story = web().after(60).gone(DEPLOYMENTS, deployment())
    for each in "abc":
        story.says(PODS, pod(f"web-{each}", ending_s=story.now_s))
    story.says(ENDPOINT_SLICES, endpoints("web", [])).after(30)
    for each in "abc":
        story.gone(PODS, pod(f"web-{each}"))
    assert story.after(3600).changes() == {("drain", "shop/web")}
    # Another deployment takes over.
    story.says(DEPLOYMENTS, deployment("web-green"), "ADDED")
    story.says(PODS, pod("green-1", "web-green"), "ADDED").says(
        ENDPOINT_SLICES, endpoints("web", ["green-1"])
    )
    assert story.changes() == set()
    assert sizes(story.feed)["operations"] == 0


def test_workloads_without_a_service_have_their_own_name():
    story = web()
    story.says(DEPLOYMENTS, deployment("loadgenerator"), "ADDED")
    story.says(DEPLOYMENTS, deployment("loadgenerator", desired=5, generation=2, observed=1, replicas=3))
    assert story.changes() == {("scale", "shop/loadgenerator")}


def test_pods_of_several_services_change_all_of_them():
    story = web()
    story.says(ENDPOINT_SLICES, endpoints("web-metrics", ["web-a"]), "ADDED").after(60)
    story.says(DEPLOYMENTS, deployment(desired=5, generation=2, observed=1, replicas=3))
    assert {("scale", "shop/web"), ("scale", "shop/web-metrics")} <= story.changes()


def test_stateful_sets_roll_by_revision_and_stop_at_their_partition():
    story = Story().listed(STATEFUL_SETS, stateful_set("db"))
    story.listed(PODS).listed(ENDPOINT_SLICES).after(60)
    new = {"image": "shop/db:2", "generation": 2, "observed": 2, "two": True}
    story.says(STATEFUL_SETS, stateful_set("db", **(new | {"observed": 1}), updated=0))
    story.says(STATEFUL_SETS, stateful_set("db", **new, updated=1, ready=2))
    assert story.changes() == {("rollout", "shop/db")}
    story.says(STATEFUL_SETS, stateful_set("db", image="shop/db:2", generation=2, observed=2))
    assert story.changes() == set()
    held = {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}}
    canary = {"image": "shop/db:3", "generation": 3, "observed": 3, "two": True}
    story.says(STATEFUL_SETS, stateful_set("db", **canary, **held, updated=0))
    assert story.changes() == {("rollout", "shop/db")}
    story.says(STATEFUL_SETS, stateful_set("db", **canary, **held, updated=1))
    assert story.after(3600).changes() == set()
    assert story.troubles() == set()


def test_stateful_sets_that_are_updated_by_hand_are_in_no_change():
    by_hand = {"strategy": {"type": "OnDelete"}}
    story = Story().listed(STATEFUL_SETS, stateful_set("db", **by_hand)).after(60)
    new = stateful_set("db", image="shop/db:2", generation=2, observed=2, two=True, updated=0, **by_hand)
    assert story.says(STATEFUL_SETS, new).after(3600).changes() == set()
    assert story.troubles() == set()


def test_a_stateful_sets_next_pod_of_the_same_name_is_another_one():
    owner = {"kind": "StatefulSet", "name": "db", "controller": True}
    story = Story().listed(STATEFUL_SETS, stateful_set("db"))
    story.listed(PODS, pod("db-0", owners=[owner], uid="first"))
    story.listed(ENDPOINT_SLICES, endpoints("db", ["db-0"])).after(60)
    story.says(PODS, pod("db-0", owners=[owner], uid="first", ending_s=story.now_s))
    assert story.changes() == {("drain", "shop/db")}
    story.says(PODS, pod("db-0", owners=[owner], uid="second")).after(15)
    assert story.changes() == set()
    assert sizes(story.feed)["pods"] == 1


def test_daemon_sets_roll_and_follow_the_machines():
    story = Story().listed(DAEMON_SETS, daemon_set("agent")).after(60)
    new = {"image": "shop/agent:2", "generation": 2}
    story.says(DAEMON_SETS, daemon_set("agent", **new, observed=2, updated=1, available=2))
    assert story.changes() == {("rollout", "shop/agent")}
    story.says(DAEMON_SETS, daemon_set("agent", **new, observed=2))
    assert story.changes() == set()
    story.says(DAEMON_SETS, daemon_set("agent", 5, **new, observed=2, available=3))
    assert story.changes() == {("scale", "shop/agent")}


def test_changes_of_a_deployment_made_anew_are_not_those_of_the_old_one():
    story = web().after(60)
    story.says(DEPLOYMENTS, deployment(desired=9, uid="other", replicas=9))
    assert story.changes() == set()


def test_what_ended_is_kept_for_some_minutes():
    story = web().after(60)
    story.says(DEPLOYMENTS, deployment(desired=4, generation=2, observed=1, replicas=3))
    story.says(DEPLOYMENTS, deployment(desired=4, generation=2)).after(590)
    assert story.ended() == {("scale", "shop/web")}
    assert story.after(30).context().changes == ()


def test_collectors_can_look_up_whose_workload_it_is():
    story = web()
    assert names_of_workload(story.feed, "shop", "web") == ("shop/web",)
    story.says(DEPLOYMENTS, deployment("cart-v2"), "ADDED")
    assert names_of_workload(story.feed, "shop", "cart-v2") == ("shop/cart-v2",)
    story.says(PODS, pod("cart-1", "cart-v2"), "ADDED").says(ENDPOINT_SLICES, endpoints("cart", ["cart-1"]))
    assert names_of_workload(story.feed, "shop", "cart-v2") == ("shop/cart-v2", "shop/cart")
    assert names_of_workload(story.feed, "shop", "nobody") == ()


def reviews(*workloads):
    """Bookinfo: one Service `reviews`, with a Deployment for each version."""
    story = web()
    for each in workloads:
        story.says(DEPLOYMENTS, deployment(each, desired=1), "ADDED")
        story.says(PODS, pod(f"{each}-a", each), "ADDED")
    pods = [f"{each}-a" for each in workloads]
    return story.says(ENDPOINT_SLICES, endpoints("reviews", pods), "ADDED").after(700)


def test_a_change_is_that_of_the_workload_where_the_service_has_another_name():
    story = reviews("reviews-v1")
    story.says(DEPLOYMENTS, deployment("reviews-v1", desired=4, generation=2, observed=1, replicas=1))
    # The Service's name too: metrics without a workload have nothing else.
    assert story.changes() == {("scale", "shop/reviews-v1"), ("scale", "shop/reviews")}


def test_a_change_of_one_version_is_none_of_the_others():
    story = reviews("reviews-v1", "reviews-v2")
    story.says(DEPLOYMENTS, deployment("reviews-v2", desired=4, generation=2, observed=1, replicas=1))
    assert ("scale", "shop/reviews-v2") in story.changes()
    assert ("scale", "shop/reviews-v1") not in story.changes()


def test_a_canarys_change_is_none_of_the_workload_that_has_the_services_name():
    story = reviews("reviews", "reviews-canary")
    going = {"desired": 4, "generation": 2, "observed": 1, "replicas": 1}
    story.says(DEPLOYMENTS, deployment("reviews-canary", **going))
    assert story.changes() == {("scale", "shop/reviews-canary")}


def test_an_oom_kill_is_a_trouble_of_the_workload():
    story = reviews("reviews-v1", "reviews-v2")
    killed = [container(restarts=1, last="OOMKilled", ended_s=story.now_s)]
    story.says(PODS, pod("reviews-v2-a", "reviews-v2", containers=killed))
    assert story.troubles() == {("oom_kill", "shop/reviews-v2"), ("oom_kill", "shop/reviews")}


def test_another_service_of_an_old_workload_adds_no_workload():
    story = reviews("reviews-v1")
    story.says(ENDPOINT_SLICES, endpoints("reviews-metrics", ["reviews-v1-a"]), "ADDED")
    assert ("added", "shop/reviews-v1") not in story.changes()


def test_constant_churn_takes_no_more_memory_than_there_are_services():
    """Every pod of 40 services is replaced again and again, and services come and go, for two days."""
    apps = [f"app-{each}" for each in range(40)]
    story = Story()
    story.listed(DEPLOYMENTS, *[deployment(app, desired=1) for app in apps])
    story.listed(PODS, *[pod(f"{app}-0", app, uid=f"{app}-0") for app in apps])
    story.listed(ENDPOINT_SLICES, *[endpoints(app, [f"{app}-0"]) for app in apps])
    settled, most = None, 0
    for turn in range(576):
        app, number = apps[turn % len(apps)], turn // len(apps)
        old, new = f"{app}-{number}", f"{app}-{number + 1}"
        story.says(PODS, pod(old, app, uid=old, ending_s=story.now_s))
        story.says(PODS, pod(new, app, uid=new, created_s=story.now_s), "ADDED")
        story.says(ENDPOINT_SLICES, endpoints(app, [new])).gone(PODS, pod(old, app, uid=old))
        brief = f"preview-{turn}"
        story.says(DEPLOYMENTS, deployment(brief, desired=1), "ADDED")
        story.says(PODS, pod(f"{brief}-1", brief), "ADDED")
        story.says(ENDPOINT_SLICES, endpoints(brief, [f"{brief}-1"]), "ADDED")
        story.gone(DEPLOYMENTS, deployment(brief, desired=1)).gone(PODS, pod(f"{brief}-1", brief))
        story.gone(ENDPOINT_SLICES, endpoints(brief, [f"{brief}-1"]))
        story.after(300)
        kept = sum(sizes(story.feed).values())
        most = max(most, kept)
        if turn == 20:
            settled = most
    assert most <= settled
    assert len(story.feed._backends._services_of) == len(apps)
