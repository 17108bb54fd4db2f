"""deploy/kubernetes/chart with odd values: names that a Service may have, what every pod gets, and what would have pods killed is refused."""

import re
import shlex
from collections.abc import Iterator

import kubernetes_validate
import pytest
import yaml

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
    assert {re.sub("-(agent|coordinator|jobs)$", "", name) for name in names} == {"watch"}


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
    pods = list(of_ours(objects))
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


PAGE = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8").replace("\\\n", " ")
TYPED = re.findall(r"^helm (?:install|upgrade) (.*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("words", TYPED, ids=["install", "upgrade"])
def test_what_the_page_says_to_type_is_what_helm_takes(words: str) -> None:
    name, chart, *values = shlex.split(words)
    assert ROOT / chart == CHART
    matching = [
        value for value in values if value != "--reset-then-reuse-values"
    ]  # of upgrade alone
    done = helm("template", name, str(CHART), *matching)
    assert done.returncode == 0, done.stderr
    assert "registry.example.org/mldebug" in done.stdout or "kind: StatefulSet" in done.stdout
    assert "--reset-then-reuse-values" in helm("upgrade", "--help").stdout


def test_the_oldest_kubernetes_that_the_chart_takes_knows_its_fields() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    (oldest,) = re.findall(r">=(1\.\d+)\.0-0", chart["kubeVersion"])
    for thing in render(*FULL):
        if not thing["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(thing, oldest, strict=True)
