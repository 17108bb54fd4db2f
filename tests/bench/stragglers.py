"""How surely a slow rank is named: eight real gloo ranks, of which some are made slow in one of several ways, or none.

    MLDEBUG_BENCH_ROUNDS=20 MLDEBUG_BENCH_CASES=sleep python -m bench.stragglers

Each round asks `mldebug slow`, which compares as the agent does (two rows of 3 to 8 stretches of 5 s that have to agree). A step takes 0.35 s; a
rank that is 10 % slower takes 0.035 s more. The quota case needs root and control groups, the mount case root and `bindfs`. Ranks mostly
sleep, but a machine of few cores that has other work as well shows its own noise: then some rounds name nobody.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

from bench.table import Row, show

ROUNDS = int(os.environ.get("MLDEBUG_BENCH_ROUNDS", "3"))
ONLY = os.environ.get("MLDEBUG_BENCH_CASES", "")
JOB = Path(__file__).parents[1] / "jobs/uneven.py"
RANKS, PACE = 8, 0.35
QUOTA = Path(
    "/sys/fs/cgroup/cpu/mldebug-bench"
)  # version 1; the other one is not writable everywhere
PERIOD = 100_000


class Case(NamedTuple):
    """`control`: how its ranks behave; `slow`: the ranks that are slow; `quota`: CPUs that rank 1 gets; `budget`: share of the rounds that must be right."""

    control: dict[str, object]
    slow: tuple[int, ...] = (1,)
    quota: float = 0.0
    budget: float | None = None


def slower(percent: float, fault: str = "sleep", ranks: str = "1") -> dict[str, object]:
    """What makes ranks so much slower."""
    return {"fault": fault, "extra": PACE * percent / 100, "ranks": ranks}


ALL = ",".join(map(str, range(RANKS)))
CASES = {
    "sleep +5 %": Case(slower(5)),
    "sleep +10 %": Case(slower(10), budget=0.9),
    "sleep +20 %": Case(slower(20), budget=1.0),
    "sleep +50 %": Case(slower(50), budget=1.0),
    "CPU work +20 %": Case(slower(20, "work"), budget=1.0),
    "CPU quota, of its work": Case({"burn": 0.01}, quota=0.05, budget=1.0),
    "CPU quota, of its gloo threads": Case({}, quota=0.015, budget=1.0),
    "slow mount +40 %": Case(slower(0, "read"), budget=1.0),
    "two slow ranks +20 %": Case(slower(20, ranks="1,5"), (1, 5), budget=1.0),
    "uneven batches": Case({"uneven": 0.4}, (), budget=1.0),
    "all slow +20 %": Case(slower(20, ranks=ALL), (), budget=1.0),
    "healthy": Case({}, (), budget=1.0),
}


class Job:
    """The job, and what makes its rank 1 slow. `control` is read before each step."""

    def __init__(self, folder: Path) -> None:
        self.control, self.log = folder / "control.json", folder / "train.log"
        self.folder, self.file = folder, folder / "slow/shard"
        self.script = folder / f"uneven{os.getpid()}.py"  # a name that no other job has
        shutil.copy(JOB, self.script)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        options = ["--pace", str(PACE), "--control", str(self.control), "--file", str(self.file)]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*launcher, "--nproc-per-node", str(RANKS), str(self.script), *options],
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(JOB.parent)},
            )  # fmt: skip

    def behave(self, values: dict[str, object]) -> None:
        """Have the ranks behave so from the next step on."""
        usual = {"fault": "none", "extra": 0.0, "ranks": "1", "burn": 0.0, "uneven": 0.0}
        new = self.control.with_suffix(".new")
        new.write_text(json.dumps(usual | values))
        new.rename(self.control)

    def rank(self, number: int) -> int:
        """The process of a rank."""
        for one in psutil.Process(self.process.pid).children():
            if one.environ().get("RANK") == str(number):
                return one.pid
        raise LookupError(number)

    def steps(self) -> int:
        """The newest step."""
        lines = [one for one in self.log.read_text().splitlines() if one.startswith("step ")]
        return int(lines[-1].split()[1]) if lines else 0

    def go_on(self, steps: int) -> None:
        """Wait until it has made so many more steps."""
        until, begun = time.monotonic() + 180, self.steps()
        while self.steps() < begun + steps:
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(self.log.read_text())
            time.sleep(0.2)

    def end(self) -> None:
        """End all its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(30)


@contextmanager
def quota(job: Job, cpus: float) -> Iterator[None]:
    """A control group with so many CPUs for rank 1; 0: as many as there are."""
    if not cpus:
        yield
        return
    QUOTA.mkdir(exist_ok=True)
    try:
        (QUOTA / "cpu.cfs_quota_us").write_text(str(round(PERIOD * cpus)))
        (QUOTA / "cgroup.procs").write_text(str(job.rank(1)))
        yield
    finally:
        for pid in (QUOTA / "cgroup.procs").read_text().split():
            (QUOTA.parent / "cgroup.procs").write_text(pid)
        QUOTA.rmdir()


@contextmanager
def slow_mount(folder: Path) -> Iterator[None]:
    """A mount at `slow` that gives 2 MB a second in the mean: a step that reads the file of 1 MB takes 0.5 s, not 0.35 s."""
    source, target = folder / "fast", folder / "slow"
    source.mkdir()
    target.mkdir()
    (source / "shard").write_bytes(bytes(1_000_000))
    server = subprocess.Popen(["bindfs", "-f", "-o", "direct_io", "--read-rate=2M", source, target])
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", target], check=False)
        server.terminate()
        server.wait(10)


def ask(job: Job) -> tuple[tuple[int, ...], float, str]:
    """(ranks that `mldebug slow` names, seconds, its sentence)."""
    config, began = job.folder / "mldebug.yaml", time.monotonic()
    config.write_text(f"agent: {{state_dir: {job.folder / 'state'}, listen: ''}}\n")
    command = [sys.executable, "-m", "mldebug", "slow", "--json", "--config", str(config)]
    done = subprocess.run([*command, "--job", job.script.name], capture_output=True, check=False)
    (answer,) = json.loads(done.stdout)
    slow = tuple(one["rank"] for one in answer["found"]["ranks"])
    return slow, time.monotonic() - began, answer["sentence"]


def measure(name: str, case: Case, job: Job) -> Row:
    """Some rounds of one case, each with the ranks set anew."""
    right, wrong, seconds = 0, 0, []
    for _ in range(ROUNDS):
        job.behave(case.control)
        with quota(job, case.quota):
            job.go_on(5)
            slow, took, sentence = ask(job)
        right += slow == case.slow
        wrong += not set(slow) <= set(case.slow)
        seconds.append(took)
        print(f"{name}: {took:.0f} s, {sentence}", flush=True)
    others = f", {wrong} named another" if wrong else ""
    result = f"named in {right} of {ROUNDS}" if case.slow else f"nobody in {right} of {ROUNDS}"
    met = None if case.budget is None else right >= case.budget * ROUNDS and not wrong
    budget = f"{case.budget * ROUNDS:g} of {ROUNDS}" if case.budget is not None else ""
    return Row(name, f"{result}{others}, {median(seconds):.0f} s", budget, met)


def main() -> None:
    """Measure all cases, or those whose name begins as $MLDEBUG_BENCH_CASES."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stragglers-")))
        stack.enter_context(slow_mount(folder))
        job = Job(folder)
        stack.callback(job.end)
        job.behave({})
        job.go_on(20)
        chosen = {name: case for name, case in CASES.items() if name.startswith(ONLY)}
        rows = [measure(name, case, job) for name, case in chosen.items()]
    show(f"who is named among {RANKS} gloo ranks, {ROUNDS} rounds", rows)


if __name__ == "__main__":
    main()
