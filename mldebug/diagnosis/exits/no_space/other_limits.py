"""Limits other than those of a filesystem for which the kernel gives the same errors, ENOSPC and EDQUOT. Pure.

Sources: inotify_add_watch(2), semget(2), shmget(2), add_key(2), bpf(2), ibv_create_qp(3); torch/lib/libshm.
"""

import re
from typing import NamedTuple

from mldebug.diagnosis.exits.model import RankError

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - it is named, not written
_INNERMOST = 4  # lines before an error's own: the call that failed
_IN_SHARED_MEMORY = re.compile(
    r"</?torch_\d|\bshared memory\b|\bshm_open\b|\bSemLock\b|\bSharedMemory\(|\b[Bb]us error\b"
)


class OtherLimit(NamedTuple):
    """A limit of the kernel or a device. `words`: which one is used up; `step`: a command that shows it."""

    pattern: re.Pattern[str]
    words: str
    step: str


OTHER_LIMITS = (
    OtherLimit(
        re.compile(r"inotify|\bfile watch(?:er|e)?s?\b|\bwatch limit\b", re.IGNORECASE),
        "the user's inotify watches or instances are used up, and no disk is",
        "sysctl fs.inotify.max_user_watches fs.inotify.max_user_instances",
    ),
    OtherLimit(
        re.compile(r"\b(?:sem|shm|msg)get\b"),
        "the node's System V semaphores, shared memory segments or queues are used up, and no disk is",
        "ipcs -u; sysctl kernel.sem kernel.shmmni kernel.msgmni",
    ),
    OtherLimit(
        re.compile(r"\bkeyring\b|\bsession key\b|\badd_key\b|\bkeyctl\b"),
        "the user's keys in the kernel are used up, and no disk quota is",
        "cat /proc/key-users; sysctl kernel.keys.maxkeys",
    ),
    OtherLimit(
        re.compile(r"\bib[vc]_\w|\bcreate_(?:qp|cq)\b|\breg_mr\b|\b(?:mlx\d|bnxt|efa)_?\w*\b.*\b(?:QP|CQ|MR)s?\b"),
        "a table of the network adapter is used up, and no disk is",
        "rdma resource show",
    ),
    OtherLimit(
        re.compile(r"(?:'|\"|: |\s)/(?:sys|proc)/|\bbpf\b|\bperf_event"),
        "a limit of the kernel is reached, and no disk is full",
        "dmesg -T | tail",
    ),
)  # fmt: skip


def other_limit(error: RankError) -> OtherLimit | None:
    """The limit, other than that of a filesystem, that an error with ENOSPC or EDQUOT tells of; None where it tells of none."""
    text = _text(error)
    return next((one for one in OTHER_LIMITS if one.pattern.search(text)), None)


def in_shared_memory(error: RankError) -> bool:
    """Whether the call that failed makes or writes shared memory, which lies in /dev/shm whatever path the error names."""
    return _IN_SHARED_MEMORY.search(_text(error)) is not None


def _text(error: RankError) -> str:
    return "\n".join((*error.lines[-_INNERMOST:], error.error))
