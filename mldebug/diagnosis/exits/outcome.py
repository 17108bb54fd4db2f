"""How an attempt ended: the outcome in words, and the finding that a report shows. Pure."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from mldebug.capture.memory.sentences import failure_facts, remedies
from mldebug.core.model import Confidence, Culprit, Finding, MemoryFailure, Verdict
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.diagnosis.exits.cuda_memory import ROUNDED, DeviceMemory
from mldebug.diagnosis.exits.memory_text import APART, memory_steps, sharing_fact, sharing_ranks
from mldebug.diagnosis.exits.model import AttemptExit, RankError, exit_signal, words_of_status
from mldebug.diagnosis.exits.rank_exit import ExitKind, ExplainedExit
from mldebug.diagnosis.exits.words.last_words import is_out_of_memory

NOBODY = ", and nobody can be named"
MAX_FACTS = 12  # about ranks that are not named


class ExitOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt (one start of a job) ended.

    `finding` is None where there is nothing to report.
    """

    kind: Literal["normal", "outside", "abnormal"]
    sentence: str
    finding: Finding | None = None
    signs: tuple[
        str, ...
    ] = ()  # of the way it failed: two attempts that share one failed the same way; none where nobody saw how


def abnormal(
    exits: Sequence[ExplainedExit],
    culprits: tuple[ExplainedExit, ...],
    confidence: Confidence,
    attempt: AttemptExit | None = None,
) -> ExitOutcome:
    """Build the outcome of an attempt (one start of a job) in which `culprits` failed first.

    `attempt` adds what else is known of its end: ranks still alive, log paths, and an error in the
    job's log that names no rank.
    """
    first = culprits[0]
    shared = attempt.shared_error if attempt and first.error is None else None
    blamed = [_culprit(one) for one in culprits]
    verdict = Verdict.OUT_OF_MEMORY if _memory(first, shared) else Verdict.RANK_EXITED
    if verdict is Verdict.OUT_OF_MEMORY and _guessed(first, shared):
        confidence = Confidence.MEDIUM if confidence is Confidence.HIGH else Confidence.LOW
    others = _consequence([one for one in exits if one not in culprits], first)
    log = f"{shared_words(shared)}, of no rank in particular" if shared else ""
    culprit = f"rank {first.exit.rank} {blamed[0].reason}"
    alive = _living(attempt.living) if attempt else ""
    summary = "; ".join(part for part in (culprit, others, alive, log) if part)
    finding = Finding(
        verdict=verdict,
        culprits=tuple(blamed),
        confidence=confidence,
        summary=summary,
        evidence=_evidence(exits, attempt, culprits),
        next_steps=_next_steps(first, verdict, attempt),
    )
    return ExitOutcome(
        kind="abnormal", sentence=summary, finding=finding, signs=_signs(first, shared)
    )


def _memory(first: ExplainedExit, shared: RankError | None) -> bool:
    in_log = shared is not None and not shared.caught and is_out_of_memory(shared.error)
    return first.out_of_memory or in_log


def _guessed(first: ExplainedExit, shared: RankError | None) -> bool:
    """Whether the only sign of a lack of memory is a library that could not allocate."""
    error = first.error or shared
    return first.death is None and bool(error and error.memory and error.memory.likely)


def shared_words(error: RankError) -> str:
    """A clause about an error in the job's log that bears no rank's mark."""
    if error.caught:
        return f"the job's log holds {error.error}, with other words after it"
    return f"the job's log ends with {error.error}"


def _culprit(one: ExplainedExit) -> Culprit:
    return Culprit(
        kind="rank",
        rank=one.exit.rank,
        node=one.node,
        pid=one.exit.pid or None,
        reason=one.phrase(),
    )


def nobody(attempt: AttemptExit, exits: Sequence[ExplainedExit], why: str) -> ExitOutcome:
    """The outcome of an abnormal end for which no rank is named.

    `why`: the reason that nobody is named, as a clause.
    """
    error = attempt.shared_error
    log = f"; {shared_words(error)}" if error and error.error not in why else ""
    over = "the job has lost ranks" if attempt.living else "the job ended"
    summary = f"{over}{NOBODY}: {why}{log}"
    finding = Finding(
        verdict=Verdict.UNKNOWN,
        culprits=(),
        confidence=Confidence.LOW,
        summary=summary,
        evidence=_evidence(exits, attempt),
        next_steps=(_search("Error|Traceback|FAILED", attempt),),
    )
    kinds = sorted({one.error.kind for one in exits if one.error})
    return ExitOutcome(
        kind="abnormal", sentence=summary, finding=finding, signs=tuple(f"error {k}" for k in kinds)
    )


def _consequence(others: Iterable[ExplainedExit], first: ExplainedExit) -> str:
    """`ranks 0-2,4 ended after it (killed by SIGTERM)`; `ended, too`, where nobody has seen the order."""
    ranks = [one for one in others if one.kind is not ExitKind.LEFT]
    if not ranks:
        return ""
    who = shorten_ranks(fold_ranks(one.exit.rank for one in ranks))
    ways = sorted({status_words(one) for one in ranks})
    many = "ranks" if len(ranks) > 1 else "rank"
    when = "ended after it" if first.exit.moment is not None else "ended, too"
    return f"{many} {who} {when} ({', '.join(ways[:3])})"


def _living(ranks: Sequence[int]) -> str:
    """`ranks 0,2 live on`: they may hang, and the capture says where."""
    if not ranks:
        return ""
    who = shorten_ranks(fold_ranks(ranks))
    return f"rank {who} lives on" if len(ranks) == 1 else f"ranks {who} live on"


def status_words(one: ExplainedExit) -> str:
    """The exit status in words: `killed by SIGKILL`."""
    return words_of_status(one.exit.status)


def _evidence(
    exits: Sequence[ExplainedExit],
    attempt: AttemptExit | None,
    culprits: Sequence[ExplainedExit] = (),
) -> tuple[str, ...]:
    """Facts about the culprits one by one; about the others, equal facts together."""
    facts = [fact for one in culprits for fact in (*_facts(one), *_held(one, attempt))]
    facts += _folded([one for one in exits if one not in culprits])
    if attempt is not None:
        if attempt.shared_error is not None:
            facts.append(f"the job's log, without a rank: {attempt.shared_error.error}")
        if attempt.oom_kills:
            facts.append(
                f"the job's cgroup counts {attempt.oom_kills} OOM kills since all ranks were seen alive"
            )
        if attempt.words.out_of_memory:
            facts.append(f"the job's log: {attempt.words.out_of_memory}")
        facts += [f"the launcher wrote: {line}" for line in attempt.words.cited]
    return tuple(facts)


def _facts(one: ExplainedExit) -> Iterator[str]:
    yield f"rank {one.exit.rank}: {_status_and_source(one)}"
    if one.death is not None:
        yield f"rank {one.exit.rank}: kernel log: {one.death.text}"
    if one.error is not None:
        yield f"rank {one.exit.rank}: {one.error.source}: {one.error.error}"


def _held(one: ExplainedExit, attempt: AttemptExit | None) -> Iterator[str]:
    """Who held its GPU's memory: other ranks of the job, and its own lines, where the failed allocation that the hook wrote down is the
    one of its error.
    """
    for rank, memory_bytes in sharing_ranks(one.exit, one.error.memory if one.error else None, attempt):  # fmt: skip
        yield f"rank {one.exit.rank}: {sharing_fact(rank, memory_bytes)}"
    failure = last_failure(one, attempt)
    if failure is not None:
        for fact in failure_facts(failure):
            yield f"rank {one.exit.rank}: {fact}"


def last_failure(one: ExplainedExit, attempt: AttemptExit | None) -> MemoryFailure | None:
    """The failed allocation of GPU memory by which a rank ended, as its hook recorded it; None where the hook recorded none, or only an earlier one."""
    failure = attempt.memory.get(one.exit.rank) if attempt else None
    if failure is None or not one.out_of_memory:
        return None
    figures = one.error.memory if one.error else None
    unknown = figures is None or figures.requested is None
    return failure if unknown or tells_of_allocation(figures, failure) else None


def tells_of_allocation(figures: DeviceMemory | None, failure: MemoryFailure) -> bool:
    """Whether the figures of a message are those of this failed allocation, by the size that was asked for."""
    if figures is None or figures.requested is None:
        return False
    return abs(figures.requested - failure.requested) <= ROUNDED * figures.requested


def _status_and_source(one: ExplainedExit) -> str:
    """`killed by SIGKILL (exit status of the process)`."""
    words = status_words(one)
    return words if one.exit.source == words else f"{words} ({one.exit.source})"


def _folded(others: Sequence[ExplainedExit]) -> Iterator[str]:
    """`ranks 0,2-3: killed by SIGTERM (…)`; of errors of one kind, the first speaks for all."""
    same: dict[str, list[ExplainedExit]] = {}
    alike: dict[tuple[str, bool], list[ExplainedExit]] = {}
    errors: dict[tuple[str, bool], RankError] = {}
    for one in others:
        same.setdefault(_status_and_source(one), []).append(one)
        if one.error is not None:
            key = (one.error.kind, one.error.blames_peer)
            alike.setdefault(key, []).append(one)
            errors.setdefault(key, one.error)
    facts = list(same.items())
    facts += [(_error_of(errors[key], some), some) for key, some in alike.items()]
    facts += [(f"kernel log: {one.death.text}", [one]) for one in others if one.death is not None]
    for words, some in facts[:MAX_FACTS]:
        yield f"{_ranks(some)}: {words}"
    if len(facts) > MAX_FACTS:
        yield f"{len(facts) - MAX_FACTS} more facts of this sort stand in the evidence"


def _error_of(error: RankError, some: Sequence[ExplainedExit]) -> str:
    about = "a failure of another" if error.accuses and error.accuses.quoted else "a lost peer"
    such = f"an error about {about}, {error.source}" if error.blames_peer else error.source
    each = f" (rank {some[0].exit.rank}, the others alike)" if len(some) > 1 else ""
    return f"{such}: {error.error}{each}"


def _ranks(some: Sequence[ExplainedExit]) -> str:
    who = shorten_ranks(fold_ranks(one.exit.rank for one in some))
    return f"{'rank' if len(some) == 1 else 'ranks'} {who}"


def _next_steps(
    first: ExplainedExit, verdict: Verdict, attempt: AttemptExit | None
) -> tuple[str, ...]:
    rank = first.exit.rank
    if verdict is Verdict.OUT_OF_MEMORY and (first.kind is ExitKind.KILLED or first.worker):
        return ("dmesg -T | grep -iE 'oom-kill|killed process' | tail",)
    if verdict is Verdict.OUT_OF_MEMORY:
        error = first.error or (attempt.shared_error if attempt else None)
        if error is not None and error.memory is not None:
            failure = last_failure(first, attempt)
            size = attempt.job.world_size if attempt else 1
            found = remedies(failure, size) if failure else ()
            apart = (APART,) if sharing_ranks(first.exit, error.memory, attempt) else ()
            return (*apart, *found, *memory_steps(error.memory))
        return ("lower the batch or sequence length, or look what else is on that GPU: nvidia-smi",)
    if first.kind is ExitKind.KILLED or (
        first.kind is ExitKind.FAILED and exit_signal(first.exit.status)
    ):
        mine = f"[^0-9]{first.exit.pid}[^0-9]" if first.exit.pid else "[Kk]illed process"
        return (
            f"dmesg -T | grep -E '{mine}|Xid|segfault' | tail",
            "coredumpctl list  # where cores are kept",
        )
    return (_search(f"rank{rank}\\]|Traceback|Error", attempt, rank),)


def _search(words: str, attempt: AttemptExit | None, rank: int = -1) -> str:
    """A command that can be typed as it stands, or what to do where no log was found."""
    path = attempt.log_paths.get(rank, attempt.log_path) if attempt else ""
    if path:
        return f"grep -nE '{words}' {shlex.quote(path)} | tail -40"
    return "look for the first error in what the job printed: no file that holds it was found"


def _signs(first: ExplainedExit, shared: RankError | None) -> tuple[str, ...]:
    error, status = first.error or shared, first.exit.status
    signs = (f"rank {first.exit.rank} {status_words(first)}",) if status is not None else ()
    return (*signs, f"error {error.kind}") if error else signs
