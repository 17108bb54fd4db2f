"""pystack as a second opinion: Python frames without stopping the target, where py-spy could not read it.

Only `pystack remote --no-block` is ever used: blocking pystack, killed while it waits, leaves a SIGSTOP pending.
"""

import os
import re
import sys
from pathlib import Path

from mldebug.capture.stacks.form import named_frame
from mldebug.core.model import MAIN_THREAD, Frame, ThreadStack
from mldebug.core.redact import clean
from mldebug_agents.system.spawn import ProgramStarter

_THREAD = re.compile(r"^Traceback for thread (\d+) \((.{0,200}?)\) \[(.{0,200}?)\]")
_FRAME = re.compile(r'^ {4}\(Python\) File "(.+)", line (\d+), in (.+)$')


def find_pystack() -> str:
    """The path of pystack beside this interpreter; "" where this optional package is not installed."""
    beside = Path(sys.executable).parent / "pystack"
    return str(beside) if os.access(beside, os.X_OK) else ""


def second_opinion(
    starter: ProgramStarter, binary: str, pid: int, timeout: float
) -> tuple[ThreadStack, ...]:
    """The Python stacks of one process by pystack, in `timeout` seconds at most; empty where it is missing or fails.

    Never raises.
    """
    if not binary:
        return ()
    words = [binary, "remote", "--no-block", str(pid)]
    done = starter.run(words, timeout=timeout, looks_at=pid)
    return parse_pystack(done.stdout.decode(errors="replace"), pid) if done.returncode == 0 else ()


def parse_pystack(text: str, pid: int) -> tuple[ThreadStack, ...]:
    """The stacks in the text of `pystack remote`, innermost frame first.

    `pid`: the process, whose main thread has the same number.
    """
    found: list[tuple[int, str, bool, list[Frame]]] = []
    for line in text.splitlines():
        if match := _THREAD.match(line):
            tid = int(match[1])
            name = MAIN_THREAD if tid == pid else clean(match[2], 64)
            found.append((tid, name, "Has the GIL" in match[3], []))
        elif found and (match := _FRAME.match(line)):
            found[-1][3].append(named_frame(match[1], match[2], match[3]))
    return tuple(
        ThreadStack(tid=tid, name=name, owns_gil=gil, frames=tuple(frames[::-1]))
        for tid, name, gil, frames in found
    )
