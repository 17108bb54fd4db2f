"""The hook and its reader where the world is not as usual: many ranks, no shared memory, containers, missing rights."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from mldebug.jobs.heartbeat import record_name
from mldebug.status.snapshot import RunState
from mldebug_agents.jobs.job_start import environment, hook_folder
from processes.agent.light import LightJob, light_job
from processes.harness import (
    JOBS,
    SCRIPTS,
    clean_environment,
    environment_of_jobs,
    state_of,
    wait_for,
)
from processes.incidents.watching import RunningAgent, settings, watching
from processes.needs import need_torch
from processes.training.torchlike import write_torch
from system.lending import OWNER

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(400)]

UNSHARE = ["unshare", "--mount", "--propagation", "private"]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting is for root")


def beating(folder: Path) -> dict[str, str]:
    """What a light job needs to have the hook."""
    facts = {"PYTHONPATH": str(write_torch(folder / "site")), "PAUSE": "0.5"}
    return facts | environment(facts, hook_folder())


def run_of(agent: RunningAgent, job: LightJob) -> RunState | None:
    """By name: in a pid namespace its pids are others."""
    snap = agent.snapshot()
    return next((run for run in snap.runs if run.name == job.name), None) if snap else None


def steps(agent: RunningAgent, job: LightJob) -> dict[int, int]:
    """Rank -> step, of those that have made one."""
    run = run_of(agent, job)
    hooks = run.hooks if run else {}
    return {rank: one.step for rank, one in hooks.items() if one.step is not None}


def record_of(pid: int) -> Path:
    """Its name, while it lives."""
    start = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return Path("/dev/shm", record_name(pid, start))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    folder = tmp_path / "agent"
    folder.mkdir()
    with watching(folder, settings(folder, stall="{timeout: 60s, interval: 1s}")) as one:
        yield one


# --- many ------------------------------------------------------------------------------------------


def test_64_ranks_tell_their_steps_and_a_killed_one_tells_nothing(
    agent: RunningAgent, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    with light_job(folder, 64, script="beating.py", more=beating(folder)) as job:
        wait_for("steps of all ranks", lambda: len(steps(agent, job)) == 64, 120)
        before = steps(agent, job)
        wait_for(
            "all of them to move",
            lambda: all(step > before[rank] for rank, step in steps(agent, job).items()),
            60,
        )
        left = record_of(job.processes[5].pid)
        job.processes[5].kill()
        job.processes[5].wait(20)
        assert left.exists()  # nobody had the time to take it away
        wait_for("the agent to miss it", lambda: len(steps(agent, job)) == 63, 60)
        assert 5 not in steps(agent, job)
        look = next(one for one in agent.snapshot().sources if one.name == "watch")  # type: ignore[union-attr]
        assert look.success
        print(f"a look at 64 ranks: {1000 * look.seconds:.0f} ms")
        code = "import torch; torch.optim.Optimizer().step()"
        env = clean_environment(folder) | beating(folder) | {"RANK": "0", "WORLD_SIZE": "1"}
        subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
        assert not left.exists()  # the next one of this user swept it away
        assert not Path(f"{left}.stacks").exists()
        assert len(list(Path("/dev/shm").glob("mldebug-*"))) >= 2 * 63


# --- containers ------------------------------------------------------------------------------------

CONTAINER = [*UNSHARE, "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c",
             'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]  # fmt: skip


@as_root
def test_a_rank_in_a_container_is_found_by_what_it_sees_itself(
    agent: RunningAgent, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    job_of_one = light_job(folder, 1, script="beating.py", prefix=CONTAINER, more=beating(folder))
    with job_of_one as job:  # two ranks would be of two containers, and of two runs
        wait_for("its steps", lambda: len(steps(agent, job)) == 1, 90)
        run = run_of(agent, job)
        assert run is not None
        for pid in run.ranks.values():
            assert not list(Path("/dev/shm").glob(f"mldebug-{pid}-*"))
            assert not list(Path("/dev/shm").glob("mldebug-1-*"))
            assert list(Path(f"/proc/{pid}/root/dev/shm").glob("mldebug-*-*.stacks"))
        job.hang()
        one = next(iter(run.ranks.values()))
        wait_for("it to stand there", lambda: "slow_data_loader" in functions_of(one), 60)
        assert {state_of(pid) for pid in run.ranks.values()} == {"S"}


# --- rights ----------------------------------------------------------------------------------------

ASK = """
import json, sys
from mldebug_agents.jobs.hook.signals import HookSignals
from mldebug_agents.jobs.hook.stacks import HookStacks
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
if len(sys.argv) > 2:
    from processes.training.unattached import deny
    deny(sys.argv[2:])
with Spawner() as spawner, Reader(spawner) as reader:
    found = HookStacks(HookSignals(Host(), reader), reader).dump(int(sys.argv[1]))
print(json.dumps([frame.function for stack in found for frame in stack.frames]))
"""


def functions_of(pid: int, *denied: str, prefix: Sequence[str] = ()) -> list[str]:
    """The functions in which a process says that it is, to another process of ours."""
    paths = [str(JOBS.parent.parent / name) for name in ("", "agents", "exporters", "tests")]
    env = clean_environment(Path("/")) | {"PYTHONPATH": ":".join(paths)}
    done = subprocess.run(
        [*prefix, sys.executable, "-c", ASK, str(pid), *denied],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


@contextmanager
def sleeper(
    folder: Path, prefix: Sequence[str] = (), python: str = sys.executable
) -> Iterator[int]:
    """A rank with the hook, that sleeps; its pid. At the end nothing of it is left."""
    hook = folder / "hook" / "mldebug_training"  # where every user may read it
    shutil.copytree(hook_folder().parent, hook)
    code = "import torch, time\ndef slow():\n    print('up', flush=True); time.sleep(1000)\nslow()"
    env: Mapping[str, str] = {
        "PATH": os.environ["PATH"], "RANK": "0", "WORLD_SIZE": "1",
        "PYTHONPATH": f"{hook / 'startup'}:{write_torch(folder / 'site')}",
    }  # fmt: skip
    one = subprocess.Popen(
        [*prefix, python, "-c", code], env=env, stdout=subprocess.PIPE, text=True
    )
    try:
        assert one.stdout is not None
        assert one.stdout.readline() == "up\n"
        wait_for("it to sleep", lambda: state_of(one.pid) == "S", 20)
        yield one.pid
        assert one.poll() is None, "it was harmed"
    finally:
        one.kill()
        one.wait(20)
        one.stdout.close()  # type: ignore[union-attr]
        for path in Path("/dev/shm").glob(f"mldebug-{one.pid}-*"):
            path.unlink()


def test_where_no_signal_may_be_sent_nothing_is_told_and_nobody_is_harmed(tmp_path: Path) -> None:
    with sleeper(tmp_path) as pid:
        assert functions_of(pid, "pidfd_send_signal") == []
        assert "slow" in functions_of(pid, "ptrace", "process_vm_readv")


@as_root
def test_another_users_rank_is_asked_with_cap_kill_only() -> None:
    python = next((one for one in ("/usr/bin/python3", sys.executable) if Path(one).exists()), "")
    owner = ["setpriv", f"--reuid={OWNER}", f"--regid={OWNER}", "--clear-groups", "env"]
    with tempfile.TemporaryDirectory(prefix="mldebug-test-") as name:
        Path(name).chmod(0o755)
        with sleeper(Path(name), owner, python) as pid:
            less = ["setpriv", "--bounding-set=-kill", "--inh-caps=-kill"]
            assert functions_of(pid, prefix=less) == []
            assert "slow" in functions_of(pid)


# --- shared memory that is not there ---------------------------------------------------------------

NO_SHM = (  # a /dev of its own, because taking the folder away would take it from everybody
    "cd $(mktemp -d) && for one in null zero full random urandom tty; do touch $one && mount --bind /dev/$one $one; done"
    " && ln -s /proc/self/fd fd && mount --rbind . /dev"
)
BROKEN = {
    "full": "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/other",
    "for one page": "mount -t tmpfs -o size=4k tmpfs /dev/shm",
    "read-only": "mount -t tmpfs -o ro tmpfs /dev/shm",
    "missing": NO_SHM,
}
STEPS = 20


def trained(how: str = "", *, hook: bool) -> list[str]:
    """The losses of a real job of two ranks, in a mount namespace where shared memory is broken this way."""
    proof = "head -c 200000 /dev/zero 2>&- > /dev/shm/try && echo ROOM; rm -f /dev/shm/try"
    broken = [*UNSHARE, "sh", "-c", f'{how} && {{ {proof}; exec "$@"; }}', "sh"]
    with tempfile.TemporaryDirectory(prefix="mldebug-test-") as name:
        events = Path(name, "events")
        events.mkdir()
        job = [str(SCRIPTS / "torchrun"), "--nproc-per-node", "2", "--standalone",
               str(JOBS / "train.py"), "--events", str(events), "--ranks", "", "--steps", str(STEPS)]  # fmt: skip
        ours = [str(SCRIPTS / "mldebug"), "run", "--"] if hook else []
        done = subprocess.run(
            [*(broken if how else []), *ours, *job], capture_output=True, text=True, check=False,
            timeout=240, env=environment_of_jobs(Path(name)) | {"OMP_NUM_THREADS": "1"}, cwd=name,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ROOM" not in done.stdout
    return [line for line in done.stdout.splitlines() if line.startswith("step ")]


@pytest.fixture(scope="module")
def undisturbed() -> list[str]:
    """Without the hook, where all is well."""
    need_torch("the jobs train with PyTorch")
    result = trained(hook=False)
    assert len(result) == STEPS / 5, result
    return result


@as_root
@pytest.mark.parametrize("how", [pytest.param(one, marks=() if one in ("full", "missing") else pytest.mark.long) for one in BROKEN])  # fmt: skip
def test_training_goes_on_to_the_same_loss_without_shared_memory(
    how: str, undisturbed: list[str]
) -> None:
    assert trained(BROKEN[how], hook=True) == undisturbed


def test_training_comes_to_the_same_loss_with_the_hook(undisturbed: list[str]) -> None:
    assert trained(hook=True) == undisturbed


# --- beside others ---------------------------------------------------------------------------------


def test_a_job_of_our_own_signals_goes_on_as_it_was(tmp_path: Path) -> None:
    """Whoever asks too early, or somebody else, finds a process that is not ended by the signal."""
    with sleeper(tmp_path) as pid:
        caught = int(Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0], 16)
        for number in (signal.SIGRTMIN + 15, signal.SIGRTMIN + 14):
            assert caught >> (number - 1) & 1
            os.kill(pid, number)
        assert "slow" in functions_of(pid)
