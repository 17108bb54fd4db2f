"""The machine on which all is tried: where the project lies, what is started on it, and how it is ended."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from gpu.timing import spread
from mldebug_agents.hardware.gpu.nvml.library import LIBRARY, Library
from mldebug_agents.hardware.gpu.vendors.nvidia import Nvidia
from mldebug_agents.web.client import ask_agent
from processes.harness import User, wait_for
from processes.incidents.watching import RunningAgent
from processes.incidents.watching import settings as usual

ROOT = Path(__file__).parents[2]
SOURCES = tuple(str(ROOT / part) for part in (".", "agents", "exporters", "tests"))
JOB = ROOT / "tests" / "jobs" / "gpu.py"
MLDEBUG = (sys.executable, "-m", "mldebug")
OF_A_JOB = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
RANKS = 2
DEVICES = os.environ.get("MLDEBUG_GPU_DEVICES", "/dev/nvidia")  # how the driver's files begin


def environment(home: Path, more: Mapping[str, str] = {}) -> dict[str, str]:
    """Everything that this process has (a machine's own settings of NCCL among it), and the project's sources in front.

    Programs beside packages that were installed into a folder of PYTHONPATH (py-spy) are found, too.
    """
    kept = {name: value for name, value in os.environ.items() if name not in OF_A_JOB}
    paths = [one for one in kept.get("PYTHONPATH", "").split(os.pathsep) if one]
    paths = [*SOURCES, *(one for one in paths if one not in SOURCES)]
    programs = [str(Path(one) / "bin") for one in paths if (Path(one) / "bin").is_dir()]
    kept["PYTHONPATH"] = os.pathsep.join(paths)
    kept["PATH"] = os.pathsep.join([*programs, kept.get("PATH", os.defpath)])
    return kept | {"TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"} | dict(more)


class Job:
    """A launched tests/jobs/gpu.py, of two ranks unless asked."""

    def __init__(self, folder: Path, launcher: "subprocess.Popen[bytes]") -> None:
        self.events = folder / "events"
        self.log = folder / "job.log"
        self.launcher = launcher
        self._pids: set[int] = set()

    @property
    def pids(self) -> set[int]:
        """Its processes, those that are gone since the last time among them: other jobs may run here."""
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.launcher.pid).children(recursive=True)
            self._pids |= {one.pid for one in found}
        return self._pids

    @property
    def step(self) -> int:
        """The last one that it told."""
        lines = self.log.read_text(errors="replace").splitlines()
        values = [line.split()[1] for line in lines if line.startswith("step ")]
        return int(values[-1]) if values else -1

    def wait_for_step(self, step: int, seconds: float = 60.0) -> None:
        """Wait until it has told that step or a later one."""
        wait_for(f"step {step}: {self.tail()}", lambda: self.alive() and self.step >= step, seconds)

    def alive(self) -> bool:
        """Raises AssertionError with the end of its log where it has ended."""
        assert self.launcher.poll() is None, f"the job has ended: {self.tail()}"
        return True

    def tail(self) -> str:
        """The end of what it printed."""
        return self.log.read_text(errors="replace")[-1500:]

    def struck_at(self, rank: int = 1) -> float | None:
        """When the fault came: unix time."""
        file = self.events / f"strike.{rank}"
        return file.stat().st_mtime if file.exists() else None

    def phases(self) -> list[tuple[str, float]]:
        """What it does since when."""
        files = sorted(self.events.glob("phase.*"), key=lambda one: int(one.name.split(".")[1]))
        return [(one.name.split(".")[2], one.stat().st_mtime) for one in files]


@contextmanager
def job(
    folder: Path, *options: str, hook: bool = False, script: Path = JOB, more: Mapping[str, str] = {},
    ranks: int = RANKS,
) -> Iterator[Job]:  # fmt: skip
    """Start it by torchrun, with the hook by `mldebug run`; at the end nothing of it is left. `more`: of its environment."""
    place = Path(tempfile.mkdtemp(dir=folder))
    (place / "events").mkdir()
    argv = [*MLDEBUG, "run", "--"] if hook else []
    argv += [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    argv += [
        "--nproc-per-node",
        str(ranks),
        str(script),
        "--events",
        str(place / "events"),
        *options,
    ]
    with (place / "job.log").open("wb") as log:
        launcher = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment(place, more)
        )
    try:
        yield Job(place, launcher)
    finally:
        end(launcher)


def neighbour(gpu: str) -> "subprocess.Popen[bytes]":
    """Another program, which computes on this GPU (as `CUDA_VISIBLE_DEVICES` names it) until `end`."""
    script = ROOT / "tests" / "jobs" / "neighbour.py"
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
    return subprocess.Popen([sys.executable, str(script)], env=environ, start_new_session=True)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and all that it has started."""
    with suppress(psutil.NoSuchProcess):
        for one in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                one.kill()
    process.kill()
    process.wait(30)


@contextmanager
def agent(
    folder: Path, stall: str = "{interval: 5s}", more: Mapping[str, str] = {}, *,
    settings: str = "", program: Sequence[str] = MLDEBUG,
) -> Iterator[RunningAgent]:  # fmt: skip
    """An agent of this tree, as whoever runs this; `settings` are added to its config."""
    place = Path(tempfile.mkdtemp(dir=folder))
    file = place / "mldebug.yaml"
    file.write_text(usual(place, stall=stall) + settings)
    argv = [*program, "agent", "--config", str(file)]
    with (place / "agent.log").open("wb") as log:
        process = subprocess.Popen(
            argv, stdout=log, stderr=log, cwd=place, env=environment(place, more)
        )
    running = RunningAgent(place, file, User(), process)
    try:
        wait_for("the agent's first look", lambda: _looked(running), 60)
        yield running
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(15)
        end(process)


def _looked(running: RunningAgent) -> bool:
    assert running.process.poll() is None, f"the agent has ended: {running.log[-1500:]}"
    return ask_agent(running.state) is not None


@contextmanager
def reader(library: str = LIBRARY) -> Iterator[tuple[Nvidia, Library]]:
    """The reader of the agent's child, here in this process."""
    loaded = Library(library)
    vendor = Nvidia(loaded)
    try:
        yield vendor, loaded
    finally:
        vendor.close()


def ask_smi(*arguments: str) -> str:
    """What nvidia-smi prints; raises where there is none."""
    tool = shutil.which("nvidia-smi")
    assert tool is not None, "no nvidia-smi"
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=60, check=True)  # fmt: skip
    return done.stdout


def family(running: RunningAgent) -> list[psutil.Process]:
    """The agent and its children."""
    parent = psutil.Process(running.process.pid)
    return [parent, *parent.children(recursive=True)]


def device_files(pid: int) -> list[str]:
    """The NVIDIA device files that a process holds open."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.append(os.readlink(link))
    return sorted({one for one in found if one.startswith(DEVICES)})


def milliseconds(seconds: list[float]) -> list[float]:
    """Median, ninth decile and longest, in milliseconds."""
    return [round(one * 1e3, 3) for one in spread(seconds)] if seconds else []


def now() -> float:
    """Unix time."""
    return time.time()
