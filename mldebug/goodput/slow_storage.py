"""A run that has become slower because a mount has, and not because of one of its ranks: the incident names the mount. Pure.

A mount that all ranks read may hold up one of them more than the others, which then wait for that one. Its name would be chance: which
rank reads last differs from run to run. So a slow rank that waits for data of a mount that has become slow is told with the mount.
"""

from collections.abc import Mapping
from typing import NamedTuple

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
from mldebug.core.ranksets import fold_ranks
from mldebug.core.text import plural
from mldebug.core.units import percent
from mldebug.diagnosis.classify.rank_states import make_group
from mldebug.goodput.causes import MOUNT
from mldebug.goodput.evidence import RankShares
from mldebug.goodput.sentences import held_by_mount, slow_mount_words
from mldebug.goodput.straggler import Slowness

SHOWN = 8  # lines of evidence on single ranks


def storage_words(found: Slowness) -> str:
    """Which mount slows the run down: `reads of /data (nfs01:/data) take 48 ms instead of 3 ms since 14:02 UTC; 7 of 8 ranks wait for
    data: a step takes 1.8 times as long as it used to`; or, where ranks stand apart, `1 of 8 ranks waits for data: the others wait for
    rank 3 40 % of the time`. "" where no mount is slow, a rank is slow for another reason, or steps take no longer than before.
    """
    mount = slow_mount_words(found.shares)
    if not mount or not (_is_held(found) if found.ranks else found.slower):
        return ""
    if found.slower:
        return f"{mount}: a step takes {found.slower:.2g} times as long as it used to"
    ranks = [one.rank for one in found.ranks]
    who = f"rank{'s' if len(ranks) > 1 else ''} {fold_ranks(ranks)}"
    return f"{mount}: the others wait for {who} {percent(found.loss)} of the time"


def _is_held(found: Slowness) -> bool:
    """Whether each slow rank is slow because it waits for files of the mount that has become slow."""
    held = {one.rank for one in held_by_mount(found.shares)}
    return all(
        one.rank in held and (one.excess.kind == "data" or one.cause == MOUNT)
        for one in found.ranks
    )


def judge_storage(job: Job, found: Slowness) -> Judgement:
    """The judgement of a run that a mount slows down: verdict `storage_fault`, with the mount as the culprit."""
    held = {one.rank: one for one in held_by_mount(found.shares)}
    waits = {one.rank: one.waiting for one in found.shares}
    ranks = tuple(_classified(rank, held, waits) for rank in job.ranks)
    groups = [[one for one in ranks if (one.rank in held) is wanted] for wanted in (True, False)]
    groups = [group for group in groups if group]
    return Judgement(
        diagnosis=_diagnosis(job, found),
        ranks=ranks,
        groups=tuple(make_group((), group) for group in groups),
        group_of={one.rank: number for number, group in enumerate(groups) for one in group},
    )


def _diagnosis(job: Job, found: Slowness) -> Diagnosis:
    slow = {one.rank for one in found.ranks}
    held = sorted(held_by_mount(found.shares), key=lambda one: (one.rank not in slow, one.rank))
    point, kind = _mount_of(held[0])
    here = next((one for one in job.ranks if one.rank == held[0].rank), None)
    words = storage_words(found)
    culprit = Culprit(
        kind="mount",
        rank=held[0].rank,
        node=held[0].node or (here.node if here else ""),
        pid=here.pid if here else None,
        reason=held[0].evidence.mount_slow,
    )
    counted = sum(one.samples for one in found.shares)
    looks = [f"{counted} stack samples in {plural(found.stretches, 'period')}, and looks at what each rank and its workers wait for in the kernel"]  # fmt: skip
    return Diagnosis(
        verdict=Verdict.STORAGE_FAULT,
        culprits=(culprit,),
        confidence=Confidence.LOW if found.rests_on else Confidence.MEDIUM,
        summary=words[:1].upper() + words[1:],
        evidence=(*looks, *(_line(one) for one in held[:SHOWN])),
        next_steps=_steps(point, kind),
    )


def _line(one: RankShares) -> str:
    """`rank 3 waits for its DataLoader 62 % of the time, and it or a worker for files on /data (nfs4) 58 %`."""
    where = f"for files on {one.evidence.mount} {percent(one.evidence.file_waiting)}"
    if not one.loading:
        return f"rank {one.rank} waits {where} of the time"
    return f"rank {one.rank} waits for its DataLoader {percent(one.loading)} of the time, and it or a worker {where}"  # fmt: skip


class _MountNamed(NamedTuple):
    """A mount point, and the type of its filesystem."""

    point: str
    kind: str


def _mount_of(one: RankShares) -> _MountNamed:
    point, _, kind = one.evidence.mount.rpartition(" (")
    return _MountNamed(point, kind.rstrip(")"))


def _steps(point: str, kind: str) -> tuple[str, ...]:
    look = "mldebug status --storage  # how long operations take there, on this node"
    ask = f"ask whether other nodes find {point} slow, too: then it is its server, else this node's way to it"
    if kind.startswith("nfs"):
        return look, f"nfsiostat 5 3 {point}", ask
    return look, ask


def _classified(
    rank: RankIdentity, held: Mapping[int, RankShares], waits: Mapping[int, float]
) -> ClassifiedRank:
    if one := held.get(rank.rank):
        doing = f"waits for {'data' if one.loading else 'files'} on {one.evidence.mount}"
        found = Classification(name="dataloader", role=Role.BUSY, doing=doing)
    elif rank.rank in waits:
        doing = f"waits for others {percent(waits[rank.rank])} of the time"
        found = Classification(name="waits_for_slow", role=Role.WAITING, doing=doing)
    else:
        found = Classification(name="unknown", role=Role.UNCLEAR, doing="could not be sampled")
    return ClassifiedRank(rank=rank.rank, node=rank.node, pid=rank.pid, is_=found)
