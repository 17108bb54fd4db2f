"""The patient's guard: compare a process before and after we looked at it, and undo what only we can have done.

A tool that is killed while it waits for a traced process may leave a SIGSTOP behind that freezes the trainer later.
Only where a dump of ours had to be killed, and the process was not stopped before, is SIGCONT sent.
"""

import contextlib
import os
import signal
from collections.abc import Callable

from mldebug.core.model import Gap, ProcessState

STOP_BIT = 1 << (signal.SIGSTOP - 1)


def harmed(before: ProcessState | None, after: ProcessState | None) -> str:
    """Say what a dump left behind in a process, or "" where nothing changed for the worse."""
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
    """After a killed dump: resume what we left stopped, and say so; None where all is as before."""
    damage = harmed(before, after)
    if not damage or after is None:
        return None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(after.pid, signal.SIGCONT)
    reason = f"a dump had to be killed and {damage}; SIGCONT was sent"
    return Gap(what="native stack", reason=reason, pid=after.pid)
