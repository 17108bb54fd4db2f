"""Runs py-spy: finds the binary, dumps one process, says in words why that failed.

`--nonblocking` never stops the target and works on stopped and D-state processes. `--native` stops
it for 25 ms to 1 s and hangs on such processes, so it is only for callers who have checked every
thread (measured with py-spy 0.4.3).
"""

import os
import re
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from mldebug.capture.folded_stacks import CountedStack, parse_folded
from mldebug.capture.stacks.pyspy import parse_pyspy_json
from mldebug.core.errors import EvidenceError, ToolError
from mldebug.core.model import ThreadStack
from mldebug.core.units import size_words
from mldebug_agents.system.spawn import MEMORY, Completed, ProgramStarter

_NO_MEMORY = "memory allocation of"  # Rust's words, before it ends
MAX_RECORD = 4 << 20  # bytes of one recording
INSTALL = "pip install py-spy, or name it in the config: capture: {py_spy: /path/to/py-spy}"

FORBIDDEN = "no permission to read its memory"
CLOSED = "its own user may not look into it: it has another effective user, or is not dumpable"
TORN = "get_stack_trace"
"""In py-spy's words: the stack changed while it was read without stopping the process. Worth a second try."""


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one py-spy run: stacks, or the reason why there are none."""

    stacks: tuple[ThreadStack, ...] = ()
    failure: str = ""
    way_out: str = ""
    not_python: bool = False
    gone: bool = False
    killed: bool = False  # our py-spy had to be killed: the target must be looked after
    instead: str = ""  # why these stacks are the hook's and not py-spy's


class PySpy:
    """Dumps processes with py-spy. Two dumps of one process never run at the same time."""

    def __init__(
        self,
        starter: ProgramStarter,
        binary: str = "auto",
        hook: Callable[[int], tuple[ThreadStack, ...]] = lambda _: (),
        closed: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """`hook` asks a process for its stacks in another way, where py-spy may not read it; of what is `closed` to its own user none are taken."""
        self.starter = starter
        self._hook = hook
        self._closed = closed
        self.binary = find_binary() if binary == "auto" else binary
        self._lock = threading.Lock()
        self._busy: set[int] = set()

    def dump(self, pid: int, *, native: bool = False, timeout: float = 5.0) -> Dump:
        """Take the Python stacks of one process, with `native` the C/C++ frames too, which stops
        it. Never raises for what the target or py-spy does.

        A stack that changed while it was read is tried once more, so two timeouts (seconds) may
        pass. Where py-spy fails, a process with the hook is asked to write its stacks itself.
        """
        if self._closed(pid):
            return Dump(failure=CLOSED)
        if not self._claim(pid):
            return Dump(failure="another dump of this process is still running")
        try:
            dump = self._run(pid, native, timeout)
            torn = not native and TORN in dump.failure
            dump = self._run(pid, native, timeout) if torn else dump
            return self._instead(pid, dump) if dump.failure and not native else dump
        finally:
            self._release(pid)

    def record(
        self, pid: int, seconds: int, rate: int, *, on_cpu: bool = False, grace: float = 5.0
    ) -> tuple[CountedStack, ...]:
        """Sample the stacks of one process for `seconds`, `rate` times a second, without stopping
        it. `on_cpu`: only threads that run at that moment.

        Returns each stack with its number of samples; nothing where py-spy fails, is missing, or
        does not end `grace` seconds after its time.
        """
        if self._closed(pid):
            return ()
        kind = () if on_cpu else ("--idle",)
        argv = [
            *(self.binary, "record", "--pid", str(pid), "--nonblocking", "--threads", *kind),
            *("--rate", str(rate), "--duration", str(seconds), "--format", "raw"),
            *("--output", "/dev/stdout", "--full-filenames"),
        ]
        done = self.starter.run(
            argv,
            timeout=seconds + grace,
            max_output=MAX_RECORD,
            env=_environment(),
            looks_at=pid,
        )
        return parse_folded(done.stdout.decode(errors="replace")) if done.returncode == 0 else ()

    def _instead(self, pid: int, dump: Dump) -> Dump:
        """Ask the hook in the process, where there is one."""
        if dump.not_python or dump.gone or dump.killed:
            return dump
        stacks = self._hook(pid)
        return Dump(stacks=stacks, instead=dump.failure) if stacks else dump

    def _run(self, pid: int, native: bool, timeout: float) -> Dump:
        mode = "--native" if native else "--nonblocking"
        argv = [self.binary, "dump", "--pid", str(pid), "--json", mode]
        done = self.starter.run(argv, timeout=timeout, env=_environment(), looks_at=pid)
        return read_dump(done, timeout)

    def version(self, timeout: float = 5.0) -> str:
        """The version of py-spy, as `0.4.3`. Raises ToolError where the binary does not run, or is another program."""
        done = self.starter.run([self.binary, "--version"], timeout=timeout)
        if done.returncode != 0:
            raise ToolError(f"py-spy does not run ({self.binary}): {_why(done, timeout)}", INSTALL)
        version = re.search(r"\d+\.\d+\.\d+", done.stdout.decode(errors="replace"))
        if version is None:
            raise ToolError(f"{self.binary} is no py-spy: it does not tell its version", INSTALL)
        return version[0]

    def _claim(self, pid: int) -> bool:
        with self._lock:
            if pid in self._busy:
                return False
            self._busy.add(pid)
            return True

    def _release(self, pid: int) -> None:
        with self._lock:
            self._busy.discard(pid)


def find_binary() -> str:
    """The path of py-spy: beside this interpreter, else on PATH, else its bare name, so that the error names it."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy") or "py-spy"


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "RUST_BACKTRACE": "0"}


def read_dump(done: Completed, timeout: float) -> Dump:
    """The stacks, or the reason why there are none, from a finished `py-spy dump --json`.

    `timeout`: the seconds that it had.
    """
    killed = done.timed_out or done.abandoned
    if done.returncode != 0 or killed:
        return _failed(done, timeout, killed)
    try:
        stacks = parse_pyspy_json(done.stdout)
        return Dump(stacks=stacks, failure="" if stacks else "py-spy saw no Python thread")
    except EvidenceError as error:
        return Dump(failure=f"py-spy printed something else: {error.message}", way_out=INSTALL)


def _failed(done: Completed, timeout: float, killed: bool) -> Dump:
    why = _why(done, timeout)
    if done.error:
        return Dump(
            failure=f"py-spy ({done.argv[0] if done.argv else ''}) cannot be started: {why}",
            way_out=INSTALL,
        )
    lowered = why.lower()
    if "permission denied" in lowered or "operation not permitted" in lowered:
        return Dump(failure=FORBIDDEN, way_out=PERMISSION, killed=killed)
    if "python version" in lowered:
        return Dump(failure="it is not a Python process", not_python=True, killed=killed)
    if re.search(r"no such file|no such process|executable name", lowered):
        return Dump(failure="it exited before its stack was read", gone=True, killed=killed)
    return Dump(failure=f"py-spy: {why}", killed=killed)


PERMISSION = (
    "run as the job's user or as root, or give the agent CAP_SYS_PTRACE (see `mldebug doctor`)"
)


def _why(done: Completed, timeout: float) -> str:
    if done.timed_out or done.abandoned:
        return f"no answer in {timeout:g} s"
    if done.error:
        return done.error
    if done.truncated:
        return "it wrote too much"
    text = done.stderr.decode(errors="replace")
    if _NO_MEMORY in text:
        return (
            f"to read what this program is made of takes more than {size_words(MEMORY)} of memory"
        )
    causes = re.findall(r"(?:Error:|^\s+\d+:|Reason:)\s*(.+)", text, re.MULTILINE)[:2]
    return (
        ": ".join(cause.strip() for cause in causes)
        or text.strip()[:200]
        or f"exit code {done.returncode}"
    )
