"""The manifests of the server: valid by their schemas, in step with the code, without needless rights."""

from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from hopline.config.reader import config_table, load_config
from packages.mesh.tests.deploy import kustomize

SERVER = Path(__file__).resolve().parents[2] / "deploy" / "server"
OVERLAYS = sorted(each.name for each in (SERVER / "overlays").iterdir())
#: An old version of Kubernetes, and the newest that there are schemas of.
VERSIONS = ["1.29", kubernetes_validate.latest_version()]


def built(overlay):
    return kustomize.build(SERVER / "overlays" / overlay)


def custom_kinds():
    """Kind -> the class of its custom resource definition; imports thousands of models."""
    from cloudcoil.models.keda.v1alpha1 import ScaledObject
    from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor

    return {"ScaledObject": ScaledObject, "ServiceMonitor": ServiceMonitor}


def pod_of(objects):
    return objects["Deployment", "hopline"]["spec"]["template"]["spec"]


def container_of(objects, name="hopline"):
    (found,) = [each for each in pod_of(objects)["containers"] if each["name"] == name]
    return found


def strict(schema):
    """The schema, refusing fields that it does not name, wherever it names any."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed


@pytest.fixture(scope="session")
def custom_schemas():
    return {kind: strict(model.model_json_schema()) for kind, model in custom_kinds().items()}


def check(body, version, custom_schemas):
    """Raises: ValidationError: of one of the two packages."""
    if body["kind"] in custom_schemas:
        jsonschema.validate(body, custom_schemas[body["kind"]])
    else:
        kubernetes_validate.validate(body, version, strict=True)


@pytest.mark.sample(3)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubectl_builds_what_these_tests_build(overlay):
    by_kubectl = kustomize.by_kubectl(SERVER / "overlays" / overlay)
    assert by_kubectl in (None, built(overlay))


@pytest.mark.sample(7)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_is_valid_by_its_schema(overlay, version, custom_schemas):
    for body in built(overlay).values():
        check(body, version, custom_schemas)


@pytest.mark.parametrize(
    ("overlay", "kind", "path"),
    [
        ("keda", "ScaledObject", ("spec", "pollingIntervall")),
        ("keda", "ServiceMonitor", ("spec", "endpoint")),
        ("autoscaled", "HorizontalPodAutoscaler", ("spec", "metric")),
    ],
)
def test_the_schemas_would_find_a_mistake(overlay, kind, path, custom_schemas):
    body = built(overlay)[kind, "hopline"]
    body[path[0]][path[1]] = []
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        check(body, VERSIONS[-1], custom_schemas)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_setting_is_one_and_ports_and_mounts_are_those_of_the_settings(overlay):
    objects = built(overlay)
    env = objects["ConfigMap", "hopline"]["data"]
    assert env.keys() <= {row.env for row in config_table()}
    config = load_config(env=env)
    container = container_of(objects)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": config.server.http_port, "grpc": config.server.grpc_port}
    places = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    assert places[str(config.graph.path.parent)] is True
    assert str(config.models.repository).startswith(f"{config.graph.path.parent}/")
    if "://" not in str(config.models.state):
        assert places[str(config.models.state)] is False
    if config.live.enabled:
        assert places[str(config.live.folder)] is False
    if config.features.prefetcher:
        assert config.features.shared_file.parent == config.features.prefetcher.parent
        assert places[str(config.features.prefetcher.parent)] is False


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_all_containers_of_a_pod_run_the_image_of_the_overlay(overlay):
    """A container with another name of it cannot be pulled, and the pod is never ready."""
    (named,) = yaml.safe_load((SERVER / "overlays/single/kustomization.yaml").read_text())["images"]
    images = {container["image"] for container in pod_of(built(overlay))["containers"]}
    assert images == {f"{named['newName']}:{named['newTag']}"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_drain_outlasts_a_probe_and_ends_before_the_pod_is_killed(overlay):
    objects = built(overlay)
    config = load_config(env=objects["ConfigMap", "hopline"]["data"])
    probe = container_of(objects)["readinessProbe"]
    assert probe["httpGet"]["path"] == "/readyz"
    assert config.server.drain_delay_s > probe["periodSeconds"] + 1
    grace = pod_of(objects)["terminationGracePeriodSeconds"]
    assert grace > config.server.drain_delay_s + config.server.drain_timeout_s + 2
    if overlay == "spot":
        assert grace < 30


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_all_containers_keep_to_the_restricted_profile(overlay):
    objects = built(overlay)
    pod = pod_of(objects)
    labels = objects["Namespace", "hopline"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False  # their variables would look like settings
    for each in pod["containers"]:
        context = pod["securityContext"] | each["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert {"/tmp"} <= {mount["mountPath"] for mount in each["volumeMounts"]}
        assert each["resources"]["limits"]["memory"] == each["resources"]["requests"]["memory"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_policies_and_budgets_are_about_the_pods_of_the_deployment(overlay):
    objects = built(overlay)
    deployment = objects["Deployment", "hopline"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    ports = {port["name"] for each in pod_of(objects)["containers"] for port in each.get("ports", ())}
    service = objects["Service", "hopline"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    policy = objects["NetworkPolicy", "hopline"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    budget = objects["PodDisruptionBudget", "hopline"]["spec"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    assert budget["maxUnavailable"] == 1  # a single pod can be moved as well
    if ("ServiceMonitor", "hopline") in objects:
        monitor = objects["ServiceMonitor", "hopline"]["spec"]
        assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert {each["port"] for each in monitor["endpoints"]} <= {
            port["name"] for port in service["spec"]["ports"]
        }


@pytest.mark.parametrize("overlay", ["fleet", "autoscaled", "keda", "spot"])
def test_pods_that_scale_share_the_state_of_their_versions(overlay):
    state = load_config(env=built(overlay)["ConfigMap", "hopline"]["data"]).models.state
    assert str(state).startswith("redis://")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_state_outlives_the_pod(overlay):
    """On a claim that one pod at a time mounts, or in a Redis."""
    objects = built(overlay)
    state = str(load_config(env=objects["ConfigMap", "hopline"]["data"]).models.state)
    mounts = {each["mountPath"]: each["name"] for each in container_of(objects)["volumeMounts"]}
    claims = {name for kind, name in objects if kind == "PersistentVolumeClaim"} - {"hopline-live"}
    if state.startswith("redis://"):
        assert "/var/lib/hopline" not in mounts
        assert claims == set()
        return
    (volume,) = [each for each in pod_of(objects)["volumes"] if each["name"] == mounts[state]]
    assert {volume["persistentVolumeClaim"]["claimName"]} == claims
    claim = objects["PersistentVolumeClaim", "hopline-state"]["spec"]
    assert claim["accessModes"] == ["ReadWriteOncePod"]
    assert objects["Deployment", "hopline"]["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize("overlay", ["live", "prefetcher", "fleet", "autoscaled", "keda", "spot"])
def test_the_policy_lets_pods_reach_the_stores_and_brokers_that_they_name(overlay):
    objects = built(overlay)
    policy = objects["NetworkPolicy", "hopline"]["spec"]
    open_to = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert (9092 if overlay == "live" else 6379) in open_to
    assert {53, 443, 4318} <= open_to


@pytest.mark.parametrize("overlay", ["autoscaled", "keda", "spot"])
def test_autoscalers_decide_and_no_manifest_names_a_number_of_replicas(overlay):
    objects = built(overlay)
    assert "replicas" not in objects["Deployment", "hopline"]["spec"]
    scaler = objects.get(("HorizontalPodAutoscaler", "hopline")) or objects["ScaledObject", "hopline"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == "hopline"


def test_the_autoscaler_reads_metrics_that_the_adapter_makes_of_existing_metrics():
    rules = yaml.safe_load((SERVER / "overlays/autoscaled/adapter.yaml").read_text())["rules"]["custom"]
    made = {rule["name"]["as"] for rule in rules}
    hpa = built("autoscaled")["HorizontalPodAutoscaler", "hopline"]["spec"]
    assert {each["pods"]["metric"]["name"] for each in hpa["metrics"] if each["type"] == "Pods"} == made
    source = "".join(file.read_text() for file in (SERVER.parents[1] / "src").rglob("*.py"))
    queries = [
        each["metadata"]["query"] for each in built("keda")["ScaledObject", "hopline"]["spec"]["triggers"]
    ]
    for text in [rule["seriesQuery"] for rule in rules] + queries:
        metric = text[text.index("hopline_") :].partition("{")[0]
        assert f'"{metric}"' in source


def test_kserve_finds_the_runtime_its_ports_and_a_pod_that_kubernetes_takes():
    runtime = yaml.safe_load((SERVER / "kserve/servingruntime.yaml").read_text())
    service = yaml.safe_load((SERVER / "kserve/inferenceservice.yaml").read_text())
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    (supported,) = runtime["spec"]["supportedModelFormats"]
    assert model["modelFormat"].items() <= supported.items()
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    pod = {key: runtime["spec"][key] for key in ("containers", "volumes")}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}
    for version in VERSIONS:
        kubernetes_validate.validate(body, version, strict=True)
    (container,) = pod["containers"]
    assert container["name"] == "kserve-container"  # so KServe finds it
    config = load_config(env={each["name"]: each["value"] for each in container["env"]})
    # A runtime cannot set the time between SIGTERM and SIGKILL; it is 30 s by default.
    assert config.server.drain_delay_s + config.server.drain_timeout_s + 2 < 30
    assert {row.env for row in config_table()} >= {each["name"] for each in container["env"]}
    (port,) = container["ports"]
    assert f"--port={port['containerPort']}" in container["args"]
    assert {probe["httpGet"]["port"] for key, probe in container.items() if key.endswith("Probe")} == {
        port["containerPort"]
    }


def test_the_image_runs_as_the_manifests_say():
    text = (SERVER / "Containerfile").read_text()
    pod = pod_of(built("single"))
    assert f"USER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" in text
    assert 'ENTRYPOINT ["hopline"]' in text
    assert 'CMD ["serve"]' in text
    assert container_of(built("single"))["args"] == ["serve"]
    named = {line.split("=")[0].split()[-1] for line in text.splitlines() if "HOPLINE__" in line}
    assert named <= {row.env for row in config_table()}
