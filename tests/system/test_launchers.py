"""Real launchers: what mldebug makes of jobs of Open MPI, MPICH, Slurm and accelerate, alive, stuck and ended."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mldebug.jobs.heartbeat import Heartbeat, parse_record, record_name
from mldebug.status.snapshot import RunState
from processes.harness import SCRIPTS, wait_for
from processes.incidents.watching import Report, RunningAgent, settings, watching
from system.launching import (
    OPENMPI_AS_ROOT,
    SIZE,
    Launch,
    LaunchedJob,
    ask,
    launched,
    need,
)
from system.slurm import PROGRAMS, Slurm, slurm

pytestmark = [pytest.mark.scenario, pytest.mark.host, pytest.mark.timeout(240)]
SOON = 30.0  # seconds from an end to its report
STALL = "{timeout: 15s, interval: 1s}"


@pytest.fixture(scope="module")
def both_nodes() -> Iterator[Slurm]:
    """Two nodes."""
    if os.geteuid() != 0:
        pytest.skip("slurmd needs root")
    need(*PROGRAMS)
    with slurm() as one:
        yield one


@pytest.fixture
def cluster(both_nodes: Slurm) -> Iterator[Slurm]:
    """The same, with nothing on it after the test."""
    yield both_nodes
    both_nodes.free()


@pytest.fixture(params=["openmpi", "mpich", "slurm", "accelerate"])
def launch(request: pytest.FixtureRequest) -> Launch:
    """One launcher after the other."""
    return LAUNCHES[request.param](request)


def _openmpi(_: pytest.FixtureRequest) -> Launch:
    need("mpirun.openmpi")
    argv = ("mpirun.openmpi", "-np", str(SIZE), "--oversubscribe")
    return Launch("openmpi", argv, OPENMPI_AS_ROOT)


def _mpich(_: pytest.FixtureRequest) -> Launch:
    need("mpiexec.hydra")
    return Launch("mpich", ("mpiexec.hydra", "-n", str(SIZE)))


def _slurm(request: pytest.FixtureRequest) -> Launch:
    cluster: Slurm = request.getfixturevalue("cluster")
    argv = ("srun", "--kill-on-bad-exit", "--nodes=2", f"--ntasks={SIZE}")
    return Launch("slurm", argv, cluster.environment, locals=(0, 0))


def _accelerate(_: pytest.FixtureRequest) -> Launch:
    if find_spec("accelerate") is None:
        assert not os.environ.get("CI"), "the test dependencies bring accelerate"
        pytest.skip("this test needs accelerate")
    argv = (
        *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"),
        *("--num_processes", str(SIZE), "--num_machines", "1", "--main_process_port", "0"),
        *(
            "--mixed_precision",
            "no",
            "--dynamo_backend",
            "no",
            "--num_cpu_threads_per_process",
            "1",
        ),
    )
    return Launch("accelerate", argv, script="launched_torch.py", python=False)


LAUNCHES: dict[str, Callable[[pytest.FixtureRequest], Launch]] = {
    "openmpi": _openmpi,
    "mpich": _mpich,
    "slurm": _slurm,
    "accelerate": _accelerate,
}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    """An agent that looks every second."""
    folder = tmp_path_factory.mktemp("agent")
    with watching(folder, settings(folder, stall=STALL)) as one:
        yield one


@pytest.fixture
def job(tmp_path: Path, launch: Launch) -> Iterator[LaunchedJob]:
    """A job of it that steps."""
    with launched(tmp_path / "job", launch) as one:
        yield one


def test_a_living_job_and_its_stuck_rank(job: LaunchedJob) -> None:
    answer = ask(job.folder, "status")
    found = [one for one in answer["jobs"] if set(job.ranks.values()) & pids_of(one)]

    assert len(found) == 1, (answer, job.ranks)
    mine = found[0]

    assert (mine["launcher"], mine["world_size"], mine.get("lost", [])) == (
        job.launch.name,
        SIZE,
        [],
    )
    assert {one["rank"]: one["pid"] for one in mine["ranks"]} == job.ranks
    assert tuple(one["local_rank"] for one in mine["ranks"]) == job.launch.locals
    assert mine["launcher_pid"] not in job.ranks.values()
    assert mine["launcher_pid"] is not None
    stuck(job)
    report = ask(job.folder, "dump", "--job", mine["id"])

    named = [(one["rank"], one["pid"]) for one in report["diagnosis"]["culprits"]]
    lone = job.launch.script == "launched.py"  # without PyTorch nothing tells that rank 0 waits
    assert named == ([] if lone else [(1, job.ranks[1])]), report["diagnosis"]
    assert "rank 1 sleeps in slow_data_loader" in report["diagnosis"]["summary"].replace("R", "r")


def pids_of(job: dict[str, Any]) -> set[int]:
    """Its ranks' pids."""
    return {one["pid"] for one in job["ranks"]}


def stuck(job: LaunchedJob) -> None:
    """Rank 1 sleeps; the other waits for it, in a collective where it has one."""
    job.tell(1, "sleep")
    if job.launch.script == "launched.py":
        job.tell(0, "wait")

    def still() -> bool:
        before = job.log.stat().st_size
        return (
            all(not _moves(pid) for pid in job.ranks.values()) and before == job.log.stat().st_size
        )

    wait_for("the job to be stuck", still, 30)


def _moves(pid: int) -> bool:
    """Does its main thread wake up within the next look?"""
    file = Path(f"/proc/{pid}/task/{pid}/status")
    before = file.read_text().partition("voluntary_ctxt_switches:")[2].split()[0]
    with_deadline = os.times().elapsed + 0.3
    while os.times().elapsed < with_deadline:
        if file.read_text().partition("voluntary_ctxt_switches:")[2].split()[0] != before:
            return True
    return False


# --- the ends --------------------------------------------------------------------------------------


WROTE = {
    ("openmpi", "kill"): "noticed that process rank 1",
    ("openmpi", "exit 3"): "the first process with a non-zero status: rank 1",
    ("mpich", "kill"): "BAD TERMINATION",
    ("slurm", "kill"): "task 1: Killed",
    ("slurm", "exit 3"): "task 1: Exited with exit code 3",
}


@pytest.mark.parametrize(
    ("launch", "way"),
    [
        *(
            (name, way)
            for name in ("openmpi", "mpich", "slurm")
            for way in ("kill", "exit 3", "raise")
        ),
        ("accelerate", "kill"),  # it takes its time to start
    ],
    indirect=["launch"],
)
def test_the_first_failing_rank_is_named(agent: RunningAgent, job: LaunchedJob, way: str) -> None:
    met(agent, job)
    if way == "kill":
        os.kill(job.ranks[1], signal.SIGKILL)
    else:
        job.tell(1, way)
    report = report_of(agent, job)

    entry = {"kill": "killed by SIGKILL", "exit 3": "exit", "raise": "bad shard 7"}[way]
    diagnosis = report["diagnosis"]
    text = " ".join((diagnosis["summary"], *diagnosis["evidence"]))
    if job.launch.name == "slurm" and entry not in job.tail():
        entry = "exit"  # srun has dropped the end of the traceback: so it is in no log
    assert entry in text, (diagnosis, job.tail())
    # hydra lets the others live on after an exit code: what they write follows a traceback that may have been caught
    nobody = job.launch.name == "mpich" and way != "kill"
    # it kills the others at once, with the same signal, and names none: a crowded machine may see no order of the ends
    at_once = job.launch.name == "mpich" and "their order is not known" in diagnosis["summary"]
    nobody = nobody or at_once
    assert [one["rank"] for one in diagnosis["culprits"]] == ([] if nobody else [1]), diagnosis
    assert diagnosis["verdict"] == ("unknown" if nobody else "rank_exited"), diagnosis
    assert re.search(r"rank 1\b" if not at_once else r"rank 1\b|ranks 0-1\b", text), diagnosis
    assert "exit status of the process" in text or "launcher" in text
    assert WROTE.get((job.launch.name, way), "") in text, diagnosis


def test_two_jobs_under_srun_keep_their_output_apart(
    agent: RunningAgent, cluster: Slurm, tmp_path: Path
) -> None:
    argv = ("srun", "--nodes=2", f"--ntasks={SIZE}")
    launch = Launch("slurm", argv, cluster.environment, locals=(0, 0))
    with launched(tmp_path / "one", launch) as one, launched(tmp_path / "two", launch) as two:
        logs = {job.folder.name: met(agent, job).log for job in (one, two)}

    assert logs == {job.folder.name: str(job.log) for job in (one, two)}


def test_ranks_under_srun_have_the_hook(cluster: Slurm, tmp_path: Path) -> None:
    argv = (str(SCRIPTS / "mldebug"), "run", "--", "srun", "--nodes=2", f"--ntasks={SIZE}")
    launch = Launch("slurm", argv, cluster.environment, "launched_hooked.py", locals=(0, 0))
    with launched(tmp_path / "job", launch) as job:
        by_name = {rank: _beat(pid) for rank, pid in job.ranks.items()}

    assert {rank: (one.rank, one.world_size, one.step) for rank, one in by_name.items()} == {
        rank: (rank, SIZE, 7) for rank in range(SIZE)
    }
    assert all(one.signal for one in by_name.values())  # and can be asked for their stacks


def _beat(pid: int) -> Heartbeat:
    """What the hook in this process says; a rank that is killed leaves its files behind."""
    start = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    path = Path("/dev/shm", record_name(pid, start))
    beat = parse_record(path.read_bytes(), pid, start, float("inf"))
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink()
    return beat


def test_scancel_is_no_failure(agent: RunningAgent, cluster: Slurm, tmp_path: Path) -> None:
    argv = ("srun", "--nodes=2", f"--ntasks={SIZE}")
    launch = Launch("slurm", argv, cluster.environment, locals=(0, 0))
    with launched(tmp_path / "job", launch) as job:
        met(agent, job)
        variables = Path(f"/proc/{job.ranks[0]}/environ").read_text().split("\0")
        mine = next(one for one in variables if one.startswith("SLURM_JOB_ID="))
        cluster.run("scancel", mine.partition("=")[2])
        try:
            wait_for("the agent to tell", lambda: _ended_from_outside(agent, job), SOON)
        except AssertionError as error:
            mine = "\n".join(line for line in agent.log.splitlines() if job.name in line)
            raise AssertionError(f"{error}\n{mine}\n{job.tail()}") from None

    assert not reports(agent, job)


def _ended_from_outside(agent: RunningAgent, job: LaunchedJob) -> bool:
    mine = [line for line in agent.log.splitlines() if job.name in line]
    words = ("ended from outside: the scheduler cancelled it", "ended by a signal from outside")
    return any(one in line for one in words for line in mine)


def met(agent: RunningAgent, job: LaunchedJob) -> RunState:
    """Wait until the agent knows the ranks, and where their output goes."""

    def known() -> RunState | None:
        snap = agent.snapshot()
        ranks = set(job.ranks.values())
        mine = [run for run in (snap.runs if snap else ()) if set(run.ranks.values()) == ranks]
        return mine[0] if mine and mine[0].step is not None else None

    try:
        found: RunState = wait_for("the agent to know the job", known, 30)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{agent.log[-3000:]}\n{agent.snapshot()}") from None
    looked = agent.snapshot()
    assert looked is not None
    wait_for("one more look", lambda: (s := agent.snapshot()) and s.at > looked.at + 1.5, 30)
    return found


def reports(agent: RunningAgent, job: LaunchedJob) -> list[Report]:
    """Reports on this job."""
    return [one for one in agent.reports() if one["job"]["name"].startswith(job.name)]


def report_of(agent: RunningAgent, job: LaunchedJob) -> Report:
    """The only one."""
    try:
        (report,) = wait_for("the report", lambda: reports(agent, job), SOON)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{agent.log[-3000:]}\n{job.tail()}") from None
    found: Report = report
    return found
