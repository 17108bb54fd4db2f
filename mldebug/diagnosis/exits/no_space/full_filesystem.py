"""An exit for lack of disk space, joined with the filesystem that was full. Pure.

The filesystem of the path in the error is named if it was nearly full (90 %) at the agent's last
look; without a path, the only full one (98 %). An error on a `/` that is not full goes to the only
full one, as a link may lead there. The rank is named only as the first that met it: who writes
first is chance.

Shared memory lies in /dev/shm, whatever path the error names. A quota (EDQUOT) stops one user on a filesystem
with room, which is named by user, group or project where the kernel keeps it; where its error has no path, the filesystem of the checkpoint that was cut is named. Some such errors tell of no filesystem at all (`other_limits`). A write to a mapping of a file
on a full tmpfs ends the process by SIGBUS, without a word.
"""

import re
import signal
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from mldebug.core.model import Confidence, Culprit, Finding, Verdict
from mldebug.core.redact import safe_line
from mldebug.diagnosis.exits.model import AttemptExit, FilesystemFill, RankError, exit_signal
from mldebug.diagnosis.exits.no_space import next_attempt
from mldebug.diagnosis.exits.no_space.other_limits import (
    SHARED_MEMORY,
    in_shared_memory,
    other_limit,
)
from mldebug.diagnosis.exits.no_space.used_quota import (
    ALL,
    SPENT,
    quota_look,
    spent_quota,
    spent_words,
)
from mldebug.diagnosis.exits.outcome import ExitOutcome

FULL = 0.98  # share of bytes or inodes in use from which a filesystem counts as full
NEARLY = 0.9  # the same where an error tells of no space in it
_NO_SPACE = re.compile(
    r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]|\bE(?:NOSPC|DQUOT)\b|PytorchStreamWriter failed writing file"
)
# What `torch.save` ends with where it cannot write on: no word of space, which only a full filesystem explains (read: PyTorch 2.13)
_CUT_WRITE = re.compile(r"inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+")
_QUOTA = re.compile(r"Disk quota exceeded|\bEDQUOT\b")
_BUS = re.compile(r"\b[Bb]us error\b|\bSIGBUS\b")
MAX_PATHS = 8
STAYS = "the next attempt will fail alike while the quota is used up"
SIGN = "no space left"  # of an outcome that names a full filesystem
_PATH = re.compile(r"(?:'|\"|: |\s)(?P<path>/[^'\"\s:]{1,1000})['\":]?")


def with_full_filesystem(outcome: ExitOutcome, attempt: AttemptExit) -> ExitOutcome:
    """Change the verdict to `storage_fault` where an error says "no space" and a filesystem of the job was full.

    Where it was not full, only evidence is added. Other outcomes are returned unchanged.
    """
    finding = outcome.finding
    if finding is None:
        return outcome
    error = _error(outcome, attempt)
    if error is None:
        return _with_wordless_error(outcome, finding, attempt)
    if (limit := other_limit(error)) is not None:
        return _with_evidence(outcome, finding, limit.words, limit.step)
    found = _where(error, attempt)
    if found is None:
        return outcome
    fill, sure, quota = found
    if not quota and not _is_full(fill, NEARLY if sure else FULL):
        remark = f"{_words(fill)}: it has filled or was freed since, or a quota is used up"
        return _with_evidence(outcome, finding, remark)
    return _named(outcome, _storage_fault(finding, fill, attempt, sure=sure, quota=quota))


class _RefusingMount(NamedTuple):
    """The filesystem that refused a write. `sure`: the error names a path on it; `quota`: for a quota, and not for being full."""

    fill: FilesystemFill
    sure: bool
    quota: bool


def _where(error: RankError, attempt: AttemptExit) -> _RefusingMount | None:
    """Which filesystem refused the write; None where that is not known. XFS says "no space" where the quota of a project is used up."""
    fills = attempt.filesystems
    if _QUOTA.search(error.error) is None:
        fill, sure = _filesystem(error, fills)
        fill = fill or _only_spent(fills, ALL)
        if fill is None:
            return None
        full = _is_full(fill, NEARLY if sure else FULL)
        return _RefusingMount(fill, sure, not full and spent_quota(fill, (), ALL) is not None)
    if _PATH.search(error.error) is None:
        fill = _cut_on(attempt) or _only_spent(fills, SPENT)
        return _RefusingMount(fill, sure=False, quota=True) if fill else None
    fill, sure = _filesystem(error, fills)
    return _RefusingMount(fill, sure, quota=sure) if fill else None


def _only_spent(fills: Sequence[FilesystemFill], from_share: float) -> FilesystemFill | None:
    """The only filesystem on which a quota is used up."""
    spent = [one for one in fills if spent_quota(one, (), from_share) is not None]
    return spent[0] if len(spent) == 1 else None


def _with_wordless_error(
    outcome: ExitOutcome, finding: Finding, attempt: AttemptExit
) -> ExitOutcome:
    """The outcome with the only filesystem that was full, where the rank that is named ended as one does that lacks space without
    a word of it: by SIGBUS on a tmpfs, its own or its worker's, or with a file that `torch.save` could not go on with.
    """
    named = {one.rank for one in finding.culprits if one.rank is not None}
    own = [attempt.errors[rank] for rank in sorted(named) if rank in attempt.errors]
    last = [one for one in (*own, attempt.shared_error) if one is not None and not one.caught]
    bus = any(
        exit_signal(one.status) == signal.SIGBUS for one in attempt.exits if one.rank in named
    )
    bus = bus or any(_BUS.search(one.error) for one in own)
    full = [one for one in attempt.filesystems if _is_full(one)]
    if bus:
        full = [one for one in full if one.fstype == "tmpfs"]
    elif not any(_CUT_WRITE.search(one.error) for one in last):
        return outcome
    if len(full) != 1 or attempt.faults:
        return outcome
    return _named(outcome, _storage_fault(finding, full[0], attempt, sure=False, quota=False))


def _named(outcome: ExitOutcome, changed: Finding) -> ExitOutcome:
    return msgspec.structs.replace(
        outcome, finding=changed, sentence=changed.summary, signs=(*outcome.signs, SIGN)
    )


def _with_evidence(
    outcome: ExitOutcome, finding: Finding, remark: str, step: str = ""
) -> ExitOutcome:
    steps = (*([step] if step else ()), *finding.next_steps)
    changed = msgspec.structs.replace(
        finding, evidence=(*finding.evidence, remark), next_steps=steps
    )
    return msgspec.structs.replace(outcome, finding=changed)


def lacked_space(outcome: ExitOutcome, attempt: AttemptExit) -> bool:
    """Whether the attempt ended by an error about missing disk space, whatever filesystem, file and exception it names."""
    if outcome.finding is None:
        return False
    error = _error(outcome, attempt)
    return SIGN in outcome.signs or (error is not None and other_limit(error) is None)


def tells_of_space(attempt: AttemptExit) -> bool:
    """Whether any error of this attempt tells of no space on a filesystem, so that the filesystems and checkpoints are worth a look."""
    bus = any(exit_signal(one.status) == signal.SIGBUS for one in attempt.exits)
    errors = (*attempt.errors.values(), *filter(None, [attempt.shared_error]))
    cut = any(_CUT_WRITE.search(one.error) for one in errors)
    return bus or cut or any(True for _ in _of_space(attempt))


def named_paths(attempt: AttemptExit) -> tuple[str, ...]:
    """The paths, as the ranks see them, in errors of this attempt that tell of no space: at most `MAX_PATHS`."""
    found = (_PATH.search(one.error) for one in _of_space(attempt))
    return tuple(dict.fromkeys(one["path"] for one in found if one))[:MAX_PATHS]


def _of_space(attempt: AttemptExit) -> Iterator[RankError]:
    """All errors of the attempt that tell of no space on a filesystem."""
    errors = (*attempt.errors.values(), *filter(None, [attempt.shared_error]))
    for one in (*errors, *(RankError(error=words) for words in _quoted(attempt))):
        if _NO_SPACE.search(one.error) and other_limit(one) is None:
            yield one


def _error(outcome: ExitOutcome, attempt: AttemptExit) -> RankError | None:
    """The error that tells of no space: of the rank that is named, else of all, else in the job's log."""
    culprits = outcome.finding.culprits if outcome.finding else ()
    named = {one.rank for one in culprits if one.rank is not None}
    errors = [error for rank, error in sorted(attempt.errors.items()) if not named or rank in named]
    errors += [attempt.shared_error] if attempt.shared_error is not None else []
    own = [error for error in errors if not error.blames_peer and not error.caught]
    quoted = [RankError(error=words) for words in _quoted(attempt)]
    return next((error for error in (*own, *quoted) if _NO_SPACE.search(error.error)), None)


def _quoted(attempt: AttemptExit) -> Iterator[str]:
    """Errors of others that ranks, or the job's log, quote: of a checkpoint that all write together."""
    for error in (*attempt.errors.values(), attempt.shared_error):
        if error is not None and error.accuses is not None and error.accuses.quoted:
            yield error.accuses.quoted


def _filesystem(
    error: RankError, fills: Sequence[FilesystemFill]
) -> tuple[FilesystemFill | None, bool]:
    """The filesystem that the error's path lies on, and True; else the only one that is full, and False."""
    if in_shared_memory(error):
        return next((one for one in fills if one.mount == SHARED_MEMORY), None), True
    full = [one for one in fills if _is_full(one)]
    found = _PATH.search(error.error)
    if found:
        nearest = next_attempt.nearest_mount(found["path"], fills)
        if nearest is not None and (nearest.mount != "/" or _is_full(nearest) or len(full) != 1):
            return nearest, True
    return (full[0], False) if len(full) == 1 else (None, False)


def _cut_on(attempt: AttemptExit) -> FilesystemFill | None:
    """The filesystem of the checkpoints that were cut: of a quota nothing else shows where it is, where the error has no path. None where
    none was cut, or on several.
    """
    fills = attempt.filesystems
    cut = [next_attempt.nearest_mount(one.folder, fills) for one in attempt.checkpoints if one.cut]
    return cut[0] if cut and all(one == cut[0] for one in cut) else None


def _is_full(fill: FilesystemFill, from_ratio: float = FULL) -> bool:
    return max(fill.used_ratio, fill.inodes_used_ratio) >= from_ratio


def _words(fill: FilesystemFill) -> str:
    return safe_line(f"{fill.line}, {fill.age:.0f} s before", 300)


def _storage_fault(
    finding: Finding, fill: FilesystemFill, attempt: AttemptExit, *, sure: bool, quota: bool
) -> Finding:
    first = finding.culprits[0] if finding.culprits else None
    words, full = _words(fill), _is_full(fill)
    mount = Culprit(
        kind="mount",
        rank=first.rank if first else None,
        node=first.node if first else "",
        pid=first.pid if first else None,
        reason=f"{words}{f'; rank {first.rank} {first.reason}' if first else ''}",
    )
    found = next_attempt.on_filesystem(fill, attempt.filesystems, attempt.checkpoints)
    room = msgspec.structs.replace(fill, left_after=None) if quota else fill  # is not the user's
    cut, ahead = tuple(next_attempt.cut_words(found)), next_attempt.next_words(room, found)
    if quota:
        ahead = "; ".join(filter(None, (STAYS, ahead)))
    evidence = (words, *next_attempt.filled_by(fill, found), *cut, *([ahead] if ahead else ()))
    known = sure and (full or quota) and (first is None or finding.confidence is Confidence.HIGH)
    name = safe_line(fill.mount, 200)
    state = f"{name} {'is' if full else 'was nearly'} full ({words})"
    look = f"df -h {fill.mount}; df -i {fill.mount}"
    if quota and not full:
        spent = spent_quota(fill, found)
        whose = f"{spent_words(spent, name)}; {words}" if spent else ""
        state = whose or f"a quota on {name} is used up ({words})"
        look = quota_look(spent, fill.mount)
    steps = (look, next_attempt.freeing_step(room, found))
    return msgspec.structs.replace(
        finding,
        verdict=Verdict.STORAGE_FAULT,
        culprits=(mount,),
        confidence=Confidence.HIGH if known else Confidence.MEDIUM,
        summary="; ".join((state, finding.summary, *cut[:1], *([ahead] if ahead else ()))),
        evidence=(*evidence, *finding.evidence),
        next_steps=(*filter(None, steps), *finding.next_steps),
    )
