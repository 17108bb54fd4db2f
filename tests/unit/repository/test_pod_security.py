"""deploy/kubernetes/ by the Pod Security Standard `restricted`, as Kubernetes' own page has it: who passes, and what exactly the agent of a node asks for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.deploy.manifests import (
    EXAMPLES,
    FULL,
    Object,
    containers,
    one,
    pod_templates,
    render,
    stored,
)

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}  # fmt: skip


def broken(pod: Object) -> Iterator[str]:
    """The rules of `restricted` that it breaks, baseline included; in Kubernetes' words for a field."""
    spec = pod["spec"]
    context = spec.get("securityContext", {})
    yield from (name for name in ("hostPID", "hostIPC", "hostNetwork") if spec.get(name))
    for volume in spec.get("volumes", []):
        yield from volume.keys() - VOLUMES - {"name"}
    if "sysctls" in context:
        yield "sysctls"
    for container in containers(pod):
        yield from of_container(context | container.get("securityContext", {}))
        yield from ("hostPort" for port in container.get("ports", []) if "hostPort" in port)


def of_container(context: Object) -> Iterator[str]:
    """`context` is the pod's with the container's over it."""
    if context.get("privileged"):
        yield "privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if context.get("runAsNonRoot") is not True or context.get("runAsUser") == 0:
        yield "root"
    if context.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "seccompProfile"
    capabilities = context.get("capabilities", {})
    if capabilities.get("drop") != ["ALL"]:
        yield "drop"
    yield from (f"add {name}" for name in capabilities.get("add", []) if name != "NET_BIND_SERVICE")


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_whoever_has_no_rights_in_the_cluster_may_start_the_examples(file: Path) -> None:
    pods = [pod for thing in stored(file) for pod in pod_templates(thing)]
    assert pods
    for pod in pods:
        assert list(broken(pod)) == []


def test_a_coordinator_has_no_right_on_its_node() -> None:
    (pod,) = pod_templates(one(render(*FULL), "StatefulSet"))
    assert list(broken(pod)) == []


def test_the_agent_of_a_node_asks_for_this_and_nothing_else() -> None:
    """Each has its row in docs/kubernetes.md, "What each right buys"."""
    (pod,) = pod_templates(one(render(*FULL), "DaemonSet"))
    assert sorted(broken(pod)) == [
        "add DAC_READ_SEARCH", "add SYSLOG", "add SYS_PTRACE",
        "hostNetwork", "hostPID", "hostPath", "hostPath", "root",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "text"),
    [({"privileged": True}, "privileged"), ({"runAsUser": 0}, "root"), ({"capabilities": {}}, "drop"),
     ({"seccompProfile": {"type": "Unconfined"}}, "seccompProfile"), ({"allowPrivilegeEscalation": None}, "allowPrivilegeEscalation")],
)  # fmt: skip
def test_a_broken_rule_is_seen(wrong: Object, text: str) -> None:
    (pod,) = pod_templates(one(render(*FULL), "StatefulSet"))
    containers(pod)[0]["securityContext"] |= wrong
    assert text in list(broken(pod))
