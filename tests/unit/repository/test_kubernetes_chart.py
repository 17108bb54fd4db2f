"""deploy/kubernetes/: the chart renders with the real helm, what comes of it is valid, and says the same as the rest of the repository."""

import base64
import json
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

import mldebug
from mldebug.config.schema import load_config
from mldebug.jobs.schedulers.kubernetes import KINDS
from shared.deploy.manifests import (
    CHART,
    EXAMPLES,
    FOLDER,
    FULL,
    HELM,
    MANIFESTS,
    ROOT,
    Object,
    config_files,
    helm,
    one,
    pod_templates,
    render,
    stored,
)
from unit.hardware.test_health_rules import promtool

SCHEMAS = ROOT / "tests/fixtures/kubernetes"
VERSIONS = (
    "1.29",
    "1.37",
)  # native sidecars came with the first; the newest that there are schemas of
KEY = "--set=secret.data.cluster\\.key=0123456789abcdef0123456789abcdef"
ALL_VALUES = (
    (),
    FULL,
    ("--set=cluster.enabled=true", KEY),
    ("--set=scheduler.enabled=true",),
    ("--set=probes.enabled=true", "--set=probes.image=train", "--set=probes.gpus=8", "--set=probes.priorityClassName=low", "--set=agent.hostNetwork=false"),
    ("--set=agent.hostNetwork=false", "--set=agent.runtimeClassName=nvidia", "--set=agent.filesystems={/scratch,/data}"),
    ("--set=agent.moreCapabilities={KILL,SYS_ADMIN}", "--set=agent.seLinuxOptions.type=spc_t", "--set=imagePullSecrets[0].name=pull"),
)  # fmt: skip


def check(thing: Object, version: str) -> None:
    """Strictly, by Kubernetes' own schema, or by ours where it has none; pods inside as pods."""
    own = SCHEMAS / f"{thing['kind']}.yaml"
    if own.exists():
        jsonschema.validate(thing, yaml.safe_load(own.read_text(encoding="utf-8")))
        for template in pod_templates(thing):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **template}
            kubernetes_validate.validate(pod, version, strict=True)
    else:
        kubernetes_validate.validate(thing, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "values", ALL_VALUES, ids=lambda values: " ".join(map(str, values)) or "default"
)
def test_what_helm_makes_is_valid(values: tuple[str, ...], version: str) -> None:
    objects = render(*values)
    assert {"DaemonSet", "ConfigMap", "Service", "ServiceAccount"} <= {
        each["kind"] for each in objects
    }
    for thing in objects:
        check(thing, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", [*MANIFESTS, *EXAMPLES], ids=lambda file: file.name)
def test_what_is_stored_is_valid(file: Path, version: str) -> None:
    for thing in stored(file):
        check(thing, version)


@pytest.mark.parametrize(
    "wrong", [{"capabilitys": {}}, {"privileged": "yes"}, {"runAsUser": "root"}]
)
def test_the_validation_sees_a_wrong_field(wrong: dict[str, Any]) -> None:
    agent = one(render(), "DaemonSet")
    agent["spec"]["template"]["spec"]["containers"][0]["securityContext"] |= wrong
    with pytest.raises(kubernetes_validate.ValidationError):
        check(agent, VERSIONS[0])


def test_our_own_schemas_see_a_wrong_field() -> None:
    monitor = one(render(*FULL), "PodMonitor")
    monitor["spec"]["podMetricsEndpoints"][0]["relabeling"] = []
    with pytest.raises(jsonschema.ValidationError):
        check(monitor, VERSIONS[0])


def test_the_manifests_are_the_charts(tmp_path: Path) -> None:
    """After a change of the chart: deploy/kubernetes/render."""
    script = [FOLDER / "render", tmp_path]
    subprocess.run(script, env={"PATH": "/usr/bin:/bin", "HELM": str(HELM)}, check=True, capture_output=True, timeout=120)  # fmt: skip
    made = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert made == {file.name: file.read_text(encoding="utf-8") for file in MANIFESTS}


def test_helm_has_nothing_against_it() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_packed_chart_has_the_rules_in_it(tmp_path: Path) -> None:
    """They are links in the checkout."""
    assert helm("package", str(CHART), "--destination", str(tmp_path)).returncode == 0
    with tarfile.open(next(tmp_path.glob("*.tgz"))) as packed:
        inside = packed.extractfile("mldebug/rules/alerts.yaml")
        assert inside is not None
        assert inside.read() == (ROOT / "deploy/prometheus/alerts.yaml").read_bytes()


def test_versions_are_the_packages() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == mldebug.__version__
    named = re.findall(
        r"\bmldebug:(\d\S+)",
        "".join(file.read_text() for file in (*EXAMPLES, FOLDER / "Dockerfile")),
    )
    assert named
    assert set(named) == {mldebug.__version__}


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("agent.hostNetwrk=true", "hostNetwrk"),
        ("agent.moreCapabilities={SYS_MODULE}", "moreCapabilities"),
        ("agent.filesystems={scratch}", "filesystems"),
        ("cluster.enabled=true", "cluster.enabled needs a key"),
        ("coordinator.replicas=0", "replicas"),
        ("probes.enabled=true", "probes.enabled needs probes.image"),
        ("probes.words={--beside-jobs}", "words"),
    ],
)
def test_wrong_values_are_refused_in_words(values: str, words: str) -> None:
    done = helm("template", "mldebug", str(CHART), f"--set={values}")
    assert done.returncode != 0
    assert words in done.stderr


def test_every_value_stands_in_the_schema_and_the_other_way_round() -> None:
    def paths(schema: Any) -> Any:
        return (
            {name: paths(below) for name, below in schema["properties"].items()}
            if "properties" in schema
            else None
        )

    def shape(value: Any, like: Any) -> Any:
        return {name: shape(below, like[name]) for name, below in value.items()} if like else None

    schema = paths(json.loads((CHART / "values.schema.json").read_text(encoding="utf-8")))
    schema.pop("global")  # helm's own
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert shape(values, schema) == {
        name: below and dict.fromkeys(below) for name, below in schema.items()
    }


def test_a_secret_holds_what_was_given_and_nothing_is_made_up() -> None:
    given = render("--set=cluster.enabled=true", KEY)
    secret = one(given, "Secret")
    assert {name: base64.b64decode(text) for name, text in secret["data"].items()} == {
        "cluster.key": KEY[-32:].encode()
    }
    assert "0123456789abcdef" not in json.dumps(
        [each for each in given if each["kind"] != "Secret"]
    )
    assert not [each for each in (*render(), *render(*FULL)) if each["kind"] == "Secret"]


# --- what it says of mldebug ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "objects",
    [render(), render(*FULL), stored(EXAMPLES[-1])],
    ids=["agents", "full", EXAMPLES[-1].stem],
)
def test_the_agent_accepts_its_configuration(objects: list[Object], tmp_path: Path) -> None:
    files = config_files(objects)
    assert files
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        config = load_config(tmp_path / name)
        assert str(config.agent.state_dir) == "/var/lib/mldebug"
        assert config.agent.listen == "0.0.0.0:9753"


def test_settings_of_your_own_join_those_of_the_chart(tmp_path: Path) -> None:
    file = tmp_path / "mldebug.yaml"
    file.write_text(
        config_files(
            render(*FULL, "--set=config.stall.timeout=90s", "--set=config.agent.group=ops")
        )["agent.yaml"]
    )
    config = load_config(file)
    assert (config.stall.timeout, config.agent.group, str(config.agent.state_dir)) == (
        90.0,
        "ops",
        "/var/lib/mldebug",
    )


def test_agents_look_for_coordinators_by_the_names_that_the_service_gives(tmp_path: Path) -> None:
    objects = render(*FULL)
    file = tmp_path / "mldebug.yaml"
    file.write_text(config_files(objects)["agent.yaml"])
    coordinators = one(objects, "StatefulSet")
    name, service = coordinators["metadata"]["name"], coordinators["spec"]["serviceName"]
    assert one(objects, "Service", service)["spec"]["clusterIP"] == "None"
    assert load_config(file).cluster.peers == tuple(
        f"{name}-{at}.{service}.mldebug.svc" for at in range(2)
    )


def test_only_the_first_coordinator_asks_the_api_server(tmp_path: Path) -> None:
    objects = render(*FULL, "--set=scheduler.expected.pretrain.name=my-training")
    for name, text in config_files(objects).items():
        (tmp_path / name).write_text(text)
    first = f"{one(objects, 'StatefulSet')['metadata']['name']}-0"
    coordinator = yaml.safe_load((tmp_path / "coordinator.yaml").read_text())
    assert coordinator["schedulers"] == {
        "kubernetes": {"kind": "kubernetes", "only_on": [first], "namespaces": ["training"]}
    }
    assert "pretrain" in load_config(tmp_path / "coordinator.yaml").jobs.expected
    assert not load_config(tmp_path / "agent.yaml").schedulers


def test_the_role_may_list_what_is_asked_for_and_no_more() -> None:
    role = one(render(*FULL), "Role")
    pairs = {
        (f"/apis/{group}", plural)
        for plural, path in KINDS.items()
        for group in [path.split("/")[2]]
    }
    assert {
        (f"/apis/{rule['apiGroups'][0]}", rule["resources"][0]) for rule in role["rules"]
    } == pairs
    assert [rule["verbs"] for rule in role["rules"]] == [["list"]] * len(KINDS)
    page = (ROOT / "docs/scheduler.md").read_text(encoding="utf-8")
    written = next(
        block
        for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
        if block.startswith("rules:")
    )
    assert role["rules"] == yaml.safe_load(written)["rules"]
    assert role["metadata"]["namespace"] == "training"
    assert not [each for each in render(*FULL) if each["kind"].startswith("ClusterRole")]


def test_the_alerts_are_those_that_promtool_tests() -> None:
    files = [ROOT / "deploy/prometheus" / name for name in ("rules.yaml", "alerts.yaml")]
    groups = [
        group
        for file in files
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    ]
    assert one(render(*FULL), "PrometheusRule")["spec"]["groups"] == groups


def test_links_of_alerts_lead_to_your_pages() -> None:
    rule = one(
        render(*FULL, "--set=prometheusRule.runbooks=https://docs.example.org/mldebug/"),
        "PrometheusRule",
    )
    alerts = [
        each for group in rule["spec"]["groups"] for each in group["rules"] if "alert" in each
    ]
    assert alerts
    for alert in alerts:
        assert (
            alert["annotations"]["runbook_url"]
            == f"https://docs.example.org/mldebug/runbooks/{alert['alert']}.md"
        )


def test_prometheus_gives_the_job_and_the_node_that_the_alerts_ask_for() -> None:
    example = yaml.safe_load(
        (ROOT / "deploy/prometheus/prometheus.yaml").read_text(encoding="utf-8")
    )
    steps = one(render(*FULL), "PodMonitor")["spec"]["podMetricsEndpoints"][0]["relabelings"]
    assert {"targetLabel": "job", "replacement": example["scrape_configs"][0]["job_name"]} in steps
    assert {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"} in steps


def test_the_page_s_scrape_job_is_the_pod_monitor_in_other_words(tmp_path: Path) -> None:
    page = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    (written,) = re.findall(r"```yaml\n(scrape_configs:.*?)```", page, re.DOTALL)
    (job,) = yaml.safe_load(written)["scrape_configs"]
    steps = one(render(*FULL), "PodMonitor")["spec"]["podMetricsEndpoints"][0]["relabelings"]
    snake = [{re.sub("[A-Z]", lambda big: f"_{big[0].lower()}", name): value for name, value in step.items()} for step in steps]  # fmt: skip
    assert job["job_name"] == steps[0]["replacement"]
    assert [step for step in job["relabel_configs"] if step.get("action") != "keep"] == snake[1:]
    # Debian's Prometheus has no discovery by Kubernetes: the rest of the job is what it can read
    assert job.pop("kubernetes_sd_configs") == [{"role": "pod", "namespaces": {"names": ["mldebug"]}}]  # fmt: skip
    file = tmp_path / "prometheus.json"
    file.write_text(json.dumps({"scrape_configs": [job]}))
    promtool("check", "config", file)


def test_the_token_of_the_web_pages_lies_where_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    (path,) = re.findall(r"config\.agent\.token_file: (\S+)`", page)
    objects = render("--set=secret.existing=mldebug", f"--set=config.agent.token_file={path}")
    file = tmp_path / "mldebug.yaml"
    file.write_text(config_files(objects)["agent.yaml"])
    assert str(load_config(file).agent.token_file) == path
    mounts = one(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert str(Path(path).parent) in {each["mountPath"] for each in mounts if each["name"] == "secret"}  # fmt: skip
