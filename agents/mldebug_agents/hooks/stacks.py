"""Stacks without ptrace: the hook in the process writes them itself when its signal comes (see `mldebug_training.stacks`).

A signal that nobody catches ends a process. So it is sent to a pidfd only, and only after a record that is believed, the
open file of the stacks, and the kernel's own word (SigCgt) all say that this very process catches it. Processes that are
stopped or in state D could not answer, and are not asked.
"""

import os
import re
import signal
import time
from collections.abc import Callable

from mldebug.heartbeat import STACKS, record_name
from mldebug.model import MAIN_THREAD, Frame, RankIdentity, ThreadStack
from mldebug.redact import clean
from mldebug_agents.answers import Piece
from mldebug_agents.hooks.records import FOLDER, Heartbeats
from mldebug_agents.host import Host
from mldebug_agents.reader import Reader

MAX_TEXT = 256 << 10
PAUSE = 0.02  # seconds between two looks whether it has written
QUIET = 3  # looks without more, after which it has written all
DEAF = "TtDZX"  # states in which a process cannot answer
_THREAD = re.compile(
    r"^(Current thread|Thread) 0x([0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):"
)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')


class HookStacks:
    """Asks processes for their stacks. Never raises for what they do."""

    def __init__(
        self,
        host: Host,
        reader: Reader,
        send: Callable[[int, int], None] = signal.pidfd_send_signal,
    ) -> None:
        self._host = host
        self._reader = reader
        self._heartbeats = Heartbeats(host, reader)
        self._send = send

    def dump(self, pid: int, timeout: float = 1.0) -> tuple[ThreadStack, ...]:
        """All Python threads of one process, innermost frame first; none where it cannot or may not be asked."""
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return ()
        try:
            return self._ask(pid, fd, timeout)
        except OSError:  # no right to signal it, or it is gone
            return ()
        finally:
            os.close(fd)

    def _ask(self, pid: int, pidfd: int, timeout: float) -> tuple[ThreadStack, ...]:
        identity = self._identity(pid)
        beat = self._heartbeats.read([identity]).get(0) if identity else None
        if identity is None or beat is None or beat.signal is None or beat.stacks_fd is None:
            return ()
        name = record_name(identity.namespace_pid or pid, identity.start_ticks) + STACKS
        before = self._position(pid, beat.stacks_fd, name)
        if before is None or not self._catches(pid, beat.signal, identity.start_ticks):
            return ()
        self._send(pidfd, beat.signal)
        after = self._written(pid, beat.stacks_fd, name, before, timeout)
        if after <= before:
            return ()
        path = f"{self._host.root_of(pid)}{FOLDER}/{name}"
        piece = self._reader.read_from(path, before, max_bytes=min(MAX_TEXT, after - before))
        text = piece.data.decode(errors="replace") if isinstance(piece, Piece) else ""
        return parse_faulthandler(text, pid)

    def _identity(self, pid: int) -> RankIdentity | None:
        stat, status = self._host.brief(pid), self._host.status(pid)
        if stat is None or stat.state in DEAF:
            return None
        inside = status.pids[-1] if status.pids else pid
        return RankIdentity(
            rank=0,
            world_size=1,
            pid=pid,
            start_ticks=stat.start_ticks,
            uid=status.uid,
            namespace_pid=inside if inside != pid else None,
        )

    def _catches(self, pid: int, number: int, start_ticks: int) -> bool:
        """The kernel's word, asked last: an exec in between has taken all handlers away."""
        status, stat = self._host.status(pid), self._host.brief(pid)
        if stat is None or stat.start_ticks != start_ticks or stat.state in DEAF:
            return False
        return bool(status.caught_signals >> (number - 1) & 1)

    def _position(self, pid: int, fd: int, name: str) -> int | None:
        """How far it has written into the file of its stacks; None where that descriptor is something else."""
        if not self._host.link(pid, f"fd/{fd}").endswith(f"/{name}"):
            return None
        found = re.search(r"^pos:\s*(\d+)$", self._host.text(pid, f"fdinfo/{fd}"), re.MULTILINE)
        return int(found[1]) if found else None

    def _written(self, pid: int, fd: int, name: str, before: int, timeout: float) -> int:
        deadline, last, same = time.monotonic() + timeout, before, 0
        while time.monotonic() < deadline and same < QUIET:
            time.sleep(PAUSE)
            now = self._position(pid, fd, name) or before
            same = same + 1 if now == last and now > before else 0
            last = now
        return last


def parse_faulthandler(text: str, pid: int) -> tuple[ThreadStack, ...]:
    """Read what `faulthandler` writes. The thread that got the signal is the main thread, as the kernel sends it there."""
    found: list[tuple[int, str, list[Frame]]] = []
    for line in text.splitlines():
        if match := _THREAD.match(line):
            current = match[1].startswith("Current")
            tid = pid if current else int(match[2], 16)
            found.append((tid, MAIN_THREAD if current else clean(match[3] or "", 64), []))
        elif found and (match := _FRAME.match(line)):
            found[-1][2].append(_frame(match))
    ordered = sorted(found, key=lambda one: one[1] != MAIN_THREAD)
    return tuple(
        ThreadStack(tid=tid, name=name, frames=tuple(frames)) for tid, name, frames in ordered
    )


def _frame(match: re.Match[str]) -> Frame:
    path = clean(match[1], 512)
    short = path.partition("site-packages/")[2] or re.sub(r"^.*/lib/python3\.\d+/", "", path)
    file = short if not short.startswith("/") else short.rpartition("/")[2]
    return Frame(function=clean(match[3], 160), file=file, line=int(match[2]), path=path)
