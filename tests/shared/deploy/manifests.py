"""The objects of deploy/kubernetes/: rendered by the real helm, or read, and the pods in them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy/kubernetes"
CHART = FOLDER / "chart"
HELM = Path(sys.executable).with_name("helm")
FULL = ("--values", str(FOLDER / "values/full.yaml"))
MANIFESTS = [FOLDER / f"manifests/{name}.yaml" for name in ("agents", "full")]
EXAMPLES = sorted((FOLDER / "examples").glob("*.yaml"))

Object = dict[str, Any]


def helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """What helm says; the caller looks at its status."""
    return subprocess.run(
        [HELM, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def render(*arguments: str) -> list[Object]:
    """All objects of the chart as a release `mldebug` in the namespace `mldebug`."""
    done = helm("template", "mldebug", str(CHART), "--namespace", "mldebug", *arguments)
    assert done.returncode == 0, done.stderr
    return stored_text(done.stdout)


def stored(file: Path) -> list[Object]:
    return stored_text(file.read_text(encoding="utf-8"))


def stored_text(text: str) -> list[Object]:
    return [one for one in yaml.safe_load_all(text) if one]


def one(objects: list[Object], kind: str, name: str = "") -> Object:
    """The only object of that kind, and of that name where one is given."""
    found = [
        each for each in objects if each["kind"] == kind and name in ("", each["metadata"]["name"])
    ]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


def pod_templates(thing: Object) -> Iterator[Object]:
    """`{metadata, spec}` of the pods that an object makes; of a pod itself."""
    spec = thing.get("spec", {})
    if thing["kind"] == "Pod":
        yield {"metadata": thing["metadata"], "spec": spec}
    if "template" in spec:
        yield spec["template"]
    if "jobTemplate" in spec:
        yield spec["jobTemplate"]["spec"]["template"]
    for replicas in spec.get("pytorchReplicaSpecs", {}).values():
        yield replicas["template"]


def containers(template: Object) -> list[Object]:
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def config_files(objects: list[Object]) -> dict[str, str]:
    """Name -> text of each file in the ConfigMaps."""
    maps = [each["data"] for each in objects if each["kind"] == "ConfigMap"]
    return {name: text for data in maps for name, text in data.items()}
