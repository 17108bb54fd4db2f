"""Climb every rung of docs/rights.md once, as whoever runs this: standard library only, started through setpriv.

    python rungs.py TARGET_PID TOOLS EVENTS      prints {"rung": true, ...}

TOOLS holds py-spy and a folder `site-packages` with pystack. The target has written into EVENTS what it has: a log file
`job.log` of mode 0600 in a folder that is closed to others, a FIFO `debug.fifo` that it keeps open, `address`, the
place of eight known bytes in its memory, and `hook`, the path of its hook's record and the signal that asks it.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

CLONE_NEWNET = 0x40000000
KNOWN = b"MLDEBUG!"
SECONDS = 60  # an answer comes at once; a machine with much else to do takes longer


def climb(pid: int, tools: Path, events: Path) -> dict[str, bool]:
    """Try everything; a rung holds where its call raises no OSError and gives what it should."""
    proc = Path(f"/proc/{pid}")
    inside = Path(f"/proc/{pid}/root{events}")
    rungs: dict[str, Callable[[], object]] = {
        "state": lambda: _text(proc / "stat") and _text(proc / "status"),
        "cmdline": lambda: _text(proc / "cmdline"),
        "wchan": lambda: _text(proc / "wchan") not in ("", "0"),
        "syscall": lambda: _text(proc / "syscall"),
        "stack": lambda: _text(proc / "stack"),
        "maps": lambda: _text(proc / "maps"),
        "fd": lambda: [os.readlink(link) for link in (proc / "fd").iterdir()],
        "io": lambda: _text(proc / "io"),
        "environ": lambda: "RANK=2" in _text(proc / "environ"),
        "memory": lambda: _memory(pid, int((events / "address").read_text())) == KNOWN,
        "py-spy": lambda: _dump(tools / "py-spy", "dump", "--nonblocking", "--pid", str(pid)),
        "py-spy-native": lambda: _dump(tools / "py-spy", "dump", "--native", "--pid", str(pid)),
        "pystack": lambda: _pystack(pid, tools),
        "root": lambda: "step" in _text(inside / "closed/job.log"),
        "log": lambda: "step" in _text(events / "closed/job.log"),
        "kmsg": _kernel_log,
        "signal": lambda: _signal(pid),
        "fifo": lambda: _write(inside / "debug.fifo"),
        "hook-record": lambda: _record(pid, events).read_bytes().startswith(b"mldebug"),
        "hook-stacks": lambda: _answers(pid, events, 0, ".stacks", "wait_here"),
        "hook-flight": lambda: _answers(pid, events, 2, ".flight", '"groups"'),
        "netns": lambda: _enter(proc / "ns/net"),
    }
    return {name: _holds(rung) for name, rung in rungs.items()}


def _holds(rung: Callable[[], object]) -> bool:
    try:
        return bool(rung())
    except OSError:
        return False


def _text(path: Path) -> str:
    return path.read_text(errors="replace")


def _dump(*argv: object) -> bool:
    done = subprocess.run(
        [str(word) for word in argv], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    return done.returncode == 0 and "wait_here" in done.stdout


def _pystack(pid: int, tools: Path) -> bool:
    code = "import sys; from pystack.__main__ import main; sys.exit(main())"
    os.environ["PYTHONPATH"] = str(tools / "site-packages")
    return _dump(sys.executable, "-c", code, "remote", "--no-block", str(pid))


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _memory(pid: int, address: int) -> bytes:
    here = ctypes.create_string_buffer(len(KNOWN))
    ours = _IoVec(ctypes.addressof(here), len(KNOWN))
    theirs = _IoVec(address, len(KNOWN))
    library = ctypes.CDLL(None, use_errno=True)
    arguments = (pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
    if library.process_vm_readv(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "process_vm_readv")
    return here.raw


def _kernel_log() -> bool:
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        return bool(os.read(fd, 8192))
    finally:
        os.close(fd)


def _signal(pid: int) -> bool:
    os.kill(pid, signal.SIGCONT)
    return True


def _record(pid: int, events: Path) -> Path:
    """The hook's record, as it is found from here."""
    return Path(f"/proc/{pid}/root{(events / 'hook').read_text().split()[0]}")


def _answers(pid: int, events: Path, below: int, suffix: str, words: str) -> bool:
    """Ask the hook by its signal, or the one so many below, and read what it writes; an older answer is none."""
    file = Path(f"{_record(pid, events)}{suffix}")
    number = int((events / "hook").read_text().split()[1]) - below
    before = file.stat().st_mtime_ns if file.exists() else 0
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, number)
    finally:
        os.close(pidfd)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        new = file.exists() and file.stat().st_mtime_ns > before
        if new and words in _text(file):
            return True
        time.sleep(0.05)
    return False


def _write(fifo: Path) -> bool:
    fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        return os.write(fd, b"1") == 1
    finally:
        os.close(fd)


def _enter(namespace: Path) -> bool:
    """Last of all rungs: whoever gets in stays in."""
    fd = os.open(namespace, os.O_RDONLY)
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(fd, CLONE_NEWNET) < 0:
        raise OSError(ctypes.get_errno(), "setns")
    return os.stat("/proc/self/ns/net").st_ino == os.fstat(fd).st_ino


if __name__ == "__main__":
    print(json.dumps(climb(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))))
