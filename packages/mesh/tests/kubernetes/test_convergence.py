"""However the news of a cluster arrive, the feed ends up where a fresh list would have put it."""

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from hopline_mesh.kubernetes.resources import DEPLOYMENTS, ENDPOINT_SLICES, PODS
from packages.mesh.tests.kubernetes.things import (
    Story,
    T,
    container,
    deployment,
    endpoints,
    names_of_workload,
    pod,
    services,
    sizes,
)
from tests.thorough import thorough

APPS = ("cart", "web", "pay")
KINDS = (DEPLOYMENTS, PODS, ENDPOINT_SLICES)

#: What may happen next: to which app, and with which number.
STEPS = [
    *("scale", "roll", "settle", "late", "deploy", "undeploy"),
    *("start", "end", "go", "vanish", "oom", "crash", "heal"),
    *("serve", "unserve", "remove", "miss"),
]
ACTIONS = st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(APPS), st.integers(0, 5)), max_size=40)


class Cluster:
    """A cluster with a few apps, and what its API server would send of each step."""

    def __init__(self):
        self.objects = {kind.name: {} for kind in KINDS}
        self.serial = 0
        self.now_s = T
        self.news = []
        for app in APPS:
            self.put(DEPLOYMENTS, deployment(app, desired=1))
            self.start(app)
            self.serve(app)
        self.news.clear()

    def put(self, kind, body):
        name = body["metadata"]["name"]
        self.news.append((kind, "MODIFIED" if name in self.objects[kind.name] else "ADDED", body))
        self.objects[kind.name][name] = body

    def drop(self, kind, name):
        body = self.objects[kind.name].pop(name, None)
        if body is not None:
            self.news.append((kind, "DELETED", body))

    def change(self, kind, name, edit):
        body = self.objects[kind.name].get(name)
        if body is not None:
            body = copy.deepcopy(body)
            edit(body)
            self.put(kind, body)

    def pods(self, app):
        return [
            name for name, body in self.objects["pods"].items() if body["metadata"]["labels"]["app"] == app
        ]

    def start(self, app):
        self.serial += 1
        name = f"{app}-{self.serial}"
        self.put(PODS, pod(name, app, uid=f"uid-{self.serial}", created_s=self.now_s))

    def serve(self, app):
        self.put(ENDPOINT_SLICES, endpoints(app, self.pods(app)))

    def does(self, action, app, number):
        """One step; returns nothing where it makes no sense."""
        pods = self.pods(app)
        chosen = pods[number % len(pods)] if pods else None
        generation = int(self.now_s)

        def spec(body):
            body["metadata"]["generation"] = generation

        if action == "scale":

            def edit(body):
                spec(body)
                body["spec"]["replicas"] = number

            self.change(DEPLOYMENTS, app, edit)
        elif action == "roll":

            def edit(body):
                spec(body)
                body["spec"]["template"]["spec"]["containers"][0]["image"] = f"shop/{app}:{number}"

            self.change(DEPLOYMENTS, app, edit)
        elif action in ("settle", "late"):

            def edit(body):
                size = body["spec"]["replicas"]
                status = body["status"]
                status["observedGeneration"] = body["metadata"]["generation"]
                status["replicas"] = status["updatedReplicas"] = status["availableReplicas"] = size
                late = action == "late"
                status["conditions"][0]["reason"] = (
                    "ProgressDeadlineExceeded" if late else "NewReplicaSetAvailable"
                )

            self.change(DEPLOYMENTS, app, edit)
        elif action == "start":
            self.start(app)
        elif action == "serve":
            self.serve(app)
        elif action == "unserve":
            self.put(ENDPOINT_SLICES, endpoints(app, []))
        elif action == "remove":
            self.drop(ENDPOINT_SLICES, f"{app}-abc")
        elif action == "deploy" and app not in self.objects["deployments"]:
            self.put(DEPLOYMENTS, deployment(app, desired=number))
        elif action == "undeploy":
            self.drop(DEPLOYMENTS, app)
        elif chosen is not None:
            self.of_pod(action, chosen)

    def of_pod(self, action, name):
        def status(**how):
            return lambda body: body["status"].update(containerStatuses=[container(**how)])

        if action == "end":
            self.change(
                PODS,
                name,
                lambda body: body["metadata"].update(
                    deletionTimestamp="2026-09-21T00:00:00Z", deletionGracePeriodSeconds=30
                ),
            )
        elif action in ("go", "vanish"):
            self.drop(PODS, name)
        elif action == "oom":
            self.change(PODS, name, status(restarts=1, last="OOMKilled", ended_s=self.now_s))
        elif action == "crash":
            self.change(PODS, name, status(waiting="CrashLoopBackOff", last="Error", ended_s=self.now_s))
        elif action == "heal":
            self.change(PODS, name, status())


def fresh(cluster, order=KINDS):
    story = Story()
    story.now_s = cluster.now_s
    for kind in order:
        story.listed(kind, *cluster.objects[kind.name].values())
    return story


def knows(story):
    """All that follows from the objects as they are."""
    kept = sizes(story.feed)
    return {
        "services": services(story.feed),
        "troubles": story.troubles(),
        "pods": kept["pods"],
        "workloads": kept["workloads"],
        "slices": kept["endpoint_slices"],
        "ill": kept["ill_pods"],
    }


@settings(max_examples=thorough(15, 60), deadline=None)
@given(actions=ACTIONS, data=st.data())
def test_any_order_of_news_and_lists_ends_where_a_fresh_list_does(actions, data):
    cluster = Cluster()
    story = fresh(cluster)
    waiting = {kind.name: [] for kind in KINDS}
    for action, app, number in actions:
        cluster.now_s += 1
        missed = action == "miss"
        cluster.does(action, app, number)
        for kind, type_, body in cluster.news:
            waiting[kind.name].append((type_, body))
        cluster.news.clear()
        story.now_s = cluster.now_s
        # Watches of different kinds are not in step.
        for kind in data.draw(st.permutations(KINDS)):
            if missed and data.draw(st.booleans()):
                # The connection was lost: a list says what is there.
                waiting[kind.name].clear()
                story.listed(kind, *cluster.objects[kind.name].values())
            elif data.draw(st.booleans()):
                for type_, body in waiting[kind.name]:
                    story.says(kind, body, type_)
                waiting[kind.name].clear()
    for kind in KINDS:
        for type_, body in waiting[kind.name]:
            story.says(kind, body, type_)
    assert knows(story) == knows(fresh(cluster))
    assert knows(fresh(cluster, KINDS[::-1])) == knows(fresh(cluster))
    # Where endpoints say whose pods they are, nothing of the past does.
    for app in APPS:
        named = cluster.objects["endpointslices"].get(f"{app}-abc", {}).get("endpoints")
        if named and any(each["targetRef"]["name"] in cluster.objects["pods"] for each in named):
            known = names_of_workload(story.feed, "shop", app)
            assert f"shop/{app}" in known
    # Nothing is left over once all is quiet.
    for app in APPS:
        for name in cluster.pods(app):
            cluster.of_pod("heal", name)
            cluster.change(PODS, name, lambda body: body["metadata"].pop("deletionTimestamp", None))
        cluster.does("deploy", app, 1)
        cluster.start(app)
        cluster.serve(app)
        cluster.does("scale", app, 1)
        cluster.does("settle", app, 1)
    for kind, type_, body in cluster.news:
        story.says(kind, body, type_)
    story.after(1300)
    assert story.changes() == set()
    assert story.troubles() == set()
    assert sizes(story.feed)["operations"] == 0
    assert sizes(story.feed)["ended"] == 0
