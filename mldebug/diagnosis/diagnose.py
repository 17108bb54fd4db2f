"""From captures to a conclusion: classify every rank, run all detectors, take the most specific finding.

Pure: the same captures give the same words on the node, at the coordinator, and months later
(`mldebug diagnose`).
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from mldebug.capture.flight_recorder.votes import everybody, settled
from mldebug.capture.stacks.form import IN_ORDER
from mldebug.capture.stacks.merge import merge
from mldebug.core.model import (
    Confidence,
    Diagnosis,
    Fault,
    Finding,
    FlightRecord,
    Job,
    Judgement,
    NodeCapture,
    ProcessCapture,
    QueriedNodes,
    Verdict,
)
from mldebug.core.plugins import create_all
from mldebug.core.ranksets import MAX_RANK, all_of, fold_ranks, shorten_ranks
from mldebug.diagnosis.classify.case import Case, ranks_text
from mldebug.diagnosis.classify.combined import join
from mldebug.diagnosis.classify.flight_recorder import FlightRecorders
from mldebug.diagnosis.classify.gpus.held_stream import all_spin, held
from mldebug.diagnosis.classify.gpus.odd_gpu import odd_gpu
from mldebug.diagnosis.classify.nccl_ras import (
    OUT_OF_STEP,
    RasStatement,
    ras_alike,
    ras_apart,
    ras_evidence,
    ras_statements,
)
from mldebug.diagnosis.classify.nodes import missing_ranks, next_steps, node_evidence
from mldebug.diagnosis.classify.rank_states import classified, grouped, position
from mldebug.diagnosis.classify.unknown import not_stuck, unknown
from mldebug.diagnosis.node_wait import judge_node_wait
from mldebug.diagnosis.raised import with_exceptions

BESIDE_WORK = (Verdict.GPU_FAULT, Verdict.OUT_OF_MEMORY)
_SURENESS = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)
LOWER = {Confidence.HIGH: Confidence.MEDIUM, Confidence.MEDIUM: Confidence.LOW}


def diagnose(captures: Iterable[NodeCapture], queried: QueriedNodes | None = None) -> Judgement:
    """Conclude from the captures of one job, one per node.

    Nobody is named without evidence. At least one capture is needed.

    `queried`: the nodes that were asked for captures; None where a node judges only its own.
    """
    captures = tuple(captures)
    if (waiting := judge_node_wait(captures)) is not None:
        return waiting
    job = merge_jobs([capture.job for capture in captures])
    ranks = classified(captures)
    ranks += missing_ranks(captures, (rank.rank for rank in ranks), job.world_size, queried)
    ranks.sort(key=lambda rank: rank.rank)
    records = _flight_records(captures)
    foreign = _of_other_jobs(records, job.world_size)
    case = Case(
        job,
        tuple(ranks),
        max(capture.quiet_seconds for capture in captures),
        faults=tuple(_faults(captures)),
        taken_at=max(capture.taken_at for capture in captures),
        usual_gap=max(capture.usual_gap_seconds for capture in captures),
        steps=_steps(captures),
        flight_records={rank: one for rank, one in records.items() if rank not in foreign},
        queried=queried,
    )
    frames = {rank.rank: position(rank)[0] for rank in case.ranks}
    groups, group_of = grouped(case, frames)
    devices = tuple(capture.devices for capture in captures if capture.devices)
    checkpoints = tuple(
        dict.fromkeys(capture.checkpoints for capture in captures if capture.checkpoints)
    )[:1]
    goes_on = bool(case.moved) or case.works
    ras = () if goes_on else ras_evidence(captures)
    statements = () if goes_on else ras_statements(captures)
    apart = "" if goes_on else ras_apart(captures)
    nodes = node_evidence(case, captures)
    findings = _findings(case) or _apart(case, apart) or _by_gpus(case, captures)
    findings = findings or [unknown(case, _agreed(case, captures))]
    diagnosis = conclude(
        case,
        findings,
        (*_foreign_records(foreign), *nodes, *ras, *devices, *checkpoints),
        statements,
    )
    diagnosis = with_missing_dumps(case, captures, diagnosis)
    return Judgement(
        diagnosis=diagnosis,
        stalled=_stalled(case, diagnosis),
        ranks=case.ranks,
        groups=groups,
        group_of=group_of,
        tree=merge((rank.rank, frames[rank.rank]) for rank in case.ranks),
        taken_at=case.taken_at,
    )


def _flight_records(captures: tuple[NodeCapture, ...]) -> dict[int, FlightRecord]:
    """The Flight Recorders by rank; none at all where one of them shows that the job goes on."""
    found = {
        rank.identity.rank: (rank.flight, capture.taken_at)
        for capture in captures
        for rank in capture.ranks
        if rank.flight is not None
    }
    return {rank: one for rank, (one, _) in found.items()} if settled(found.values()) else {}


def _of_other_jobs(records: Mapping[int, FlightRecord], world: int) -> dict[int, str]:
    """The ranks whose Flight Recorder is of a job with other ranks, each with the ranks of that job."""
    ours = fold_ranks(range(min(world, MAX_RANK + 1))) if records else ""
    ranks = ((rank, everybody(one)) for rank, one in records.items())
    return {rank: theirs for rank, theirs in ranks if theirs not in ("", ours)}


def _foreign_records(found: Mapping[int, str]) -> tuple[str, ...]:
    if not found:
        return ()
    theirs = shorten_ranks(found[min(found)])
    return (f"Flight Recorder of {ranks_text(found)}: not believed, it is of a job of other ranks ({theirs})",)  # fmt: skip


def _faults(captures: tuple[NodeCapture, ...]) -> Iterator[Fault]:
    """Those of all nodes, each as old as it was by its own node's clock: the clocks of two nodes are never compared."""
    newest = max(capture.taken_at for capture in captures)
    for capture in captures:
        behind = newest - capture.taken_at
        for fault in capture.faults:
            yield msgspec.structs.replace(fault, at=fault.at + behind) if behind else fault


def merge_jobs(jobs: list[Job]) -> Job:
    """Merge what several nodes (at least one) know of one job: all their nodes, ranks and lost ranks, and the earliest start."""
    first = jobs[0]
    return msgspec.structs.replace(
        first,
        nodes=tuple(dict.fromkeys(node for job in jobs for node in job.nodes)),
        ranks=tuple(sorted((r for job in jobs for r in job.ranks), key=lambda r: r.rank)),
        lost=tuple(lost for job in jobs for lost in job.lost),
        started_at=min(job.started_at for job in jobs),
    )


# --- conclusion ------------------------------------------------------------------------------------


def _findings(case: Case) -> list[Finding]:
    """What the detectors find; of a job that goes on only faults that it may live with for a while."""
    found = [
        finding
        for detector in create_all("detectors")
        if (finding := detector.judge(case)) is not None
    ]
    found = [one for one in found if one.verdict is not Verdict.NETWORK_FAULT or not _explained(one, found)]  # fmt: skip
    if not case.works:
        return found
    return [one for one in found if one.verdict in BESIDE_WORK] or [not_stuck(case)]


def _explained(port: Finding, found: Iterable[Finding]) -> bool:
    """Whether something else explains a stall better than a network port that failed then, which may be one that the job does not use.

    A port that fails does not send ranks into different collectives, so ranks that are as surely out
    of step go before it; and a node that is surely down before a port of another one.
    """
    sure = _SURENESS.index(port.confidence)
    return any(
        (one.verdict is Verdict.COLLECTIVE_MISMATCH and one.culprits and _SURENESS.index(one.confidence) >= sure)
        or (one.verdict is Verdict.NODE_UNREACHABLE and _SURENESS.index(one.confidence) > sure)
        for one in found
    )  # fmt: skip


def _steps(captures: Iterable[NodeCapture]) -> tuple[int, int] | None:
    """The furthest step at the begin and at the end of the look, of all nodes that know it."""
    known = [one.steps for one in captures if one.steps is not None]
    if not known:
        return None
    return max(first for first, _ in known), max(last for _, last in known)


def conclude(
    case: Case,
    findings: list[Finding],
    beside: tuple[str, ...] = (),
    statements: tuple[RasStatement, ...] = (),
) -> Diagnosis:
    """Make the diagnosis from the findings: the most specific verdict wins; without a finding `unknown`, with the reason why nobody is named.

    `beside`: further evidence from NCCL and the GPUs, in sentences. `statements`: which ranks NCCL RAS names.
    """
    best = min(findings, key=_precedence, default=None) or unknown(case)
    best = join(case, _within_sight(case, best), statements)
    best = with_exceptions(case, best)
    return Diagnosis(
        verdict=best.verdict,
        culprits=best.culprits,
        confidence=best.confidence,
        summary=best.summary[:1].upper() + best.summary[1:],
        evidence=(*best.evidence, *FlightRecorders(case).evidence(), *beside),
        next_steps=next_steps(case, best),
        works=case.works and best.verdict is Verdict.UNKNOWN,
    )


def _within_sight(case: Case, finding: Finding) -> Finding:
    """The finding, at most `medium` where ranks were not captured: what the others do may follow from them."""
    if not case.unseen or finding.confidence is not Confidence.HIGH:
        return finding
    return msgspec.structs.replace(finding, confidence=Confidence.MEDIUM)


def _apart(case: Case, words: str) -> list[Finding]:
    """A finding where all ranks wait in collectives that do not match, by NCCL RAS, which does not show who is at fault."""
    if not words or case.suspects or not case.complete or FlightRecorders(case).alike:
        return []
    summary = f"{case.everybody()}, and what they have launched does not fit together: {words.removeprefix(OUT_OF_STEP)}"
    nobody = unknown(case)
    return [msgspec.structs.replace(nobody, verdict=Verdict.COLLECTIVE_MISMATCH, summary=summary)]


def _agreed(case: Case, captures: tuple[NodeCapture, ...]) -> tuple[str, ...]:
    """What all ranks have in common beside their stacks, in phrases."""
    alike = "have launched the same number of collectives (NCCL RAS)" if ras_alike(captures) else ""
    spin = f"{all_of(len(case.ranks))} GPUs spin" if all_spin(case, captures) else ""
    return tuple(filter(None, (alike, spin)))


def _by_gpus(case: Case, captures: tuple[NodeCapture, ...]) -> list[Finding]:
    """Where all have called the same: the rank whose GPU runs nothing, or does what the others do not."""
    found = held(case, captures) or odd_gpu(case, captures)
    return [] if found is None else [found]


def _precedence(finding: Finding) -> tuple[bool, int]:
    """That a node does not answer may have any reason: whatever else explains the stall explains it better."""
    return finding.verdict is Verdict.NODE_UNREACHABLE, list(Verdict).index(finding.verdict)


def _stalled(case: Case, diagnosis: Diagnosis) -> bool:
    return diagnosis.verdict is not Verdict.UNKNOWN or case.stuck


GUESSED = "the numbers of ranks are a guess, as the dumps do not tell them"


def with_missing_dumps(
    case: Case, captures: Iterable[NodeCapture], diagnosis: Diagnosis
) -> Diagnosis:
    """The diagnosis, changed where the stacks were dumped by other tools: ranks without a dump are mentioned first.

    They, or guessed rank numbers, lower the confidence.
    """
    if not case.recorded:
        return diagnosis
    guess = any(mark.kind == IN_ORDER for one in captures for mark in one.remarks)
    first = no_dump(case, guess)
    confidence = diagnosis.confidence
    if first:
        confidence = LOWER.get(confidence, confidence)
    summary = diagnosis.summary
    if guess and diagnosis.culprits:
        confidence, summary = Confidence.LOW, f"{summary}; {GUESSED}"
    if not first:
        return msgspec.structs.replace(diagnosis, confidence=confidence, summary=summary)
    summary = summary[:1].lower() + summary[1:]
    step = "py-spy dump --nonblocking --pid PID > rankN.txt  # of whom there is no dump; then `mldebug diagnose` again"
    return msgspec.structs.replace(
        diagnosis, confidence=confidence, summary=f"{first}; {summary}", next_steps=(step, *diagnosis.next_steps),
    )  # fmt: skip


def no_dump(case: Case, guess: bool) -> str:
    """Which ranks have no dump: `Rank 2 has no dump: look at it first`; "" where all ranks have one. `guess`: the rank
    numbers are guessed from the order of the dumps.
    """
    unread = [r.rank for r in case.ranks if r.capture and not _has_stack(r.capture.process)]
    missing = sorted({*case.elsewhere, *unread})
    if not missing:
        return ""
    one = len(missing) == 1
    if guess:
        who = f"{len(missing):,} of the {case.job.world_size:,} ranks {'has' if one else 'have'} no dump"
        return f"{who}: look for {'it' if one else 'them'} first"
    who = f"rank{'' if one else 's'} {shorten_ranks(fold_ranks(missing), 60)} {'has' if one else 'have'} no dump"
    can = " that could be read" if len(unread) == len(missing) else ""
    return f"{who[:1].upper()}{who[1:]}{can}: look at {'it' if one else 'them'} first"


def _has_stack(process: ProcessCapture) -> bool:
    kernel = process.state.main if process.state else None
    by_kernel = kernel is not None and (
        bool(kernel.kernel_stack) or kernel.state in ("T", "t", "D", "Z")
    )
    return bool(process.stacks or process.native or by_kernel)
