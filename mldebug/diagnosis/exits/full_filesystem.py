"""An exit for lack of disk space, joined with the filesystem that was full. Pure.

The filesystem of the path in the error is named if it was nearly full (90 %) at the agent's last
look; without a path, the only full one (98 %). An error on a `/` that is not full goes to the only
full one, as a link may lead there. The rank is named only as the first that met it: who writes
first is chance.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

from mldebug.core.model import Confidence, Culprit, Finding, Verdict
from mldebug.core.redact import safe_line
from mldebug.diagnosis.exits.model import AttemptExit, FilesystemFill, RankError
from mldebug.diagnosis.exits.outcome import ExitOutcome

FULL = 0.98  # share of bytes or inodes in use from which a filesystem counts as full
NEARLY = 0.9  # the same where an error tells of no space in it
_NO_SPACE = re.compile(
    r"No space left on device|Disk quota exceeded|\bE(?:NOSPC|DQUOT)\b|PytorchStreamWriter failed writing file"
)
_PATH = re.compile(r"(?:'|\"|: |\s)(?P<path>/[^'\"\s:]{1,1000})['\":]?")


def with_full_filesystem(outcome: ExitOutcome, attempt: AttemptExit) -> ExitOutcome:
    """Change the verdict to `storage_fault` where an error says "no space" and a filesystem of the job was full.

    Where it was not full, only evidence is added. Other outcomes are returned unchanged.
    """
    finding = outcome.finding
    error = _error(outcome, attempt)
    if finding is None or error is None or not attempt.filesystems:
        return outcome
    fill, sure = _filesystem(error.error, attempt.filesystems)
    if fill is None:
        return outcome
    words = _words(fill)
    if not _is_full(fill, NEARLY if sure else FULL):
        remark = f"{words}: it has filled or was freed since, or a quota is used up"
        changed = msgspec.structs.replace(finding, evidence=(*finding.evidence, remark))
        return msgspec.structs.replace(outcome, finding=changed)
    changed = _storage_fault(finding, fill, words, sure=sure)
    return msgspec.structs.replace(
        outcome, finding=changed, sentence=changed.summary, signs=(*outcome.signs, "no space left")
    )


def lacked_space(outcome: ExitOutcome, attempt: AttemptExit) -> bool:
    """Whether the end is told by an error about no space, whatever filesystem it was, and whatever file and exception it names."""
    return outcome.finding is not None and _error(outcome, attempt) is not None


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


def _filesystem(error: str, fills: Sequence[FilesystemFill]) -> tuple[FilesystemFill | None, bool]:
    """The filesystem that the error's path lies on, and True; else the only one that is full, and False."""
    full = [one for one in fills if _is_full(one)]
    found = _PATH.search(error)
    if found:
        path = found["path"]
        above = [one for one in fills if path == one.mount or path.startswith(f"{one.mount.rstrip('/')}/")]  # fmt: skip
        nearest = max(above, key=lambda one: len(one.mount)) if above else None
        if nearest is not None and (nearest.mount != "/" or _is_full(nearest) or len(full) != 1):
            return nearest, True
    return (full[0], False) if len(full) == 1 else (None, False)


def _is_full(fill: FilesystemFill, from_ratio: float = FULL) -> bool:
    return max(fill.used_ratio, fill.inodes_used_ratio) >= from_ratio


def _words(fill: FilesystemFill) -> str:
    return safe_line(f"{fill.line}, {fill.age:.0f} s before", 300)


def _storage_fault(finding: Finding, fill: FilesystemFill, words: str, *, sure: bool) -> Finding:
    first = finding.culprits[0] if finding.culprits else None
    mount = Culprit(
        kind="mount",
        rank=first.rank if first else None,
        node=first.node if first else "",
        pid=first.pid if first else None,
        reason=f"{words}{f'; rank {first.rank} {first.reason}' if first else ''}",
    )
    known = sure and _is_full(fill) and (first is None or finding.confidence is Confidence.HIGH)
    return msgspec.structs.replace(
        finding,
        verdict=Verdict.STORAGE_FAULT,
        culprits=(mount,),
        confidence=Confidence.HIGH if known else Confidence.MEDIUM,
        summary=f"{safe_line(fill.mount, 200)} {'is' if _is_full(fill) else 'was nearly'} full ({words}); {finding.summary}",
        evidence=(words, *finding.evidence),
        next_steps=(f"df -h {fill.mount}; df -i {fill.mount}", *finding.next_steps),
    )
