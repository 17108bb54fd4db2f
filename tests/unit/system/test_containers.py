"""Which container a process is in: by the outermost name of its control group, and by its process namespace."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug_agents.system.host import Host
from mldebug_agents.system.process.containers import (
    ContainerName,
    container_of,
    names_above,
    outer_namespace,
)
from mldebug_agents.system.process.held_reads import process_owner

POD = "11111111-2222-3333-4444-555555555555"
IN_POD = f"/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{{}}.scope"


@pytest.mark.parametrize(
    ("cgroup", "pod", "container"),
    [
        ("0::/user.slice", "", ""),
        ("0::/system.slice/docker-" + "ab" * 32 + ".scope", "", "abababababab"),
        ("12:cpu:/kubepods/burstable/pod1-2/" + "0f" * 32 + "\n1:name=systemd:/", "", "0f0f0f0f0f0f"),
        ("0::/kubepods.slice/cri-containerd-" + "12" * 32 + ".scope/init", "", "121212121212"),
        ("0::" + IN_POD.format("12" * 32), POD, "121212121212"),
        ("0::/../.." + IN_POD.format("12" * 32), POD, "121212121212"),
        ("0::/machine.slice/machine-train.scope/payload", "", "machine-train.scope"),
        ("0::/lxc.payload.train", "", "lxc.payload.train"),
        ("0::/machine.slice/libpod-" + "ab" * 32 + ".scope/container", "", "abababababab"),
        ("0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0", "", ""),
        # the outermost name counts: what is below it its root calls as he likes
        ("0::/docker/" + "ab" * 32 + "/" + "cd" * 32, "", "abababababab"),
        ("0::/docker/" + "ab" * 32 + IN_POD.format("cd" * 32), "", "abababababab"),
        ("0::/docker/" + "ab" * 32 + "/user.slice/x", "", "abababababab"),
        ("0::" + IN_POD.format("12" * 32) + f"/kubepods/pod{POD[::-1]}/" + "cd" * 32, POD, "121212121212"),
        ("0::/user.slice/user-1.slice/docker-" + "ab" * 32 + ".scope", "", ""),
        ("0::/user.slice/user-1.slice" + IN_POD.format("ab" * 32), "", ""),
    ],
)  # fmt: skip
def test_the_outermost_name_counts(cgroup: str, pod: str, container: str) -> None:
    assert container_of(f"{cgroup}\n") == ContainerName(pod, container)


def test_what_is_above_the_agent_names_nobody_but_its_pod_does() -> None:
    outer = f"0::/docker/{'ee' * 32}"
    above = names_above(f"{outer}/init.scope\n")
    assert container_of(f"{outer}/docker/{'ab' * 32}\n", above) == ("", "abababababab")
    sidecar = names_above(f"0::{IN_POD.format('ee' * 32)}\n")
    assert container_of(f"0::{IN_POD.format('ab' * 32)}\n", sidecar) == (POD, "abababababab")


@given(st.text(), st.text())
def test_no_text_breaks_it(cgroup: str, own: str) -> None:
    container_of(cgroup, names_above(own))


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone makes process namespaces")
def test_a_process_namespace_is_found_however_many_are_below_it() -> None:
    """Whoever is root there may make thousands below his own: they are one."""
    code = "import os,sys; print(os.readlink('/proc/self/ns/pid'), flush=True); sys.stdin.read()"
    deep = ["unshare", "-pf", "--kill-child", *["unshare", "-pf", "--kill-child"] * 2, sys.executable, "-c", code]  # fmt: skip
    with subprocess.Popen(deep, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as outer:
        try:
            assert outer.stdout is not None
            innermost = outer.stdout.readline().strip()
            chain = [outer.pid]
            while children := _children(chain[-1]):
                chain.append(children[0])
            host, first = Host(), os.readlink(f"/proc/{chain[1]}/ns/pid")
            assert first != innermost == os.readlink(f"/proc/{chain[-1]}/ns/pid")
            assert host.pid_namespace(chain[-1]) == host.pid_namespace(chain[1]) == first
            assert host.pid_namespace(os.getpid()) == outer_namespace("/proc/self/ns/pid") == ""
            assert process_owner(f"/proc/{chain[-1]}") == (0, first)
        finally:
            outer.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
def test_a_namespace_that_cannot_be_opened_is_not_taken_for_the_agents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its link was read: that is enough to keep it apart."""
    monkeypatch.setattr("mldebug_agents.system.host.outer_namespace", lambda _: "")
    argv = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo; sleep 60"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        (inside,) = _children(one.pid)
        found = Host().pid_namespace(inside)
        one.kill()
    assert found.startswith("pid:[")
    assert found != os.readlink("/proc/self/ns/pid")


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return list(map(int, file.read().split()))
