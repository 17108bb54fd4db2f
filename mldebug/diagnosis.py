"""From captures to a conclusion: classify every rank, ask all detectors, let the most specific verdict win.

Pure: the same captures give the same words, on the node, at the coordinator and months later (`mldebug diagnose`).
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from mldebug.flight.claims import Claim
from mldebug.flight.votes import everybody, settled
from mldebug.folding import MAX_RANK, all_of, fold_ranks, shorten_ranks
from mldebug.judging.case import Case, ranks_text, sentence
from mldebug.judging.classification import classify
from mldebug.judging.flights import Flights
from mldebug.judging.held import all_spin, held
from mldebug.judging.join import join
from mldebug.judging.nodes import missing_ranks, node_evidence, not_all_seen, where_to_type
from mldebug.judging.ras import OUT_OF_STEP, Voice, ras_alike, ras_apart, ras_evidence, ras_voices
from mldebug.model import (
    Asked,
    Classification,
    ClassifiedRank,
    Confidence,
    Diagnosis,
    Fault,
    Finding,
    FlightRecord,
    Group,
    Job,
    Judgement,
    LostRank,
    NodeCapture,
    RankCapture,
    Role,
    Verdict,
)
from mldebug.rooms import create_all
from mldebug.stacks import labels, merge, principal, python_frames

MIN_INFERRED = 3
"""Fewest ranks at one line whose common, unexplained stand counts as a wait in native code."""

TIMING = "TORCH_NCCL_ENABLE_TIMING=1  # next time: then Flight Recorders tell whose GPU has not come to the call"
RUN = "mldebug run -- torchrun …  # next time: then ranks tell who is behind"

StandKey = tuple[tuple[str, ...], str, str]


def diagnose(captures: Iterable[NodeCapture], asked: Asked | None = None) -> Judgement:
    """Conclude from the captures of one job, one per node; raises nothing and names nobody without evidence.

    `asked`: all nodes that were asked for it, where that were more than the one that asks.
    """
    captures = tuple(captures)
    job = merge_jobs([capture.job for capture in captures])
    ranks = _infer_native_waits(_share_native([*_classified(captures), *_lost(captures)]))
    ranks += missing_ranks(captures, (rank.rank for rank in ranks), job.world_size, asked)
    ranks.sort(key=lambda rank: rank.rank)
    told = _flights(captures)
    strange = _of_other_jobs(told, job.world_size)
    case = Case(
        job,
        tuple(ranks),
        max(capture.quiet_seconds for capture in captures),
        faults=tuple(_faults(captures)),
        taken_at=max(capture.taken_at for capture in captures),
        usual_gap=max(capture.usual_gap_seconds for capture in captures),
        flights={rank: one for rank, one in told.items() if rank not in strange},
        asked=asked,
    )
    frames = {rank.rank: _stand(rank)[0] for rank in case.ranks}
    groups, group_of = _groups(case, frames)
    devices = tuple(capture.devices for capture in captures if capture.devices)
    ras = () if case.moved else ras_evidence(captures)
    voices = () if case.moved else ras_voices(captures)
    apart = "" if case.moved else ras_apart(captures)
    nodes = node_evidence(case, captures)
    findings = _findings(case) or _apart(case, apart) or _held(case, captures)
    findings = findings or [_unknown(case, _agreed(case, captures))]
    diagnosis = conclude(case, findings, (*_strange(strange), *nodes, *ras, *devices), voices)
    return Judgement(
        diagnosis=diagnosis,
        stalled=_stalled(case, diagnosis),
        ranks=case.ranks,
        groups=groups,
        group_of=group_of,
        tree=merge((rank.rank, frames[rank.rank]) for rank in case.ranks),
        taken_at=case.taken_at,
    )


def _flights(captures: tuple[NodeCapture, ...]) -> dict[int, FlightRecord]:
    """By rank; none at all where one of them shows that the job goes on."""
    found = {
        rank.identity.rank: (rank.flight, capture.taken_at)
        for capture in captures
        for rank in capture.ranks
        if rank.flight is not None
    }
    return {rank: one for rank, (one, _) in found.items()} if settled(found.values()) else {}


def _of_other_jobs(told: Mapping[int, FlightRecord], world: int) -> dict[int, str]:
    """By rank, whose records are of a job with other ranks than ours, the ranks of that. Who tells of none is believed."""
    ours = fold_ranks(range(min(world, MAX_RANK + 1))) if told else ""
    ranks = ((rank, everybody(one)) for rank, one in told.items())
    return {rank: theirs for rank, theirs in ranks if theirs not in ("", ours)}


def _strange(found: Mapping[int, str]) -> tuple[str, ...]:
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
    """Join what several nodes know of one job."""
    first = jobs[0]
    return msgspec.structs.replace(
        first,
        nodes=tuple(dict.fromkeys(node for job in jobs for node in job.nodes)),
        ranks=tuple(sorted((r for job in jobs for r in job.ranks), key=lambda r: r.rank)),
        lost=tuple(lost for job in jobs for lost in job.lost),
        started_at=min(job.started_at for job in jobs),
    )


# --- classes ---------------------------------------------------------------------------------------


def _classified(captures: tuple[NodeCapture, ...]) -> list[ClassifiedRank]:
    return [
        ClassifiedRank(
            rank=rank.identity.rank,
            node=capture.node,
            pid=rank.identity.pid,
            is_=classify(rank),
            capture=rank,
        )
        for capture in captures
        for rank in capture.ranks
    ]


def _lost(captures: tuple[NodeCapture, ...]) -> list[ClassifiedRank]:
    return [
        ClassifiedRank(rank=lost.rank, node=capture.node, pid=lost.pid, is_=_lost_class(lost))
        for capture in captures
        for lost in capture.job.lost
    ]


def _lost_class(lost: LostRank) -> Classification:
    lived = lost.pid is not None or lost.leftovers
    why = [lost.reason]
    if lost.leftovers:
        why.append(
            f"its children {', '.join(map(str, lost.leftovers[:5]))} still live and hold its connections"
        )
    return Classification(
        name="exited" if lived else "missing",
        role=Role.EXITED if lived else Role.MISSING,
        doing=f"has exited ({lost.reason})" if lived else "has no process on this node",
        direct=True,
        why=tuple(why),
    )


def _stand(rank: ClassifiedRank) -> StandKey:
    """Where a rank stands: its Python stack, and how the kernel sees its main thread."""
    if rank.capture is None:
        return (), "", ""
    process = rank.capture.process
    stack = principal(process.stacks, process.pid) or principal(process.native, process.pid)
    frames = labels(python_frames(stack.frames)) if stack else ()
    main = process.state.main if process.state else None
    return frames, main.state if main else "", main.wchan if main else ""


def _share_native(ranks: list[ClassifiedRank]) -> list[ClassifiedRank]:
    """What a native stack proved for one rank holds for those with the same stand that had none taken."""
    proved = {
        _stand(rank): rank
        for rank in ranks
        if rank.capture and rank.capture.process.native and rank.is_.direct
    }
    return [_adopt(rank, proved.get(_stand(rank))) for rank in ranks] if proved else ranks


def _adopt(rank: ClassifiedRank, model: ClassifiedRank | None) -> ClassifiedRank:
    if (
        model is None
        or model.rank == rank.rank
        or rank.capture is None
        or rank.is_.direct
        or rank.capture.process.native
    ):
        return rank
    why = (
        f"same stack and wait channel as rank {model.rank}, whose native stack was read",
        *rank.is_.why,
    )
    return msgspec.structs.replace(rank, is_=msgspec.structs.replace(model.is_, why=why))


def _infer_native_waits(ranks: list[ClassifiedRank]) -> list[ClassifiedRank]:
    """Many ranks on one line, in native code without the GIL, while all others wait: they wait there too.

    The published BLOOM hang is such a case: six ranks at `train (megatron/training.py:915)` without any frame that
    says why, two in `broadcast`. It is never `direct`, so the verdict stays at medium.
    """
    unclear = [rank for rank in ranks if rank.is_.name == "native_code"]
    stands = {_stand(rank) for rank in unclear}
    others = [rank for rank in ranks if rank.is_.name != "native_code"]
    if len(unclear) < max(MIN_INFERRED, len(ranks) // 2 + 1) or len(stands) != 1:
        return ranks
    if not others or any(rank.is_.role is not Role.WAITING for rank in others):
        return ranks
    if any(rank.capture and _seen_alive(rank.capture) for rank in unclear):
        return ranks
    return [_as_wait(rank) if rank.is_.name == "native_code" else rank for rank in ranks]


def _seen_alive(capture: RankCapture) -> bool:
    """A native stack that shows no wait is an answer; a process that could be asked for one, and was not, may compute."""
    return bool(capture.process.native) or capture.process.state is not None


def _as_wait(rank: ClassifiedRank) -> ClassifiedRank:
    why = (
        *rank.is_.why,
        "on the same line as most ranks, outside Python, without the GIL: taken as a wait",
    )
    doing = f"waits in native code in {rank.is_.site}"
    waits = Classification(
        name="native_wait", role=Role.WAITING, doing=doing, site=rank.is_.site, why=why
    )
    return msgspec.structs.replace(rank, is_=waits)


def still_waiting(capture: NodeCapture) -> tuple[int, ...] | None:
    """The ranks that wait; None where any rank moved between the looks, or was looked at only once."""
    moves = [rank.process.movement for rank in capture.ranks]
    ranks = tuple(_infer_native_waits(_share_native(_classified((capture,)))))
    case = Case(capture.job, ranks, capture.quiet_seconds)
    if case.moved or not all(move is not None and move.same_frames for move in moves):
        return None
    return tuple(rank.rank for rank in case.waiting)


def wants_native(capture: NodeCapture) -> tuple[int, ...]:
    """Ranks whose native stack would decide something: one representative of each group that Python leaves unclear.

    Only ranks all of whose threads can be interrupted may be asked; that is for the caller to check.
    """
    asked: dict[StandKey, int] = {}
    for rank in _classified((capture,)):
        if needs_native(rank.is_):
            asked.setdefault(_stand(rank), rank.rank)
    return tuple(sorted(asked.values()))


def needs_native(found: Classification) -> bool:
    """True where Python frames and counters leave open whether a rank waits or works."""
    return not found.direct and found.name in (
        "native_code",
        "backward",
        "backward_wait",
        "futex",
        "lock",
        "idle",
        "device_sync",
        "busy",
    )


# --- conclusion ------------------------------------------------------------------------------------


def _findings(case: Case) -> list[Finding]:
    return [
        finding
        for detector in create_all("detectors")
        if (finding := detector.judge(case)) is not None
    ]


def conclude(
    case: Case,
    findings: list[Finding],
    beside: tuple[str, ...] = (),
    voices: tuple[Voice, ...] = (),
) -> Diagnosis:
    """The most specific verdict wins; no finding is `unknown`, with the reason why nobody is named.

    `beside`: what NCCL and the GPUs say, in sentences; evidence beside the rest. `voices`: whom NCCL RAS names.
    """
    best = min(findings, key=_precedence, default=None) or _unknown(case)
    best = join(case, best, voices)
    return Diagnosis(
        verdict=best.verdict,
        culprits=best.culprits,
        confidence=best.confidence,
        summary=best.summary[:1].upper() + best.summary[1:],
        evidence=(*best.evidence, *Flights(case).evidence(), *beside),
        next_steps=(*where_to_type(case, best), *best.next_steps),
    )


def _apart(case: Case, words: str) -> list[Finding]:
    """All wait, and NCCL tells that they have launched what never meets. Who took the wrong way it does not tell."""
    if not words or case.suspects or not case.complete or Flights(case).alike:
        return []
    summary = f"{case.everybody()}, and what they have launched does not fit together: {words.removeprefix(OUT_OF_STEP)}"
    unknown = _unknown(case)
    return [msgspec.structs.replace(unknown, verdict=Verdict.COLLECTIVE_MISMATCH, summary=summary)]


def _agreed(case: Case, captures: tuple[NodeCapture, ...]) -> tuple[str, ...]:
    """In what all ranks are alike, beside their stacks."""
    alike = "have launched the same number of collectives (NCCL RAS)" if ras_alike(captures) else ""
    spin = f"{all_of(len(case.ranks))} GPUs spin" if all_spin(case, captures) else ""
    return tuple(filter(None, (alike, spin)))


def _held(case: Case, captures: tuple[NodeCapture, ...]) -> list[Finding]:
    found = held(case, captures)
    return [] if found is None else [found]


def _precedence(finding: Finding) -> tuple[bool, int]:
    """That a node does not answer may have any reason: whatever else explains the stall explains it better."""
    return finding.verdict is Verdict.NODE_UNREACHABLE, list(Verdict).index(finding.verdict)


def _unknown(case: Case, agreed: tuple[str, ...] = ()) -> Finding:
    """`agreed`: in what else all ranks are alike."""
    summary, steps = _why_unknown(case, agreed)
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


def _why_unknown(case: Case, agreed: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    again = "mldebug dump --watch 30s  # again, watching longer"
    if case.moved:
        return (
            f"the job moved while it was watched ({ranks_text(r.rank for r in case.moved)} went on): no stall seen",
            (again,),
        )
    if not case.waiting:
        return f"no rank waits for another: {sentence(case.ranks)}", (again,)
    if case.suspects:
        return f"{sentence(case.suspects)} while {case.victims()}: the evidence names nobody", (
            "mldebug dump --native",
        )
    if not case.complete and case.asked is not None:
        return not_all_seen(case, case.asked)
    if not case.complete:
        elsewhere = case.job.world_size - len(case.ranks)
        return (
            f"all {len(case.ranks)} ranks seen wait ({case.victims()}); {elsewhere} ranks of the job are not on this node",
            ("mldebug dump  # on the other nodes of the job",),
        )
    look = "nvidia-smi  # a GPU that fell off the bus, or an Xid in dmesg?"
    if alike := Flights(case).alike:
        who = f"{all_of(len(alike.members))} members of {alike.view.title}"
        timing = () if alike.timed else (TIMING,)
        return f"{case.everybody()}; {who} have called {alike.what} {_likeness(alike)}", (look, *timing, again)  # fmt: skip
    if case.flights:
        return f"{case.everybody()}: who is behind the evidence does not tell", (look, again)
    said = ", and ".join((", ".join((case.everybody(), *agreed[:-1])), *agreed[-1:]))
    return f"{said}: without Flight Recorders nobody can be told apart", (look, RUN, again)


def _likeness(claim: Claim) -> str:
    """How all have called one collective, and where that leads."""
    if claim.view.one_size(claim.sequence):
        return "alike, and it does not end: nobody is behind, look at the GPUs and the network"
    return "and nobody is behind, but their sizes or types differ: are they meant to?"


def _stalled(case: Case, diagnosis: Diagnosis) -> bool:
    return diagnosis.verdict is not Verdict.UNKNOWN or case.stuck


# --- groups ----------------------------------------------------------------------------------------


def _groups(
    case: Case, frames: Mapping[int, tuple[str, ...]]
) -> tuple[tuple[Group, ...], dict[int, int]]:
    """Ranks with one class and one stack, those that do not wait first, then the smaller group first."""
    members: dict[tuple[str, Role, tuple[str, ...]], list[ClassifiedRank]] = {}
    for rank in case.ranks:
        members.setdefault((rank.is_.name, rank.is_.role, frames[rank.rank]), []).append(rank)
    ordered = sorted(
        members.items(),
        key=lambda item: (item[0][1] is Role.WAITING, len(item[1]), item[1][0].rank),
    )
    groups = tuple(make_group(key[2], ranks) for key, ranks in ordered)
    return groups, {rank.rank: index for index, (_, ranks) in enumerate(ordered) for rank in ranks}


def make_group(frames: tuple[str, ...], ranks: list[ClassifiedRank]) -> Group:
    """Ranks of one class; what the first of them does stands for all."""
    first = ranks[0]
    return Group(
        ranks=fold_ranks(rank.rank for rank in ranks),
        count=len(ranks),
        role=first.is_.role,
        class_=first.is_.name,
        doing=first.is_.doing,
        frames=frames,
    )


def representative_captures(judgement: Judgement) -> tuple[RankCapture, ...]:
    """The first captured rank of each group."""
    first: dict[int, RankCapture] = {}
    for rank in judgement.ranks:
        if rank.capture is not None:
            first.setdefault(judgement.group_of.get(rank.rank, -1), rank.capture)
    return tuple(first.values())
