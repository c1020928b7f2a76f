"""Builds a Kustomize folder: as `kubectl kustomize` does where that is installed, and by itself.

By itself it knows what deploy uses of it: resources, namespace, labels, images, strategic merge patches
and replacements. Tests compare the two where both can be had.
"""

import copy
import shutil
import subprocess

import yaml

#: Kinds without a namespace.
CLUSTER = {"Namespace", "ClusterRole", "ClusterRoleBinding"}
#: What tells the elements of a list apart; other lists are replaced as a whole.
KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}


def by_kubectl(folder):
    """Objects by (kind, name), or None where there is no kubectl."""
    if shutil.which("kubectl") is None:
        return None
    built = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60)
    assert built.returncode == 0, built.stderr
    return _named(yaml.safe_load_all(built.stdout))


def build(folder):
    """Objects by (kind, name)."""
    plan = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert plan.keys() <= {
        "apiVersion", "kind", "resources", "namespace", "labels", "images", "patches",
        "replacements",
    }  # fmt: skip
    objects = {}
    for name in plan["resources"]:
        place = folder / name
        found = build(place) if place.is_dir() else _named(yaml.safe_load_all(place.read_text()))
        assert not found.keys() & objects.keys(), "an object comes twice"
        objects.update(found)
    for patch in plan.get("patches", ()):
        body = yaml.safe_load((folder / patch["path"]).read_text())
        key = body["kind"], body["metadata"]["name"]
        if body.get("$patch") == "delete":
            del objects[key]
        else:
            objects[key] = merge(objects[key], body)
    for body in objects.values():
        if "namespace" in plan:
            _place(body, plan["namespace"])
        for label in plan.get("labels", ()):
            body["metadata"].setdefault("labels", {}).update(label["pairs"])
        for image in plan.get("images", ()):
            _retag(body, image)
    for replacement in plan.get("replacements", ()):
        _replace(objects, replacement)
    return _named(objects.values())


def _replace(objects, replacement):
    """Put a field of one object into fields of others, as one of their parts."""
    source = replacement["source"]
    holder, field = _holder(objects[source["kind"], source["name"]], source["fieldPath"])
    value = holder[field]
    for target in replacement["targets"]:
        body = objects[target["select"]["kind"], target["select"]["name"]]
        options = target["options"]
        for path in target["fieldPaths"]:
            holder, field = _holder(body, path)
            parts = holder[field].split(options["delimiter"])
            parts[options["index"] :] = [value, *parts[options["index"] + 1 :]]
            holder[field] = options["delimiter"].join(parts)


def _holder(body, path):
    """What has a field, and the field's name."""
    *above, field = path.split(".")
    for name in above:
        body = body[name]
    return body, field


def merge(old, patch):
    """A strategic merge: objects by their keys, lists of named things by their names."""
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    merged = copy.deepcopy(old)
    for key, value in patch.items():
        known = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(known, dict):
            merged[key] = merge(known, value)
        elif isinstance(value, list) and isinstance(known, list) and key in KEYS:
            merged[key] = _merge_list(known, value, KEYS[key])
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _merge_list(old, patch, key):
    """Kustomize puts what is patched first, in the patch's order."""
    known = {each[key]: each for each in old}
    kept = [each for each in patch if each.get("$patch") != "delete"]
    patched = [merge(known.get(each[key], {}), each) for each in kept]
    names = {each[key] for each in patch}
    return patched + [each for each in old if each[key] not in names]


def _place(body, namespace):
    if body["kind"] not in CLUSTER:
        body["metadata"]["namespace"] = namespace
    for subject in body.get("subjects", ()):
        subject["namespace"] = namespace


def _retag(body, image):
    pod = body.get("spec", {}).get("template", {}).get("spec", {})
    for container in [*pod.get("initContainers", ()), *pod.get("containers", ())]:
        name, _, tag = container["image"].rpartition(":")
        if name == image["name"]:
            container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"


def _named(objects):
    return {(body["kind"], body["metadata"]["name"]): body for body in objects}
