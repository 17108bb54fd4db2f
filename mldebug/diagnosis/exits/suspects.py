"""Which ranks the victims' errors accuse together, and what that adds to how an attempt ended.

Pure.

A victim may be wrong: the rank that it names may itself wait. So more than half of those who name a
rank must name the same one, and it stays a suspect at low confidence. Where the errors tell what
each rank had called (fingerprints of TORCH_DISTRIBUTED_DEBUG=DETAIL, parameters, shapes), the calls
are compared: a rank that differs from more than half of all ranks is named at medium. So is the one
rank whose own error, traceback and number all others quote, where nothing contradicts.

Numbers in such errors are those of a process group. They are used only where every victim's own
number is its rank.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from mldebug.core.model import Confidence, Culprit, Finding, Verdict
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.diagnosis.exits.model import Accusation, AttemptExit, RankError
from mldebug.diagnosis.exits.outcome import NOBODY, ExitOutcome
from mldebug.diagnosis.exits.rank_exit import ExitKind, ExplainedExit, explain_exits
from mldebug.diagnosis.exits.words.last_words import is_out_of_memory

MOST = 4  # suspects; more are nobody


class Suspects(NamedTuple):
    """Ranks that other ranks' errors accuse.

    `did`: of what; `by`: the ranks whose errors they are, empty where that is not known.
    """

    ranks: tuple[int, ...]
    did: str
    by: tuple[int, ...]
    verdict: Verdict = Verdict.UNKNOWN
    confidence: Confidence = Confidence.LOW


class _Speech(NamedTuple):
    """An accusation, and the rank that wrote it, None where that is not known."""

    rank: int | None
    words: Accusation


def with_suspects(outcome: ExitOutcome, attempt: AttemptExit) -> ExitOutcome:
    """Add the ranks that victims' errors accuse to the outcome: as culprits where it names nobody, as a doubt where it names another rank without proof."""
    finding = outcome.finding
    exits = explain_exits(attempt)
    suspects = suspects_of(attempt, exits) if finding is not None else None
    if finding is None or suspects is None:
        return outcome
    words = _sentence(suspects)
    if not finding.culprits:
        changed = _suspected(finding, suspects, words, attempt)
        return msgspec.structs.replace(outcome, finding=changed, sentence=changed.summary)
    named = {one.rank for one in finding.culprits}
    if named & set(suspects.ranks) or any(_proved(one) for one in exits if one.exit.rank in named):
        return outcome
    changed = msgspec.structs.replace(
        finding,
        confidence=Confidence.LOW,
        summary=f"{finding.summary}; but {words}",
        evidence=(*finding.evidence, words),
    )
    return msgspec.structs.replace(outcome, finding=changed, sentence=changed.summary)


def _proved(one: ExplainedExit) -> bool:
    """Whether its own words, or a sign of a lack of memory, show its failure: who sent a SIGKILL, nothing shows."""
    return one.own or (one.kind is ExitKind.KILLED and one.out_of_memory)


def _sentence(suspects: Suspects) -> str:
    """`by the words of ranks 0-1,3, rank 2 called something else`."""
    who = _ranks(suspects.by) if suspects.by else "the job's log"
    return f"by the words of {who}, {_ranks(suspects.ranks)} {suspects.did}"


def _ranks(ranks: Iterable[int]) -> str:
    some = list(ranks)
    return f"rank{'s' if len(some) > 1 else ''} {shorten_ranks(fold_ranks(some))}"


def _suspected(finding: Finding, suspects: Suspects, words: str, attempt: AttemptExit) -> Finding:
    homes = {one.rank: one for one in attempt.identities}
    culprits = tuple(
        Culprit(
            kind="rank",
            rank=rank,
            node=homes[rank].node if rank in homes else "",
            pid=homes[rank].pid if rank in homes else None,
            reason=f"{suspects.did}, as others say",
        )
        for rank in suspects.ranks
    )
    return msgspec.structs.replace(
        finding,
        verdict=suspects.verdict,
        culprits=culprits,
        confidence=suspects.confidence,
        summary=f"{words}; {finding.summary.replace(NOBODY, '', 1)}",
        evidence=(words, *finding.evidence),
    )


def suspects_of(attempt: AttemptExit, exits: Sequence[ExplainedExit]) -> Suspects | None:
    """The ranks that most victims' errors accuse; None where they name nobody, or contradict each other."""
    speeches = list(_speeches(attempt, exits))
    if any(_of_a_part(one) for one in speeches):
        return None  # numbers of a smaller group
    world = attempt.job.world_size
    return _by_calls(speeches, world) or _by_votes(speeches, attempt, exits)


def _of_a_part(speech: _Speech) -> bool:
    """Whether the speaker goes by another number than its rank: it speaks of a part of the job."""
    return None not in (speech.rank, speech.words.speaker) and speech.rank != speech.words.speaker


def _speeches(attempt: AttemptExit, exits: Iterable[ExplainedExit]) -> Iterator[_Speech]:
    for one in exits:
        if one.error is not None and one.error.accuses is not None:
            yield _Speech(one.exit.rank, one.error.accuses)
    shared = attempt.shared_error
    if shared is not None and shared.accuses is not None:
        yield _Speech(None, shared.accuses)


def _by_calls(speeches: Sequence[_Speech], world: int) -> Suspects | None:
    """Who differs from more than half of all ranks in what it called; from fewer that are alike, at low confidence."""
    paired = [speech for speech in speeches if speech.words.calls]
    calls: dict[int, str] = {}
    for speech in paired:
        for rank, call in speech.words.calls.items():
            if calls.setdefault(rank, call) != call:
                return None  # of two moments, or of two groups
    if not calls:
        return None
    usual, count = Counter(calls.values()).most_common(1)[0]
    odd = tuple(sorted(rank for rank, call in calls.items() if call != usual))
    if not 0 < len(odd) <= MOST or len(odd) >= count:
        return None  # of two ranks that differ, each accuses the other
    by = tuple(sorted(one.rank for one in paired if one.rank is not None and one.rank not in odd))
    if 2 * count <= world:
        return Suspects(odd, paired[0].words.did, by)
    return Suspects(odd, paired[0].words.did, by, Verdict.COLLECTIVE_MISMATCH, Confidence.MEDIUM)


def _by_votes(
    speeches: Sequence[_Speech], attempt: AttemptExit, exits: Sequence[ExplainedExit]
) -> Suspects | None:
    """Whom more than half of those accuse who name somebody else."""
    by_pid = {one.pid: one.rank for one in attempt.identities}
    named = [(speech, _named(speech, by_pid, attempt.job.world_size)) for speech in speeches]
    named = [(speech, ranks) for speech, ranks in named if ranks]
    votes = Counter(rank for _, ranks in named for rank in ranks)
    most = tuple(sorted(rank for rank, count in votes.items() if 2 * count > len(named)))
    if not 0 < len(most) <= MOST:
        return None
    sure = [speech for speech, ranks in named if set(most) & ranks]
    by = tuple(sorted(one.rank for one in sure if one.rank is not None))
    suspects = Suspects(most, sure[0].words.did, by)
    if not _is_quoted_by_all(named, most, attempt, exits):
        return suspects
    memory = is_out_of_memory(sure[0].words.quoted)
    verdict = Verdict.OUT_OF_MEMORY if memory else Verdict.RANK_EXITED
    return suspects._replace(verdict=verdict, confidence=Confidence.MEDIUM)


def _is_quoted_by_all(
    named: Sequence[tuple[_Speech, set[int]]],
    most: Sequence[int],
    attempt: AttemptExit,
    exits: Sequence[ExplainedExit],
) -> bool:
    """Whether all who name somebody quote the error of this one rank, all ranks are known, and its own end does not contradict."""
    if len(most) != 1 or len(attempt.identities) < attempt.job.world_size:
        return False
    its = next((one for one in exits if one.exit.rank == most[0]), None)
    against = its is not None and (
        its.kind is ExitKind.LEFT
        or (its.error is not None and its.error.blames_peer and not _quotes(its.error))
    )
    quoted = all(words.words.quoted and ranks == set(most) for words, ranks in named)
    return quoted and not against


def _quotes(error: RankError) -> bool:
    return error.accuses is not None and bool(error.accuses.quoted)


def _named(speech: _Speech, by_pid: Mapping[int, int], world: int) -> set[int]:
    """The ranks that these words name, but for their speaker."""
    words, speaker = speech.words, speech.rank
    speaker = words.speaker if speaker is None else speaker
    ranks = {*words.ranks, *(by_pid[pid] for pid in words.pids if pid in by_pid)}
    return {rank for rank in ranks if 0 <= rank < world} - {speaker}
