"""Makes the `Judgement` of an attempt that ended, from which its report is built: the ranks that ended, and those that still live.

Where a capture was taken (of ranks that hang after one died, or on a suspicion just before), its
ranks stay in it.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from mldebug.core.model import (
    Classification,
    ClassifiedRank,
    Confidence,
    Diagnosis,
    Finding,
    Gap,
    Group,
    Judgement,
    LogTail,
    LostRank,
    NodeCapture,
    ProcessCapture,
    RankCapture,
    RankIdentity,
    Role,
    Verdict,
)
from mldebug.core.redact import clean
from mldebug.diagnosis.classify.rank_states import make_group
from mldebug.diagnosis.diagnose import diagnose
from mldebug.diagnosis.exits.model import AttemptExit, words_of_status
from mldebug.diagnosis.exits.outcome import ExitOutcome
from mldebug.diagnosis.exits.rank_exit import ExitKind, ExplainedExit, explain_exits

_SOURCE_LOCATION = re.compile(
    r"\[/[^\]\s]{1,200}:\d+\] "
)  # where in torch's own source a message comes from


def without_processes(attempt: AttemptExit, at: float, versions: Mapping[str, str]) -> NodeCapture:
    """A capture without processes, for the report of an attempt of which no process was left.

    `at`: unix time; `versions`: of the software.
    """
    node = attempt.identities[0].node if attempt.identities else ""
    lost = tuple(
        LostRank(
            rank=one.rank,
            pid=one.pid,
            exit_status=one.status,
            reason=words_of_status(one.status),
        )
        for one in attempt.exits
    )
    job = msgspec.structs.replace(attempt.job, ranks=(), lost=lost)
    bare = NodeCapture(node=node, taken_at=at, job=job, versions=dict(versions), step=attempt.step)
    return with_gaps(bare, attempt)


def with_gaps(capture: NodeCapture, attempt: AttemptExit) -> NodeCapture:
    """Add to a capture what could not be read about the exits, and the hardware faults of the attempt."""
    gaps = tuple(Gap(what="how the job ended", reason=reason) for reason in attempt.gaps)
    faults = tuple(dict.fromkeys((*capture.faults, *attempt.faults)))
    return msgspec.structs.replace(capture, gaps=(*capture.gaps, *gaps), faults=faults)


def judgement_of(
    attempt: AttemptExit, outcome: ExitOutcome, capture: NodeCapture | None
) -> Judgement:
    """The judgement that a report is built from: the outcome, and a row for every rank.

    `capture`: of the ranks that still lived; None if none was taken.
    """
    exits = {one.exit.rank: one for one in explain_exits(attempt)}
    before = diagnose([capture]) if capture is not None else None
    trusted = before if capture is None or _may_name(exits.values(), capture) else None
    diagnosis = _diagnosis(outcome, before, trusted, ended=not attempt.living)
    alive = {one.rank: one for one in before.ranks if one.capture} if before else {}
    blamed = {one.rank for one in diagnosis.culprits if one.rank is not None}
    ranks = [
        _row(one, exits.get(one.rank), alive.get(one.rank), attempt, one.rank in blamed)
        for one in attempt.identities
    ]
    groups, group_of = _groups(ranks, exits, blamed, before)
    return Judgement(
        diagnosis=diagnosis,
        ranks=tuple(ranks),
        groups=groups,
        group_of=group_of,
        tree=before.tree if before else (),
        stalled=outcome.kind == "abnormal",
    )


def _may_name(exits: Iterable[ExplainedExit], capture: NodeCapture) -> bool:
    """Whether a capture may name who kept the others waiting: not where a rank had exited before, which then is to blame.

    One that only lost a peer, or was told to end, had itself waited.
    """
    here = {one.identity.rank for one in capture.ranks}
    return all(
        one.exit.rank in here or one.kind in (ExitKind.PEER, ExitKind.ASKED) for one in exits
    )


def _diagnosis(
    outcome: ExitOutcome, before: Judgement | None, trusted: Judgement | None, *, ended: bool
) -> Diagnosis:
    """The finding from the exits; where it names no rank, a capture from just before may show for whom all waited."""
    finding = outcome.finding or Finding(
        verdict=Verdict.UNKNOWN, culprits=(), confidence=Confidence.LOW, summary=outcome.sentence
    )
    suspected = finding.verdict is Verdict.UNKNOWN  # or nobody at all
    if suspected and trusted is not None and trusted.diagnosis.culprits:
        earlier = trusted.diagnosis
        summary = f"{earlier.summary}; then {'the job' if ended else 'a rank'} ended"
        return msgspec.structs.replace(
            earlier, summary=summary, evidence=(*earlier.evidence, *finding.evidence)
        )
    steps = finding.next_steps
    if before is not None and finding.verdict is Verdict.UNKNOWN:
        steps = (*steps, *before.diagnosis.next_steps)
    return Diagnosis(
        verdict=finding.verdict,
        culprits=finding.culprits,
        confidence=finding.confidence,
        summary=finding.summary[:1].upper() + finding.summary[1:],
        evidence=finding.evidence,
        next_steps=steps,
    )


# --- ranks -----------------------------------------------------------------------------------------


def _row(
    rank: RankIdentity,
    ended: ExplainedExit | None,
    alive: ClassifiedRank | None,
    attempt: AttemptExit,
    blamed: bool,
) -> ClassifiedRank:
    if ended is None:
        return alive or _still_there(rank)
    doing = ended.phrase() if blamed else _consequence(ended)
    why = [f"{words_of_status(ended.exit.status)} ({ended.exit.source})"]
    if ended.error is not None:
        why.append(f"{ended.error.source}: {ended.error.error}")
    if ended.death is not None:
        why.append(f"kernel log: {ended.death.text}")
    if alive is not None:
        why.append(f"shortly before: {alive.is_.doing}")
    return ClassifiedRank(
        rank=rank.rank,
        node=rank.node,
        pid=rank.pid,
        is_=Classification(
            name="exited", role=Role.EXITED, doing=doing, direct=ended.proved, why=tuple(why)
        ),
        capture=_capture_of(rank, alive, _log(ended, attempt, blamed), attempt),
    )


def _consequence(ended: ExplainedExit) -> str:
    """A rank that only followed."""
    if ended.kind is ExitKind.LEFT:
        return "left with exit status 0"
    if ended.kind is ExitKind.ASKED:
        return f"was told to end ({words_of_status(ended.exit.status)})"
    if ended.kind is ExitKind.PEER and ended.error is not None:
        return f"lost a peer ({words_of_status(ended.exit.status)}): {clean(_SOURCE_LOCATION.sub('', ended.error.error), 160)}"
    if ended.kind is ExitKind.UNKNOWN:
        return "ended, and nobody saw how"
    return ended.phrase()


def _still_there(rank: RankIdentity) -> ClassifiedRank:
    unclear = Classification(
        name="unknown", role=Role.UNCLEAR, doing="was not seen to end", why=("no exit was seen",)
    )
    return ClassifiedRank(rank=rank.rank, node=rank.node, pid=rank.pid, is_=unclear)


def _log(ended: ExplainedExit, attempt: AttemptExit, blamed: bool) -> LogTail | None:
    """The last lines of a rank: its own, else the traceback it ended with, else those of the job."""
    rank = ended.exit.rank
    if rank in attempt.logs:
        return attempt.logs[rank]
    if ended.error is not None and ended.error.lines:
        return LogTail(path=ended.error.source, lines=ended.error.lines)
    return attempt.log if blamed else None


def _capture_of(
    rank: RankIdentity, alive: ClassifiedRank | None, log: LogTail | None, attempt: AttemptExit
) -> RankCapture | None:
    """Its stacks, where it was captured before, with the last lines of its output and the last records of its hook and tracer."""
    capture = alive.capture if alive else None
    hook, trace = attempt.hooks.get(rank.rank), attempt.traces.get(rank.rank)
    if capture is not None:
        hook, trace = capture.hook or hook, trace or capture.trace
        return msgspec.structs.replace(capture, log=log or capture.log, hook=hook, trace=trace)
    if log is None and hook is None and trace is None:
        return None
    process = ProcessCapture(pid=rank.pid)
    return RankCapture(identity=rank, process=process, log=log, hook=hook, trace=trace)


# --- groups ----------------------------------------------------------------------------------------


def _groups(
    ranks: list[ClassifiedRank],
    exits: Mapping[int, ExplainedExit],
    blamed: Collection[int],
    before: Judgement | None,
) -> tuple[tuple[Group, ...], dict[int, int]]:
    """The blamed ones, then those that ended in one way, smaller groups first; those that live as the capture groups them."""
    members: dict[_Key, list[ClassifiedRank]] = {}
    for rank in ranks:
        members.setdefault(_key(rank, exits.get(rank.rank), blamed, before), []).append(rank)
    ordered = sorted(members.items(), key=lambda item: _place(*item))
    groups = tuple(_group(key.number, some, before) for key, some in ordered)
    return groups, {one.rank: at for at, (_, some) in enumerate(ordered) for one in some}


class _Key(NamedTuple):
    """What ranks of one group have in common. `number`: of the group in the capture, -1 where it ended."""

    number: int
    blamed: bool
    kind: str
    words: str


def _key(
    rank: ClassifiedRank,
    ended: ExplainedExit | None,
    blamed: Collection[int],
    before: Judgement | None,
) -> _Key:
    """Errors of one kind are one group: their words differ in ports and addresses."""
    if ended is None:
        number = before.group_of.get(rank.rank, -1) if before is not None else -1
        return _Key(number, rank.rank in blamed, "", rank.is_.doing if number < 0 else "")
    kind = ended.error.kind if ended.error is not None else ""
    words = f"{words_of_status(ended.exit.status)} {kind}"
    return _Key(-1, rank.rank in blamed, ended.kind, words)


def _place(key: _Key, ranks: list[ClassifiedRank]) -> tuple[int, bool, int, int]:
    return key.number, not key.blamed, len(ranks), ranks[0].rank


def _group(number: int, ranks: list[ClassifiedRank], before: Judgement | None) -> Group:
    frames = before.groups[number].frames if before is not None and number >= 0 else ()
    return make_group(frames, ranks)
