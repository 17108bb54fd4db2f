"""Turns the finding that ranks slow a run down into a judgement, the form in which every incident is reported. Pure."""

from mldebug.core.model import (
    Classification,
    ClassifiedRank,
    Confidence,
    Culprit,
    Diagnosis,
    Job,
    Judgement,
    RankIdentity,
    Role,
    Verdict,
)
from mldebug.core.units import percent
from mldebug.diagnosis.classify.rank_states import make_group
from mldebug.goodput import causes
from mldebug.goodput.comparison.rank_differences import LEAST
from mldebug.goodput.sentences import rank_words, slow_mount_words, slow_words
from mldebug.goodput.slow_storage import judge_storage, storage_words
from mldebug.goodput.straggler import Slowness, SlowRank

BESIDE = (
    "the ranks wait for their GPUs, which may be at work: what a host does meanwhile costs nothing"
)
SHOWN = 8  # lines of evidence on single ranks
STEPS = {
    "data": "look at what its DataLoader reads: a slow mount, too few workers, or larger samples than the others have",
    "cpu": "find who takes its CPUs: `top` on {node}; the limits of its cgroup, and its affinity (`taskset -p {pid}`)",
    "sleep": "open {place}: it stands there, off the CPU, while the others are done",
    "work": "open {place}: it works there longer than the others; compare what it is given (batch, sequence lengths)",
    "late": "its GPU is slower than the others' or has more to do: compare clocks, temperature and throttling of the GPUs, and its share of the work (batch, sequence lengths)",
    "same": "compare its node with the others (clocks, temperature, neighbours) and its share of the work (batch, sequence lengths)",
}


def judge_slowdown(job: Job, found: Slowness) -> Judgement:
    """The judgement of a run: verdict `straggler` with the slow ranks as culprits, `storage_fault` where they, or all, wait for a mount
    that has become slow, or `unknown` where nothing is slow (any more), or those ranks that are slow have more work.
    """
    if storage_words(found):
        return judge_storage(job, found)
    slow = {one.rank: one for one in found.ranks}
    waits = {one.rank: one.waiting for one in found.shares}
    ranks = tuple(_classified(rank, slow, waits) for rank in job.ranks)
    groups = [[one for one in ranks if (one.rank in slow) is wanted] for wanted in (True, False)]
    groups = [group for group in groups if group]
    return Judgement(
        diagnosis=_diagnosis(job, found, slow),
        ranks=ranks,
        groups=tuple(make_group((), group) for group in groups),
        group_of={one.rank: number for number, group in enumerate(groups) for one in group},
    )


def _diagnosis(job: Job, found: Slowness, slow: dict[int, SlowRank]) -> Diagnosis:
    sentence = slow_words(found, job.world_size)
    here = {rank.rank: rank for rank in job.ranks}
    uneven = bool(found.ranks) and all(one.cause == causes.UNEVEN for one in found.ranks)
    blamed = [one for one in found.ranks if one.cause != causes.UNEVEN]
    culprits = [_culprit(here.get(one.rank), one) for one in blamed]
    explained = all(_is_explained(one) for one in blamed) and not found.rests_on
    explained = explained and not any(_beside_gpu(found, one) for one in blamed)
    if uneven:
        sentence = f"the work of the ranks is uneven, and none is to blame: {sentence}"
    return Diagnosis(
        verdict=Verdict.STRAGGLER if culprits else Verdict.UNKNOWN,
        culprits=tuple(culprits),
        confidence=Confidence.MEDIUM if culprits and explained else Confidence.LOW,
        summary=sentence[:1].upper() + sentence[1:],
        evidence=tuple(_evidence(found, slow)),
        next_steps=tuple(dict.fromkeys(_step(job, one) for one in found.ranks)),
    )


def _is_explained(one: SlowRank) -> bool:
    """Whether a measurement or a line says why it is slow. Who comes last to collectives may have more to do. A port with errors says
    little of a rank that takes longer for everything: ranks wait in a collective alike for a slow link, and its work may be larger.
    """
    return one.excess.kind not in ("same", "late") or one.cause not in ("", causes.LINK)


def _classified(
    rank: RankIdentity, slow: dict[int, SlowRank], waits: dict[int, float]
) -> ClassifiedRank:
    if rank.rank in slow:
        found = Classification(name="slow", role=Role.BUSY, doing=rank_words(slow[rank.rank]))
    elif rank.rank in waits:
        doing = f"waits for others {percent(waits[rank.rank])} of the time"
        found = Classification(name="waits_for_slow", role=Role.WAITING, doing=doing)
    else:
        found = Classification(name="unknown", role=Role.UNCLEAR, doing="could not be sampled")
    return ClassifiedRank(rank=rank.rank, node=rank.node, pid=rank.pid, is_=found)


def _culprit(rank: RankIdentity | None, slow: SlowRank) -> Culprit:
    """`rank`: None where it stands on another node."""
    node, pid = (rank.node, rank.pid) if rank is not None else (slow.node, None)
    return Culprit(kind="rank", rank=slow.rank, node=node, pid=pid, reason=rank_words(slow))


def _evidence(found: Slowness, slow: dict[int, SlowRank]) -> list[str]:
    samples = sum(one.samples for one in found.shares)
    by = (
        "all hosts wait for their GPUs" if found.slower else "each time the same ranks waited least"
    )
    first = f"{samples} stack samples in {found.stretches} stretches: {by}"
    if found.recorded:
        first = f"durations of collectives in the ranks' Flight Recorders, {found.stretches} times: each time the same ranks waited least on their GPUs"
    rows = sorted(found.shares, key=lambda one: (one.rank not in slow, one.rank))[:SHOWN]
    lines = [f"rank {one.rank} waits {percent(one.waiting)} of the time" for one in rows]
    alone = f"without the shares that {found.rests_on} has sent nobody would stand apart"
    mount = slow_mount_words(found.shares)
    beside = any(_beside_gpu(found, one) for one in found.ranks)
    what = "its memory there grew" if any(one.cause == causes.UNEVEN for one in found.ranks) else "that program began to compute"  # fmt: skip
    began = [f"its steps have taken {found.slower:.2g} times as long as before since {what}: which GPU is slow is not measured"] if found.slower else []  # fmt: skip
    return [
        first,
        *began,
        *([mount] if mount else ()),
        *lines,
        *([alone] if found.rests_on else ()),
        *([BESIDE] if beside else ()),
    ]


def _beside_gpu(found: Slowness, slow: SlowRank) -> bool:
    """Whether a slow rank waits for its GPU in the end, as most others do nearly all of their waiting: the GPU may have worked
    while its host did something more, and nobody has waited for that.
    """
    shares = {one.rank: one for one in found.shares}
    named = {one.rank for one in found.ranks}
    others = [one for rank, one in shares.items() if rank not in named]
    if found.recorded or slow.cause in causes.OF_GPU or slow.rank not in shares or not others:
        return False
    on_gpu = sum(one.on_gpu for one in others) > 0.5 * sum(one.waiting for one in others)
    return on_gpu and shares[slow.rank].on_gpu >= LEAST


def _step(job: Job, slow: SlowRank) -> str:
    rank = next((one for one in job.ranks if one.rank == slow.rank), None)
    node, pid = (rank.node, rank.pid) if rank is not None else (slow.node, "PID")
    text = causes.STEPS.get(slow.cause) or STEPS[slow.excess.kind]
    return text.format(node=node or "its node", pid=pid, place=slow.excess.place)
