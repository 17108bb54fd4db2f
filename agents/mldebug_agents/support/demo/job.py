"""The training job of `mldebug demo`: torchrun, started through the process that starts programs (`Spawner`), and followed by the
files its ranks write.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Self

import psutil

from mldebug.core.errors import ToolError
from mldebug_agents.system.spawn import Completed, ProgramStarter

SCRIPT = Path(__file__).with_name("training.py")
LIFETIME = 600.0  # seconds after which the job is killed whatever happens
STUCK_AFTER = 2.0  # seconds without a step that make a struck job stuck
STRIKE_AT = 40
CLOSING = 10.0
JOB_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "GROUP_",
    "ROLE_",
    "MASTER_",
    "TORCHELASTIC_",
    "PET_",
)


class DemoPlan(NamedTuple):
    """What the demo does: `fault` is the fault, `struck` the rank in which it happens, `ranks` the number of ranks."""

    fault: str
    ranks: int
    struck: int


class DemoStep(NamedTuple):
    """The last step of one rank and its loss; 0 before the first."""

    step: int = 0
    loss: str = ""


class DemoJob:
    """A context manager: entering it starts the job, leaving it kills the job."""

    def __init__(
        self,
        starter: ProgramStarter,
        plan: DemoPlan,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.completed: Completed | None = None
        self._starter = starter
        self._clock = clock
        self._thread = threading.Thread(target=self._run, name="demo-job", daemon=True)
        self._last: tuple[list[DemoStep], float] = ([], clock())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the launcher; its ranks have asked the kernel to die with it, their helper looks for it."""
        if self.launcher_pid and self._thread.is_alive():
            os.kill(self.launcher_pid, signal.SIGKILL)
            self._thread.join(CLOSING)
        deadline = self._clock() + CLOSING
        while any(map(_lives, self._pids())) and self._clock() < deadline:
            time.sleep(0.05)

    @property
    def launcher_pid(self) -> int:
        """The pid of torchrun; 0 until the first rank has reported it."""
        return next((int(parent) for _, parent in self._started()), 0)

    @property
    def struck(self) -> bool:
        """Whether the fault that the demo plans has happened in the job."""
        return (self.folder / f"strike.{self.plan.struck}").exists()

    def pid_of(self, rank: int) -> int:
        """The pid of a rank that has started."""
        return int(_read(self.folder / f"started.{rank}").split()[0])

    def steps(self) -> list[DemoStep]:
        """The step of each rank. Raises ToolError where the job ended early."""
        if self.completed is not None:
            raise ToolError(
                _failure_sentence(self.completed),
                "does `torchrun --help` work in this environment?",
            )
        return [self._step(rank) for rank in range(self.plan.ranks)]

    def stuck(self, steps: list[DemoStep]) -> bool:
        """Whether the fault has happened and no rank has made a step for `STUCK_AFTER` seconds. Must be called often, with
        the newest `steps`.
        """
        before, since = self._last
        if steps != before or not self.struck:
            self._last = (steps, self._clock())
            return False
        return self._clock() - since >= STUCK_AFTER

    def _step(self, rank: int) -> DemoStep:
        words = _read(self.folder / f"progress.{rank}").split()
        return DemoStep(int(words[0]), words[1]) if len(words) == 2 else DemoStep()

    def _started(self) -> list[list[str]]:
        texts = (_read(self.folder / f"started.{rank}") for rank in range(self.plan.ranks))
        return [text.split() for text in texts if text]

    def _pids(self) -> list[str]:
        helper = _read(self.folder / "helper")  # that a rank which exits leaves behind
        return [pid for pid, _ in self._started()] + ([helper] if helper else [])

    def _run(self) -> None:
        plan = self.plan
        torchrun = (
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(plan.ranks),
            *("--redirects", "3", "--log-dir", str(self.folder / "logs")),
        )
        wanted = ("--folder", str(self.folder), "--fault", plan.fault)
        when = ("--rank", str(plan.struck), "--after", str(STRIKE_AT))
        self.completed = self._starter.run(
            [sys.executable, *torchrun, str(SCRIPT), *wanted, *when],
            timeout=LIFETIME,
            env=job_environment(os.environ) | {"TMPDIR": str(self.folder)},
        )


def job_environment(own: Mapping[str, str]) -> dict[str, str]:
    """The environment for the demo job: `own`, without the variables of a job that we may run in ourselves."""
    kept = {name: value for name, value in own.items() if not name.startswith(JOB_VARIABLES)}
    return kept | {"OMP_NUM_THREADS": "1"}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _lives(pid: str) -> bool:
    try:
        return psutil.Process(int(pid)).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except (ValueError, psutil.Error):  # no number was written yet, or it has ended
        return False


def _failure_sentence(completed: Completed) -> str:
    lines = completed.stderr.decode(errors="replace").strip().splitlines()
    errors = [line for line in lines if "Error" in line] or lines
    reason = completed.error or (errors[0].strip() if errors else f"exit {completed.returncode}")
    return f"the demo's training job ended before the fault struck: {reason}"
