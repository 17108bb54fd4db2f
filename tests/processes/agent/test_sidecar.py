"""deploy/kubernetes/examples/sidecar.yaml at work: one PID namespace, two views of the files, the job's user, no capability, no new rights.

What Kubernetes makes of the pod is made here with unshare and setpriv; the agent has the ConfigMap's own text.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from processes.harness import (  # fmt: skip
    JOBS,
    MLDEBUG,
    User,
    clean_environment,
    folder_for,
    free_port,
    wait_for,
)
from shared.deploy.manifests import EXAMPLES, config_files, containers, pod_templates, stored
from system.lending import Column, lent

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root, unshare"),
]  # fmt: skip

SIDECAR = stored(next(file for file in EXAMPLES if file.stem == "sidecar"))
(POD,) = (template for thing in SIDECAR for template in pod_templates(thing))
UID: int = POD["spec"]["securityContext"]["runAsUser"]
BARE = ["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "env"]
NAMESPACE = ("unshare", "--fork", "--kill-child", "--pid", "--mount", "--mount-proc")


def user() -> tuple[int, list[str]]:
    """Of both containers, and the words that make it: the example's where he may start this Python, else root with all rights taken away."""
    words = lent(Column(UID))
    tried = subprocess.run(
        [*words, *MLDEBUG, "--version"], check=False, capture_output=True, cwd="/", timeout=60
    )
    return (UID, words) if tried.returncode == 0 else (0, BARE)


class Pod:
    """Its folders: `job` is the training container's alone, `agent` holds the agent's state."""

    def __init__(self, folder: Path) -> None:
        self.job, self.agent, self.port = folder / "job", folder / "agent", free_port()
        self.uid, self.me = user()
        for path in (self.job, self.agent):
            path.mkdir()
            os.chown(path, self.uid, self.uid)
        self.config = self.agent / "mldebug.yaml"
        self.config.write_text(self._settings())

    def _settings(self) -> str:
        """The example's, on a port and in a folder of the test, and in less of a hurry than a person's patience."""
        (text,) = config_files(SIDECAR).values()
        result = yaml.safe_load(text)
        result["agent"] |= {"state_dir": str(self.agent / "state"), "listen": f"127.0.0.1:{self.port}"}  # fmt: skip
        return yaml.safe_dump(result | {"stall": {"timeout": "8s", "interval": "1s"}})

    def script(self) -> str:
        """What the kubelet would start: the job, and the agent that cannot see its files; this shell stands for the pause container."""
        me = shlex.join(self.me)
        rank = f"{me} {sys.executable} {self.job}/train.py {self.job}/libtorch_cpu.so"
        agent = shlex.join([*MLDEBUG, "agent", "--config", str(self.config)])
        hidden = f'mount -t tmpfs tmpfs {self.job}; exec {me} {agent} >>{self.agent}/agent.log 2>&1'  # fmt: skip
        ranks = " ".join(f"RANK={n} LOCAL_RANK={n} {rank} >>{self.job}/log 2>&1 &" for n in (0, 1))
        return f"{ranks} unshare --mount sh -c {shlex.quote(hidden)} & wait"

    def exec(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """As `kubectl exec -c mldebug` does: in the agent's namespaces, as its user."""
        inside = ["nsenter", f"--target={self._agent_pid()}", "--pid", "--mount", *self.me]
        return subprocess.run([*inside, *MLDEBUG, *words, "--config", str(self.config)], check=False, timeout=60,
                              capture_output=True, text=True, env=clean_environment(self.agent), cwd="/")  # fmt: skip

    def _agent_pid(self) -> int:
        """As this test sees it: the oldest with these words, since a helper that it has forked has the same."""
        mine = f"agent\0--config\0{self.config}\0".encode()
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # gone by now
                found += [int(file.parent.name)] if file.read_bytes().endswith(mine) else []
        return min(found)

    def answers(self, path: str) -> bytes:
        """What the kubelet or Prometheus is told."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return bytes(answer.read())

    def report(self) -> Any:
        """The only one."""
        files = list(self.agent.glob("state/reports/[!.]*/report.json"))
        return json.loads(files[0].read_text()) if files else None


@contextmanager
def running_pod(folder: Path) -> Iterator[Pod]:
    pod = Pod(folder)
    (pod.job / "libtorch_cpu.so").write_bytes(b"\x7fELF" + bytes(8192))
    shutil.copy(JOBS / "light.py", pod.job / "train.py")
    os.mkfifo(pod.job / "fifo")
    for path in pod.job.iterdir():
        os.chown(path, pod.uid, pod.uid)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}  # fmt: skip
    started = subprocess.Popen(
        [*NAMESPACE, "sh", "-c", pod.script()], env=clean_environment(folder) | place
    )
    try:
        yield pod
    finally:
        started.kill()
        started.wait(30)


def test_the_agent_beside_a_job_sees_its_stall_without_any_right() -> None:
    with folder_for(User()) as folder:
        folder.chmod(0o755)  # the user of the pod passes through it
        with running_pod(folder) as pod:
            wait_for("the agent sees steps", lambda: is_seen(pod), 60)
            assert pod.answers("/healthz") == b"ok\n"
            (pod.job / "hang").touch()
            report = wait_for("a report", pod.report, 60)
            dumped = pod.exec("dump", "--json")
            shown = pod.exec("reports", "show", "latest")

    assert dumped.returncode == 1, dumped.stderr
    for item in (report, json.loads(dumped.stdout)):
        assert said_of_ranks(item) == {
            "0": "waits to open a FIFO", "1": "sleeps in slow_data_loader (train.py:16)"
        }  # fmt: skip
        assert {gap["what"] for gap in item["gaps"]} <= {"kernel log"}
    assert "slow_data_loader" in shown.stdout


def is_seen(pod: Pod) -> bool:
    try:
        return b"mldebug_run_step{" in pod.answers("/metrics")
    except OSError:
        return False


def said_of_ranks(report: Any) -> dict[str, str]:
    """What each does, as far as its kind of wait and its Python stack tell; without the path of a file."""
    return {one["ranks"]: one["doing"].partition(" (/")[0] for one in report["groups"]}


def test_the_example_asks_for_no_right() -> None:
    """What this test takes away from the agent, the example takes away, too."""
    agent = containers(POD)[0]
    assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert agent["securityContext"]["allowPrivilegeEscalation"] is False
    assert Column(UID).capabilities == ()
