"""Sentences about slow ranks: which, since when, why, and what to do. Pure."""

import re
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import msgspec

from mldebug.core.ranksets import fold_ranks
from mldebug.core.redact import clean
from mldebug.core.units import percent
from mldebug.goodput.evidence import RankShares
from mldebug.goodput.straggler import Excess, Slowness, SlowRank

WAITS_FOR_DATA = 0.1  # share of the time from which on waiting for data is told
SLOW_WORKER = 0.5  # of that time, from which on waiting for files explains it
HELD_UP = 0.25  # of it, where the mount of these files is known to have become slow
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def slow_words(found: Slowness, world_size: int) -> str:
    """The finding in one sentence, "" where no rank is slow: `rank 3 slows the run down: the others wait for it 21 % of the time,
    40 rank hours a day; it is in fetch (train.py:7) 20 % of the time, the others 1 %`.
    """
    if not found.ranks:
        return ""
    ranks = [one.rank for one in found.ranks]
    many = len(ranks) > 1
    who = f"rank{'s' if many else ''} {fold_ranks(ranks)} slow{'' if many else 's'} the run down"
    if found.slower:
        lost = f"a step takes {found.slower:.2g} times as long as it used to, {lost_words(found.loss, world_size)}"
        return f"{who}: {lost}; {'each' if many else 'it'} {_common_words(found)}"
    if found.recorded:
        times = f"a step takes {1 / (1 - found.loss):.2g} times as long as it used to, {lost_words(found.loss, world_size)}; " if found.loss else ""  # fmt: skip
        return f"{who}: {times}{'each' if many else 'it'} {_common_words(found)}"
    waits = f"the others wait for {'them' if many else 'it'} {percent(found.loss)} of the time"
    cause = (
        f"{'each' if many else 'it'} {_common_words(found)}"
        if _is_alike(found)
        else "each for a reason of its own"
    )
    return f"{who}: {waits}, {lost_words(found.loss, world_size)}; {cause}"


def _is_alike(found: Slowness) -> bool:
    """Whether all slow ranks do the same more than the others, for the same cause but for its figures."""
    return len({(one.excess.kind, one.excess.place, _NUMBER.sub("", one.cause_words)) for one in found.ranks}) == 1  # fmt: skip


def _common_words(found: Slowness) -> str:
    """Why ranks are slow that are so for one reason: the means of their shares, and the measurement of the first."""
    excesses = [one.excess for one in found.ranks]
    own, others = fmean(one.own for one in excesses), fmean(one.others for one in excesses)
    excess = msgspec.structs.replace(excesses[0], own=own, others=others)
    return why_words(msgspec.structs.replace(found.ranks[0], excess=excess))


def why_words(one: SlowRank) -> str:
    """What a slow rank does more than the others, and the measured cause, as a phrase to follow "it "."""
    if not one.cause_words:
        return excess_words(one.excess)
    if one.excess.kind in ("same", "cpu", "gpu"):
        return one.cause_words
    return f"{excess_words(one.excess)}; it {one.cause_words}"


def lost_words(loss: float, world_size: int) -> str:
    """What a run of `world_size` ranks loses: `40 rank hours a day`. `loss`: share of all ranks' time, 0 to 1; for 0 "nothing"."""
    return f"{24 * loss * world_size:.2g} rank hours a day" if loss else "nothing"


def excess_words(excess: Excess) -> str:
    """What a slow rank does more than the others, as a phrase to follow "it "."""
    more = f"{percent(excess.own)} of the time, the others {percent(excess.others)}"
    if excess.kind == "data":
        return f"waits for its DataLoader {more}"
    if excess.kind == "cpu":
        return f"is ready to run and gets no CPU {more}"
    if excess.kind == "sleep":
        return f"stands idle in {excess.place} {more}"
    if excess.kind == "gpu":
        return "waits for its GPU, as the others do for theirs"
    if excess.kind == "late":
        return f"comes last to collectives: its GPU waits in them {more}, by their Flight Recorders"
    if excess.kind == "work":
        return f"is in {excess.place} {more}"
    return "does what the others do, and takes longer for all of it: its work is larger, or its node is slower"


def rank_words(one: SlowRank) -> str:
    """How little a slow rank waits and what it does instead, as a phrase to follow "rank 3 "."""
    if one.excess.kind in ("gpu", "late"):
        return why_words(one)
    return f"waits only {percent(one.waiting)} of the time, and {why_words(one)}"


def slow_mount_words(shares: Sequence[RankShares]) -> str:
    """The mount that has become slow and for which ranks wait: `reads of /data (nfs01:/data) take 48 ms instead of 3 ms since 14:02
    UTC; 7 of 8 ranks wait for data`. Of several mounts the one that holds up most ranks; "" for none.

    A rank counts where it, or its worker, was found in the kernel waiting for a file of that mount: a slow mount beside it, and data
    that are computed too slowly, are no such case.
    """
    there = held_by_mount(shares)
    if not there:
        return ""
    who = (
        f"{len(there)} of {len(shares)} ranks {_wait(there)}"
        if len(shares) > 1
        else "its rank waits"
    )
    return f"{there[0].evidence.mount_slow}; {who} for {_what_for(there)}"


def held_by_mount(shares: Sequence[RankShares]) -> tuple[RankShares, ...]:
    """The ranks that wait for files of a mount that has become slow; of several mounts the one that holds up most ranks."""
    held = [one for one in shares if one.evidence.mount_slow and _waits_for_files(one)]
    counts = Counter(one.evidence.mount for one in held)
    return tuple(one for one in held if one.evidence.mount == counts.most_common(1)[0][0])


def mount_waiters(shares: Sequence[RankShares], run: str, node: str, device: str) -> str:
    """Who of a run waits for files on a device of a node that has become slow: `7 of 8 ranks of train.py wait for data`; "" for nobody.
    `run`: its name.
    """
    there = [
        one
        for one in shares
        if one.evidence.mount_slow
        and one.evidence.mount_device == device
        and one.node in ("", node)
        and _waits_for_files(one)
    ]
    if not there:
        return ""
    who = "the rank" if len(shares) == 1 else f"{len(there)} of {len(shares)} ranks"
    return f"{who} of {clean(run, 60)} {_wait(there)} for {_what_for(there)}"


def _wait(held: Sequence[RankShares]) -> str:
    """The verb of "N of M ranks": `1 of 2 ranks waits`, `7 of 8 ranks wait`."""
    return "waits" if len(held) == 1 else "wait"


def _what_for(held: Sequence[RankShares]) -> str:
    by_loader = all(one.loading >= WAITS_FOR_DATA for one in held)
    return "data" if by_loader else "files there"


def _waits_for_files(one: RankShares) -> bool:
    """Whether files explain that a rank waits for its DataLoader, or it reads files itself for a good part of the time."""
    waited = one.evidence.file_waiting
    if one.loading >= WAITS_FOR_DATA:
        return waited >= HELD_UP * one.loading
    return not one.evidence.worker and waited >= WAITS_FOR_DATA
