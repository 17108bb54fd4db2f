"""scancel and drain: numbers and names come from Slurm alone. Stand-ins for its programs record what they were given."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.alerts.action_model import UnfitError
from mldebug.core.model import Culprit
from mldebug_agents.alerts.action_runner.model import ActionInput, ProgramError
from mldebug_agents.alerts.actions import drain, scancel
from mldebug_agents.system.host import Host
from mldebug_agents.system.spawn import Spawner
from unit.alerts.test_actions import rank, work

PROGRAM = """#!/usr/bin/env python3
import json, os, pathlib, sys
folder = pathlib.Path({folder!r})
name = pathlib.Path(sys.argv[0]).name
with (folder / "calls").open("a") as calls:
    calls.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
asked = sys.argv[1] if len(sys.argv) > 1 else ""
answers = json.loads((folder / "answers").read_text())
if name == "scontrol" and "." in sys.argv[-1]:
    sys.exit("Node not found")
key = name if name != "scontrol" else "scontrol " + asked.strip("-")
key += " on" if any(one.startswith("--nodelist=") for one in sys.argv) else ""
print(answers.get(key, ""), end="")
sys.exit(answers.get(key + " code", 0))
"""


class Slurm:
    """What it answers, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("squeue", "scontrol", "scancel"):
            file = folder / name
            file.write_text(PROGRAM.format(folder=str(folder)))
            file.chmod(file.stat().st_mode | stat.S_IXUSR)
        self.answer()

    def answer(self, **more: Any) -> None:
        facts = {
            "squeue": f"1234|1234|{os.getuid()}|RUNNING\n",
            "scontrol pidinfo": "Slurm JobId=1234 ends at Sat Jan  1 00:00:00 2028\n",
            "scontrol oneliner": "NodeName=node1 Arch=x86_64 State=ALLOCATED ThreadsPerCore=1\n",
        }
        names = {name.replace("_", " "): value for name, value in more.items()}
        (self._folder / "answers").write_text(json.dumps(facts | names))

    @property
    def calls(self) -> list[list[str]]:
        file = self._folder / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Slurm(tmp_path)


@pytest.fixture
def spawner(slurm: Slurm) -> Iterator[Spawner]:
    with Spawner() as one:
        yield one


class Grouped(Host):
    """A node whose processes are in these control groups."""

    def __init__(self, groups: str) -> None:
        super().__init__()
        self._groups = groups

    def text(self, pid: int, name: str) -> str:
        return self._groups if name == "cgroup" else super().text(pid, name)


def action_input(spawner: Spawner, groups: str = "0::/user.slice\n", **facts: Any) -> ActionInput:
    return work(rank(os.getpid()), starter=spawner, **facts)._replace(host=Grouped(groups))


def cancel(given: ActionInput, **options: Any) -> str:
    return scancel.create(scancel.Options(**options)).plan(given).do().words


# --- scancel -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "groups",
    [
        "0::/user.slice\n",  # no control group of Slurm's: slurmd is asked
        "0::/system.slice/slurmstepd.scope/job_1234/step_0/user/task_0\n",
        "0::/system.slice/node1_slurmstepd.scope/job_1234/step_0/user/task_0\n",
        "4:memory:/slurm/uid_1000/job_1234/step_0\n0::/\n",
        "4:cpu,cpuacct:/slurm_node1/uid_1000/job_1234/step_batch/task_0\n",
    ],
)
def test_the_number_comes_from_the_control_group_or_from_slurmd(
    slurm: Slurm, spawner: Spawner, groups: str
) -> None:
    assert cancel(action_input(spawner, groups)) == "scancel 1234"
    assert slurm.calls[-1] == ["scancel", "1234"]
    assert (["scontrol", "pidinfo", str(os.getpid())] in slurm.calls) == ("1234" not in groups)


@pytest.mark.parametrize(
    "groups",
    [
        "0::/user.slice/user-1000.slice/user@1000.service/job_99/x\n",
        "0::/user.slice/system.slice/slurmstepd.scope/job_99/x\n",
        "0::/system.slice/evil.service/slurmstepd.scope/job_99/x\n",
    ],
)
def test_a_group_that_a_user_may_make_is_not_believed(
    slurm: Slurm, spawner: Spawner, groups: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "99")
    assert cancel(action_input(spawner, groups)) == "scancel 1234"
    assert not any("99" in word for call in slurm.calls for word in call)


def test_one_task_of_an_array_is_cancelled_alone(slurm: Slurm, spawner: Spawner) -> None:
    uid = os.getuid()
    slurm.answer(squeue=f"1240|1234_1|{uid}|RUNNING\n1234|1234_7|{uid}|RUNNING\n")
    assert cancel(action_input(spawner)) == "scancel 1234_7"


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({"squeue": "1234|1234|4711|RUNNING\n"}, "is of user 4711"),
        ({"squeue": f"1234|1234|{os.getuid()}|COMPLETING\n"}, "COMPLETING and not running"),
        ({"squeue": f"1234|1234_[1-9]|{os.getuid()}|RUNNING\n"}, "not understood"),
        ({"squeue": f"1234|--me|{os.getuid()}|RUNNING\n"}, "not understood"),
        ({"squeue": f"99|99|{os.getuid()}|RUNNING\n"}, "squeue tells 0 jobs"),
        ({"squeue": ""}, "squeue tells 0 jobs"),
        ({"scontrol_pidinfo": "Slurm JobId=1;reboot ends at x\n"}, "does not say"),
        ({"scontrol_pidinfo": ""}, "does not say"),
    ],
)
def test_what_is_not_sure_is_not_cancelled(
    slurm: Slurm, spawner: Spawner, answers: dict[str, str], why: str
) -> None:
    slurm.answer(**answers)
    with pytest.raises(UnfitError, match=why):
        cancel(action_input(spawner))
    assert "scancel" not in [name for name, *_ in slurm.calls]


def test_a_verdict_that_is_not_sure_cancels_nothing_unless_told(
    slurm: Slurm, spawner: Spawner
) -> None:
    with pytest.raises(UnfitError, match="confidence is medium"):
        cancel(action_input(spawner, confidence="medium"))
    assert slurm.calls == []
    assert cancel(action_input(spawner, confidence="medium"), confidence="low") == "scancel 1234"


def test_a_slurm_job_that_holds_another_run_is_not_cancelled_unless_told(
    slurm: Slurm, spawner: Spawner
) -> None:
    result = action_input(spawner)
    assert result.job is not None
    result = result._replace(others=(msgspec.structs.replace(result.job, id="healthy"),))
    with pytest.raises(UnfitError, match="holds run healthy, too"):
        cancel(result)
    assert "scancel" not in [name for name, *_ in slurm.calls]
    assert cancel(result, with_others=True) == "scancel 1234"


def test_runs_that_have_ended_or_are_of_no_slurm_job_hold_up_nothing(
    slurm: Slurm, spawner: Spawner
) -> None:
    result = action_input(
        spawner, "0::/system.slice/slurmstepd.scope/job_1234/step_0/user/task_0\n"
    )
    assert result.job is not None
    gone = msgspec.structs.replace(result.job, id="gone", ranks=(rank(os.getpid(), ticks=1),))
    empty = msgspec.structs.replace(result.job, id="empty", ranks=())
    assert cancel(result._replace(others=(gone, empty))) == "scancel 1234"


def test_a_plan_cancels_nothing(slurm: Slurm, spawner: Spawner) -> None:
    assert scancel.create(scancel.Options()).plan(action_input(spawner)).words == "scancel 1234"
    assert "scancel" not in [name for name, *_ in slurm.calls]


def test_a_scancel_that_fails_is_told_with_its_code(slurm: Slurm, spawner: Spawner) -> None:
    slurm.answer(scancel_code=1)
    with pytest.raises(ProgramError, match="scancel ended with 1") as caught:
        cancel(action_input(spawner))
    assert caught.value.code == 1


def test_without_slurm_it_is_told(
    tmp_path: Path, spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ProgramError, match="scontrol cannot be started"):
        cancel(action_input(spawner))


# --- drain ---------------------------------------------------------------------------------------


def culprit(kind: Any, node: str = "node1.cluster.example") -> Culprit:
    return Culprit(kind=kind, rank=None, node=node, pid=None, reason="evil $(reboot)")


def drained(given: ActionInput) -> str:
    return drain.create(drain.Options()).plan(given).do().words


def test_the_node_of_a_sick_gpu_is_drained_for_a_reason_of_our_own_words(
    slurm: Slurm, spawner: Spawner
) -> None:
    drained(action_input(spawner, blamed=(culprit("gpu"),), verdict="gpu_fault"))
    update = ["update", "nodename=node1", "state=drain", "reason=mldebug:gpu_fault"]
    assert slurm.calls[-1] == ["scontrol", *update]


@pytest.mark.parametrize(("answer", "drains"), [("1234\n", True), ("", False), ("99\n", False)])
def test_a_silent_node_is_drained_only_where_slurm_says_that_the_job_has_it(
    slurm: Slurm, spawner: Spawner, answer: str, drains: bool
) -> None:
    """A job may put any names into its list of nodes."""
    slurm.answer(squeue_on=answer, scontrol_oneliner="NodeName=node2 State=ALLOCATED\n")
    result = action_input(spawner, blamed=(culprit("node", "node2"),), verdict="node_unreachable")
    if drains:
        assert "nodename=node2" in drained(result)
    else:
        with pytest.raises(UnfitError, match="does not say that job 1234 has node2"):
            drained(result)
        with pytest.raises(UnfitError, match="no rank of the run is here"):
            drained(result._replace(job=None))
    assert (["update"] in [call[1:2] for call in slurm.calls]) == drains


def test_the_node_of_a_gpu_elsewhere_is_drained_after_its_job_has_ended(
    slurm: Slurm, spawner: Spawner
) -> None:
    slurm.answer(scontrol_oneliner="NodeName=node2 State=IDLE\n")
    result = action_input(spawner, blamed=(culprit("gpu", "node2"),), verdict="gpu_fault")
    assert "nodename=node2" in drained(result._replace(job=None))


def test_a_component_that_is_not_well_drains_its_own_node(slurm: Slurm, spawner: Spawner) -> None:
    drained(action_input(spawner, key="health/gpu_ecc/GPU-1", verdict="ecc_uncorrected"))
    assert slurm.calls[-1][2:4] == ["nodename=node1", "state=drain"]


@pytest.mark.parametrize(
    ("blamed", "answer", "why"),
    [
        ((culprit("rank"),), "", "no single node is blamed, but rank on node1"),
        ((culprit("gpu"), culprit("node", "node2")), "", "no single node"),
        ((), "", "but nobody"),
        ((culprit("node", "node[1-99]"),), "", "none that Slurm may have"),
        ((culprit("node", "ALL,node1"),), "", "none that Slurm may have"),
        ((culprit("node", "--all"),), "", "none that Slurm may have"),
        ((culprit("gpu"),), "NodeName=node9 State=IDLE\n", "Slurm knows no node"),
        ((culprit("gpu"),), "NodeName=node1 State=IDLE\nNodeName=node2 State=IDLE\n", "Slurm knows no node"),
        ((culprit("gpu"),), "NodeName=node1 State=IDLE+DRAIN Reason=disk [root]\n", "drained already"),
    ],
)  # fmt: skip
def test_what_is_no_single_node_is_not_drained(
    slurm: Slurm, spawner: Spawner, blamed: tuple[Culprit, ...], answer: str, why: str
) -> None:
    if answer:
        slurm.answer(scontrol_oneliner=answer)
    with pytest.raises(UnfitError, match=why):
        drained(action_input(spawner, blamed=blamed, verdict="gpu_fault"))
    assert "update" not in [word for call in slurm.calls for word in call]
