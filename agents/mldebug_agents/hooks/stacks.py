"""Stacks without ptrace: the hook in the process writes them itself when its signal comes (see `mldebug_training.stacks`).

A signal that nobody catches ends a process. So it is sent to a pidfd only, and only after a record that is believed, the
open file of the stacks, and the kernel's own word (SigCgt) all say that this very process catches it. Processes that are
stopped or in state D could not answer, and are not asked. The second signal, which forces an answer, is sent only where the
first was taken and not answered: there the interpreter lock is stuck.
"""

import os
import re
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from mldebug.heartbeat import STACKS, record_name
from mldebug.model import MAIN_THREAD, Frame, RankIdentity, ThreadStack
from mldebug.redact import clean
from mldebug.stacks import named_frame
from mldebug_agents.answers import Piece
from mldebug_agents.hooks.records import FOLDER, Heartbeats
from mldebug_agents.host import Host
from mldebug_agents.reader import Reader

MAX_TEXT = 256 << 10
PAUSE = 0.02  # seconds between two looks whether it has written
PATIENCE = 2.0  # seconds for an answer, and again when it is forced
MAX_FORCED = 4096  # processes that are remembered
QUIET = 3  # looks without more, after which it has written all
DEAF = "TtDZX"  # states in which a process cannot answer
_THREAD = re.compile(
    r"^(?:Current thread|Thread) 0x([0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):"
)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')


class _File(NamedTuple):
    """The file of the stacks, as the process has it open."""

    pid: int
    fd: int
    name: str


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
        self._forced: set[tuple[int, int]] = set()  # (pid, start)

    def dump(self, pid: int, timeout: float = PATIENCE) -> tuple[ThreadStack, ...]:
        """All Python threads of one process, innermost frame first; none where it cannot or may not be asked."""
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return ()
        try:
            return self._dump(pid, fd, timeout)
        except OSError:  # no right to signal it, or it is gone
            return ()
        finally:
            os.close(fd)

    def _dump(self, pid: int, pidfd: int, timeout: float) -> tuple[ThreadStack, ...]:
        identity = self._identity(pid)
        beat = self._heartbeats.read([identity]).get(0) if identity else None
        if identity is None or beat is None or beat.signal is None or beat.stacks_fd is None:
            return ()
        name = record_name(identity.namespace_pid or pid, identity.start_ticks) + STACKS
        file = _File(pid, beat.stacks_fd, name)
        before = self._position(file)
        if before is None:
            return ()
        key = (pid, identity.start_ticks)
        for number in (beat.signal, beat.signal - 1):
            if not self._catches(pid, number, identity.start_ticks):
                return ()
            self._send(pidfd, number)
            after = self._written(file, before, timeout)
            if after > before:
                self._note(key, forced=number != beat.signal)
                path = f"{self._host.root_of(pid)}{FOLDER}/{name}"
                return self._read(path, before, after, beat.main_thread, pid)
            if self._pends(pid, beat.signal) and key not in self._forced:
                return ()  # not even taken: the machine is slow, or the process is; nothing is known to be stuck
        return ()

    def _note(self, key: tuple[int, int], *, forced: bool) -> None:
        """Whose listener still waits for the lock since an earlier question cannot take the next one."""
        if forced and len(self._forced) < MAX_FORCED:
            self._forced.add(key)
        elif not forced:
            self._forced.discard(key)

    def _read(
        self, path: str, before: int, after: int, main: int, pid: int
    ) -> tuple[ThreadStack, ...]:
        piece = self._reader.read_from(path, before, max_bytes=min(MAX_TEXT, after - before))
        text = piece.data.decode(errors="replace") if isinstance(piece, Piece) else ""
        return parse_faulthandler(text, pid, main)

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

    def _pends(self, pid: int, number: int) -> bool:
        return bool(self._host.status(pid).pending_signals >> (number - 1) & 1)

    def _position(self, file: _File) -> int | None:
        """How far it has written into the file of its stacks; None where that descriptor is something else."""
        if not self._host.link(file.pid, f"fd/{file.fd}").endswith(f"/{file.name}"):
            return None
        told = self._host.text(file.pid, f"fdinfo/{file.fd}")
        found = re.search(r"^pos:\s*(\d+)$", told, re.MULTILINE)
        return int(found[1]) if found else None

    def _written(self, file: _File, before: int, timeout: float) -> int:
        deadline, last, same = time.monotonic() + timeout, before, 0
        while time.monotonic() < deadline and same < QUIET:
            time.sleep(PAUSE)
            now = self._position(file) or before
            same = same + 1 if now == last and now > before else 0
            last = now
        return last


def parse_faulthandler(text: str, pid: int, main: int) -> tuple[ThreadStack, ...]:
    """Read what `faulthandler` writes; `main` is its number of the main thread, which comes first and gets the pid."""
    found: list[tuple[int, str, list[Frame]]] = []
    for line in text.splitlines():
        if match := _THREAD.match(line):
            is_main = (number := int(match[1], 16)) == main
            name = MAIN_THREAD if is_main else clean(match[2] or "", 64)
            found.append((pid if is_main else number, name, []))
        elif found and (match := _FRAME.match(line)):
            found[-1][2].append(named_frame(match[1], match[2], match[3]))
    ordered = sorted(found, key=lambda one: one[1] != MAIN_THREAD)
    return tuple(
        ThreadStack(tid=tid, name=name, frames=tuple(frames)) for tid, name, frames in ordered
    )
