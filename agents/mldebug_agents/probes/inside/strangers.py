"""Which other processes use this node while a probe over several nodes runs on it: ranks of training jobs, and processes on its
GPUs.

Ranks are recognised by their environment, which only their own user and root may read.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from typing import Dict, Iterator, List, Optional

SETTLED = 5.0  # seconds: a process that is younger may still become another program
ASK_EVERY = 3.0  # seconds between two questions to nvidia-smi, which takes about one
SMI_SECONDS = 30.0  # it may have to load firmware first
SMI = ("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader")
_PR_SET_PDEATHSIG = 1


class Strangers:
    """Looks for processes outside the probe that compute on this node. One for each launcher, called each second; `gpus`: the
    probe uses them.
    """

    def __init__(self, gpus: bool) -> None:
        self._smi = Smi() if gpus else None
        self._met: Dict[int, float] = {}

    def first_look(self) -> str:
        """Why the probe must not begin; "" where it may. Waits up to `SMI_SECONDS` for nvidia-smi's first answer; called
        before anything is measured.
        """
        reason, until = self.look(), time.monotonic() + SMI_SECONDS
        while self._smi and self._smi.query and not reason and time.monotonic() < until:
            time.sleep(0.1)
            reason = self.look()
        return reason

    def look(self) -> str:
        """Why the probe must end now; "" while it may go on."""
        for pid in self._young():
            if is_rank(pid):
                return "a training job runs on this node (pid {})".format(pid)
        for pid in strangers(self._smi.answer() if self._smi else []):
            return "a process computes on a GPU (pid {})".format(pid)
        return ""

    def _young(self) -> List[int]:
        now = time.monotonic()
        self._met = {pid: self._met.get(pid, now) for pid in pids()}
        return [pid for pid, at in self._met.items() if now - at <= SETTLED]


class Smi:
    """Runs nvidia-smi again and again, one at a time: while one hangs, no other is started."""

    def __init__(self) -> None:
        self.query: Optional[subprocess.Popen[str]] = None
        self._next = 0.0

    def answer(self) -> List[int]:
        """The pids on the GPUs where nvidia-smi has just ended; otherwise []. Starts it when that is due. Never waits."""
        process, now = self.query, time.monotonic()
        if process is None:
            if now >= self._next:
                self.query, self._next = start(), now + ASK_EVERY
            return []
        if process.poll() is None or process.stdout is None:
            return []
        self.query = None
        with process.stdout as output:
            return [int(word) for word in output.read().split() if word.isdigit()]


def start() -> Optional[subprocess.Popen[str]]:
    """Start nvidia-smi so that it dies with this process; None where it does not exist."""
    try:
        return subprocess.Popen(
            SMI,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # Python must not run between fork and exec where there are other threads: in a rank that torchrun started
            preexec_fn=_die_with_us if threading.active_count() == 1 else None,  # noqa: PLW1509
        )
    except OSError:
        return None


def _die_with_us() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def ranks_here() -> List[int]:
    """Pids of training ranks on this node that are not of our own process group."""
    return [pid for pid in pids() if is_rank(pid)]


def strangers(computing: List[int]) -> Iterator[int]:
    """The pids among `computing` that exist in /proc and belong to no process of the probe. Pids of another PID namespace are left out
    where they do not exist here.
    """
    return (pid for pid in computing if os.path.exists("/proc/{}".format(pid)) and not _ours(pid))


def pids() -> List[int]:
    """The pids of all processes that can be seen in /proc."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def is_rank(pid: int) -> bool:
    """Whether a Python process was started as a rank (by torchrun or alike) and not by this probe."""
    names = {word.partition(b"=")[0] for word in _read(pid, "environ").split(b"\0")}
    python = _read(pid, "comm").startswith((b"python", b"pt_"))
    return python and {b"RANK", b"WORLD_SIZE"} <= names and not _ours(pid)


def _read(pid: int, name: str) -> bytes:
    try:
        with open("/proc/{}/{}".format(pid, name), "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return b""  # it has ended, or is another user's


def _ours(pid: int) -> bool:
    """Of our process group; torchrun makes one for each rank, and is the parent of them all."""
    try:
        return os.getpgid(pid) == os.getpgid(0) or (
            "TORCHELASTIC_RUN_ID" in os.environ and _parent(pid) == os.getppid()
        )
    except ProcessLookupError:
        return True  # gone meanwhile


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else -1
