"""Two ordinary users, the processes of one of them, and an agent as root or as the unit's user: for tests of who may read what."""

import ctypes
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from mldebug_agents.system.child import job_paths
from mldebug_agents.system.child.job_paths import Rights
from mldebug_agents.system.child.reader_child import (
    ReadAnswer,
    ReadOperation,
    ReadRequest,
    answer,
)
from mldebug_agents.system.host import Host

ALICE, BOB, SERVICE = 61_201, 61_202, 61_203  # nobody's numbers: no account is made
UNIT = 1 << 19 | 1 << 2 | 1 << 34  # CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH, CAP_SYSLOG
SECRET = "what Alice alone may read\n"
SLEEP = "import sys; print('ready', flush=True); sys.stdin.read()"
Agent = Literal["root", "unit"]
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def homes() -> Iterator[Path]:
    """A folder that everybody reaches, with `alice` (0700, in it `model.py` 0644 and `key` 0600) and `bob` (0755)."""
    top = Path(tempfile.mkdtemp(prefix="homes-"))
    try:
        top.chmod(0o755)
        for name, uid, mode in (("alice", ALICE, 0o700), ("bob", BOB, 0o755)):
            (top / name).mkdir()
            (top / name).chmod(mode)
            os.chown(top / name, uid, uid)
        put(top / "alice/model.py", SECRET, ALICE, 0o644)
        put(top / "alice/key", SECRET, ALICE, 0o600)
        yield top
    finally:
        shutil.rmtree(top, ignore_errors=True)


def put(path: Path, text: str, uid: int, mode: int) -> Path:
    """A file of that user."""
    path.write_text(text)
    path.chmod(mode)
    os.chown(path, uid, uid)
    return path


@contextmanager
def process(
    uid: int,
    script: str = SLEEP,
    *argv: str,
    groups: Sequence[int] = (),
    before: Sequence[str] = (),
    stdout: int = subprocess.PIPE,
) -> Iterator[subprocess.Popen[bytes]]:
    """A program of that user, once it has said so. `before`: what starts it, in place of the user's numbers."""
    user = {} if before else {"user": uid, "group": uid, "extra_groups": groups}
    running = subprocess.Popen([*before, system_python(), "-c", script, *argv], stdin=subprocess.PIPE, stdout=stdout, cwd="/", **user)  # type: ignore[call-overload]  # fmt: skip
    try:
        if running.stdout is not None:
            assert running.stdout.readline() == b"ready\n"
        yield running
    finally:
        running.kill()
        running.communicate()


def system_python() -> str:
    """One that other users may run; this one may lie in a home."""
    return shutil.which("python3", path="/usr/bin:/bin") or sys.executable


def rights_of(pid: int) -> Rights:
    """What an agent finds out."""
    return Host().rights.now(pid)


def read_as(
    agent: Agent,
    path: Path | str,
    rights: Rights,
    operation: ReadOperation = ReadOperation.FILE,
    place: str = "",
) -> ReadAnswer:
    """The answer of a reader child of that agent."""
    request = ReadRequest(operation, (), 1 << 16, 1, rights, len(os.fsencode(place)))
    return _in_child(agent, lambda: answer(request, os.fsencode(str(path))))


def read_often_as(agent: Agent, path: Path | str, rights: Rights, times: int) -> list[ReadAnswer]:
    """The answers of one reader child of that agent, one after the other."""
    request = ReadRequest(ReadOperation.FILE, (), 1 << 16, 1, rights, 0)
    data = _told_by_child(agent, lambda: [answer(request, os.fsencode(str(path))) for _ in range(times)])  # fmt: skip
    return msgspec.msgpack.decode(data, type=list[ReadAnswer])


def _in_child(agent: Agent, what: Callable[[], ReadAnswer]) -> ReadAnswer:
    return msgspec.msgpack.decode(_told_by_child(agent, what), type=ReadAnswer)


def _told_by_child(agent: Agent, what: Callable[[], object]) -> bytes:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(20)
            if agent == "unit":
                become_service()
            theirs.sendall(msgspec.msgpack.encode(what()))
        finally:
            os._exit(0)
    theirs.close()
    with ours:
        data = b"".join(iter(lambda: ours.recv(1 << 16), b""))
    os.waitpid(pid, 0)
    return data


def become_service() -> None:
    """This process is the unit's user from now on, with its capabilities and no others."""
    for known in (job_paths._powers, job_paths._drops, job_paths._knows_all_ids):
        known.cache_clear()
    assert _libc.prctl(8, 1, 0, 0, 0) == 0  # PR_SET_KEEPCAPS
    os.setgroups([])
    os.setresgid(SERVICE, SERVICE, SERVICE)
    os.setresuid(SERVICE, SERVICE, SERVICE)
    header = struct.pack("<Ii", 0x20080522, 0)
    low, high = UNIT & 0xFFFFFFFF, UNIT >> 32
    data = struct.pack("<6I", low, low, 0, high, high, 0)
    assert _libc.syscall(126, header, data) == 0  # capset on x86_64
