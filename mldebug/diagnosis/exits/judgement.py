"""The end of an attempt as a judgement that a report can be built from: the ranks that ended, and those that still live.

Where a capture was taken (ranks that hang after one of them died, or a suspicion just before), its ranks stay in it.
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

_PLACE = re.compile(r"\[/[^\]\s]{1,200}:\d+\] ")  # where in torch's own source a message comes from


def without_processes(ending: AttemptExit, at: float, versions: Mapping[str, str]) -> NodeCapture:
    """What stands for a capture where nobody was left to be captured."""
    node = ending.identities[0].node if ending.identities else ""
    lost = tuple(
        LostRank(
            rank=one.rank,
            pid=one.pid,
            exit_status=one.status,
            reason=words_of_status(one.status),
        )
        for one in ending.exits
    )
    job = msgspec.structs.replace(ending.job, ranks=(), lost=lost)
    bare = NodeCapture(node=node, taken_at=at, job=job, versions=dict(versions), step=ending.step)
    return with_gaps(bare, ending)


def with_gaps(capture: NodeCapture, ending: AttemptExit) -> NodeCapture:
    """The capture, and what could not be learned about the end; what was said against its ranks by then."""
    gaps = tuple(Gap(what="how the job ended", reason=reason) for reason in ending.gaps)
    faults = tuple(dict.fromkeys((*capture.faults, *ending.faults)))
    return msgspec.structs.replace(capture, gaps=(*capture.gaps, *gaps), faults=faults)


def judgement_of(
    ending: AttemptExit, outcome: ExitOutcome, capture: NodeCapture | None
) -> Judgement:
    """The outcome, with a row for every rank; `capture` shows those that were alive when it was taken."""
    seen = {one.exit.rank: one for one in explain_exits(ending)}
    before = diagnose([capture]) if capture is not None else None
    told = before if capture is None or _may_tell(seen.values(), capture) else None
    diagnosis = _diagnosis(outcome, before, told, ended=not ending.living)
    alive = {one.rank: one for one in before.ranks if one.capture} if before else {}
    blamed = {one.rank for one in diagnosis.culprits if one.rank is not None}
    ranks = [
        _row(one, seen.get(one.rank), alive.get(one.rank), ending, one.rank in blamed)
        for one in ending.identities
    ]
    groups, group_of = _groups(ranks, seen, blamed, before)
    return Judgement(
        diagnosis=diagnosis,
        ranks=tuple(ranks),
        groups=groups,
        group_of=group_of,
        tree=before.tree if before else (),
        stalled=outcome.kind == "abnormal",
    )


def _may_tell(seen: Iterable[ExplainedExit], capture: NodeCapture) -> bool:
    """May a capture name who kept the others waiting? Not where a rank had gone before it was taken: that one did.

    One that only lost a peer, or was told to end, had itself waited.
    """
    here = {one.identity.rank for one in capture.ranks}
    return all(one.exit.rank in here or one.way in (ExitKind.PEER, ExitKind.ASKED) for one in seen)


def _diagnosis(
    outcome: ExitOutcome, before: Judgement | None, told_before: Judgement | None, *, ended: bool
) -> Diagnosis:
    """What the exits say; where they name nobody, a capture from just before may know whom all waited for."""
    finding = outcome.finding or Finding(
        verdict=Verdict.UNKNOWN, culprits=(), confidence=Confidence.LOW, summary=outcome.sentence
    )
    if not finding.culprits and told_before is not None and told_before.diagnosis.culprits:
        told = told_before.diagnosis
        summary = f"{told.summary}; then {'the job' if ended else 'a rank'} ended"
        return msgspec.structs.replace(
            told, summary=summary, evidence=(*told.evidence, *finding.evidence)
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
    seen: ExplainedExit | None,
    alive: ClassifiedRank | None,
    ending: AttemptExit,
    blamed: bool,
) -> ClassifiedRank:
    if seen is None:
        return alive or _still_there(rank)
    doing = seen.phrase() if blamed else _after(seen)
    why = [f"{words_of_status(seen.exit.status)} ({seen.exit.source})"]
    if seen.error is not None:
        why.append(f"{seen.error.source}: {seen.error.error}")
    if seen.death is not None:
        why.append(f"kernel log: {seen.death.text}")
    if alive is not None:
        why.append(f"shortly before: {alive.is_.doing}")
    return ClassifiedRank(
        rank=rank.rank,
        node=rank.node,
        pid=rank.pid,
        is_=Classification(
            name="exited", role=Role.EXITED, doing=doing, direct=seen.proved, why=tuple(why)
        ),
        capture=_with_words(rank, alive, _log(seen, ending, blamed), ending),
    )


def _after(seen: ExplainedExit) -> str:
    """A rank that only followed."""
    if seen.way is ExitKind.LEFT:
        return "left with exit status 0"
    if seen.way is ExitKind.ASKED:
        return f"was told to end ({words_of_status(seen.exit.status)})"
    if seen.way is ExitKind.PEER and seen.error is not None:
        return f"lost a peer ({words_of_status(seen.exit.status)}): {clean(_PLACE.sub('', seen.error.error), 160)}"
    if seen.way is ExitKind.UNKNOWN:
        return "ended, and nobody saw how"
    return seen.phrase()


def _still_there(rank: RankIdentity) -> ClassifiedRank:
    unclear = Classification(
        name="unknown", role=Role.UNCLEAR, doing="was not seen to end", why=("no exit was seen",)
    )
    return ClassifiedRank(rank=rank.rank, node=rank.node, pid=rank.pid, is_=unclear)


def _log(seen: ExplainedExit, ending: AttemptExit, blamed: bool) -> LogTail | None:
    """The last lines of a rank: its own, else the traceback it ended with, else those of the job."""
    rank = seen.exit.rank
    if rank in ending.logs:
        return ending.logs[rank]
    if seen.error is not None and seen.error.lines:
        return LogTail(path=seen.error.source, lines=seen.error.lines)
    return ending.log if blamed else None


def _with_words(
    rank: RankIdentity, alive: ClassifiedRank | None, log: LogTail | None, ending: AttemptExit
) -> RankCapture | None:
    """Its stacks, where it was captured before, and its last words: of its output, its hook and its tracer."""
    capture = alive.capture if alive else None
    said, trace = ending.said.get(rank.rank), ending.traces.get(rank.rank)
    if capture is not None:
        said, trace = capture.said or said, trace or capture.trace
        return msgspec.structs.replace(capture, log=log or capture.log, said=said, trace=trace)
    if log is None and said is None and trace is None:
        return None
    process = ProcessCapture(pid=rank.pid)
    return RankCapture(identity=rank, process=process, log=log, said=said, trace=trace)


# --- groups ----------------------------------------------------------------------------------------


def _groups(
    ranks: list[ClassifiedRank],
    seen: Mapping[int, ExplainedExit],
    blamed: Collection[int],
    before: Judgement | None,
) -> tuple[tuple[Group, ...], dict[int, int]]:
    """The blamed ones, then those that ended in one way, smaller groups first; those that live as the capture groups them."""
    members: dict[_Key, list[ClassifiedRank]] = {}
    for rank in ranks:
        members.setdefault(_key(rank, seen.get(rank.rank), blamed, before), []).append(rank)
    ordered = sorted(members.items(), key=lambda item: _place(*item))
    groups = tuple(_group(key.number, some, before) for key, some in ordered)
    return groups, {one.rank: at for at, (_, some) in enumerate(ordered) for one in some}


class _Key(NamedTuple):
    """What ranks of one group have in common. `number`: of the group in the capture, -1 where it ended."""

    number: int
    blamed: bool
    way: str
    words: str


def _key(
    rank: ClassifiedRank,
    seen: ExplainedExit | None,
    blamed: Collection[int],
    before: Judgement | None,
) -> _Key:
    """Errors of one kind are one group: their words differ in ports and addresses."""
    if seen is None:
        number = before.group_of.get(rank.rank, -1) if before is not None else -1
        return _Key(number, rank.rank in blamed, "", rank.is_.doing if number < 0 else "")
    kind = seen.error.kind if seen.error is not None else ""
    words = f"{words_of_status(seen.exit.status)} {kind}"
    return _Key(-1, rank.rank in blamed, seen.way, words)


def _place(key: _Key, ranks: list[ClassifiedRank]) -> tuple[int, bool, int, int]:
    return key.number, not key.blamed, len(ranks), ranks[0].rank


def _group(number: int, ranks: list[ClassifiedRank], before: Judgement | None) -> Group:
    frames = before.groups[number].frames if before is not None and number >= 0 else ()
    return make_group(frames, ranks)
