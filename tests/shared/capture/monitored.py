"""Stand-ins for ranks of NCCL: a process with the thread that reads PyTorch's debug FIFO and dumps, as PyTorch 2.11 does it.

It is made as in `ProcessGroupNCCL.cpp`: unlink, mkfifo, open for reading without waiting; any bytes of one look are one dump, which is
written in place, over the one before. A library of the right name is mapped, so that its version can be told.
"""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mldebug.core.model import Job, ProcessCapture, RankCapture, RankIdentity
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.jobs.ranks.libraries import Program, libraries, recorder_settings
from mldebug_agents.system import procfs
from mldebug_agents.system.host import Host
from shared.system.patience import PATIENCE

RECORDED = Path(__file__).parents[2] / "fixtures" / "h200"
MONITOR = """
import mmap, os, pathlib, select, sys, time
library, fifo, out, dump, how = sys.argv[1:]
mapped = open(library, "rb")
held = mmap.mmap(mapped.fileno(), 0, access=mmap.ACCESS_READ)
nccl = open(os.path.join(os.path.dirname(library), "libnccl.so.2"), "rb")
held_too = mmap.mmap(nccl.fileno(), 0, access=mmap.ACCESS_READ)
if os.path.exists(fifo):
    os.unlink(fifo)
os.mkfifo(fifo, 0o666)
pipe = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
if how == "leaves":
    os.close(pipe)
print("ready", flush=True)
dumps = 0
while True:
    time.sleep(0.05)
    try:
        got = b"" if how == "leaves" else os.read(pipe, 128)
    except BlockingIOError:  # somebody has opened it and not written yet
        continue
    if not got:
        continue
    dumps += 1
    data = pathlib.Path(dump).read_bytes()
    print(f"dump {dumps} for {len(got)} bytes", flush=True)
    if how == "mute":
        continue
    while how == "waits" and not os.path.exists(f"{out}.go"):
        time.sleep(0.02)
    with open(out, "wb", buffering=0) as file:
        half = len(data) // 2
        file.write(data[:half])
        if how == "never":
            continue
        while how == "grows":
            file.write(bytes(1 << 16))
            time.sleep(0.001)
        time.sleep(0.3)
        file.write(data[half:])
"""


def recording(number: int, hang: str = "hang-desync", *, late: bool = False) -> bytes:
    """That of a rank on two H200s, as if its last call had been made now; `late`: it has taken too long already."""
    whole = pickle.loads((RECORDED / hang / f"flight-recorder-rank{number}.pickle").read_bytes())
    calls = whole["entries"][-300:]
    shift = time.time_ns() - calls[-1]["time_created_ns"]
    for one in calls:
        times = {name: one[name] + shift for name in one if name.endswith("_ns") and one[name]}
        one |= times | ({"timeout_ms": 1} if late else {})
    return pickle.dumps(whole | {"entries": calls}, 2)


def discovered(*ones: "Monitored") -> Discovery:
    """What discovery says of them: each a job of its own, as two jobs on one node are."""
    return Discovery(
        jobs=tuple(one.job for one in ones), programs={one.pid: one.program for one in ones}
    )


class Monitored:
    """One such process."""

    def __init__(self, one: "subprocess.Popen[str]", number: int, folder: Path) -> None:
        self.process = one
        self.pid = one.pid
        self.fifo = folder / f"fr_{number}.pipe"
        self.dump = folder / f"trace_{number}"
        stat = Host().brief(one.pid)
        assert stat is not None
        self.identity = RankIdentity(
            rank=number,
            world_size=2,
            pid=one.pid,
            start_ticks=stat.start_ticks,
            started_at=Host().started_at(stat.start_ticks),
            uid=os.getuid(),
        )

    @property
    def job(self) -> Job:
        """Its job, which is named as its folder is."""
        name, world = self.dump.parent.name, self.identity.world_size
        one = (self.identity,)
        return Job(id=f"{self.pid}", name=name, launcher="torchrun", world_size=world, ranks=one)

    @property
    def program(self) -> Program:
        """What discovery reads of it."""
        here = Path(f"/proc/{self.pid}")
        environ = procfs.parse_environ((here / "environ").read_bytes())
        mapped = (here / "maps").read_bytes()
        return Program(libraries=libraries(mapped), recorder=recorder_settings(environ))

    def captured(self, what: ProcessCapture) -> RankCapture:
        """A rank of a capture, with the stacks of `what` and the state of this process."""
        state = Host().process_state(self.pid, files=True)
        while state is not None and state.state == "R":  # at one of its looks; it sleeps in between
            state = Host().process_state(self.pid, files=True)
        process = ProcessCapture(
            pid=self.pid, state=state, stacks=what.stacks, movement=what.movement
        )
        return RankCapture(identity=self.identity, process=process)

    def let_go(self) -> None:
        """Let it write the dump that it owes, and wait until it lies there whole."""
        Path(f"{self.dump}.go").touch()
        size = Path(f"{self.dump.parent}/recorded_{self.identity.rank}").stat().st_size
        deadline = time.monotonic() + 20 * PATIENCE
        while not self.dump.exists() or self.dump.stat().st_size < size:
            assert time.monotonic() < deadline, "no dump"
            time.sleep(0.02)

    def end(self) -> list[str]:
        """End it; the dumps that it made, one line each."""
        self.process.kill()
        assert self.process.stdout is not None
        lines = self.process.stdout.read().splitlines()
        self.process.wait(20)
        return lines


def library(folder: Path, version: str) -> Path:
    """A PyTorch of this version, as far as it can be seen from outside."""
    lib = folder / "torch" / "lib"
    lib.mkdir(parents=True, exist_ok=True)
    (lib.parent / "version.py").write_text(f"__all__ = []\n__version__ = '{version}'\n")
    path = lib / "libtorch_cpu.so"
    path.write_bytes(b"\0" * 4096)
    (lib / "libnccl.so.2").write_bytes(b"\0" * 4096)
    return path


@contextmanager
def monitored(
    folder: Path,
    number: int = 0,
    *,
    version: str = "2.11.0+cu128",
    how: str = "answers",
    recorded: str = "hang-desync",
    **environ: str,
) -> Iterator[Monitored]:
    """One that is ready. `how`: answers, leaves (nobody reads the FIFO), never (half a dump), mute (none), grows (for ever), waits (until `let_go`)."""
    env = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{folder}/fr_",
        "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/trace_",
    }
    dump = folder / f"recorded_{number}"
    words = [
        str(library(folder, version)),
        f"{folder}/fr_{number}.pipe",
        f"{folder}/trace_{number}",
    ]
    one = subprocess.Popen(
        [sys.executable, "-S", "-c", MONITOR, *words, str(dump), how],
        env=env | environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
        dump.write_bytes(recording(number % 2, recorded))  # of two ranks
        yield Monitored(one, number, folder)
    finally:
        one.kill()
        one.wait(20)
        assert one.stdout is not None
        one.stdout.close()
