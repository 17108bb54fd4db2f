"""deploy/kubernetes/: the pods have exactly the rights and bounds of the service, and each right that they take has its reason."""

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.config.schema import SYSTEM_STATE_DIR, AgentConfig, default_state_dir
from mldebug.core.units import parse_size
from mldebug_agents.web.server import AgentServer
from processes.harness import free_port
from shared.deploy.manifests import (
    EXAMPLES,
    FOLDER,
    FULL,
    MANIFESTS,
    ROOT,
    Object,
    containers,
    one,
    pod_templates,
    render,
    stored,
)
from shared.web.snapshots import snapshot

SYSTEMD = ROOT / "deploy/systemd"
RESTING = 80 << 20  # bytes: DESIGN's budget of an agent with its children, held by tests/bench
# What of the node a pod may see, and why: a new row is a decision.
NODE_PATHS = {
    "/var/lib/mldebug": "reports outlive the pod",
    "/dev/kmsg": "Xids and out-of-memory lines",
}
SIDECAR = next(file for file in EXAMPLES if file.stem == "sidecar")
NAMES = {"agents": MANIFESTS[0], "full": MANIFESTS[1], "sidecar": SIDECAR}


def setting(name: str, file: Path = SYSTEMD / "mldebug.service") -> str:
    found = re.findall(rf"^{name}=(.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == 1, name
    return str(found[0])


def rights(file: Path = SYSTEMD / "mldebug.service") -> set[str]:
    """The capabilities of the service, by Kubernetes' names."""
    return {name.removeprefix("CAP_") for name in setting("CapabilityBoundingSet", file).split()}


def of_ours(objects: list[Object]) -> Iterator[tuple[Object, Object]]:
    """(pod, container) of each agent."""
    for thing in objects:
        for template in pod_templates(thing):
            for container in containers(template):
                if container["image"].startswith("mldebug:"):
                    yield template, container


ALL = [
    pytest.param(pod, container, id=f"{name}-{container['name']}")
    for name, file in NAMES.items()
    for pod, container in of_ours(stored(file))
]


def agent(*values: str) -> tuple[Object, Object]:
    """(spec of the pod, container) of the DaemonSet."""
    template = one(render(*values), "DaemonSet")["spec"]["template"]
    return template["spec"], template["spec"]["containers"][0]


def test_there_are_pods_to_look_at() -> None:
    assert [param.id for param in ALL] == [
        "agents-agent",
        "full-agent",
        "full-coordinator",
        "sidecar-mldebug",
    ]


@pytest.mark.parametrize(("pod", "container"), ALL)
def test_no_pod_is_privileged_or_can_become_more_than_it_is(pod: Object, container: Object) -> None:
    context = container["securityContext"]
    assert context["privileged"] is False
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"]["drop"] == ["ALL"]
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "seccompProfile" not in context


@pytest.mark.parametrize(("pod", "container"), ALL)
def test_only_the_agent_of_a_node_has_capabilities_and_those_of_the_service(
    pod: Object, container: Object
) -> None:
    has = set(container["securityContext"]["capabilities"].get("add", []))
    if pod["spec"].get("hostPID"):
        assert has == rights() == {"SYS_PTRACE", "DAC_READ_SEARCH", "SYSLOG"}
    else:
        assert has == set()
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize(
    "file", sorted((SYSTEMD / "mldebug.service.d").glob("*.example")), ids=lambda file: file.name
)
def test_what_a_drop_in_adds_a_value_adds(file: Path) -> None:
    (more,) = rights(file)
    _, container = agent(f"--set=agent.moreCapabilities={{{more}}}")
    assert set(container["securityContext"]["capabilities"]["add"]) == rights() | {more}


@pytest.mark.parametrize("values", [(), FULL], ids=["agents", "full"])
def test_what_is_seen_of_the_node_has_a_reason(values: tuple[str, ...]) -> None:
    spec, container = agent(*values)
    paths = {volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    assert paths == set(NODE_PATHS)
    writable = {
        mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")
    }
    assert writable == {"/var/lib/mldebug", "/tmp"}
    page = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    assert [path for path in NODE_PATHS if f"`{path}`" not in page] == []


def test_filesystems_are_mounted_where_they_are_and_follow_the_node() -> None:
    spec, container = agent("--set=agent.filesystems={/scratch}")
    (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == "/scratch"]
    (volume,) = [each for each in spec["volumes"] if each["name"] == mount["name"]]
    assert volume["hostPath"]["path"] == "/scratch"
    assert mount["mountPropagation"] == "HostToContainer"
    assert "readOnly" not in mount  # it would look like a mount that has turned read-only


@pytest.mark.parametrize(
    "values",
    [(), FULL, (*FULL, "--set=scheduler.enabled=false")],
    ids=["agents", "full", "no scheduler"],
)
def test_a_token_of_the_api_server_goes_to_whoever_asks_it(values: tuple[str, ...]) -> None:
    objects = render(*values)
    asks = bool(values) and "--set=scheduler.enabled=false" not in values
    pods = {
        each["kind"]: each["spec"]["template"]["spec"]
        for each in objects
        if each["kind"] in ("DaemonSet", "StatefulSet")
    }
    assert pods["DaemonSet"]["automountServiceAccountToken"] is False
    if values:
        assert pods["StatefulSet"]["automountServiceAccountToken"] is asks
    bound = {
        subject["name"]
        for each in objects
        if each["kind"] == "RoleBinding"
        for subject in each["subjects"]
    }
    assert bound == ({pods["StatefulSet"]["serviceAccountName"]} if asks else set())
    accounts = [each for each in objects if each["kind"] == "ServiceAccount"]
    assert {each["metadata"]["name"] for each in accounts} == {
        pod["serviceAccountName"] for pod in pods.values()
    }
    assert all(each["automountServiceAccountToken"] is False for each in accounts)


@pytest.mark.parametrize(("pod", "container"), ALL)
def test_bounds_are_those_of_the_service(pod: Object, container: Object) -> None:
    limits, requests = container["resources"]["limits"], container["resources"]["requests"]
    assert parse_size(limits["memory"] + "B") == parse_size(setting("MemoryMax") + "iB")
    assert float(limits["cpu"]) * 100 == float(setting("CPUQuota").rstrip("%"))
    assert RESTING <= parse_size(requests["memory"] + "B") < 2 * RESTING
    assert f"{pod['spec'].get('terminationGracePeriodSeconds', 30)}s" in (
        setting("TimeoutStopSec"),
        "30s",
    )


@pytest.mark.parametrize(("pod", "container"), ALL)
def test_probes_ask_what_the_agent_answers(pod: Object, container: Object, tmp_path: Path) -> None:
    (port,) = [each["containerPort"] for each in container["ports"] if each["name"] == "metrics"]
    assert str(port) in AgentConfig(state_dir=tmp_path).listen
    mine = free_port()
    server = AgentServer(AgentConfig(state_dir=tmp_path, listen=f"127.0.0.1:{mine}"))
    server.publish(snapshot())
    server.start()
    probes = [
        container[name]["httpGet"]
        for name in ("livenessProbe", "readinessProbe")
        if name in container
    ]
    assert probes[0]["path"] == "/healthz"
    try:
        for probe in probes:
            assert probe["port"] == "metrics"
            with urllib.request.urlopen(
                f"http://127.0.0.1:{mine}{probe['path']}", timeout=30
            ) as answer:
                assert answer.status == 200
    finally:
        server.stop(5)


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
def test_whatever_selects_pods_selects_some_and_names_ports_that_they_have(file: Path) -> None:
    objects = stored(file)
    pods = [template for thing in objects for template in pod_templates(thing)]

    def ports(selector: dict[str, str]) -> list[set[str]]:
        chosen = [pod for pod in pods if selector.items() <= pod["metadata"]["labels"].items()]
        return [
            {port["name"] for each in containers(pod) for port in each["ports"]} for pod in chosen
        ]

    wanted = []
    for thing in objects:
        spec = thing.get("spec", {})
        if thing["kind"] == "Service":
            wanted.append((spec["selector"], {port["targetPort"] for port in spec["ports"]}))
        elif thing["kind"] == "PodMonitor":
            wanted.append(
                (
                    spec["selector"]["matchLabels"],
                    {each["port"] for each in spec["podMetricsEndpoints"]},
                )
            )
        elif thing["kind"] == "NetworkPolicy":
            named = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
            wanted.append((spec["podSelector"]["matchLabels"], named))
    assert wanted
    for selector, named in wanted:
        found = ports(selector)
        assert found
        assert all(named <= one for one in found)


def test_a_changed_configuration_comes_with_new_pods() -> None:
    def marks(*values: str) -> set[str]:
        objects = render(*FULL, *values)
        return {
            each["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for each in objects
            if "template" in each.get("spec", {})
        }

    assert not marks() & marks("--set=config.stall.timeout=90s")


def test_the_sidecar_has_the_user_of_its_job_and_sees_its_processes() -> None:
    (pod,) = (template for thing in stored(SIDECAR) for template in pod_templates(thing))
    spec = pod["spec"]
    assert spec["shareProcessNamespace"] is True
    assert not spec.keys() & {"hostPID", "hostNetwork", "hostIPC"}
    assert {"runAsUser", "runAsGroup"} <= spec["securityContext"].keys()
    for each in containers(pod):
        assert not each["securityContext"].keys() & {"runAsUser", "runAsGroup"}
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert [each["restartPolicy"] for each in spec["initContainers"]] == ["Always"]
    (name, seconds) = spec["initContainers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    grace = spec.get("terminationGracePeriodSeconds", 30)
    assert (name, int(seconds) + int(setting("TimeoutStopSec").rstrip("s")) <= grace) == (
        "sleep",
        True,
    )
    assert not [volume for volume in spec["volumes"] if "hostPath" in volume]


def test_the_image_is_made_of_files_that_exist_and_pinned_packages() -> None:
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE)
        for name in line.split()[:-1]
    ]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert "--require-hashes --requirement requirements/run.txt" in text
    assert re.findall(r"^USER (\d+)", text, re.MULTILINE) == [
        str(
            one(render(*FULL), "StatefulSet")["spec"]["template"]["spec"]["securityContext"][
                "runAsUser"
            ]
        )
    ]


@pytest.mark.parametrize("uid", [0, 65532])
def test_commands_in_the_image_find_the_reports_of_the_agent(uid: int) -> None:
    """An ordinary user's go to his home, which a container does not have: `dump` could not store what it found."""
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    environ = dict(
        word.split("=", 1) for word in re.findall(r"(?<=^ENV ).*", text, re.MULTILINE)[-1].split()
    )
    _, container = agent()
    assert default_state_dir(environ, uid).as_posix() in {
        each["mountPath"] for each in container["volumeMounts"]
    }
    assert default_state_dir(environ, uid) == SYSTEM_STATE_DIR
