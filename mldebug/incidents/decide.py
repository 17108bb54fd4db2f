"""What a person can do about an incident, and why each rank that the report does not name is not to blame. Pure."""

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from mldebug.core.model import Confidence, Role, Verdict
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.core.report_model import RankView, Report, SourceView
from mldebug.core.text import moment, rfc3339, seconds_of
from mldebug.core.units import duration_words

MAX_REASONS = 12
OF_THE_NODE = (Verdict.GPU_FAULT, Verdict.NODE_UNREACHABLE, Verdict.NETWORK_FAULT)
"""Verdicts that accuse a machine and not the script: the next job there would meet the same."""
RUNBOOKS = {"stall": "MldebugRunStalled", "slowdown": "MldebugRunSlow"}
SCHEDULED = "slurm"
NOBODY = ("", "root")  # users that are no person


class Decision(NamedTuple):
    """One thing that a person can do: a title, how or why, and what to copy: a command, a place, or a message ("" for none)."""

    title: str
    words: str
    command: str = ""
    message: str = ""


class NotBlamed(NamedTuple):
    """Ranks that the report does not name, for one and the same reason. `ranks`: folded, `0-2,7`."""

    ranks: str
    size: int
    why: str


def decisions(report: Report) -> tuple[Decision, ...]:
    """What to do now, the nearest first. Nothing that mldebug has done already; nothing for a job that goes on unharmed."""
    if report.diagnosis.works or report.state == "recovered":
        return ()
    return tuple(
        one
        for one in (_open(report), _write(report), _wait(report), _stop(report), _drain(report), _read(report))
        if one is not None
    )  # fmt: skip


def source_of(report: Report) -> tuple[RankView, SourceView] | None:
    """The first culprit whose source lines are known, with them."""
    return next(((one, one.source) for one in report.ranks if one.culprit and one.source), None)


def numbered(source: SourceView) -> Iterator[tuple[str, str, bool]]:
    """Each source line: its number, its text, and whether it is the one at which the culprit stands."""
    width = len(str(source.first + len(source.lines)))
    for number, text in enumerate(source.lines, source.first):
        yield str(number).rjust(width), text, number == source.line


def to_look_closer(report: Report) -> tuple[str, ...]:
    """The commands that show more than the report does: those that print the source lines it has already are left out."""
    found = source_of(report)
    steps = report.diagnosis.next_steps
    if found is None:
        return steps
    place = f" {shlex.quote(found[1].path)}  # rank {found[0].rank} stands at line {found[1].line}"
    return tuple(one for one in steps if not (one.startswith("sed -n ") and one.endswith(place)))


def not_blamed(report: Report) -> tuple[NotBlamed, ...]:
    """Return the reasons why the ranks that the report does not name are not to blame: ranks with the same reason in one entry,
    the largest entry first, at most `MAX_REASONS`. Empty where the report names no rank.
    """
    if not any(one.culprit for one in report.ranks):
        return ()
    folded: dict[str, list[int]] = {}
    for one in report.ranks:
        if not one.culprit:
            folded.setdefault(_why_not(one, report), []).append(one.rank)
    found = [
        NotBlamed(
            shorten_ranks(fold_ranks(some), 80), len(some), f"each {why}" if len(some) > 1 else why
        )
        for why, some in folded.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.size)[:MAX_REASONS])


def ends_at(report: Report) -> float | None:
    """When PyTorch ends a job that stands still (unix time), where its hook has said after how long; None for others."""
    seconds = report.stall.collective_timeout_seconds
    since = seconds_of(report.stalled_since or "")
    if report.kind != "stall" or report.state != "open" or not seconds or since is None:
        return None
    return since + seconds


# --- what to do ------------------------------------------------------------------------------------


def _open(report: Report) -> Decision | None:
    found = source_of(report)
    if found is None:
        return None
    rank, source = found
    name = source.path.rsplit("/", 1)[-1]
    return Decision(f"Open {name}:{source.line}", f"Rank {rank.rank} is at this line.", f"{source.path}:{source.line}")  # fmt: skip


def _write(report: Report) -> Decision | None:
    """The words for the job's user, where somebody is named: who was woken need not know the job."""
    job, diagnosis = report.job, report.diagnosis
    if job.user in NOBODY or not diagnosis.culprits:
        return None
    since = f" since {moment(report.stalled_since)}" if report.stalled_since else ""
    state = {"stall": f"has made no step{since}", "abnormal_end": "has failed", "slowdown": "is slower than it was"}  # fmt: skip
    what = state.get(report.kind, "was looked at")
    text = f"Your job {job.name} on {report.node} {what}: {diagnosis.summary.rstrip('.')}. Report: {report.id}"
    return Decision(f"Write to {job.user}", "Who wrote the script knows that line best.", message=text)  # fmt: skip


def _wait(report: Report) -> Decision | None:
    until = ends_at(report)
    if until is None:
        return None
    seconds = duration_words(float(report.stall.collective_timeout_seconds or 0))
    words = (
        f"PyTorch ends a collective of all ranks after {seconds}, so not before then, unless a group of fewer has a shorter timeout. "
        "Until then the job can be looked at, and may recover."
    )
    return Decision(f"It is safe to wait until {moment(rfc3339(round(until)))}", words)


def _stop(report: Report) -> Decision | None:
    job = report.job
    if report.state != "open":
        return None  # the next run may have its name by now
    if report.kind == "slowdown":
        words = "All ranks save at one step and stop, where the script uses `mldebug_training.Switches`."
        return Decision("Save and stop", words, f"mldebug switch kill --run {shlex.quote(job.id)}")
    if report.kind != "stall" or not report.diagnosis.culprits:
        return None
    words = "It cannot save now, as ranks that wait make no step. Started again, it begins at its last checkpoint, if it has written one and loads it."
    if job.launcher == SCHEDULED and job.user:
        return Decision("Cancel it", words, f"squeue -u {shlex.quote(job.user)}  # its number, for: scancel NUMBER")  # fmt: skip
    return Decision("Stop it where it was started", words)


def _drain(report: Report) -> Decision | None:
    """Only on direct evidence against the machine: who drains a node for a guess takes it from everybody."""
    diagnosis = report.diagnosis
    nodes = sorted({one.node for one in diagnosis.culprits} - {""})
    sure = diagnosis.confidence is Confidence.HIGH and diagnosis.verdict in OF_THE_NODE
    if not sure or len(nodes) != 1:
        return None
    reason = shlex.quote(f"mldebug: {diagnosis.verdict.value}, report {report.id}")
    command = f"scontrol update NodeName={shlex.quote(nodes[0])} State=DRAIN Reason={reason}"
    scheduled = report.job.launcher == SCHEDULED
    words = "The next job there would meet the same."
    return Decision(f"Take {nodes[0]} out of service", words, command if scheduled else "")


def _read(report: Report) -> Decision | None:
    name = RUNBOOKS.get(report.kind)
    if name is None:
        return None
    return Decision("Read the runbook", f"docs/runbooks/{name}.md, in mldebug's documentation.")


# --- who is not to blame ---------------------------------------------------------------------------


def _why_not(one: RankView, report: Report) -> str:
    if report.kind == "abnormal_end" and one.role is Role.EXITED:
        return f"{one.doing}: it ended after the failure that the report names, or because of it"
    return f"{one.doing or _PLAIN[one.role]}: {_WHY_NOT[one.role]}"


_PLAIN: dict[Role, str] = {
    Role.WAITING: "waits for others",
    Role.BUSY: "works",
    Role.INERT: "does nothing",
    Role.UNCLEAR: "was seen",
    Role.EXITED: "is gone",
    Role.MISSING: "was not found",
}
_WHY_NOT: dict[Role, str] = {
    Role.WAITING: "only other ranks can end that wait, so it is a victim",
    Role.BUSY: "it works, so it may still come to where the others wait",
    Role.INERT: "it is not cleared: it does nothing either, but more speaks against who is named",
    Role.UNCLEAR: "it is not cleared: the evidence does not tell what it does",
    Role.EXITED: "it is not cleared: its process is gone, but more speaks against who is named",
    Role.MISSING: "it is not cleared: it never came, but more speaks against who is named",
}
