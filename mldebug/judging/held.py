"""All have launched the same and one GPU runs nothing: its stream is held before the collective in which the others spin. Pure.

Stacks, Flight Recorder and NCCL RAS see no difference then, for a call counts once the host has launched it. A rank that waits
for its GPU while nothing runs there waits for what is no kernel: a function of the host, an event, a copy that does not end.
Whatever does not fit (a GPU that may be another's, a slice, a second process on it, traffic, a count that differs, a send or
receive, a rank that nobody saw) leaves the verdict to others: rather nobody than a wrong name.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from mldebug.judging.case import Case, blame, ranks_text, show_source
from mldebug.judging.flights import Flights
from mldebug.judging.ras import ras_alike
from mldebug.model import (
    ClassifiedRank,
    Confidence,
    Finding,
    GpuSample,
    NodeCapture,
    RankDevice,
    Verdict,
)

BUSY, QUIET = 0.9, 0.1  # shares of the time with a kernel
TRAFFIC = 0.01  # share of the time with memory traffic, above which a GPU does more than wait
ALL_SMS = 0.9  # share of the multiprocessors that no collective fills
LATELY = 30.0  # seconds before a capture whose looks count, at most
SETTLED = 3.0  # seconds after the last progress in which utilization may still tell of before
LOOKS, SPAN = 2, 1.5  # fewest looks, and seconds from the first to the last
MANY_LOOKS, LONG_SPAN = 3, 5.0  # from which on they are no passing moment
FOR_ITS_GPU = "device_sync"
FOR_OTHERS = frozenset((FOR_ITS_GPU, "collective", "backward_wait"))


def held(case: Case, captures: Sequence[NodeCapture]) -> Finding | None:
    """Name the rank; None where anything speaks against it."""
    if case.suspects or case.moved or not case.complete or len(case.ranks) < 2:
        return None
    devices = dict(_devices(captures))
    if not all(_may_be_judged(one, devices) for one in case.ranks) or not _apart(devices):
        return None
    quiet = [one for one in case.ranks if _all(devices[one.rank], _quiet)]
    others = [one for one in case.ranks if _all(devices[one.rank], _spins)]
    if len(quiet) != 1 or len(quiet) + len(others) != len(case.ranks):
        return None
    alike = _alike(case, captures)
    if quiet[0].is_.name != FOR_ITS_GPU or not alike or any(map(_fills, devices.values())):
        return None
    return _finding(case, quiet[0], others, devices, alike)


# --- who has called what ---------------------------------------------------------------------------


def _alike(case: Case, captures: Sequence[NodeCapture]) -> str:
    """Who says that all have launched the same; "" where nobody does, or somebody says otherwise."""
    counted = ras_alike(captures)
    if counted is False:
        return ""
    recorded = any(one.groups for one in case.flights.values())
    claim = Flights(case).alike
    if recorded:
        whole = claim is not None and len(claim.members) == len(case.ranks)
        sizes = claim is not None and claim.view.one_size(claim.sequence)
        if not (whole and sizes) or any(one.transfers or one.sends for one in case.flights.values()):  # fmt: skip
            return ""
    said = ("the Flight Recorder",) if recorded else ()
    return " and ".join((*said, *(("NCCL RAS",) if counted else ())))


# --- what the GPUs do ------------------------------------------------------------------------------


def _devices(captures: Sequence[NodeCapture]) -> Iterator[tuple[int, RankDevice]]:
    """By rank, with the looks that tell of now; each by its own node's clock."""
    for capture in captures:
        here = {one.identity.rank for one in capture.ranks}
        told = Counter(one.rank for one in capture.gpus)
        for one in capture.gpus:
            if one.rank in here and told[one.rank] == 1:
                yield one.rank, _now(one, capture)


def _now(one: RankDevice, capture: NodeCapture) -> RankDevice:
    quiet = capture.quiet_seconds
    back = min(LATELY, quiet - SETTLED) if quiet > 0 else LATELY
    begin, end = capture.taken_at - back, capture.taken_at + max(LATELY, capture.duration_seconds)
    looks = tuple(each for each in one.samples if begin <= each.at <= end)
    return RankDevice(
        rank=one.rank, uuid=f"{capture.node}/{one.uuid}", index=one.index, sure=one.sure, sliced=one.sliced,
        others=one.others, pids=one.pids, usual_watts=one.usual_watts, samples=looks,
        sm_active_ratio=one.sm_active_ratio if begin <= one.sm_read_at <= end else None,
    )  # fmt: skip


def _may_be_judged(rank: ClassifiedRank, devices: dict[int, RankDevice]) -> bool:
    """Its GPU is surely its own and nobody else's, was looked at often enough, and the rank waits for others."""
    one = devices.get(rank.rank)
    if one is None or rank.is_.name not in FOR_OTHERS or rank.is_.thread:
        return False
    own = one.sure and not one.sliced and not one.others and len(one.pids) == 1
    return own and len(one.samples) >= LOOKS and _span(one) >= SPAN


def _apart(devices: dict[int, RankDevice]) -> bool:
    return len({one.uuid for one in devices.values()}) == len(devices)


def _span(one: RankDevice) -> float:
    return one.samples[-1].at - one.samples[0].at


def _all(one: RankDevice, is_so: Callable[[GpuSample], bool]) -> bool:
    return all(is_so(each) for each in one.samples)


def _quiet(look: GpuSample) -> bool:
    return look.busy_ratio is not None and 0.0 <= look.busy_ratio <= QUIET and not _moves(look)


def _spins(look: GpuSample) -> bool:
    return look.busy_ratio is not None and BUSY <= look.busy_ratio <= 1.0 and not _moves(look)


def _moves(look: GpuSample) -> bool:
    """Memory traffic; where that is not told there may be some."""
    return look.memory_ratio is None or not 0.0 <= look.memory_ratio <= TRAFFIC


def _fills(one: RankDevice) -> bool:
    return one.sm_active_ratio is not None and one.sm_active_ratio >= ALL_SMS


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
    reason = f"{rank.is_.doing}, and that runs nothing ({_figures([own])}): its stream is held"
    theirs = f"the GPU{'s' if many else ''} of {waiting} spin{'' if many else 's'} in the collective ({_figures([devices[one.rank] for one in others])})"
    long = all(len(one.samples) >= MANY_LOOKS and _span(one) >= LONG_SPAN for one in devices.values())  # fmt: skip
    finding = blame(
        case,
        Verdict.RANK_WAITING,
        (rank,),
        (show_source(rank), f"py-spy dump --native --pid {rank.pid}  # does a thread of CUDA stand in a function of the job's?"),
        confidence=Confidence.MEDIUM if long else Confidence.LOW,
    )  # fmt: skip
    culprits = tuple(replace(one, reason=reason) for one in finding.culprits)
    summary = f"rank {rank.rank} {reason}; {theirs} that all have launched ({alike})"
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
