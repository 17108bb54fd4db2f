"""Which quota of the kernel was used up when a write failed: of a user, a group or a project. Pure."""

from collections.abc import Sequence

from mldebug.core.redact import safe_line
from mldebug.core.units import size_words
from mldebug.diagnosis.exits.model import CheckpointsAtExit, FilesystemFill, QuotaFill

SPENT = 0.9  # share of a quota from which it counts as used up, where an error tells of no space below it
ALL = 0.98  # the same where the error may as well mean the filesystem


def spent_quota(
    fill: FilesystemFill, found: Sequence[CheckpointsAtExit], from_share: float = SPENT
) -> QuotaFill | None:
    """The fullest quota on the filesystem of which so much is used, or in which the next checkpoint has no room; None where there is none, or
    where two are alike.
    """
    needed = max((one.last_bytes for one in found), default=0)
    spent = [
        one
        for one in fill.quotas
        if one.share >= from_share or (one.limit and one.limit - one.used < needed)
    ]
    spent.sort(key=lambda one: one.share, reverse=True)
    if len(spent) > 1 and spent[1].share >= from_share:
        return None
    return spent[0] if spent else None


def spent_words(one: QuotaFill, mount: str) -> str:
    """`the quota of user alice on /home is used up (29.9 MiB of 30 MiB)`."""
    amounts = [f"{size_words(one.used)} of {size_words(one.limit)}"] if one.limit else []
    inodes = f"{one.inodes:,} of {one.inodes_limit:,} inodes"
    amounts += [inodes] if one.inodes_limit else []
    return f"the quota of {safe_line(one.whose, 100)} on {mount} is used up ({', '.join(amounts)})"


def quota_look(one: QuotaFill | None, mount: str) -> str:
    """The command that shows the quota."""
    kind = one.whose.partition(" ")[0] if one else ""
    if kind == "project":
        return f"xfs_quota -x -c 'report -p -bih' {mount}  # of ext4: repquota -P {mount}"
    if kind == "group":
        return f"quota -g -s  # as root: repquota -g {mount}"
    return f'quota -s; lfs quota -h -u "$USER" {mount}  # or the site\'s own tool'
