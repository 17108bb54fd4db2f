"""What the kernel says of itself: CPUs that are locked up, RCU stalls, an oops, a panic, and limits that stop new processes or files."""

import re

from mldebug.hardware.kernel_log.lines.reader import MAX_NAME, KernelText, LineReader, event
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind

_LOCKUP = re.compile(
    r"(?:(?:NMI )?watchdog: )?(?:BUG: soft lockup - CPU#(?P<cpu>\d{1,5}) stuck for (?P<seconds>\d{1,9})s!"
    r"(?: \[(?P<name>[^\n]{1,64}):(?P<pid>\d{1,10})\])?"
    r"|(?:CPU ?\d{1,5}: )?(?:Watchdog detected )?hard LOCKUP on cpu (?P<hard>\d{1,5})"
    r"|CPU (?P<self>\d{1,5}) self-detected hard LOCKUP"
    r"|CPU \d{1,5} detected hard LOCKUP on other CPUs (?P<other>\d{1,5})"
    r"|CPU (?P<power>\d{1,5}) Hard LOCKUP)"
    # of POWER before 5.0
    r"|Watchdog CPU:(?:(?P<old>\d{1,5}) Hard LOCKUP|\d{1,5} detected Hard LOCKUP other CPUS:(?P<others>\d{1,5}))"
)
_RCU = re.compile(
    r"(?:rcu: )?(?:INFO: )?(?P<flavour>rcu\w{1,24}|srcu\w{0,24})(?: kthread (?:starved|timer wakeup didn't happen) for \d{1,12} jiffies"
    r"| (?:self-)?detected (?:expedited )?stalls? on (?:CPU(?:s/tasks)?|tasks:))"
)
# ZFS holds the thread that found an error for ever: "PANIC at zfs_znode.c:339:zfs_znode_sa_init()".
# "Oops: 0000 [#1] SMP", arm64: "Internal error: Oops: 96000004 [#1] SMP", "kernel BUG at mm/slub.c:305!". To the end of what the
# kernel writes: 15 characters of its beginning any user can write with the name of a program
_OOPS = re.compile(
    r"(?:(?:(?:Internal error: )?(?:Oops|invalid opcode|stack segment|double fault|divide error|general protection fault)\b|Internal error: )"
    r"[^\n]{0,200}?\[#\d{1,5}\](?: [A-Z][A-Z_ ]{1,60})?\s*$"
    r"|BUG: Bad page (?:state|map) in process |PANIC at [\w./-]{1,120}:\d{1,6}:\w{1,64}\(\)\s*$|BUG: unable to handle |BUG: kernel NULL pointer dereference|Unable to handle kernel |kernel BUG at [\w./-]{1,120}:\d{1,6}!)"
)
_WORKQUEUE = re.compile(
    r"BUG: workqueue lockup - pool [^\n]{1,120}? stuck for (?P<seconds>\d{1,9})s!"
)
_PANIC = re.compile(r"Kernel panic - not syncing: ?(?P<why>[^\n]{0,120})")
_PIDS = re.compile(r"cgroup: fork rejected by pids controller in (?P<group>[^\n]{1,512})")
_FILES = re.compile(r"VFS: file-max limit \d{1,12} reached")


def _lockup(line: KernelText) -> KernelEvent | None:
    match = _LOCKUP.match(line.text)
    if match is None:
        return None
    cpu = next(filter(None, match.group("cpu", "hard", "self", "other", "power", "old", "others")))
    return event(
        line,
        KernelEventKind.LOCKUP,
        device=f"CPU {cpu}",
        pid=int(match["pid"]) if match["pid"] else None,
        process=(match["name"] or "")[:MAX_NAME],
        seconds=int(match["seconds"]) if match["seconds"] else None,
    )


def _rcu(line: KernelText) -> KernelEvent | None:
    return event(line, KernelEventKind.RCU_STALL) if _RCU.match(line.text) else None


def _workqueue(line: KernelText) -> KernelEvent | None:
    match = _WORKQUEUE.match(line.text)
    if match is None:
        return None
    return event(line, KernelEventKind.WORKQUEUE_STALL, seconds=int(match["seconds"]))


def _oops(line: KernelText) -> KernelEvent | None:
    return event(line, KernelEventKind.KERNEL_OOPS) if _OOPS.match(line.text) else None


def _panic(line: KernelText) -> KernelEvent | None:
    return event(line, KernelEventKind.KERNEL_PANIC) if _PANIC.match(line.text) else None


def _pids(line: KernelText) -> KernelEvent | None:
    match = _PIDS.match(line.text)
    if match is None:
        return None
    return event(line, KernelEventKind.PIDS_LIMIT, group=match["group"].rstrip())


def _files(line: KernelText) -> KernelEvent | None:
    return event(line, KernelEventKind.FILE_LIMIT) if _FILES.match(line.text) else None


SIGNS = (
    LineReader("LOCKUP", _lockup),
    LineReader("soft lockup", _lockup),
    LineReader("stall", _rcu),
    LineReader(" kthread ", _rcu),
    LineReader("Oops", _oops),
    LineReader("Internal error: ", _oops),
    LineReader("invalid opcode: ", _oops),
    LineReader("general protection fault", _oops),
    LineReader("stack segment: ", _oops),
    LineReader("double fault: ", _oops),
    LineReader("divide error: ", _oops),
    LineReader("nable to handle ", _oops),
    LineReader("NULL pointer dereference", _oops),
    LineReader("kernel BUG at ", _oops),
    LineReader("Bad page ", _oops),
    LineReader("PANIC at ", _oops),
    LineReader("workqueue lockup", _workqueue),
    LineReader("Kernel panic", _panic),
    LineReader("fork rejected", _pids),
    LineReader("file-max limit", _files),
)
