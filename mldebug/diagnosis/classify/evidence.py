"""From suspects to a finding: which ranks to name, with which confidence and facts; and when naming one would be a guess."""

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

from mldebug.capture.frames import principal, site
from mldebug.core.model import (
    ClassifiedRank,
    Confidence,
    Culprit,
    Finding,
    Role,
    Verdict,
)
from mldebug.core.ranksets import fold_nodes
from mldebug.diagnosis.classify.awaited.file_locks import HELD
from mldebug.diagnosis.classify.awaited.other_ranks import PERHAPS_A_RANK, may_wait_for_rank
from mldebug.diagnosis.classify.awaited.own_lines import PERHAPS_ITS_GPU, may_wait_for_gpu
from mldebug.diagnosis.classify.awaited.tasks import has_no_task
from mldebug.diagnosis.classify.case import Case, ranks_text, sentence

SOFT_CLASSES = frozenset(
    [
        "sleep",
        "poll",
        "lock",
        "gil",
        "child_wait",
        "thread_join",
        "thread_exit",
        "future",
        "file_lock",
        "flock",
        "idle",
        "socket",
        "pipe_read",
        "pipe_write",
        "fifo",
        "dataloader",
        "dataloader_exit",
        "native_lock",
    ]
)
"""Inert, but perhaps only for now, or because of another rank of the same job: a lock holder, a writer, a peer."""
FOR_OTHERS = frozenset(
    [
        *("poll", "idle", "future", "thread_join", "socket", "pipe_read", "fifo"),
        *("file_lock", "flock", "dataloader", "native_lock"),
    ]
)
"""Soft classes that may be a wait for another rank: none is named for one while there are ranks that nobody saw."""
MAY_BE_FED = frozenset(
    ("idle", "poll", "socket", "pipe_read", "future", "native_lock", "lock", "thread_exit")
)
"""What ranks do that wait for another one in code of their own (a queue, a barrier of multiprocessing), or that have ended before the others: where most of them do, the few may be to blame as well."""
NEVER_PROVED = frozenset(("native_lock",))
"""Direct, and no proof however long it lasts: the thread of an extension that would end the wait may itself wait for another rank."""
SEEN_ONCE = frozenset(("idle", "busy", "backward", "compile", "autotune"))
"""Classes that a single sample does not tell from a wait."""
LONG = 10.0
"""Seconds of stillness after which a soft class may be `high`."""


def show_source(rank: ClassifiedRank) -> str:
    """A command line that shows the source around the job's line in which a rank stands; without a Python stack, how to get one."""
    stack = (
        principal(rank.capture.process.stacks, rank.capture.process.pid) if rank.capture else None
    )
    frame = site(stack.frames) if stack else None
    if frame is None:
        return f"mldebug doctor  # why there is no Python stack of rank {rank.rank}, and how to get one"
    path = shlex.quote(frame.path or frame.file)
    return f"sed -n '{max(1, frame.line - 12)},{frame.line + 2}p' {path}  # rank {rank.rank} stands at line {frame.line}"


def blame(
    case: Case,
    verdict: Verdict,
    culprits: tuple[ClassifiedRank, ...],
    next_steps: Iterable[str],
    *,
    confidence: Confidence | None = None,
    lead: str = "",
) -> Finding:
    """A finding about these ranks, with sentence, evidence and confidence made from their classes.

    Nobody is named where they are the larger half of the job; where one of several suspects may
    wait for another, the finding is at most `low`. Without `confidence` it is high where the kernel
    or a native stack says what each culprit does and samples say that it lasted, else medium; in a
    job of several ranks high needs ranks that wait. `lead`: the beginning of the sentence.
    """
    rivals = _rivals(case, culprits)
    if _larger_half(case, culprits):
        return _nobody_of(case, verdict, culprits, tuple(next_steps))
    if rivals or _differ(culprits):
        return _several(case, verdict, (*culprits, *rivals), tuple(next_steps))
    if case.unseen and any(_is_soft(rank) or _is_busy(rank) for rank in culprits):
        return _beside_unseen(case, verdict, culprits, tuple(next_steps))
    if case.blind and any(rank.is_.name in FOR_OTHERS for rank in culprits):
        return _beside_unseen(case, verdict, culprits, tuple(next_steps))
    summary = (lead or sentence(culprits)) + _where(case, culprits)
    victims = case.victims()
    proved = all(_proved(case, rank) for rank in culprits)
    sure = proved and bool(case.waiting or case.job.world_size == 1)
    confidence = confidence or (Confidence.HIGH if sure else Confidence.MEDIUM)
    if case.waiting and all(map(_inferred, case.waiting)):
        confidence = Confidence.LOW  # that anybody waits is inferred
    if culprits and all(map(has_no_task, culprits)):
        confidence = Confidence.LOW  # it may be of another job of the same cluster
    if culprits and all(map(is_faint, culprits)) and len(_waits_of(case)) > 1:
        confidence = Confidence.LOW  # taken at several moments, perhaps of a job that works
    perhaps = [
        rank.rank
        for rank in culprits
        if may_wait_for_gpu(rank, case.waiting, starting=case.starting)
    ]
    others = [rank.rank for rank in culprits if case.waiting and may_wait_for_rank(rank)]
    if perhaps or others:
        confidence = Confidence.LOW
    named = {rank.rank for rank in culprits}
    gone = [r for r in case.named("exited", "missing") if r.rank not in named]
    if gone and not case.waiting:
        confidence = Confidence.LOW  # they may miss the one that is gone
    return Finding(
        verdict=verdict,
        culprits=tuple(rank_culprit(rank) for rank in culprits),
        confidence=confidence,
        summary=f"{summary}; {victims}" if victims else summary,
        evidence=(
            *evidence_of(case, culprits),
            *_doubt(perhaps, PERHAPS_ITS_GPU),
            *_doubt(others, PERHAPS_A_RANK),
        ),
        next_steps=tuple(next_steps),
    )


def _doubt(ranks: Sequence[int], words: str) -> tuple[str, ...]:
    return (f"{ranks_text(ranks)}: {words}",) if ranks else ()


def _inferred(rank: ClassifiedRank) -> bool:
    """Whether only where others stand shows that it waits for them."""
    return rank.is_.name == "native_wait" or (rank.is_.name == HELD and not rank.is_.holders)


def _rivals(case: Case, culprits: tuple[ClassifiedRank, ...]) -> tuple[ClassifiedRank, ...]:
    """Other suspects, where those named and they may in truth wait for one another.

    A soft class may wait for any other suspect; a busy rank may do so only for the sake of a soft one.
    """
    named = {rank.rank for rank in culprits}
    others = [r for r in case.suspects if r.rank not in named]
    if any(map(_is_soft, culprits)):
        works = (Role.INERT, Role.BUSY)
        return tuple(r for r in others if r.is_.role in works or _may_work(case, r))
    if any(map(_is_busy, culprits)):
        return tuple(filter(_is_soft, others))
    return ()


def _larger_half(case: Case, culprits: tuple[ClassifiedRank, ...]) -> bool:
    """Many that nothing direct accuses, beside fewer who wait elsewhere: as likely as not the many wait too, for the few.

    Where the others all wait in one place a minority of unclear ranks may be named, at `low`; a half never.
    """
    half = 2 * len(culprits) >= len(case.alive)
    if len(culprits) > 1 and half and (all(map(_may_be_fed, culprits)) or all(map(_ran_once, culprits))):  # fmt: skip
        return bool(case.waiting)
    if len(culprits) < 2 or not all(map(is_faint, culprits)):
        return False
    places = _waits_of(case)
    fewer = len(places) > 1 and min(places.values()) <= len(culprits)
    return fewer or half


def _waits_of(case: Case) -> Counter[tuple[str, str]]:
    """In which call, and at which place, how many of the waiting ranks stand."""
    return Counter((rank.is_.operation, rank.is_.site) for rank in case.waiting)


def _may_be_fed(rank: ClassifiedRank) -> bool:
    """Whether another rank may feed it, or hold the lock that it wants: nothing shows who does."""
    lock = rank.capture.process.lock if rank.capture else None
    of_unknown = rank.is_.name in ("file_lock", "flock") and not (lock and lock.holders)
    return of_unknown or rank.is_.name in MAY_BE_FED or _by_stack_alone(rank)


def _by_stack_alone(rank: ClassifiedRank) -> bool:
    """Whether only one look at its native stack says that it sleeps: it may poll for what another rank has to do first."""
    return rank.is_.name == "sleep" and not rank.is_.direct


def is_faint(rank: ClassifiedRank) -> bool:
    """Whether little speaks for naming this rank: its class is unclear, or it was sampled once, and the sample shows nothing that it waits for."""
    if rank.is_.direct or rank.capture is None:
        return False
    if rank.is_.role is Role.UNCLEAR:
        return True
    holds = any(stack.owns_gil for stack in rank.capture.process.stacks)
    return _ran_once(rank) and not holds


def _ran_once(rank: ClassifiedRank) -> bool:
    """Whether it was seen once, at work: so is most of a job that is well."""
    process = rank.capture.process if rank.capture else None
    seen_once = process is not None and process.state is None and process.movement is None
    return seen_once and not rank.is_.direct and rank.is_.name in SEEN_ONCE


def _nobody_of(
    case: Case, verdict: Verdict, suspects: tuple[ClassifiedRank, ...], next_steps: tuple[str, ...]
) -> Finding:
    """Name nobody, and say where all stand."""
    victims = f"; {case.victims()}" if case.waiting else ""
    return Finding(
        verdict=verdict,
        culprits=(),
        confidence=Confidence.LOW,
        summary=f"{sentence(suspects)}, which may be a wait as well{victims}",
        evidence=evidence_of(case, suspects),
        next_steps=next_steps,
    )


def _is_busy(rank: ClassifiedRank) -> bool:
    """On a CPU, in Python or in native code that is no known wait."""
    return rank.is_.role is Role.BUSY or rank.is_.name == "native_code"


def _may_work(case: Case, rank: ClassifiedRank) -> bool:
    """On a CPU, and nobody knows whether in Python or in native code: as good as busy, unless others stand there too."""
    capture = rank.capture
    if rank.is_.name != "native_code" or capture is None or not capture.process.by_hook:
        return False
    return sum(other.is_.site == rank.is_.site for other in case.ranks) == 1


def _differ(culprits: tuple[ClassifiedRank, ...]) -> bool:
    """Named for different reasons, one of them soft: one may wait for the other."""
    stands = {(rank.is_.name, rank.is_.site) for rank in culprits}
    return len(stands) > 1 and any(map(_is_soft, culprits))


def _several(
    case: Case, verdict: Verdict, suspects: tuple[ClassifiedRank, ...], next_steps: tuple[str, ...]
) -> Finding:
    """Several ranks do not wait, and one may be waiting for another in a way no stack shows: all named, at `low`.

    Where that is everybody, nobody is: victims would be named with whom they wait for. Nor where the one that they wait
    for may be among those whom nobody saw.
    """
    named = len(suspects) < len(case.alive) and not case.unseen
    busy = any(map(_is_busy, suspects))
    suspects = tuple(sorted(suspects, key=lambda rank: rank.rank))
    victims = f"; {case.victims()}" if case.waiting else ""
    return Finding(
        verdict=Verdict.RANK_BUSY if busy else verdict,
        culprits=tuple(rank_culprit(rank) for rank in suspects) if named else (),
        confidence=Confidence.LOW,
        summary=f"{sentence(suspects)}: one of them may wait for another{victims}",
        evidence=evidence_of(case, suspects),
        next_steps=next_steps,
    )


def _beside_unseen(
    case: Case, verdict: Verdict, suspects: tuple[ClassifiedRank, ...], next_steps: tuple[str, ...]
) -> Finding:
    """The ranks do not seem to wait, but may wait for a rank that was not captured, or has no stack: `low` at most."""
    doubtful = any(r.is_.name in FOR_OTHERS or r.is_.role is Role.UNCLEAR for r in suspects)
    count = len(case.elsewhere) + len(case.blind)
    unseen = f"{count:,} rank{'s' if count > 1 else ''} could not be looked at"
    victims = f"; {case.victims()}" if case.waiting else ""
    return Finding(
        verdict=verdict,
        culprits=() if doubtful else tuple(rank_culprit(rank) for rank in suspects),
        confidence=Confidence.LOW,
        summary=f"{sentence(suspects)}{_where(case, suspects)}, and {unseen}{victims}",
        evidence=evidence_of(case, suspects),
        next_steps=next_steps,
    )


def _where(case: Case, ranks: Iterable[ClassifiedRank]) -> str:
    """` (on node017)`, in a job whose nodes were all asked."""
    nodes = {rank.node for rank in ranks} - {""}
    return f" (on {fold_nodes(nodes)})" if case.queried is not None and nodes else ""


def _proved(case: Case, rank: ClassifiedRank) -> bool:
    """Direct evidence, watched, and for classes that may end by themselves watched for long."""
    if not rank.is_.direct or rank.is_.name in NEVER_PROVED or not _watched(rank):
        return False
    move = rank.capture.process.movement if rank.capture else None
    watched = max(case.quiet_seconds, move.span_seconds if move else 0.0)
    return not _is_soft(rank) or watched >= LONG


def _is_soft(rank: ClassifiedRank) -> bool:
    """A worker that was found stopped or blocked is as hard a fact as a stopped rank."""
    return rank.is_.name in SOFT_CLASSES and not (rank.is_.worker_pid and rank.is_.direct)


def _watched(rank: ClassifiedRank) -> bool:
    """One look at a process proves nothing of what lasts, except where it has no process or cannot run at all."""
    if rank.capture is None or rank.is_.name in ("stopped", "traced", "exited"):
        return True
    return rank.capture.process.movement is not None


def rank_culprit(rank: ClassifiedRank) -> Culprit:
    """The culprit entry for one rank. Its reason is what the rank does."""
    return Culprit(kind="rank", rank=rank.rank, node=rank.node, pid=rank.pid, reason=rank.is_.doing)


def evidence_of(case: Case, culprits: tuple[ClassifiedRank, ...]) -> tuple[str, ...]:
    """Evidence sentences: the facts about these culprits (8 at most), those about the first waiting rank, and which other ranks do not wait."""
    named = {rank.rank for rank in culprits}
    facts = [f"rank {rank.rank}: {fact}" for rank in culprits[:8] for fact in rank.is_.why]
    others = [rank for rank in case.suspects if rank.rank not in named]
    if case.waiting:
        first = case.waiting[0]
        facts += [f"rank {first.rank} (waiting): {fact}" for fact in first.is_.why]
    if others:
        facts.append(f"not waiting either: {sentence(others)}")
    return tuple(facts)
