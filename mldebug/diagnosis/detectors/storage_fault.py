"""A rank is blocked on a mount whose server does not answer."""

import msgspec

from mldebug.core.model import ClassifiedRank, Culprit, Finding, OpenFile, Verdict
from mldebug.core.plugins import NoOptions
from mldebug.core.redact import safe_line
from mldebug.diagnosis.classify.case import Case
from mldebug.diagnosis.classify.evidence import blame
from mldebug.diagnosis.classify.tables.kernel_waits import ON_STORAGE
from mldebug.diagnosis.detectors import Detector

MAX_LISTED = 4  # ranks in the evidence
FOR_CHILDREN = ("dataloader", "child_wait")


class StorageFault:
    """Blames the mount, not the rank: the rank is only the first to touch it."""

    def judge(self, case: Case) -> Finding | None:
        """A finding where a filesystem is shown not to answer a rank, or the child that it waits
        for; None otherwise.
        """
        blocked = tuple(filter(_by_filesystem, case.named(*ON_STORAGE, *FOR_CHILDREN)))
        if not blocked or case.moved:
            return None
        mounts = sorted({rank.is_.mount for rank in blocked})
        steps = [
            f"timeout 5 stat -f {mount} || echo 'the mount does not answer'" for mount in mounts[:2]
        ]
        steps.append(f"cat /proc/{blocked[0].is_.worker_pid or blocked[0].pid}/stack")
        finding = blame(case, Verdict.STORAGE_FAULT, blocked, steps)
        culprits = tuple(_mount(mount, blocked) for mount in mounts)
        facts = tuple(_evidence(rank, case) for rank in blocked[:MAX_LISTED])
        return msgspec.structs.replace(finding, culprits=culprits, evidence=(*facts, *finding.evidence))  # fmt: skip


def _by_filesystem(rank: ClassifiedRank) -> bool:
    """Does the kernel show it in a filesystem's wait channel, or in state D on one that does not answer the agent either?

    What a worker waits for decides, not that it waits: a FIFO, a lock and a sleep have a mount as well.
    """
    what = rank.is_.worker_class if rank.is_.name in FOR_CHILDREN else rank.is_.name
    if not rank.is_.mount or not rank.is_.direct or what not in ON_STORAGE:
        return False
    return what == "storage" or _silent(rank)


def _target(rank: ClassifiedRank) -> OpenFile | None:
    """What it works on, or what the worker that is to blame does."""
    if rank.capture is None:
        return None
    pid = rank.is_.worker_pid
    found = [one for one in rank.capture.children if one.pid == pid] if pid else [rank.capture.process]  # fmt: skip
    return found[0].blocked_on if found else None


def _silent(rank: ClassifiedRank) -> bool:
    """Has the filesystem not answered the agent either?"""
    target = _target(rank)
    return target is not None and target.stuck_seconds > 0


def _evidence(rank: ClassifiedRank, case: Case) -> str:
    """`rank 3 waits in read of /data/shard-17 on nfs01:/data, stuck 74 s`."""
    target = _target(rank)
    call = _call(rank)
    path = rank.is_.path or (target.target if target else "") or rank.is_.mount
    source = target.source if target and target.source else rank.is_.mount
    who = f"rank {rank.rank}" + (f"'s worker {rank.is_.worker_pid}" if rank.is_.worker_pid else "")
    wait = f"{who} waits in {call} {safe_line(path, 200)} on {safe_line(source, 120)}"
    if target is not None and target.stuck_seconds > 0:
        return f"{wait}, which has not answered the agent for {target.stuck_seconds:.0f} s"
    return f"{wait}, stuck {case.quiet_seconds:.0f} s" if case.quiet_seconds else wait


def _call(rank: ClassifiedRank) -> str:
    """`read of`, or other words where the call is not known."""
    pid = rank.is_.worker_pid
    if rank.capture is None:
        return "access to"
    found = [one for one in rank.capture.children if one.pid == pid] if pid else [rank.capture.process]  # fmt: skip
    state = found[0].state if found else None
    name = state.main.syscall if state and state.main else ""
    return f"{name} of" if name.isidentifier() else "access to"


def _mount(mount: str, blocked: tuple[ClassifiedRank, ...]) -> Culprit:
    first = next(rank for rank in blocked if rank.is_.mount == mount)
    reason = f"{mount} does not answer: rank {first.rank} {first.is_.doing}"
    return Culprit(kind="mount", rank=first.rank, node=first.node, pid=first.pid, reason=reason)


def create(options: NoOptions) -> Detector:
    """Build the detector `storage_fault`: a rank is blocked on a mount whose server does not answer."""
    return StorageFault()
