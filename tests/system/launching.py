"""Starts tests/jobs/launched.py under real launchers, and asks mldebug about it."""

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from processes.harness import JOBS, MARK, SCRIPTS, clean_environment, marked, wait_for

SIZE = 2
OPENMPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@dataclass
class Launch:
    """One way to start a job: the launcher's words before the program, and its environment."""

    name: str  # as `mldebug status` calls it
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    script: str = "launched.py"
    python: bool = True  # does the launcher want the interpreter named?
    locals: tuple[int, ...] = (0, 1)  # local ranks of ranks 0 and 1


class LaunchedJob:
    """The launcher, the ranks, the job's output."""

    def __init__(self, folder: Path, launch: Launch) -> None:
        self.folder = folder
        self.launch = launch
        self.mark = uuid.uuid4().hex
        self.log = folder / "job.log"
        self.process: subprocess.Popen[bytes] | None = None
        # of its own name: others may try jobs on this machine, too
        self.script = folder / f"{self.mark[:8]}_{launch.script}"

    @property
    def name(self) -> str:
        """What reports call it."""
        return self.script.name

    @property
    def ranks(self) -> dict[int, int]:
        """Rank -> pid of all that have announced themselves."""
        found = self.folder.glob("started.*")
        return {int(file.suffix[1:]): int(file.read_text()) for file in found}

    def start(self) -> None:
        """Start the launcher and wait for its ranks."""
        (self.folder / "libtorch_cpu.so").write_bytes(b"\x7fELF" + bytes(8192))
        os.mkfifo(self.folder / "fifo")
        shutil.copy(JOBS / "launched.py", self.folder)
        shutil.copy(JOBS / self.launch.script, self.script)
        python = [sys.executable] if self.launch.python else []
        argv = [*self.launch.argv, *python, str(self.script), str(self.folder)]
        own = {MARK: self.mark, "OMP_NUM_THREADS": "1"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                env=clean_environment(self.folder) | own | dict(self.launch.environment),
                start_new_session=True,
            )  # fmt: skip
        try:
            wait_for("all ranks", self._ready)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tail()}") from None

    def _ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the launcher ended: {self.tail()}"
        return len(self.ranks) == SIZE and "step 3 " in self.log.read_text(errors="replace")

    def tell(self, rank: int, way: str) -> None:
        """Let a rank end, or wait, in this way."""
        making = self.folder / "telling"
        making.write_text(way)
        making.rename(self.folder / f"way.{rank}")

    def tail(self) -> str:
        """The end of its output."""
        return self.log.read_text(errors="replace")[-3000:]

    def end(self) -> None:
        """Kill whatever carries its mark; reap the launcher."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        for _ in range(100):
            pids = marked(self.mark)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)
            if not pids:
                break
        if self.process is not None:
            self.process.wait(20)


@contextmanager
def launched(folder: Path, launch: Launch) -> Iterator[LaunchedJob]:
    """A job whose ranks have all started. At the end nothing of it is left."""
    folder.mkdir()
    job = LaunchedJob(folder, launch)
    try:
        job.start()
        yield job
    finally:
        job.end()


def ask(folder: Path, *arguments: str) -> Any:
    """The JSON that `mldebug` prints."""
    done = subprocess.run(
        [str(SCRIPTS / "mldebug"), "--debug", *arguments, "--json"],
        check=False, capture_output=True, text=True, timeout=60, cwd=folder,
        env=clean_environment(folder),
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def need(*programs: str) -> None:
    """Skip where a program is missing; in CI that is a failure."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing and os.environ.get("CI"):
        pytest.fail(f"this test needs {', '.join(missing)}: see PACKAGES in .ci/run")
    if missing:
        pytest.skip(f"this test needs {', '.join(missing)}")
