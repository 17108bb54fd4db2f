"""Native (C/C++) stacks, the last step of a capture: py-spy stops the process for them, so they are
taken only where that is safe.

A tool that is killed while it waits for a traced process may leave a SIGSTOP behind that freezes
the trainer later. So the process is compared before and after; SIGCONT is sent only where our own
dump had to be killed and has left the process worse than before.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from mldebug.core.model import Gap, NodeCapture, ProcessState, RankCapture
from mldebug.diagnosis.classify.rank_states import wants_native
from mldebug.diagnosis.classify.tables.kernel_waits import STORAGE_WAITS
from mldebug_agents.capture.stacks.pyspy import Dump, PySpy
from mldebug_agents.system.host import Host
from mldebug_agents.system.process.details import MAX_THREADS

NATIVE_TIMEOUT = 15.0
STOP_BIT = 1 << (signal.SIGSTOP - 1)


class NativeStacks:
    """Takes native stacks: of the ranks where they decide something (`policy` auto), of all
    (always) or of none (never).
    """

    def __init__(self, host: Host, pyspy: PySpy, policy: str, left: Callable[[], float]) -> None:
        """`left` says the seconds until the deadline of the capture."""
        self._host = host
        self._pyspy = pyspy
        self._policy = policy
        self._left = left
        self._gaps: list[Gap] = []

    def add(self, pool: ThreadPoolExecutor, taken: NodeCapture) -> NodeCapture:
        """The capture with the native stacks that were wanted and could be taken safely.

        A rank that cannot be stopped safely is passed over; only the policy `always` notes a gap
        for it.
        """
        wanted = (
            set(wants_native(taken))
            if self._policy == "auto"
            else {rank.identity.rank for rank in taken.ranks}
        )
        if self._policy == "never" or not wanted:
            return taken
        chosen = [rank for rank in taken.ranks if rank.identity.rank in wanted]
        futures = {rank.identity.rank: pool.submit(self._take, rank) for rank in chosen}
        found = {rank: future.result() for rank, future in futures.items()}
        ranks = tuple(_with_native(rank, found.get(rank.identity.rank)) for rank in taken.ranks)
        gaps = tuple(dict.fromkeys((*taken.gaps, *self._gaps)))
        return msgspec.structs.replace(taken, ranks=ranks, gaps=gaps)

    def _take(self, rank: RankCapture) -> Dump | None:
        pid = rank.identity.pid
        before = self._host.process_state(pid)
        refusal = unsafe_to_stop(before)
        if refusal or before is None or self._left() < 1.0:
            if self._policy == "always":
                reason = f"not taken: {refusal or 'no time left'}"
                self._gaps.append(
                    Gap(what="native stack", reason=reason, rank=rank.identity.rank, pid=pid)
                )
            return None
        dump = self._pyspy.dump(pid, native=True, timeout=min(NATIVE_TIMEOUT, self._left()))
        if dump.killed and (gap := restore(before, self._host.process_state(pid))):
            self._gaps.append(gap)
        if dump.failure:
            gap = Gap(
                what="native stack",
                reason=dump.failure,
                rank=rank.identity.rank,
                pid=pid,
                way_out=dump.way_out,
            )
            self._gaps.append(gap)
        return dump


def unsafe_to_stop(state: ProcessState | None) -> str:
    """Why a blocking dump may hang on this process or harm it, as text; "" where every thread can be interrupted."""
    if state is None:
        return "the process is gone"
    if state.tracer_pid:
        return f"another tracer (pid {state.tracer_pid}) holds it"
    for thread in state.threads:
        if thread.state not in ("R", "S"):
            return f"thread {thread.tid} is in state {thread.state}"
        if STORAGE_WAITS.fullmatch(thread.wchan):
            return f"thread {thread.tid} waits for storage ({thread.wchan})"
    if len(state.threads) >= MAX_THREADS:
        return f"it has more than {MAX_THREADS} threads, which were not all looked at"
    return "" if state.threads else "its threads cannot be read"


def _with_native(rank: RankCapture, dump: Dump | None) -> RankCapture:
    if dump is None or dump.failure:
        return rank
    process = msgspec.structs.replace(rank.process, native=dump.stacks)
    return msgspec.structs.replace(rank, process=process)


def harmed(before: ProcessState | None, after: ProcessState | None) -> str:
    """What a dump has left behind in a process (stopped, SIGSTOP pending, traced), as text; ""
    where nothing is worse than before.
    """
    if before is None or after is None or before.start_ticks != after.start_ticks:
        return ""
    if after.state == "T" and before.state != "T":
        return "it was left stopped (state T)"
    if after.pending_signals & STOP_BIT and not before.pending_signals & STOP_BIT:
        return "a SIGSTOP was left pending"
    if after.tracer_pid and not before.tracer_pid:
        return f"it was left traced by pid {after.tracer_pid}"
    return ""


def restore(
    before: ProcessState | None,
    after: ProcessState | None,
    *,
    send: Callable[[int, int], None] = os.kill,
) -> Gap | None:
    """After a dump that had to be killed: if it has left the process worse than `before`, send SIGCONT and return an entry for
    the capture's `gaps` that says so; else None.
    """
    damage = harmed(before, after)
    if not damage or after is None:
        return None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(after.pid, signal.SIGCONT)
    reason = f"a dump had to be killed and {damage}; SIGCONT was sent"
    return Gap(what="native stack", reason=reason, pid=after.pid)
