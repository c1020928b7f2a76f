"""The manifests in deploy: valid, in step with the code, with no more rights than the watch uses."""

import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml

from hopline_mesh.kubernetes.resources import RESOURCES
from hopline_mesh.out.alert import ALERT_NAME
from hopline_mesh.settings import load_settings, settings_table
from packages.mesh.tests.deploy import kustomize

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = ["standalone", "sidecar"]
#: An old version of Kubernetes, and the newest that there are schemas of.
VERSIONS = ["1.29", kubernetes_validate.latest_version()]


def built(overlay):
    return kustomize.build(DEPLOY / "overlays" / overlay)


def containers(objects):
    for body in objects.values():
        if body["kind"] == "Deployment":
            yield from body["spec"]["template"]["spec"]["containers"]


def watch_of(objects):
    """The watch's container and its pod."""
    for body in objects.values():
        if body["kind"] == "Deployment":
            pod = body["spec"]["template"]["spec"]
            for container in pod["containers"]:
                if container["name"] == "mesh-watch":
                    return container, pod
    raise AssertionError("no container of the watch")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubectl_builds_what_these_tests_build(overlay):
    by_kubectl = kustomize.by_kubectl(DEPLOY / "overlays" / overlay)
    assert by_kubectl in (None, built(overlay))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_is_valid_by_the_schema_of_kubernetes(overlay, version):
    for body in built(overlay).values():
        kubernetes_validate.validate(body, version, strict=True)


def test_the_schema_would_find_a_mistake():
    broken = built("standalone")["Deployment", "mesh-watch"]
    broken["spec"]["template"]["spec"]["containers"][0]["portz"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_setting_is_one_and_all_go_together(overlay):
    container, _ = watch_of(built(overlay))
    assert container["envFrom"] == [{"configMapRef": {"name": "mesh-watch"}}]
    env = built(overlay)["ConfigMap", "mesh-watch"]["data"]
    assert env.keys() <= {row.env for row in settings_table()}
    settings = load_settings(env=env)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    wanted = {"grpc": settings.serve.grpc_port, "http": settings.serve.http_port}
    assert ports == {name: port for name, port in wanted.items() if port >= 0}
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(settings.state.state_dir) in mounts
    assert settings.state.state_bytes < 512 * 2**20
    assert settings.kubernetes.kubernetes == "require"
    if overlay == "sidecar":
        assert str(settings.serve.socket.parent) in mounts


def test_the_configmap_shows_the_setting_of_links_in_alerts():
    """It stays unset: which URL leads to the page is known only to its user."""
    text = (DEPLOY / "settings/configmap.yaml").read_text()
    (line,) = [line for line in text.splitlines() if "PAGE_URL" in line]
    name, _, url = line.strip().removeprefix("# ").partition(": ")
    assert line.strip().startswith("# ")
    assert load_settings(env={name: url}).alerts.page_url == url


def test_only_prometheus_and_the_own_namespace_may_connect_without_a_key():
    objects = built("standalone")
    (rule,) = objects["NetworkPolicy", "mesh-watch"]["spec"]["ingress"]
    data = objects["ConfigMap", "mesh-watch"]["data"]
    prometheus = urlsplit(data["HOPLINE_MESH__SOURCE__PROMETHEUS_URL"]).hostname
    assert data["HOPLINE_MESH__SERVE__ALLOW_ANONYMOUS"] == "true"
    assert rule["from"] == [
        {"podSelector": {}},
        {
            "namespaceSelector": {
                "matchLabels": {"kubernetes.io/metadata.name": prometheus.partition(".")[2]}
            }
        },
    ]


def test_the_watch_may_do_what_it_does_and_nothing_else():
    used = {(each.group, each.plural, verb) for each in RESOURCES for verb in ("list", "watch")}
    granted = {
        (group, resource, verb)
        for rule in built("standalone")["ClusterRole", "mesh-watch-mesh-watch"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == used


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_role_is_bound_to_the_account_of_the_pod(overlay):
    objects = built(overlay)
    account = objects["ServiceAccount", "mesh-watch"]["metadata"]
    name = f"mesh-watch-{account['namespace']}"
    binding = objects["ClusterRoleBinding", name]
    _, pod = watch_of(objects)
    assert ("ClusterRole", name) in objects
    assert binding["roleRef"]["name"] == name
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    ]
    assert pod["serviceAccountName"] == account["name"]


def test_overlays_in_different_namespaces_replace_nothing_of_each_other(tmp_path):
    """Copies of the overlays, as for further applications, of which only the namespace is another."""
    copied = tmp_path / "deploy"
    shutil.copytree(DEPLOY, copied)
    placed = {"standalone": "mesh-watch", "sidecar": "shop"}
    for of, namespace in (("sidecar", "pay"), ("sidecar", "pay-test"), ("standalone", "other")):
        folder = copied / "overlays" / f"{of}-{namespace}"
        shutil.copytree(copied / "overlays" / of, folder)
        for file in ("kustomization.yaml", "namespace.yaml"):
            if (folder / file).exists():
                text = (folder / file).read_text()
                text = re.sub(r"(?m)^namespace: .*", f"namespace: {namespace}", text)
                (folder / file).write_text(
                    text.replace("  name: mesh-watch\n  labels", f"  name: {namespace}\n  labels")
                )
        placed[folder.name] = namespace
    applied = {}
    for name, namespace in placed.items():
        objects = kustomize.build(copied / "overlays" / name)
        assert kustomize.by_kubectl(copied / "overlays" / name) in (None, objects)
        for (kind, object_name), body in objects.items():
            key = kind, body["metadata"].get("namespace"), object_name
            assert key not in applied, f"{name} replaces {key} of {applied.get(key)}"
            applied[key] = name
        assert any(namespace == key[1] for key in applied)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_state_lies_in_memory_that_the_limit_has_room_for(overlay):
    container, pod = watch_of(built(overlay))
    (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == "/var/tagae"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "512Mi"}
    assert container["resources"]["limits"]["memory"] in ("2Gi", "6Gi")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_watch_keeps_to_the_restricted_profile(overlay):
    container, pod = watch_of(built(overlay))
    for each in (container, *pod["initContainers"]):
        context = each["securityContext"]
        both = pod["securityContext"] | context
        assert both["runAsNonRoot"] is True
        assert both["runAsUser"] > 0
        assert both["seccompProfile"] == {"type": "RuntimeDefault"}
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
    # The profile allows these volumes.
    assert all({"emptyDir", "projected"} & volume.keys() for volume in pod["volumes"])


def test_the_sidecar_leaves_the_application_as_it_is_but_for_the_socket():
    before = yaml.safe_load((DEPLOY / "overlays/sidecar/application.yaml").read_text())
    after = built("sidecar")["Deployment", "checkout"]
    (old,) = before["spec"]["template"]["spec"]["containers"]
    (new,) = [
        each for each in after["spec"]["template"]["spec"]["containers"] if each["name"] == "checkout"
    ]
    assert new == old | {"volumeMounts": [{"name": "mesh-socket", "mountPath": "/run/tagae"}]}
    assert after["spec"]["selector"] == before["spec"]["selector"]


def test_the_application_does_not_get_the_watchs_token():
    container, pod = watch_of(built("sidecar"))
    assert pod["automountServiceAccountToken"] is False
    (account,) = [each["name"] for each in pod["volumes"] if "projected" in each]
    holders = [
        each["name"]
        for each in containers(built("sidecar"))
        if any(mount["name"] == account for mount in each["volumeMounts"])
    ]
    assert holders == [container["name"]]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kernels_of_the_image_are_copied_to_where_numba_may_write(overlay):
    container, pod = watch_of(built(overlay))
    (first,) = pod["initContainers"]
    assert first["image"] == container["image"]
    (cache,) = [each["value"] for each in container["env"] if each["name"] == "NUMBA_CACHE_DIR"]
    assert (
        f"ENV NUMBA_CACHE_DIR={first['command'][2].removesuffix('/.')}\n"
        in (DEPLOY / "Dockerfile").read_text()
    )
    assert first["command"][3] == cache
    (volume,) = [each["name"] for each in first["volumeMounts"]]
    assert {"name": volume, "mountPath": cache} in container["volumeMounts"]
    assert first["volumeMounts"] == [{"name": volume, "mountPath": cache}]


def test_the_service_and_the_policy_are_about_the_pods_of_the_deployment():
    objects = built("standalone")
    template = objects["Deployment", "mesh-watch"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    service = objects["Service", "mesh-watch"]["spec"]
    policy = objects["NetworkPolicy", "mesh-watch"]["spec"]
    assert service["selector"].items() <= labels.items()
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    names = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in service["ports"]} == names
    assert {port["port"] for port in policy["ingress"][0]["ports"]} == names
    open_to = {port["port"] for port in policy["egress"][0]["ports"]}
    # API servers of managed clusters, kubeadm, minikube and MicroK8s.
    assert {443, 6443, 8443, 16443} <= open_to
    data = objects["ConfigMap", "mesh-watch"]["data"]
    for key in ("HOPLINE_MESH__SOURCE__PROMETHEUS_URL", "HOPLINE_MESH__ALERTS__ALERTMANAGER_URLS"):
        assert int(data[key].rpartition(":")[2]) in open_to


def test_alertmanager_takes_the_example_and_its_route_is_about_our_alert():
    file = DEPLOY / "examples" / "alertmanager.yml"
    example = yaml.safe_load(file.read_text())
    (route,) = example["route"]["routes"]
    assert route["matchers"] == [f'alertname="{ALERT_NAME}"']
    # By default Alertmanager sends the end up to 5 minutes late.
    assert route["group_interval"] == "15s"
    if shutil.which("amtool") is not None:
        checked = subprocess.run(
            ["amtool", "check-config", file], capture_output=True, text=True, timeout=60
        )
        assert checked.returncode == 0, checked.stderr


def test_the_operators_example_finds_the_service():
    monitor = yaml.safe_load((DEPLOY / "examples" / "servicemonitor.yaml").read_text())
    service = built("standalone")["Service", "mesh-watch"]
    assert monitor["metadata"]["namespace"] == service["metadata"]["namespace"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ports = {port["name"] for port in service["spec"]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports


def test_the_image_runs_as_the_manifests_say():
    text = (DEPLOY / "Dockerfile").read_text()
    container, pod = watch_of(built("standalone"))
    user = (pod["securityContext"] | container["securityContext"])["runAsUser"]
    assert f"USER {user}:{user}" in text
    command = re.search(r"^CMD (\[.*\])$", text, re.MULTILINE).group(1)
    assert yaml.safe_load(command) == container["args"]
    assert 'ENTRYPOINT ["hopline"]' in text
