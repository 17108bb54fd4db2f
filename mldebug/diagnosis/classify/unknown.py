"""The finding where no rank can be named: why not, and what would show it the next time."""

from mldebug.capture.flight_recorder.waits_for import Claim
from mldebug.core.model import ClassifiedRank, Confidence, Finding, Role, Verdict
from mldebug.core.ranksets import all_of
from mldebug.diagnosis.classify.awaited.file_locks import HELD
from mldebug.diagnosis.classify.awaited.tasks import all_without_task
from mldebug.diagnosis.classify.awaited.threads import second_waits
from mldebug.diagnosis.classify.case import Case, ranks_text, sentence
from mldebug.diagnosis.classify.evidence import FOR_OTHERS
from mldebug.diagnosis.classify.flight_recorder import FlightRecorders
from mldebug.diagnosis.classify.nodes import not_all_present
from mldebug.diagnosis.classify.rank_class import classify

TIMING = "TORCH_NCCL_ENABLE_TIMING=1  # next time: then Flight Recorders tell whose GPU has not come to the call"
PERHAPS_FOR_OTHERS = FOR_OTHERS | {"lock", "child_wait", "thread_exit", "gil"}
"""Classes of ranks that no frame of another rank's shows to wait for it, and that may: what their threads and children do decides."""
DRIVER = "py-spy dump --pid PID  # of the driver that gives the workers their tasks"
RUN = "mldebug run -- torchrun …  # next time: then ranks tell who is behind"


def unknown(case: Case, agreed: tuple[str, ...] = ()) -> Finding:
    """The finding `unknown`, which names nobody and says why.

    `agreed`: phrases for what all ranks have in common.
    """
    summary, steps = _why_unknown(case, agreed)
    captures = [rank.capture for rank in case.ranks if rank.capture is not None]
    if not case.suspects and not case.moved and (also := second_waits(captures, classify)):
        summary = f"{summary}; {also}"
    evidence = tuple(
        f"{ranks_text([rank.rank])}: {fact}" for rank in case.ranks[:4] for fact in rank.is_.why
    )
    return Finding(
        verdict=Verdict.UNKNOWN,
        culprits=(),
        confidence=Confidence.LOW,
        summary=summary,
        evidence=evidence,
        next_steps=steps,
    )


def not_stuck(case: Case) -> Finding:
    """The finding for a job that moved while it was captured: by its steps (confidence high), else by its changing stacks (medium)."""
    if case.steps is not None:
        first, last = case.steps
        why, confidence = f"step {first:,} → {last:,} while watched", Confidence.HIGH
    else:
        who = (
            f"the stacks of {all_of(len(case.ranks))} ranks" if len(case.ranks) > 1 else "its stack"
        )
        why, confidence = f"{who} changed while watched", Confidence.MEDIUM
    return Finding(
        verdict=Verdict.UNKNOWN,
        culprits=(),
        confidence=confidence,
        summary=f"not stuck: {why}",
        evidence=(sentence(case.ranks),),
        next_steps=(),
    )


def _why_unknown(case: Case, agreed: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    again = "mldebug dump --watch 30s  # again, watching longer"
    if case.moved:
        return (
            f"the job moved while it was watched ({ranks_text(r.rank for r in case.moved)} went on): no stall seen",
            (again,),
        )
    if all_without_task(case.ranks):
        return f"{all_of(len(case.ranks))} ranks have no task: what does their driver wait for?", (
            DRIVER,
        )
    if not case.waiting:
        return nobody_waits(case), (again,)
    if case.suspects:
        return f"{sentence(case.suspects)} while {case.victims()}: the evidence names nobody", (
            "mldebug dump --native",
        )
    if not case.complete and case.queried is not None:
        return not_all_present(case, case.queried)
    if not case.complete and case.recorded:
        return f"all {len(case.ranks)} ranks that were dumped wait ({case.victims()})", ()
    if not case.complete:
        elsewhere = case.job.world_size - len(case.ranks)
        return (
            f"all {len(case.ranks)} ranks seen wait ({case.victims()}); {elsewhere} ranks of the job are not on this node",
            ("mldebug dump  # on the other nodes of the job",),
        )
    if any(not rank.is_.holders for rank in case.named(HELD)):
        return f"{case.everybody()}: who holds the lock the evidence does not tell", (
            "cat /proc/locks  # on each node: who holds the lock, and who waits for it",
        )
    look = "nvidia-smi  # a GPU that fell off the bus, or an Xid in dmesg?"
    if alike := FlightRecorders(case).alike:
        who = f"{all_of(len(alike.members))} members of {alike.view.title}"
        timing = () if alike.timed else (TIMING,)
        return f"{case.everybody()}; {who} have called {alike.what} {_common_call(alike)}", (look, *timing, again)  # fmt: skip
    if case.flight_records:
        return f"{case.everybody()}: who is behind the evidence does not tell", (look, again)
    summary = ", and ".join((", ".join((case.everybody(), *agreed[:-1])), *agreed[-1:]))
    return f"{summary}: without Flight Recorders nobody can be told apart", (look, RUN, again)


def nobody_waits(case: Case) -> str:
    """A sentence that no rank waits for another one; or, where that is not certain, for which ranks it is unclear, or how many were not captured."""
    doing = sentence(case.ranks)
    unclear = [rank.rank for rank in case.ranks if not own_business(rank)]
    if unclear:
        which = "" if len(unclear) == len(case.ranks) else f" of {ranks_text(unclear)}"
        return f"{doing}: whether that is a wait for another rank{which} is not shown"
    if not case.complete:
        count = len(case.elsewhere)
        return f"of the ranks seen none waits for another: {doing}; {count:,} more {'was' if count == 1 else 'were'} not seen"
    return f"no rank waits for another: {doing}"


def own_business(rank: ClassifiedRank) -> bool:
    """Whether the evidence shows that no other rank of the job holds this one up."""
    if rank.is_.role is Role.BUSY:
        return rank.is_.name != "backward" or _counted(rank)
    return rank.is_.role is not Role.UNCLEAR and rank.is_.name not in PERHAPS_FOR_OTHERS


def _counted(rank: ClassifiedRank) -> bool:
    """Do counters say so, and not only that it was no line of Python that ran?"""
    process = rank.capture.process if rank.capture else None
    return process is not None and (process.movement is not None or process.state is not None)


def _common_call(claim: Claim) -> str:
    """How all have called one collective, and where that leads."""
    if claim.view.one_size(claim.sequence):
        return "alike, and it does not end: nobody is behind, look at the GPUs and the network"
    return "and nobody is behind, but their sizes or types differ: are they meant to?"
