"""Starts light jobs (tests/jobs/light.py): two ranks that step and then hang, up in a tenth of a second, without torch."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from processes.harness import JOBS, clean_environment, free_port


class LightJob:
    """Its processes by rank, and its log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "job.log"
        self.name = f"light-{uuid.uuid4().hex[:8]}.py"  # its name in metrics and status
        self.processes: list[subprocess.Popen[bytes]] = []
        self.began = time.time()

    @property
    def ranks(self) -> dict[int, int]:
        """Rank -> pid, as a real job of the harness tells it."""
        return {rank: process.pid for rank, process in enumerate(self.processes)}

    def hang(self) -> None:
        """From the next step on."""
        (self.folder / "hang").touch()


@contextmanager
def light_job(
    folder: Path,
    size: int = 2,
    script: str = "light.py",
    prefix: Sequence[str] = (),
    more: Mapping[str, str] = {},
    python: str = sys.executable,
) -> Iterator[LightJob]:
    """Two ranks that step until told to hang. At the end nothing of it is left.

    `script` of tests/jobs, started by the words of `prefix` with this `python` and `more` environment variables.
    """
    folder.mkdir(exist_ok=True)
    library, job, port = folder / "libtorch_cpu.so", LightJob(folder), str(free_port())
    library.write_bytes(b"\x7fELF" + bytes(8192))
    os.mkfifo(folder / "fifo")
    copy = folder / job.name
    copy.write_text((JOBS / script).read_text())
    argv = [*prefix, python, str(copy), str(library), str(folder / "sft.yaml")]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(size)}
    place |= {"LOCAL_WORLD_SIZE": str(size)}
    with job.log.open("ab") as log:
        for rank in range(size):
            environment = clean_environment(folder) | place
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank)} | more
            job.processes.append(
                subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
            )  # fmt: skip
    try:
        yield job
    finally:
        for process in job.processes:
            with suppress(ProcessLookupError):
                process.kill()
        for process in job.processes:
            process.wait(20)
            for left in Path("/dev/shm").glob(f"mldebug-{process.pid}-*"):
                left.unlink()
