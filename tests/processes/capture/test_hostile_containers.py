"""A hostile container beside that of a victim, both as the node's root: it claims the victim's run, and ends badly. The victim's stall is named on time, by a real agent as root and as the unit's user, and no action hits anybody else."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from processes.agent.light import LightJob, light_job
from processes.capture.test_hostile_jobs import SOON, TIMEOUT
from processes.harness import User, folder_for, wait_for
from processes.incidents.watching import Report, RunningAgent, settings, watching
from shared.system.hung import missing

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes containers"),
]

OURS, THEIRS = "ab" * 32, "cd" * 32
NAMED_ALIKE = "a group of its own that is called as the victim's"
GROUPS = {
    "docker": f"docker/{THEIRS}",
    NAMED_ALIKE: f"docker/{THEIRS}/{OURS}",
    "a group of its own that is called user.slice": f"docker/{THEIRS}/user.slice/x",
    "nspawn": "machine.slice/machine-evil.scope",
    "none": "",
}
"""What the control group of the hostile container is called."""
SAME_RUN = {"MASTER_ADDR": "job-0", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "train"}
HIERARCHIES = [Path("/sys/fs/cgroup", name) for name in ("systemd", "unified", "")]
HOLDER = "exec 3<&0 && {prepare} echo up && exec cat <&3"


def in_group(group: str) -> list[Path]:
    """The folders of a control group, made in each hierarchy that can be written here."""
    made = []
    for top in HIERARCHIES if group else ():
        if (top / "cgroup.procs").exists():
            with suppress(OSError):
                (top / group).mkdir(parents=True, exist_ok=True)
                made.append(top / group)
    if group and not made:
        missing("a control group that can be written")
    return made


@contextmanager
def container(group: str, prepare: str = "") -> Iterator[list[str]]:
    """Words before a command that run it as root in one container: process, mount, network, IPC and UTS namespaces of its own, and this
    control group. `prepare`: shell commands that run there first, each with `&&` behind it.
    """
    folders = in_group(group)
    shell = ["sh", "-c", HOLDER.format(prepare=prepare)]
    new = ["unshare", "-pmniuf", "--kill-child", "--mount-proc", *shell]
    with subprocess.Popen(new, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"up\n"
            inside = _child(holder.pid)
            joins = " && ".join(["true", *(f"echo $$ > '{one}/cgroup.procs'" for one in folders)])
            enter = f'{joins} && exec nsenter -t {inside} -p -m -n -i -u "$@"'
            yield ["sh", "-c", enter, "sh"]
        finally:
            holder.kill()
            holder.wait()
            for one in folders:
                wait_for("the group's end", lambda one=one: _gone(one), 20)  # type: ignore[misc]


def _gone(group: Path) -> bool:
    with suppress(OSError):
        group.rmdir()
    if group.exists():
        return False
    with suppress(OSError):  # those above it, unless somebody else is in them
        for above in list(group.parents)[: -len(HIERARCHIES[-1].parts)]:
            if above not in HIERARCHIES:
                above.rmdir()
    return True


def _child(pid: int) -> int:
    def first() -> int | None:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(words[0]) if words else None

    found: int = wait_for("the process inside", first, 20)
    return found


def inside(job: LightJob) -> dict[int, int]:
    """Rank -> pid of a job whose ranks `nsenter` has started, as the node sees them."""
    return {rank: _child(pid) for rank, pid in job.ranks.items()}


def job_in(
    stack: ExitStack, folder: Path, prefix: Sequence[str], **more: str
) -> tuple[LightJob, dict[int, int]]:
    job = stack.enter_context(light_job(folder, prefix=prefix, more=SAME_RUN | more))
    return job, inside(job)


def report_of(agent: RunningAgent, pids: dict[int, int]) -> Report | None:
    mine = set(pids.values())
    return next(
        (one for one in agent.reports() if mine & {rank["pid"] for rank in one["ranks"]}), None
    )


def steps(agent: RunningAgent, pids: dict[int, int]) -> bool:
    snap = agent.snapshot()
    return any(
        set(pids.values()) == set(run.ranks.values()) and run.step
        for run in (snap.runs if snap else ())
    )


OTHERS = [*((name, User()) for name in GROUPS if name != NAMED_ALIKE), ("none", User("nobody")), ("nspawn", User("nobody"))]  # fmt: skip
CASES = [
    (NAMED_ALIKE, User()),
    *(pytest.param(*one, marks=pytest.mark.long) for one in OTHERS),  # in short: test_ranks.py
]


@pytest.mark.parametrize(("name", "user"), CASES)
def test_ranks_of_a_hostile_container_are_in_nobody_s_run(name: str, user: User) -> None:
    """They say the same master, run id and ranks, and end badly; an action for bad ends and stalls reaches no rank of the victim's."""
    with ExitStack() as stack:
        folder = stack.enter_context(folder_for(User()))
        ours = stack.enter_context(container(f"docker/{OURS}"))
        theirs = stack.enter_context(container(GROUPS[name]))
        act = (
            "actions: {allow: [signal], steps: {stop: {kind: signal, signal: SIGTERM, to: ranks, confidence: low}},"
            " chains: {abnormal_end: [stop]}}\n"
        )
        agent = stack.enter_context(watching(folder, settings(folder, stall=TIMEOUT) + act, user))
        victim, mine = job_in(stack, folder / "victim", ours)
        _, others = job_in(stack, folder / "hostile", theirs)
        wait_for("both are watched", lambda: steps(agent, mine) and steps(agent, others), 60)
        os.kill(others[0], signal.SIGSEGV)
        wait_for("the end of its rank", lambda: report_of(agent, others), SOON)
        wait_for("the action", lambda: "action stop" in agent.log, SOON)
        assert all(process.poll() is None for process in victim.processes)
        os.kill(mine[1], signal.SIGSTOP)
        victim.hang()
        report = wait_for("the victim's report", lambda: report_of(agent, mine), SOON)
        assert {rank["pid"] for rank in report["ranks"]} == set(mine.values())
    assert [one["rank"] for one in report["diagnosis"]["culprits"]] == [1]
