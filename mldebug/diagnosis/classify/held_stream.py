"""All have launched the same and one GPU runs nothing: its stream is held before the collective in which the others spin. Pure.

Stacks, Flight Recorder and NCCL RAS see no difference then, for a call counts once the host has launched it. A rank that waits
for its GPU while nothing runs there waits for what is no kernel: a function of the host, an event, a copy that does not end.
Whatever does not fit (a GPU that may be another's, a slice, a second process on it, traffic, a count that differs, a send or
receive, a rank that nobody saw, power, a fingerprint) leaves the verdict to others: rather nobody than a wrong name. Of two ranks
it is `low`: a wait for the other one that is no kernel (NVSHMEM, stream memory operations, CUDA's IPC events) looks the same.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from mldebug.core.model import (
    ClassifiedRank,
    Confidence,
    Finding,
    GpuSample,
    NodeCapture,
    RankDevice,
    Verdict,
)
from mldebug.core.ranksets import all_of
from mldebug.diagnosis.classify.evidence import Case, blame, ranks_text, show_source
from mldebug.diagnosis.classify.flight_recorder import FlightRecorders
from mldebug.diagnosis.classify.nccl_ras import ras_alike

BUSY, QUIET = (0.9, 1.0), (0.0, 0.1)  # from, to: shares of the time with a kernel
AT_REST = 0.6  # share of its usual power, above which a GPU does more than wait
ALL_SMS, NO_SMS = (
    0.9,
    0.1,
)  # shares of the multiprocessors: no collective fills so many, a held stream none
LATELY = 30.0  # seconds before a capture whose looks count, at most
SETTLED = 3.0  # seconds after the last progress in which utilization may still be that of before
LOOKS, SPAN = 2, 1.5  # fewest looks, and seconds from the first to the last
MANY_LOOKS, LONG_SPAN = 3, 5.0  # from which on they are no passing moment
HELD, SPINNING = (
    ("", "never_arrived"),
    ("", "collective_wait"),
)  # what a fingerprint may say of them
FOR_ITS_GPU = "device_sync"
FOR_OTHERS = frozenset((FOR_ITS_GPU, "collective", "backward_wait"))


def held(case: Case, captures: Sequence[NodeCapture]) -> Finding | None:
    """Name the rank; None where anything speaks against it."""
    if case.suspects or case.moved or not case.complete or len(case.ranks) < 2:
        return None
    if len(captures) > 1 and any(one.quiet_seconds <= 0 for one in captures):
        return None  # perhaps they are of different moments
    devices = dict(_devices(captures))
    if not all(_may_be_judged(one, devices) for one in case.ranks) or not _apart(devices):
        return None
    if not _at_once({one.rank: devices[one.rank] for one in case.ranks}):
        return None
    quiet = [one for one in case.ranks if _does(devices[one.rank], QUIET, HELD, NO_SMS)]
    others = [one for one in case.ranks if _does(devices[one.rank], BUSY, SPINNING, ALL_SMS)]
    if len(quiet) != 1 or len(quiet) + len(others) != len(case.ranks):
        return None
    alike = _alike(case, captures)
    if quiet[0].is_.name != FOR_ITS_GPU or not quiet[0].is_.direct or not alike:
        return None
    return _finding(case, quiet[0], others, devices, alike)


def all_spin(case: Case, captures: Sequence[NodeCapture]) -> bool:
    """Is the GPU of every rank always busy and without traffic, as in a collective or a kernel that does not end?"""
    devices = dict(_devices(captures))
    if not all(_may_be_judged(one, devices) for one in case.ranks):
        return False
    return all(_is_so(look, *BUSY) for one in case.ranks for look in devices[one.rank].samples)


# --- who has called what ---------------------------------------------------------------------------


def _alike(case: Case, captures: Sequence[NodeCapture]) -> str:
    """The sources that show all ranks to have launched as many collectives; "" where NCCL RAS does not, or one contradicts."""
    if not ras_alike(captures):
        return ""
    if not any(one.groups for one in case.flight_records.values()):
        return "NCCL RAS"
    claim = FlightRecorders(case).alike
    whole = claim is not None and len(claim.members) == len(case.ranks)
    sizes = claim is not None and claim.view.one_size(claim.sequence)
    pairs = any(one.transfers or one.sends for one in case.flight_records.values())
    return "the Flight Recorder and NCCL RAS" if whole and sizes and not pairs else ""


# --- what the GPUs do ------------------------------------------------------------------------------


def _devices(captures: Sequence[NodeCapture]) -> Iterator[tuple[int, RankDevice]]:
    """By rank, with the looks that tell of now, in seconds from the last progress on, which all nodes hear of: their clocks are never compared."""
    for capture in captures:
        here = {one.identity.rank for one in capture.ranks}
        devices = Counter(one.rank for one in capture.gpus)
        for one in capture.gpus:
            if one.rank in here and devices[one.rank] == 1:
                yield one.rank, _now(one, capture)


def _now(one: RankDevice, capture: NodeCapture) -> RankDevice:
    quiet = capture.quiet_seconds
    back = min(LATELY, quiet - SETTLED) if quiet > 0 else LATELY
    begin, end = capture.taken_at - back, capture.taken_at + max(LATELY, capture.duration_seconds)
    looks = tuple(
        replace(each, at=each.at - capture.taken_at + quiet)
        for each in one.samples
        if begin <= each.at <= end
    )
    active = one.sm_active_ratio if begin <= one.sm_since and one.sm_read_at <= end else None
    return replace(one, uuid=f"{capture.node}/{one.uuid}", samples=looks, sm_active_ratio=active)


def _may_be_judged(rank: ClassifiedRank, devices: dict[int, RankDevice]) -> bool:
    """Its GPU is surely its own and nobody else's, was looked at often enough, and the rank waits for others."""
    one = devices.get(rank.rank)
    if one is None or rank.is_.name not in FOR_OTHERS or rank.is_.thread:
        return False
    own = one.sure and not one.sliced and not one.others and one.pids == (rank.pid,)
    return own and len(one.samples) >= LOOKS and _span(one) >= SPAN


def _apart(devices: dict[int, RankDevice]) -> bool:
    return len({one.uuid for one in devices.values()}) == len(devices)


def _at_once(devices: dict[int, RankDevice]) -> bool:
    """Is there a time in which all were looked at? What differs at different times is no difference."""
    begins = max(one.samples[0].at for one in devices.values())
    return begins < min(one.samples[-1].at for one in devices.values())


def _span(one: RankDevice) -> float:
    return one.samples[-1].at - one.samples[0].at


def _does(one: RankDevice, busy: tuple[float, float], states: tuple[str, ...], sms: float) -> bool:
    """Whether it was that busy in each sample, without memory traffic, and no other figure speaks against that."""
    fits = one.state in states and (one.sm_active_ratio or 0.0) < sms and _rests(one)
    return fits and all(_is_so(look, *busy) for look in one.samples)


def _is_so(look: GpuSample, least: float, most: float) -> bool:
    return (
        look.busy_ratio is not None
        and least <= look.busy_ratio <= most
        and look.memory_ratio == 0.0
    )


def _rests(one: RankDevice) -> bool:
    """Whether its power is far below that of its usual work, where both are known: a GPU that waits takes little."""
    usual = one.usual_watts or 0.0
    return usual <= 0.0 or all((look.power_watts or 0.0) <= AT_REST * usual for look in one.samples)


# --- in words --------------------------------------------------------------------------------------


def _finding(
    case: Case,
    rank: ClassifiedRank,
    others: Sequence[ClassifiedRank],
    devices: dict[int, RankDevice],
    alike: str,
) -> Finding:
    waiting = ranks_text(one.rank for one in others)
    own, many = devices[rank.rank], len(others) > 1
    reason = f"{rank.is_.doing}, and that runs nothing ({_figures([own])}): its stream waits for something that is no kernel"
    theirs = f"the GPU{'s' if many else ''} of {waiting} spin{'' if many else 's'} in the collective ({_figures([devices[one.rank] for one in others])})"
    long = all(len(one.samples) >= MANY_LOOKS and _span(one) >= LONG_SPAN for one in devices.values())  # fmt: skip
    finding = blame(
        case,
        Verdict.RANK_WAITING,
        (rank,),
        (show_source(rank), f"py-spy dump --native --pid {rank.pid}  # does a thread of CUDA stand in a function of the job's?"),
        confidence=Confidence.MEDIUM if long and many else Confidence.LOW,
    )  # fmt: skip
    culprits = tuple(replace(one, reason=reason) for one in finding.culprits)
    summary = f"rank {rank.rank} {reason}; {theirs}, and {all_of(len(case.ranks))} have launched the same number of collectives ({alike})"
    looks = f"rank {rank.rank}: {len(own.samples)} looks at GPU {own.index} in {_span(own):.0f} s found no kernel on it"
    return replace(finding, culprits=culprits, summary=summary, evidence=(looks, *finding.evidence))


def _figures(some: Sequence[RankDevice]) -> str:
    """`0 % busy, 125 W`: the last look at each."""
    busy = [one.samples[-1].busy_ratio or 0.0 for one in some]
    watts = [one.samples[-1].power_watts for one in some]
    power = [one for one in watts if one is not None]
    return ", ".join(part for part in (f"{_range(busy, 100.0)} % busy", f"{_range(power, 1.0)} W" if power else "") if part)  # fmt: skip


def _range(values: Sequence[float], scale: float) -> str:
    low, high = (f"{each * scale:.0f}" for each in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
