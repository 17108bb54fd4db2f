"""`mldebug probe` as a process whose every child is known, and whoever else computes on the GPUs of this machine."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

PROBE = (sys.executable, "-m", "mldebug", "probe")
MARK = "MLDEBUG_PROBE_MARK"
OP = "all_gather"  # moves something on one GPU, too
SECONDS = 120.0  # for one command that should end by itself
GONE = 20.0  # for its processes
HOG = """
import ctypes, sys, time
cuda, left = ctypes.CDLL("libcuda.so.1"), int(sys.argv[1])
def call(name, *words):
    code = getattr(cuda, name)(*words)
    if code:
        sys.exit(f"{name}: error {code}")
device, context, place = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
wanted = (free.value - left) >> 21 << 21 if left >= 0 else 1 << 21
call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(wanted))
print("computes", flush=True)
time.sleep(600)
"""  # without PyTorch, which alone makes it a training job


class Ended(NamedTuple):
    """How a command ended; `left` are pids of it that were still there `GONE` seconds after its end."""

    code: int
    out: str
    err: str
    seconds: float
    left: list[int]

    @property
    def sentence(self) -> str:
        """What it says went wrong; "" where it says nothing, or more than one thing."""
        matching = [line for line in self.err.splitlines() if line.startswith("mldebug: ")]
        return matching[0] if len(matching) == 1 and "Traceback" not in self.err else ""

    @property
    def rows(self) -> int:
        """Lines of a table that were printed."""
        return sum(line.startswith(OP) for line in self.out.splitlines())


class Typed:
    """One that runs. Its output is in files: nobody needs to read while it goes on."""

    def __init__(self, folder: Path, *words: str, more: Mapping[str, str] = {}) -> None:
        self._mark = uuid.uuid4().hex
        self._out, self._err = (folder / f"{self._mark}.{name}" for name in ("out", "err"))
        own = {MARK: self._mark, "MLDEBUG_PROBE_LOCK": str(folder / "lock"), "HOME": str(folder)}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*PROBE, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env={**os.environ, **own, **more},
            )  # fmt: skip
        self.began = time.monotonic()

    def says(self, text: str) -> bool:
        """Whether that stands in what it has printed so far."""
        return text in self._out.read_text() + self._err.read_text()

    def end(self) -> Ended:
        """Wait until it has ended, and all that it started."""
        until("the end of the command", lambda: self.process.poll() is not None)
        seconds = time.monotonic() - self.began
        with suppress(TimeoutError):
            until("the end of its processes", lambda: not self.pids(), GONE)
        return Ended(
            self.process.returncode, self._out.read_text(), self._err.read_text(), seconds, self.pids()
        )  # fmt: skip

    def pids(self) -> list[int]:
        """All of its processes that are not dead, by a mark in their environment."""
        return [pid for pid in everybody() if self._mark in read(f"/proc/{pid}/environ")]

    def ranks(self) -> list[int]:
        """Those that a launcher of its own has forked."""
        return [pid for pid in self.pids() if inside(pid) and inside(parent(pid))]


def typed(folder: Path, *words: str, more: Mapping[str, str] = {}) -> Ended:
    """Type it, and wait for its end."""
    return Typed(folder, *words, more=more).end()


@contextmanager
def hog(left: int = -1) -> Iterator["Hog"]:
    """Another program that computes on GPU 0, and takes all of its memory but `left` bytes (-1: hardly any)."""
    one = Hog(left)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait(30)


class Hog:
    """See `hog`."""

    def __init__(self, left: int) -> None:
        argv = [sys.executable, "-c", HOG, str(left)]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)

    def wait(self) -> "Hog":
        """Until it has a context and its memory."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == "computes":
                return self
        raise RuntimeError("the other program did not come to compute, see above")


# --- what the machine tells --------------------------------------------------------------------------


def smi(query: str) -> list[str]:
    """Lines of an answer of nvidia-smi; none without it."""
    words = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def computing() -> list[str]:
    """Pids that compute on any GPU."""
    return smi("--query-compute-apps=pid")


def used() -> list[int]:
    """MiB of memory that are taken, of each GPU."""
    return [int(line) for line in smi("--query-gpu=memory.used")]


def until(what: str, ask: Callable[[], T], seconds: float = SECONDS) -> T:
    """Wait until it answers with something true; TimeoutError says what did not come."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {seconds:g} s")
        time.sleep(0.05)
    return answer


def everybody() -> list[int]:
    """All pids."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def inside(pid: int) -> bool:
    """Whether it runs a probe's script in the training environment's Python."""
    return "/probes/inside" in read(f"/proc/{pid}/cmdline")


def parent(pid: int) -> int:
    """Its parent's pid, 0 where it is gone."""
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


def read(path: str) -> str:
    """A file of /proc; "" where it is gone."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
