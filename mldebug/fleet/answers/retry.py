"""Whether a job that ended can be started again now: safe, safe without some nodes, not before a time, or not as it is. Pure.

It is advice: nothing here starts or stops anything.
"""

from collections.abc import Iterator, Sequence

from mldebug.core.model.base import ReportData
from mldebug.core.ranksets import fold_nodes, unfold_nodes
from mldebug.core.text import rfc3339
from mldebug.fleet.answers.jobs import JobAttempt, JobTimeline
from mldebug.fleet.answers.lemons import HARDWARE_VERDICTS, LemonList
from mldebug.fleet.events import AnyEvent, CheckpointEvent, IncidentEvent, NodeHealthEvent

SURE = ("high", "medium")
SAME_WAY = 3  # attempts in a row that failed the same way: the next one will
SHARED = ("storage_fault", "network_fault")  # verdicts about what jobs share
TROUBLE, WAIT = 900.0, 900.0  # seconds: trouble of several jobs so long ago is waited for so long
SILENT = 3 * 3600.0  # seconds without a word after which a node is not counted on
CODES = {"safe": 0, "safe_without_nodes": 10, "not_before": 11, "not_safe": 12, "running": 13}
"""Exit codes of `mldebug retry-advice`, by standing."""


class RetryAdvice(ReportData, frozen=True, kw_only=True):
    """Whether to start a job again. `standing`: safe, safe_without_nodes, not_before, not_safe (it would fail the same way), running.

    `without`: nodes to leave out, folded; `not_before`: RFC 3339; `resume_from`: its newest complete checkpoint.
    """

    job: str
    standing: str
    sentence: str
    without: str = ""
    not_before: str = ""
    resume_from: str = ""
    evidence: tuple[str, ...] = ()


def advice(found: JobTimeline, events: Sequence[AnyEvent], all_events: Sequence[AnyEvent], lemons: LemonList, now: float) -> RetryAdvice:  # fmt: skip
    """Advice for the job of a time line with at least one attempt. `events`: the job's own; `all_events`: incidents and inventories of all
    nodes, of which no sentence is repeated; both in the order of their times.
    """
    last = found.attempts[-1]
    resume, damaged = _checkpoint(events)
    evidence = [_ended(last), *damaged]
    made = RetryAdvice(job=found.job, standing="safe", sentence="", resume_from=resume)
    if last.outcome == "running":
        return _with(made, "running", "it runs: there is nothing to start again", evidence)
    if repeated := _repeated(found.attempts):
        evidence.append(repeated)
        return _with(made, "not_safe", "its last attempts failed the same way, and the next one would: mend that first", evidence)  # fmt: skip
    until, why = _shared_trouble(all_events, now)
    without = dict(_bad_nodes(last, lemons, all_events, now))
    evidence += [f"{node}: {words}" for node, words in sorted(without.items())]
    nodes = fold_nodes(without)
    if until > now:
        evidence.append(why)
        sentence = f"not before {rfc3339(until)}{f', and then without {nodes}' if nodes else ''}"
        return _with(made, "not_before", sentence, evidence, without=nodes, not_before=rfc3339(until))  # fmt: skip
    if nodes:
        return _with(made, "safe_without_nodes", f"safe without {nodes}", evidence, without=nodes)
    return _with(made, "safe", "safe: nothing speaks against its nodes", evidence)


def _with(made: RetryAdvice, standing: str, sentence: str, evidence: list[str], *, without: str = "", not_before: str = "") -> RetryAdvice:  # fmt: skip
    return RetryAdvice(
        job=made.job,
        standing=standing,
        sentence=sentence,
        without=without,
        not_before=not_before,
        resume_from=made.resume_from,
        evidence=tuple(one for one in evidence if one),
    )


def _ended(last: JobAttempt) -> str:
    reason = f": {last.reason}" if last.reason else ""
    when = f" at {last.ended}" if last.ended else ""
    return f"attempt {last.attempt} of run {last.run} on {last.nodes}: {last.outcome}{when}{reason}"


def _repeated(attempts: Sequence[JobAttempt]) -> str:
    """That the last attempts failed the same way by what they did themselves; "" where they did not."""
    newest = attempts[-SAME_WAY:]
    verdict = newest[-1].verdict
    same = len(newest) == SAME_WAY and len({one.verdict for one in newest}) == 1
    if not same or not verdict or verdict in (*HARDWARE_VERDICTS, *SHARED, "unknown", "straggler"):
        return ""
    if any(one.outcome != "failed" for one in newest):
        return ""
    return f"the last {SAME_WAY} attempts failed with the verdict {verdict}"


def _bad_nodes(
    last: JobAttempt, lemons: LemonList, events: Sequence[AnyEvent], now: float
) -> Iterator[tuple[str, str]]:
    """Nodes to leave out, each with the reason: what its last end was blamed on, and those of its nodes that are lemons, ill or silent."""
    standing = {one.node: one for one in lemons.nodes}
    sent_at = {one.node: one.at for one in events if isinstance(one, NodeHealthEvent)}
    for node in unfold_nodes(last.nodes, groups=False) if last.nodes else ():
        score = standing.get(node)
        if node in sent_at and now - sent_at[node] > SILENT:
            yield node, f"nothing has been heard of it since {rfc3339(sent_at[node])}"
        if score is not None and score.standing in ("lemon", "ill"):
            words = "a critical fault lasts there" if score.standing == "ill" else "it is a lemon"
            yield node, f"{words} (score {score.score:g})"
    if last.verdict in HARDWARE_VERDICTS and last.confidence in SURE:
        for node in last.culprits:
            yield node, f"the last attempt ended there by {last.verdict} ({last.confidence})"


def _shared_trouble(events: Sequence[AnyEvent], now: float) -> tuple[float, str]:
    """Until when to wait because what several jobs share (storage, network) was in trouble lately, and why."""
    recent = [one for one in events if isinstance(one, IncidentEvent) and one.verdict in SHARED and now - one.at < TROUBLE]  # fmt: skip
    jobs = {(one.job, one.uid) for one in recent}
    senders = {one.node for one in recent}
    if len(jobs) < 2 or len(senders) < 2:  # one node alone holds up nobody's job
        return 0.0, ""
    newest = max(recent, key=lambda one: one.at)
    return newest.at + WAIT, f"{len(jobs)} jobs had trouble with storage or network, the last one at {rfc3339(newest.at)}"  # fmt: skip


def _checkpoint(events: Sequence[AnyEvent]) -> tuple[str, list[str]]:
    """The newest complete checkpoint, and a sentence where a newer one is not complete."""
    found = [one for one in events if isinstance(one, CheckpointEvent)]
    whole = max((one for one in found if one.state == "complete"), key=lambda one: one.ended, default=None)  # fmt: skip
    broken = max((one for one in found if one.state == "incomplete"), key=lambda one: one.ended, default=None)  # fmt: skip
    resume = f"{whole.folder}/{whole.name}" if whole is not None else ""
    if broken is None or (whole is not None and broken.ended <= whole.ended):
        return resume, []
    return resume, [f"its newest checkpoint {broken.name} is not complete: {broken.why or 'its writer has died'}"]  # fmt: skip


def advice_lines(found: RetryAdvice) -> Iterator[str]:
    """The advice as lines for a person."""
    yield f"{found.job}: {found.sentence}"
    for one in found.evidence:
        yield f"  {one}"
    if found.resume_from:
        yield f"  it would resume from {found.resume_from}"
