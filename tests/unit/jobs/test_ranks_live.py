"""Discovery among real processes: torchrun with gloo, namespaces, exec, restarts, the dead and what they leave."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from mldebug.core.model import Job
from mldebug.core.plugins import create_all
from mldebug_agents.jobs.ranks.discovery import Discovery, RankFinder
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from shared.jobs.proctree import DirectPaths, as_nobody
from shared.system.hung import state, wait_until

TORCHRUN = Path(sysconfig.get_path("scripts")) / "torchrun"
START_SECONDS = 90.0
SLEEP = "import time; print('ready', flush=True); time.sleep(300)"


@pytest.fixture
def finder() -> Iterator[RankFinder]:
    """A finder with the real reader child."""
    with Spawner() as spawner, Reader(spawner) as reader:
        yield RankFinder(Host(), reader, "here", create_all("launchers"))


@contextmanager
def started(
    *argv: str | Path | int, cwd: Path | None = None, **variables: object
) -> Iterator[subprocess.Popen[bytes]]:
    """A program; in the end it is killed with all that inherited its environment, orphans included."""
    mark = f"MLDEBUG_TEST_MARK={uuid.uuid4()}"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    environ |= {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in variables.items()}
    environ |= dict([mark.split("=")])
    process = subprocess.Popen([str(word) for word in argv], cwd=cwd, env=environ)
    try:
        yield process
    finally:
        wait_until(lambda: not kill_all(mark.encode()))
        process.wait()


def kill_all(mark: bytes) -> list[int]:
    """Kill every process with that mark in its environment, and return who they were."""
    killed = []
    for pid in Host().pids():
        with suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    return killed


def job_of(found: Discovery, pid: int) -> Job | None:
    """The job that a launcher or rank belongs to."""
    ours = (
        job for job in found.jobs if pid == job.launcher_pid or pid in [r.pid for r in job.ranks]
    )
    return next(ours, None)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def job_when(finder: RankFinder, pid: int, true: Callable[[Job], bool]) -> Job:
    """Look until the job is there and as it should be."""
    jobs: list[Job] = []

    def there() -> bool:
        job = job_of(finder.find(), pid)
        jobs.extend([job] if job else [])
        return job is not None and true(job)

    wait_until(there, START_SECONDS)
    return jobs[-1]


GLOO = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
child = os.fork()
if not child:
    time.sleep(300)
    os._exit(0)
dist.barrier()
open(f"ready{dist.get_rank()}", "w").close()
time.sleep(300)
"""


def test_a_gloo_job_from_its_birth_to_the_death_of_a_rank(
    finder: RankFinder, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(GLOO)
    with started(TORCHRUN, "--standalone", "--nproc-per-node=2", "train.py", cwd=tmp_path) as run:
        wait_until(
            lambda: all((tmp_path / f"ready{rank}").exists() for rank in (0, 1)), START_SECONDS
        )
        found = finder.find()
        job = job_of(found, run.pid)
        assert job is not None
        assert (job.launcher, job.world_size, job.name, job.lost) == ("torchrun", 2, "train.py", ())
        assert [rank.local_rank for rank in job.ranks] == [0, 1]
        children = [found.children[rank.pid] for rank in job.ranks]
        assert [[child.kind for child in family] for family in children] == [["worker"], ["worker"]]
        assert job_of(finder.find(), run.pid) == job

        os.kill(run.pid, signal.SIGSTOP)  # or it would tidy up
        wait_until(lambda: state(run.pid) == "T")
        victim, orphan = job.ranks[1].pid, children[1][0].pid
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: state(victim) == "")
        with Spawner() as spawner, Reader(spawner) as reader:
            stranger = RankFinder(Host(), reader, "here", create_all("launchers"))
            for who in (finder, stranger):  # one that knew the rank, and one that comes too late
                after = job_of(who.find(), run.pid)
                assert after is not None
                assert [rank.pid for rank in after.ranks] == [job.ranks[0].pid]
                (lost,) = after.lost
                assert (lost.rank, lost.pid, lost.leftovers) == (1, victim, (orphan,))
                assert lost.reason == "killed by signal 9 (SIGKILL)"
                assert after.id == job.id


RESTARTING = """
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    sys.exit(3)
time.sleep(300)
"""


def test_two_jobs_at_once_one_of_them_in_its_second_attempt(
    finder: RankFinder, tmp_path: Path
) -> None:
    """Both have run id "none"."""
    (tmp_path / "train.py").write_text(RESTARTING)
    (tmp_path / "other.py").write_text("import time; time.sleep(300)")
    common = ("--nproc-per-node=2", "--max-restarts=1", "--master-port")
    with (
        started(TORCHRUN, *common, free_port(), "train.py", cwd=tmp_path) as first,
        started(TORCHRUN, *common, free_port(), "other.py", cwd=tmp_path) as second,
    ):
        one = job_when(finder, first.pid, lambda job: job.attempt == 1 and len(job.ranks) == 2)
        two = job_when(finder, second.pid, lambda job: len(job.ranks) == 2)
        assert (one.name, two.name) == ("train.py", "other.py")
        assert (one.launcher_pid, two.launcher_pid) == (first.pid, second.pid)
        assert {rank.run_id for rank in (*one.ranks, *two.ranks)} == {"none"}
        assert one.id != two.id
        wait_until(lambda: not (job_of(finder.find(), first.pid) or one).lost, START_SECONDS)


def test_a_job_is_followed_through_exec(finder: RankFinder) -> None:
    script = f"read line; exec {sys.executable} -c 'import time; time.sleep(300)'"
    go, write = os.pipe()
    with ExitStack() as stack:
        stack.callback(os.close, go)
        environ = os.environ | {"RANK": "0", "WORLD_SIZE": "1"}
        process = subprocess.Popen(["bash", "-c", script], stdin=go, env=environ)
        stack.callback(process.wait)
        stack.callback(process.kill)
        try:
            assert job_of(finder.find(), process.pid) is None
            os.write(write, b"go\n")
        finally:
            os.close(write)
        job = job_when(finder, process.pid, lambda job: True)
        assert (job.launcher, job.world_size, job.name) == ("environment", 1, "-c")


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root, unshare")
def test_a_job_in_its_own_pid_and_mount_namespace(finder: RankFinder) -> None:
    enter = ("unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child")
    script = f'for r in 0 1; do RANK=$r {sys.executable} -c "{SLEEP}" & done; wait'
    variables = {"WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}
    with started(*enter, "bash", "-c", script, **variables) as outside:

        def ours() -> list[Job]:
            below = Host().children().get(outside.pid, [])
            return [job for job in finder.find().jobs if job.launcher_pid in below]

        wait_until(lambda: ours() and len(ours()[0].ranks) == 2)
        (job,) = ours()
        assert (job.world_size, job.launcher, job.lost) == (2, "environment", ())
        assert sorted(rank.namespace_pid or 0 for rank in job.ranks) == [2, 3]
        assert all(rank.pid > 3 for rank in job.ranks)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_another_users_job_is_a_gap_for_an_ordinary_user(finder: RankFinder) -> None:
    with started(sys.executable, "-c", SLEEP, RANK=0, WORLD_SIZE=1) as ours:
        job_when(finder, ours.pid, lambda job: True)

        def look() -> str:
            found = RankFinder(Host(), DirectPaths(), "here", create_all("launchers")).find()
            gaps = [gap for gap in found.gaps if gap.what.endswith("of user root")]
            return repr((job_of(found, ours.pid), [gap.way_out for gap in gaps]))

        assert as_nobody(look) == "(None, ['run mldebug as root'])"
