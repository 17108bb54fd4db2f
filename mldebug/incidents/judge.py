"""Judges an incident by all that is known of it: a slowdown, exits, captures of all nodes or of this one.

Pure.
"""

import msgspec

from mldebug.core.model import (
    Confidence,
    Diagnosis,
    Gap,
    Judgement,
    Role,
    Verdict,
)
from mldebug.diagnosis.diagnose import diagnose
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.judgement import judgement_of
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.goodput.slowdown import judge_slowdown
from mldebug.incidents.incident import Incident, watched_job
from mldebug.incidents.uncaptured import judge_uncaptured, stand_in
from mldebug.stall.sentences import seconds


def judge(incident: Incident) -> Judgement:
    """Judge an incident by all its evidence: by the slowdown, the exits, the captures of all nodes, or else this node's
    captures.

    Of this node's captures the first is judged; the newest where the first names nobody.
    """
    if incident.slowness is not None:
        return judge_slowdown(watched_job(incident), incident.slowness)
    if incident.exit is not None:
        ended = _judge_exit(incident, incident.exit)
        if not incident.node_captures:
            return _or_who_is_missed(incident, incident.exit, ended)
        return after(ended.diagnosis, diagnose(incident.node_captures, incident.queried))
    if incident.node_captures and (
        incident.whole is None or incident.whole.nodes < len(incident.node_captures)
    ):
        return after(incident.cause, diagnose(incident.node_captures, incident.queried))
    found = (
        diagnose(incident.node_captures, incident.queried)
        if incident.node_captures
        else _judge_here(incident)
    )
    if incident.whole is None:
        return found
    return msgspec.structs.replace(found, diagnosis=incident.whole.diagnosis)


def judge_unread(incident: Incident, why: Gap, known: Judgement | None = None) -> Judgement:
    """The judgement of an incident whose evidence could not be judged, and `why`: `known`, what was concluded from less of it
    before, or else `unknown`. What all nodes together have shown needs no judging here.
    """
    found = _unread(incident, why) if known is None else _still(known, why)
    whole = incident.whole
    if incident.exit is not None or whole is None or whole.nodes < len(incident.node_captures):
        return found
    return msgspec.structs.replace(found, diagnosis=whole.diagnosis)


def after(cause: Diagnosis | None, found: Judgement) -> Judgement:
    """The judgement of ranks that live, where others failed before.

    The diagnosis `cause` gives the verdict; the rest is added to its text. None: unchanged.
    """
    if cause is None:
        return found
    later = found.diagnosis
    summary = f"{cause.summary}; since then: {later.summary}" if later.summary else cause.summary
    evidence = (*cause.evidence, *later.evidence)
    steps = (*cause.next_steps, *later.next_steps)
    whole = msgspec.structs.replace(cause, summary=summary, evidence=evidence, next_steps=steps)
    return msgspec.structs.replace(found, diagnosis=whole)


def _unread(incident: Incident, why: Gap) -> Judgement:
    job = incident.job or (incident.exit.job if incident.exit is not None else None)
    bare = stand_in(msgspec.structs.replace(incident, job=job, slowness=None))
    bare = msgspec.structs.replace(bare, gaps=(why,))
    return judge_uncaptured(
        bare,
        incident.sentence or incident.why,
        _lasted(incident),
        "its evidence was not judged",
    )


def _still(known: Judgement, why: Gap) -> Judgement:
    begin = f"{why.what}: "
    evidence = (line for line in known.diagnosis.evidence if not line.startswith(begin))
    diagnosis = msgspec.structs.replace(
        known.diagnosis, evidence=(*evidence, f"{begin}{why.reason}")
    )
    return msgspec.structs.replace(known, diagnosis=diagnosis)


def _judge_here(incident: Incident) -> Judgement:
    if not incident.captures:
        return judge_uncaptured(stand_in(incident), incident.sentence, _lasted(incident))
    first = diagnose(incident.captures[:1])
    if first.diagnosis.culprits or len(incident.captures) < 2:
        return first
    later = diagnose(incident.captures[-1:])
    return later if later.diagnosis.culprits else first


def _judge_exit(incident: Incident, attempt: AttemptExit) -> Judgement:
    """An abnormal end, with the capture of those that outlived the first; of a crash loop with the number of attempts."""
    judgement = judgement_of(attempt, judge_exit(attempt), next(iter(incident.captures[-1:]), None))
    summary = judgement.diagnosis.summary
    if len(incident.failed) >= 2:
        attempts = ", ".join(map(str, incident.failed[-8:]))
        summary += f"; {len(incident.failed)} attempts failed this way ({attempts})"
    if incident.alike >= 2:
        summary += f"; {incident.alike} of {incident.runs} runs of this script failed the same way within an hour"
    return msgspec.structs.replace(
        judgement, diagnosis=msgspec.structs.replace(judgement.diagnosis, summary=summary)
    )


def _or_who_is_missed(incident: Incident, attempt: AttemptExit, ended: Judgement) -> Judgement:
    """Where the exits name nobody, and all who live on wait: the only rank that is gone, at `low`.

    One that waits may have left the common path, and the one that is gone may only have noticed it first.
    """
    if ended.diagnosis.culprits or not (attempt.living and incident.captures):
        return ended
    later = diagnose(incident.captures[-1:])
    gone = [rank for rank in later.ranks if rank.is_.role in (Role.EXITED, Role.MISSING)]
    wait = all(rank.is_.role is Role.WAITING for rank in later.ranks if rank not in gone)
    if later.diagnosis.verdict is not Verdict.RANK_EXITED or len(gone) != 1 or not wait:
        return ended
    found = msgspec.structs.replace(
        later.diagnosis,
        confidence=Confidence.LOW,
        evidence=(*ended.diagnosis.evidence, *later.diagnosis.evidence),
    )
    return msgspec.structs.replace(ended, diagnosis=found)


def _lasted(incident: Incident) -> str:
    if incident.over_at is None:
        return ""
    stood = incident.over_at - (incident.stalled_since or incident.detected_at)
    after = incident.over_at - incident.detected_at
    return f"the stall lasted {seconds(round(stood, 1))}, of which {seconds(round(after, 1))} after it was told"
