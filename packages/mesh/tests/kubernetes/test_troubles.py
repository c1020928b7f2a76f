"""Changes that go wrong, and pods that are ill: what is told as trouble, and from when to when."""

import pytest

from hopline_mesh.kubernetes.resources import (
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    PODS,
)
from packages.mesh.tests.kubernetes.things import (
    T,
    at,
    container,
    deployment,
    endpoints,
    pod,
    web,
)

NEW = "shop/web:2"


def test_a_rollout_past_its_deadline_is_trouble_and_no_change():
    story = web().after(60)
    story.says(DEPLOYMENTS, deployment(generation=2, observed=1, image=NEW)).after(60)
    late = deployment(
        generation=2, image=NEW, replicas=4, updated=1, available=3, progress="ProgressDeadlineExceeded"
    )
    story.says(DEPLOYMENTS, late)
    assert story.changes() == set()
    assert story.troubles() == {("stuck_rollout", "shop/web")}
    assert "timed out" in story.context().troubles[0].detail
    # Rolled back: that is a change again, and the trouble is over.
    back = {"generation": 3, "progress": "ReplicaSetUpdated"}
    story.says(DEPLOYMENTS, deployment(**back, observed=2, replicas=4, updated=3))
    assert story.troubles() == set()
    assert story.changes() == {("rollout", "shop/web")}
    story.says(DEPLOYMENTS, deployment(generation=3))
    assert story.changes() == set()


def test_a_rollout_past_its_deadline_began_when_the_controller_says():
    """Also for a watch that is started an hour later."""
    for story in (web().after(600), web().after(4200)):
        late = deployment(generation=2, image=NEW, updated=1, progress="ProgressDeadlineExceeded")
        late["status"]["conditions"][0]["lastTransitionTime"] = at(T + 500)
        assert story.says(DEPLOYMENTS, late).context().troubles[0].start_s == T + 500


def test_a_rollout_that_comes_no_nearer_is_trouble_even_if_pods_come_and_go():
    story = web(stuck_after_s=120).after(60)
    story.says(DEPLOYMENTS, deployment(generation=2, observed=1, image=NEW))
    going = {"image": NEW, "generation": 2, "progress": "ReplicaSetUpdated", "replicas": 4, "updated": 1}
    for available in (3, 4, 3, 4, 3, 4, 3, 4, 3, 4):
        story.says(DEPLOYMENTS, deployment(**going, available=available)).after(15)
    assert story.changes() == set()
    assert story.troubles() == {("stuck_rollout", "shop/web")}
    story.says(DEPLOYMENTS, deployment(**(going | {"updated": 3, "replicas": 4}), available=4))
    assert story.troubles() == set()
    assert story.changes() == {("rollout", "shop/web")}


def test_a_scale_out_without_room_is_trouble_in_the_end():
    story = web().after(60)
    story.says(DEPLOYMENTS, deployment(desired=7, generation=2, observed=1, replicas=3))
    story.says(DEPLOYMENTS, deployment(desired=7, generation=2, replicas=7, available=5)).after(590)
    assert story.changes() == {("scale", "shop/web")}
    story.after(30)
    assert story.changes() == set()
    assert story.troubles() == {("stuck_rollout", "shop/web")}


def test_an_image_that_cannot_be_pulled_is_a_stuck_rollout_at_once():
    story = web().after(60)
    story.says(DEPLOYMENTS, deployment(generation=2, observed=1, image=NEW))
    new = pod(
        "web-x", hash_="77", created_s=story.now_s, containers=[container(waiting="ImagePullBackOff")]
    )
    story.says(PODS, new, "ADDED")
    assert story.changes() == set()
    assert story.troubles() == {("stuck_rollout", "shop/web")}
    assert "ImagePullBackOff" in story.context().troubles[0].detail


@pytest.mark.parametrize("crashing", ["web-a1", "web-z1"])
def test_of_two_new_pods_that_fail_the_one_that_cannot_start_is_named(crashing):
    story = web().after(60)
    new = {"hash_": "77", "created_s": story.now_s}
    killed = [container(restarts=1, last="OOMKilled", ended_s=story.now_s)]
    story.says(PODS, pod(crashing, containers=killed, **new), "ADDED")
    story.says(PODS, pod("web-m1", containers=[container(waiting="ImagePullBackOff")], **new), "ADDED")
    story.says(DEPLOYMENTS, deployment(generation=2, observed=1, image=NEW))
    assert story.changes() == set()
    assert story.troubles() == {("oom_kill", "shop/web"), ("stuck_rollout", "shop/web")}


@pytest.mark.parametrize("change", ["rollout", "scale", "drain"])
def test_new_pods_that_fall_over_end_the_expected_change(change):
    story = web().after(60)
    if change == "rollout":
        story.says(DEPLOYMENTS, deployment(generation=2, observed=1, image=NEW))
    elif change == "scale":
        story.says(DEPLOYMENTS, deployment(desired=4, generation=2, observed=1, replicas=3))
    else:
        story.says(PODS, pod("web-a", ending_s=story.now_s, disruption="EvictionByEvictionAPI"))
    assert story.changes() == {(change, "shop/web")}
    falls = container(restarts=2, waiting="CrashLoopBackOff", last="Error", ended_s=story.now_s + 20)
    new = pod("web-x", created_s=story.now_s, containers=[falls])
    story.after(20).says(PODS, new, "ADDED").says(ENDPOINT_SLICES, endpoints("web", ["web-b", "web-x"]))
    assert story.changes() == set()
    assert story.troubles() == {("crash_loop", "shop/web")}
    (ended,) = [each for each in story.context().changes if each.kind == change]
    assert "failed: " in ended.detail


def test_an_old_pod_that_falls_over_does_not_end_the_change():
    story = web().after(60)
    story.says(DEPLOYMENTS, deployment(generation=2, observed=1, image=NEW))
    falls = container(restarts=9, waiting="CrashLoopBackOff", last="Error", ended_s=story.now_s)
    story.says(PODS, pod("web-a", containers=[falls]))
    assert story.changes() == {("rollout", "shop/web")}
    assert story.troubles() == {("crash_loop", "shop/web")}


def test_a_drain_that_is_not_made_up_for_is_trouble():
    story = web().after(60)
    story.says(PODS, pod("web-a", ending_s=story.now_s, disruption="EvictionByEvictionAPI")).after(30)
    story.gone(PODS, pod("web-a")).says(DEPLOYMENTS, deployment(available=2)).after(700)
    assert story.changes() == set()
    assert story.troubles() == {("stuck_rollout", "shop/web")}
    assert story.says(DEPLOYMENTS, deployment()).troubles() == set()


def test_an_oom_kill_is_trouble_for_a_while():
    story = web().after(60)
    killed = pod("web-a", containers=[container(restarts=1, last="OOMKilled", ended_s=story.now_s)])
    story.says(PODS, killed)
    assert story.troubles() == {("oom_kill", "shop/web")}
    assert story.context().troubles[0].detail == "pod web-a, container app ran out of memory"
    story.after(240)
    assert story.troubles() == {("oom_kill", "shop/web")}
    story.after(120)
    assert story.troubles() == set()
    assert [each.kind for each in story.context().troubles] == ["oom_kill"]


@pytest.mark.parametrize("first", ["web-a", "web-b"])
def test_a_trouble_of_two_pods_begins_with_the_first_whatever_their_order(first):
    """Each watch lists pods in another order; the creation of the oldest pod identifies the trouble."""
    story = web().after(60)
    for name in (first, "web-a", "web-b"):
        ended_s = story.now_s - (30 if name == "web-a" else 10)
        created_s = T - (900 if name == "web-b" else 600)
        killed = [container(restarts=1, last="OOMKilled", ended_s=ended_s)]
        story.says(PODS, pod(name, created_s=created_s, containers=killed))
    (trouble,) = story.context().troubles
    assert (trouble.start_s, trouble.pod_created_s) == (story.now_s - 30, T - 900)


def test_an_oom_kill_of_days_ago_is_none():
    story = web()
    story.says(PODS, pod("web-a", containers=[container(restarts=1, last="OOMKilled", ended_s=T - 86_400)]))
    assert story.context().troubles == ()


def test_a_killed_pod_that_is_gone_before_any_request_is_reported_all_the_same():
    story = web().after(60)
    killed = pod("web-a", containers=[container(restarts=1, last="OOMKilled", ended_s=story.now_s)])
    story.says(PODS, killed).gone(PODS, killed)
    (trouble,) = story.context().troubles
    assert (trouble.kind, trouble.service, trouble.end_s) == ("oom_kill", "shop/web", story.now_s)


def test_a_crash_loop_is_one_trouble_through_all_its_restarts():
    story = web().after(60)
    began_s = story.now_s
    for restarts in range(2, 9):
        waits = container(restarts=restarts, waiting="CrashLoopBackOff", last="Error", ended_s=story.now_s)
        story.says(PODS, pod("web-a", containers=[waits])).after(60)
        runs = container(restarts=restarts + 1, last="Error", ended_s=story.now_s - 60)
        story.says(PODS, pod("web-a", containers=[runs])).after(20)
        assert story.troubles() == {("crash_loop", "shop/web")}
    (trouble,) = story.context().troubles
    assert trouble.start_s == began_s
    story.after(320)
    assert story.troubles() == set()


def test_restarts_that_rise_without_a_pause_between_are_a_crash_loop():
    story = web().after(60)
    for restarts in (1, 2):
        runs = container(restarts=restarts, last="Error", ran_s=120, ended_s=story.now_s)
        assert story.says(PODS, pod("web-a", containers=[runs])).after(120).troubles() == set()
    runs = container(restarts=3, last="Error", ran_s=120, ended_s=story.now_s)
    assert story.says(PODS, pod("web-a", containers=[runs])).troubles() == {("crash_loop", "shop/web")}


def test_one_restart_after_weeks_is_no_crash_loop():
    story = web()
    runs = container(restarts=7, last="Error", ran_s=1e6, ended_s=T - 10)
    assert story.says(PODS, pod("web-a", containers=[runs])).troubles() == set()


def test_troubles_of_pods_that_serve_nobody_are_not_reported():
    story = web()
    owner = {"kind": "Job", "name": "import-1", "controller": True}
    falls = container(restarts=9, waiting="CrashLoopBackOff", last="Error", ended_s=T)
    story.says(PODS, pod("import-1-x", owners=[owner], containers=[falls], ending_s=T), "ADDED")
    assert story.context() == web().context()


def test_nothing_is_stuck_that_is_only_unreported():
    story = web().after(60)
    story.says(DEPLOYMENTS, deployment(desired=7, generation=2, observed=1, replicas=3)).after(30)
    story.feed.lost(DEPLOYMENTS, None, story.now_s)
    story.after(590)
    assert story.changes() == {("scale", "shop/web")}
    story.after(30)
    assert story.changes() == set()
    assert story.troubles() == set()
    (change,) = story.context().changes
    assert change.detail == "3 to 7 pods; Kubernetes is unavailable since then"
    story.listed(DEPLOYMENTS, deployment(desired=7, generation=2, replicas=5))
    assert story.changes() == {("scale", "shop/web")}


def test_a_namespace_that_may_not_be_read_ends_no_change_of_another():
    story = web().after(60)
    story.feed.lost(DEPLOYMENTS, "pay", story.now_s)
    story.says(DEPLOYMENTS, deployment(desired=7, generation=2, observed=1, replicas=3)).after(500)
    assert story.changes() == {("scale", "shop/web")}
    story.after(200)
    assert story.troubles() == {("stuck_rollout", "shop/web")}


def test_a_short_silence_ends_nothing_and_starts_the_patience_anew():
    story = web().after(60)
    story.says(DEPLOYMENTS, deployment(desired=7, generation=2, replicas=3)).after(300)
    story.feed.lost(DEPLOYMENTS, None, story.now_s)
    story.after(290).feed.heard(DEPLOYMENTS, None, story.now_s)
    story.after(590)
    assert story.changes() == {("scale", "shop/web")}
    story.after(30)
    assert story.troubles() == {("stuck_rollout", "shop/web")}


@pytest.mark.parametrize("jump_s", [7200.0, -7200.0])
def test_a_clock_that_is_set_makes_no_trouble(jump_s):
    story = web().after(60)
    story.says(DEPLOYMENTS, deployment(desired=7, generation=2, replicas=3)).after(300)
    story.now_s += jump_s
    assert story.changes() == {("scale", "shop/web")}
    assert story.troubles() == set()
    assert all(each.start_s <= story.now_s for each in story.context().changes)
    story.after(400)
    assert story.troubles() == {("stuck_rollout", "shop/web")}
    assert story.after(30).says(DEPLOYMENTS, deployment(desired=7, generation=2)).troubles() == set()
