"""Tries what a capture needs: stacks of a child process, py-spy, pystack, a state directory.

Everything here starts programs, so every trial has a deadline; a broken tool is a result and not an exception, unless said.
"""

import sys
from pathlib import Path

import msgspec

from mldebug.core.errors import EvidenceError, ToolError
from mldebug.core.redact import clean
from mldebug_agents.capture.stacks.pyspy import INSTALL, Dump, PySpy, read_dump
from mldebug_agents.system.child.programs import Completed, ProgramStarter

TRIAL_SECONDS = 5.0
NOT_STARTED = 127
LOW_SPACE = 1 << 30  # bytes

# The target starts py-spy itself: as its child, py-spy has no right over it by descent, just as with a rank
_TARGET = """
import os, sys
def mldebug_trial():
    pid = os.fork()
    if pid == 0:
        try:
            os.execvp(sys.argv[1], [*sys.argv[1:], "--pid", str(os.getppid())])
        except OSError as error:
            os.write(2, error.strerror.encode())
            os._exit(127)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
sys.exit(mldebug_trial())
"""

_STATE_DIR = """
import json, os, sys, tempfile
wanted = place = sys.argv[1]
obstacle = ""
while not os.path.isdir(place) and place != "/":
    obstacle = place if os.path.lexists(place) else obstacle
    place = os.path.dirname(place)
try:
    if place == wanted:
        tempfile.TemporaryFile(dir=place).close()
    writable = os.access(place, os.W_OK | os.X_OK)
except OSError:
    writable = False
space = os.statvfs(place)
free = space.f_bavail * space.f_frsize
print(json.dumps({"place": place, "writable": writable, "free": free, "obstacle": obstacle}))
"""


class StateDirCheck(msgspec.Struct, frozen=True):
    """The state directory, or the nearest folder above it that exists; free space in bytes for this user."""

    place: str
    writable: bool
    free: int
    obstacle: str = (
        ""  # what stands in its place, or in the place of a folder above it, and is none
    )


def try_dump(starter: ProgramStarter, binary: str, mode: str) -> Dump:
    """Start a small Python process and dump its stacks with py-spy (`binary`); `mode` is --nonblocking or --native.

    Where the stack that comes back is not the one of that process, the dump is marked as failed.
    """
    argv = [sys.executable, "-I", "-S", "-c", _TARGET, binary, "dump", "--json", mode]
    done = starter.run(argv, timeout=TRIAL_SECONDS)
    if done.error or done.returncode == NOT_STARTED:
        program = binary if done.returncode == NOT_STARTED else sys.executable
        return Dump(failure=f"{program} does not start: {_why(done)}", way_out=INSTALL)
    dump = read_dump(done, TRIAL_SECONDS)
    functions = {frame.function for stack in dump.stacks for frame in stack.frames}
    if not dump.failure and "mldebug_trial" not in functions:
        return Dump(failure="py-spy read a stack that is not the right one", way_out=INSTALL)
    return dump


def pyspy_version(starter: ProgramStarter, binary: str) -> str:
    """Return py-spy's version; ToolError where it does not start."""
    return PySpy(starter, binary).version(TRIAL_SECONDS)


def pystack_version(starter: ProgramStarter, binary: str) -> str:
    """Return pystack's version; ToolError where it is absent or does not run."""
    done = starter.run([binary, "--version"], timeout=TRIAL_SECONDS)
    if done.returncode != 0:
        raise ToolError(f"pystack does not run: {_why(done)}", "pip install pystack")
    return clean(done.stdout.decode(errors="replace").strip(), 40) or "unknown version"


def try_state_dir(starter: ProgramStarter, wanted: Path) -> StateDirCheck:
    """Look at the state directory from a child, since it may lie on a mount that hangs; `EvidenceError` where the child gives
    no answer.
    """
    argv = [sys.executable, "-I", "-S", "-c", _STATE_DIR, str(wanted)]
    done = starter.run(argv, timeout=TRIAL_SECONDS)
    try:
        return msgspec.json.decode(done.stdout, type=StateDirCheck)
    except msgspec.MsgspecError:
        raise EvidenceError(
            f"{wanted} gives no answer: {_why(done)}", "set agent.state_dir to a local disk"
        ) from None


def _why(done: Completed) -> str:
    if done.timed_out or done.abandoned:
        return f"nothing came in {TRIAL_SECONDS:g} s"
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return done.error or clean(" ".join(last), 120) or f"exit code {done.returncode}"
