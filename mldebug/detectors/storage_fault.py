"""A rank is blocked on a mount whose server does not answer."""

import msgspec

from mldebug.judging.case import Case, blame
from mldebug.model import ClassifiedRank, Culprit, Finding, Verdict


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class StorageFault:
    """Blames the mount, not the rank: the rank is only the first to touch it."""

    def judge(self, case: Case) -> Finding | None:
        """Speak where the kernel says that storage blocks a rank (or its DataLoader worker) on a known mount."""
        blocked = tuple(
            r
            for r in case.named("storage", "uninterruptible", "dataloader")
            if r.is_.mount and r.is_.direct
        )
        blocked = tuple(r for r in blocked if r.is_.name != "uninterruptible")
        if not blocked or case.moved:
            return None
        mounts = sorted({rank.is_.mount for rank in blocked})
        steps = [
            f"timeout 5 stat -f {mount} || echo 'the mount does not answer'" for mount in mounts[:2]
        ]
        steps.append(f"cat /proc/{blocked[0].is_.worker_pid or blocked[0].pid}/stack")
        finding = blame(case, Verdict.STORAGE_FAULT, blocked, steps)
        culprits = tuple(_mount(mount, blocked) for mount in mounts)
        return msgspec.structs.replace(finding, culprits=culprits)


def _mount(mount: str, blocked: tuple[ClassifiedRank, ...]) -> Culprit:
    first = next(rank for rank in blocked if rank.is_.mount == mount)
    reason = f"{mount} does not answer: rank {first.rank} {first.is_.doing}"
    return Culprit(kind="mount", rank=first.rank, node=first.node, pid=first.pid, reason=reason)


def create(options: Options) -> StorageFault:
    """Build the detector."""
    return StorageFault()
