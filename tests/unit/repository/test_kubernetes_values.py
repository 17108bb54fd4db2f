"""deploy/kubernetes/chart with odd values: names that a Service may have, what every pod gets, and what would have pods killed is refused."""

import re
import shlex
from collections.abc import Iterator

import kubernetes_validate
import pytest
import yaml

from mldebug_agents.probes.verbs import collectives
from shared.deploy.manifests import (
    CHART,
    FULL,
    ROOT,
    Object,
    containers,
    helm,
    one,
    pod_templates,
    render,
    stored_text,
)

SERVICE = r"[a-z]([-a-z0-9]*[a-z0-9])?"  # RFC 1035
LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
HASH = len("-0123456789")  # what a StatefulSet adds to its name in a label of its pods
KEY = "--set=secret.existing=mine"
DIGEST = "sha256:" + "0123456789abcdef" * 4


def named(release: str, *values: str) -> list[Object]:
    """All of the chart under another name."""
    done = helm("template", release, str(CHART), "--namespace", "n" * 63, *FULL, *values)
    assert done.returncode == 0, done.stderr
    return stored_text(done.stdout)


@pytest.mark.parametrize(
    "release",
    ["mldebug", "r", "7x", "my.release", "a" * 53, "mldebug-" * 6 + "abc", "a" * 39 + "-mldebug"],
)
def test_all_names_are_such_as_the_api_server_takes(release: str) -> None:
    for thing in named(release):
        name = thing["metadata"]["name"]
        assert re.fullmatch(SERVICE, name)
        assert len(name) <= 63 - (HASH if thing["kind"] == "StatefulSet" else 0)
        for value in thing["metadata"].get("labels", {}).values():
            assert re.fullmatch(LABEL, value)
            assert len(value) <= 63


def test_another_name_is_that_of_all_objects() -> None:
    names = {thing["metadata"]["name"] for thing in named("x", "--set=fullnameOverride=watch")}
    assert {re.sub("-(agent|coordinator|jobs|probes)$", "", name) for name in names} == {"watch"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["agent.listen=127.0.0.1:9753"], "agent.listen"),
        (["agent.listen="], "agent.listen"),
        (["config.agent.listen=0.0.0.0:9000"], "config.agent.listen is the chart's to write: set agent.listen"),
        (["config.agent.state_dir=/data"], "set agent.stateDir"),
        (["cluster.enabled=true", "secret.existing=x", "config.cluster.listen=0.0.0.0:1"], "set cluster.port"),
        (["cluster.enabled=true", "secret.existing=x", "cluster.port=9753"], "give it another one"),
        (["cluster.enabled=true", "secret.data.token=0123456789abcdef"], "cluster.enabled needs a key"),
        (["secret.existing=x", "secret.data.token=0123456789abcdef"], "secret.existing and secret.data"),
        (["cluster.networks={10.0.0.0}"], "cluster.networks"),
        (["agent.filesystems={/a,/a}"], "filesystems"),
        (["scheduler.namespaces={a,a}"], "namespaces"),
        (["podLabels.app\\.kubernetes\\.io/name=x"], "podLabels"),
        (["image.digest=latest"], "image.digest"),
        (["fullnameOverride=My_Agents"], "fullnameOverride"),
    ],
)  # fmt: skip
def test_what_would_have_pods_killed_or_refused_is_refused_here(
    values: list[str], words: str
) -> None:
    done = helm("template", "mldebug", str(CHART), *(f"--set={value}" for value in values))
    assert done.returncode != 0
    assert words in done.stderr


@pytest.mark.parametrize("listen", ["0.0.0.0:9000", "[::]:9000"])
def test_the_kubelet_asks_where_the_agent_listens(listen: str) -> None:
    """Elsewhere it would hear nothing, and kill it every 70 s."""
    objects = render(*FULL, f"--set=agent.listen={listen}")
    pods = [(pod, one) for pod, one in of_ours(objects) if one["name"] != "probe"]
    assert len(pods) == 2
    for _, container in pods:
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert ports["metrics"] == 9000
        for probe in ("livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] == "metrics"
            assert "host" not in container[probe]["httpGet"]


def of_ours(objects: list[Object]) -> Iterator[tuple[Object, Object]]:
    """(pod, its only container)."""
    for thing in objects:
        for pod in pod_templates(thing):
            (container,) = containers(pod)
            yield pod, container


def test_every_pod_gets_what_all_pods_get() -> None:
    plain = render(*FULL)
    objects = render(
        *FULL, "--set=podLabels.team=ml", "--set-string=podAnnotations.sidecar\\.istio\\.io/inject=false",
        "--set=env[0].name=HTTPS_PROXY", "--set=env[0].value=http://proxy:3128", f"--set=image.digest={DIGEST}",
        "--set=image.repository=registry.example.org/mldebug",
    )  # fmt: skip
    for pod, container in of_ours(objects):
        assert pod["metadata"]["labels"]["team"] == "ml"
        assert pod["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
        assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in container["env"]
        if container["name"] != "probe":  # an image of its own, with PyTorch
            assert container["image"] == f"registry.example.org/mldebug@{DIGEST}"
    for kind in ("DaemonSet", "StatefulSet"):  # a selector may never change
        assert one(objects, kind)["spec"]["selector"] == one(plain, kind)["spec"]["selector"]


@pytest.mark.parametrize(("replicas", "budgets"), [(1, 0), (2, 1)])
def test_a_drain_takes_one_coordinator_at_a_time(replicas: int, budgets: int) -> None:
    """Of a single one it could take none: it would block the drain for ever."""
    objects = render(*FULL, f"--set=coordinator.replicas={replicas}")
    found = [each["spec"] for each in objects if each["kind"] == "PodDisruptionBudget"]
    selector = one(objects, "StatefulSet")["spec"]["selector"]
    assert found == [{"maxUnavailable": 1, "selector": selector}] * budgets


PROBES = ("--set=probes.enabled=true", "--set=probes.image=registry.example.org/training:1")


def probe_pod(*values: str) -> tuple[Object, Object, Object]:
    """(CronJob's spec, pod's spec, its container)."""
    job = one(render(*PROBES, *values), "CronJob")["spec"]
    (template,) = pod_templates({"kind": "CronJob", "spec": job})
    (container,) = containers(template)
    return job, template["spec"], container


def test_a_probe_in_a_pod_is_typed_as_the_units_is() -> None:
    """The command takes the words, and they are those of mldebug-probe.service, which are tried."""
    _, _, container = probe_pod()
    python, module, name, *words = [*container["command"], *container["args"]]
    assert (python, module, name) == ("python3", "-m", "mldebug")
    assert words[:2] == ["probe", "collectives"]
    parsed = collectives.command.make_context("collectives", words[2:], resilient_parsing=False)
    assert parsed.params["if_idle"] is True
    unit = (ROOT / "deploy/systemd/mldebug-probe.service").read_text(encoding="utf-8")
    (typed,) = re.findall(r"PROBE_WORDS=(--device cuda --ops all_reduce,.*)\"", unit)
    assert container["args"] == shlex.split(typed)
    (fixed,) = re.findall(r"^ExecStart=\S+ (.*)$", unit, re.MULTILINE)
    own = " ".join(words[: -len(container["args"])])
    assert own == fixed.replace(" --python ${PROBE_PYTHON} $PROBE_WORDS", "")


def test_a_probe_in_a_pod_sees_the_jobs_of_its_node_and_has_no_more_rights_than_the_agent() -> None:
    job, pod, container = probe_pod()
    agent = one(render(), "DaemonSet")["spec"]["template"]["spec"]
    (agents,) = agent["containers"]
    rights = container["securityContext"]
    assert pod["hostPID"] is True
    assert {"SYS_PTRACE", "DAC_READ_SEARCH"} == set(rights["capabilities"]["add"])
    assert set(rights["capabilities"]["add"]) < set(
        agents["securityContext"]["capabilities"]["add"]
    )
    for word in ("privileged", "allowPrivilegeEscalation", "readOnlyRootFilesystem"):
        assert rights[word] == agents["securityContext"][word]
    assert pod["automountServiceAccountToken"] is False
    state = {"name": "state", "hostPath": {"path": "/var/lib/mldebug", "type": "DirectoryOrCreate"}}
    assert state in pod["volumes"]
    assert state in agent["volumes"]
    lock = next(one["value"] for one in container["env"] if one["name"] == "MLDEBUG_PROBE_LOCK")
    assert lock.startswith("/var/lib/mldebug/")
    assert (job["concurrencyPolicy"], job["jobTemplate"]["spec"]["backoffLimit"]) == ("Forbid", 0)


def test_probes_are_one_to_a_node_and_hold_gpus_only_where_that_is_wanted() -> None:
    job, pod, container = probe_pod("--set=probes.nodes=4")
    made = job["jobTemplate"]["spec"]
    assert (made["completions"], made["parallelism"]) == (4, 4)
    (rule,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    labels = made["template"]["metadata"]["labels"]
    assert rule["labelSelector"]["matchLabels"].items() <= labels.items()
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"} in container["env"]
    _, _, held = probe_pod("--set=probes.gpus=8")
    assert held["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert not [one for one in held["env"] if one["name"].startswith("NVIDIA_")]


def test_no_probe_unless_it_is_wanted() -> None:
    assert not [each for each in render() if each["kind"] == "CronJob"]


PAGE = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8").replace("\\\n", " ")
TYPED = re.findall(r"^helm (?:install|upgrade) (.*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("words", TYPED, ids=["install", "upgrade", "probes"])
def test_what_the_page_says_to_type_is_what_helm_takes(words: str) -> None:
    name, chart, *values = shlex.split(words)
    assert ROOT / chart == CHART
    matching = [
        value for value in values if value != "--reset-then-reuse-values"
    ]  # of upgrade alone
    done = helm("template", name, str(CHART), *matching)
    assert done.returncode == 0, done.stderr
    assert re.search(r"registry\.example\.org/mldebug|kind: (StatefulSet|CronJob)", done.stdout)
    assert "--reset-then-reuse-values" in helm("upgrade", "--help").stdout


def test_the_oldest_kubernetes_that_the_chart_takes_knows_its_fields() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    (oldest,) = re.findall(r">=(1\.\d+)\.0-0", chart["kubeVersion"])
    for thing in render(*FULL):
        if not thing["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(thing, oldest, strict=True)
