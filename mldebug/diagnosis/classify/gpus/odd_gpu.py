"""All have called the same and nothing completes: the one GPU whose figures differ from those of all others. Pure.

Stacks, Flight Recorder and NCCL RAS see no difference then; a kernel of the job's that never ends, or a GPU that is sick without a word in the
kernel's log, shows in counters alone. GPUs that wait in a collective are alike: on two H200s each spins at 121 to 129 W of usual 700, and moves
nothing. Exactly one may differ, in a way that the table below has, and the others have to be alike; else nobody is named. Of two GPUs it is
known only where the one does what no waiting GPU does, and not where it does less: then either may be the odd one.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from mldebug.core.model import (
    ClassifiedRank,
    Confidence,
    Finding,
    NodeCapture,
    RankDevice,
    Verdict,
)
from mldebug.core.ranksets import all_of
from mldebug.diagnosis.classify.case import Case
from mldebug.diagnosis.classify.evidence import blame, show_source
from mldebug.diagnosis.classify.gpus import looks
from mldebug.diagnosis.classify.gpus.looks import Devices, range_words
from mldebug.diagnosis.classify.nccl_ras import ras_alike

MANY_SMS, FEW_SMS = 0.5, 0.3  # shares of the multiprocessors: NCCL takes 32 of 132 at most
TRAFFIC = 0.05  # share of the time with memory traffic; a waiting collective has none
MORE_POWER, MORE_WATTS = (
    1.5,
    60.0,
)  # than any other: waiting GPUs differ by a tenth, and by less than 15 W
WAITING = 0.35  # share of its usual power: 0.28 is the most that a waiting GPU was seen to take
LESS_POWER, LESS_WATTS = 0.6, 40.0  # than any other
ALIKE = 1.35  # how often the least power of the others goes into their most: a healthy spread
SLOW_CLOCK = (
    0.6  # of the slowest other: clocks of waiting GPUs are the same or differ by a few percent
)
THREE = 3  # GPUs, from which on most of them tell what is usual


class _Sign(NamedTuple):
    """One way to differ. `works`: it does what no waiting GPU does. `of_two`: two GPUs are enough to say which differs."""

    holds: Callable[[RankDevice, Sequence[RankDevice]], bool]
    works: bool
    of_two: bool


def _has_many_sms(one: RankDevice, others: Sequence[RankDevice]) -> bool:
    theirs = [each.sm_active_ratio for each in others]
    known = [each for each in theirs if each is not None]
    return (
        (one.sm_active_ratio or 0.0) >= MANY_SMS
        and len(known) == len(theirs)
        and max(known) <= FEW_SMS
    )


def _has_traffic(one: RankDevice, others: Sequence[RankDevice]) -> bool:
    theirs = [look.memory_ratio for each in others for look in each.samples]
    mine = [look.memory_ratio or 0.0 for look in one.samples]
    return min(mine) >= TRAFFIC and all(each == 0.0 for each in theirs)


def _takes_more(one: RankDevice, others: Sequence[RankDevice]) -> bool:
    mine, theirs = _watts(one), [_watts(each) for each in others]
    more = min(theirs) > 0 and mine >= max(MORE_POWER * max(theirs), max(theirs) + MORE_WATTS)
    if not one.usual_watts:  # then two differ, and nothing tells which of them waits
        return more and len(others) + 1 >= THREE
    return more and mine >= WAITING * one.usual_watts


def _takes_less(one: RankDevice, others: Sequence[RankDevice]) -> bool:
    mine, least = _watts(one), min(_watts(each) for each in others)
    return 0 < mine <= min(LESS_POWER * least, least - LESS_WATTS)


def _is_slow(one: RankDevice, others: Sequence[RankDevice]) -> bool:
    theirs = [each.clock_ratio for each in others if each.clock_ratio]
    slow = one.clock_ratio is not None and len(theirs) == len(others)
    return slow and (one.clock_ratio or 0.0) <= SLOW_CLOCK * min(theirs)


def _is_slowed(one: RankDevice, others: Sequence[RankDevice]) -> bool:
    return bool(one.slowed) and not any(each.slowed for each in others)


def _is_sick(one: RankDevice, others: Sequence[RankDevice]) -> bool:
    return bool(one.sick) and not any(each.sick for each in others)


SIGNS = (
    _Sign(_has_many_sms, works=True, of_two=True),
    _Sign(_has_traffic, works=True, of_two=True),
    _Sign(_takes_more, works=True, of_two=True),
    _Sign(_takes_less, works=False, of_two=False),
    _Sign(_is_slow, works=False, of_two=False),
    _Sign(_is_slowed, works=False, of_two=True),
    _Sign(_is_sick, works=False, of_two=True),
)


def odd_gpu(case: Case, captures: Sequence[NodeCapture]) -> Finding | None:
    """A finding that names the rank of the one GPU that behaves differently from all others; None where none does, or several do."""
    devices = looks.judged_devices(case, captures)
    alike = _alike(case, captures) if devices else ""
    if not alike or not all(map(_is_busy, devices.values())):
        return None
    found = {rank: signs for rank in devices if (signs := _signs(rank, devices))}
    if len(found) != 1:
        return None
    ((rank, signs),) = found.items()
    others = [one for number, one in devices.items() if number != rank]
    if not _are_alike(others):
        return None
    return _finding(case, rank, signs, devices, alike)


def _alike(case: Case, captures: Sequence[NodeCapture]) -> str:
    """Who says that all have called the same; a Flight Recorder is enough where nobody could ask NCCL RAS."""
    if ras_alike(captures) is None and any(one.groups for one in case.flight_records.values()):
        return "the Flight Recorder" if looks.recorded_alike(case) else ""
    return looks.called_alike(case, captures)


def _is_busy(one: RankDevice) -> bool:
    return all((look.busy_ratio or 0.0) >= looks.BUSY for look in one.samples)


def _signs(rank: int, devices: Devices) -> tuple[_Sign, ...]:
    """How it differs from all others."""
    others = [one for number, one in devices.items() if number != rank]
    enough = len(devices) >= THREE
    return tuple(
        one for one in SIGNS if (enough or one.of_two) and one.holds(devices[rank], others)
    )


def _are_alike(others: Sequence[RankDevice]) -> bool:
    """Do all others wait, and differ no more than healthy GPUs do?"""
    watts = [_watts(one) for one in others]
    still = all(look.memory_ratio == 0.0 for one in others for look in one.samples)
    return (
        still
        and min(watts) > 0
        and max(watts) <= ALIKE * min(watts)
        and all(map(looks.rests, others))
    )


def _watts(one: RankDevice) -> float:
    """What it took in the middle; 0 where a look does not tell it."""
    watts = [look.power_watts for look in one.samples]
    known = [each for each in watts if each is not None]
    return median(known) if known and len(known) == len(watts) else 0.0


# --- in words --------------------------------------------------------------------------------------


def _finding(
    case: Case, number: int, signs: Sequence[_Sign], devices: Devices, alike: str
) -> Finding:
    rank = next(one for one in case.ranks if one.rank == number)
    own = devices[number]
    others = [one for each, one in devices.items() if each != number]
    works = any(sign.works for sign in signs)
    means = (
        "it runs a kernel that is no collective and does not end"
        if works
        else "look at this GPU first"
    )
    reason = f"GPU {own.index} of rank {number} differs from its peers ({_figures([own])}; theirs: {_figures(others)}): {means}"
    finding = blame(
        case,
        Verdict.RANK_BUSY if works else Verdict.GPU_FAULT,
        (rank,),
        _steps(rank, own),
        confidence=_confidence(signs, devices),
    )
    culprits = tuple(
        replace(one, kind=one.kind if works else "gpu", reason=reason) for one in finding.culprits
    )
    summary = f"{reason}; {all_of(len(case.ranks))} have launched the same number of collectives ({alike}), and nothing completes"
    return replace(finding, culprits=culprits, summary=summary)


def _steps(rank: ClassifiedRank, own: RankDevice) -> tuple[str, ...]:
    query = f"nvidia-smi -q -i {own.index}  # clocks, power, remapped rows, errors: beside another GPU's"
    return query, show_source(rank)


def _confidence(signs: Sequence[_Sign], devices: Devices) -> Confidence:
    """`medium` takes peers that tell what is usual, two signs, and looks over some seconds."""
    sure = len(devices) >= THREE and len(signs) > 1 and looks.looked_at_for_long(devices)
    return Confidence.MEDIUM if sure else Confidence.LOW


def _figures(some: Sequence[RankDevice]) -> str:
    """`612 W, 99 % of its multiprocessors, memory traffic 40 % of the time`: as far as they are known of all these."""
    parts = (
        [f"{range_words([_watts(one) for one in some], 1.0)} W"] if all(map(_watts, some)) else []
    )
    for of, words in _MEASURES:
        values = [value for one in some if (value := of(one)) is not None]
        if len(values) == len(some):
            parts.append(words.format(range_words(values, 100.0)))
    parts += [
        phrase
        for one in some
        for phrase in (*(f"slowed by {each}" for each in one.slowed), *one.sick)
    ]
    return ", ".join(parts[:6])


_MEASURES: tuple[tuple[Callable[[RankDevice], float | None], str], ...] = (
    (lambda one: one.sm_active_ratio, "{} % of the multiprocessors"),
    (lambda one: max(look.memory_ratio or 0.0 for look in one.samples), "memory traffic {} % of the time"),
    (lambda one: one.clock_ratio, "clock at {} %"),
    (lambda one: None if one.link_bytes_per_second is None else one.link_bytes_per_second / 1e11, "links {} GB/s"),
)  # fmt: skip
