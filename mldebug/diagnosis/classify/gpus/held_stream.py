"""Every rank has launched the same work, and one GPU runs nothing: its stream is held up before the collective in which the other GPUs spin.

Pure.

Stacks, Flight Recorder and NCCL RAS show no difference then, as a call counts once the host has
launched it. A rank that waits for its GPU while nothing runs there waits for what is no kernel: a
host function, an event, a copy that does not end. Nobody is named where anything does not fit (a
GPU that may not be the rank's, a slice, a second process on it, traffic, a count that differs, a
send or receive, a rank without a capture, power). Of two ranks the confidence is `low`: a wait for
the other rank that is no kernel (NVSHMEM, stream memory operations, CUDA IPC events) looks the
same.
"""

from collections.abc import Sequence

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
from mldebug.diagnosis.classify.case import Case, ranks_text
from mldebug.diagnosis.classify.evidence import blame, show_source
from mldebug.diagnosis.classify.gpus import looks
from mldebug.diagnosis.classify.gpus.looks import Devices, called_alike, range_words, rests, span

ALWAYS, QUIET = (looks.BUSY, 1.0), (0.0, 0.1)  # from, to: shares of the time with a kernel
ALL_SMS, NO_SMS = (
    0.9,
    0.1,
)  # shares of the multiprocessors: no collective fills so many, a held stream none
HELD, SPINNING = (
    ("", "never_arrived"),
    ("", "collective_wait"),
)  # what a fingerprint may say of them


def held(case: Case, captures: Sequence[NodeCapture]) -> Finding | None:
    """A finding that names the one rank whose GPU runs nothing while all other GPUs spin in the same collective: something on its node holds its stream up.

    None where anything contradicts that.
    """
    devices = looks.judged_devices(case, captures)
    if not devices:
        return None
    quiet = [one for one in case.ranks if _does(devices[one.rank], QUIET, HELD, NO_SMS)]
    others = [one for one in case.ranks if _does(devices[one.rank], ALWAYS, SPINNING, ALL_SMS)]
    if len(quiet) != 1 or len(quiet) + len(others) != len(case.ranks):
        return None
    alike = called_alike(case, captures)
    if quiet[0].is_.name != looks.FOR_ITS_GPU or not quiet[0].is_.direct or not alike:
        return None
    return _finding(case, quiet[0], others, devices, alike)


def all_spin(case: Case, captures: Sequence[NodeCapture]) -> bool:
    """Whether every rank's GPU is busy all the time without memory traffic, as in a collective or a kernel that never ends."""
    devices = looks.devices_of(captures)
    if not all(looks.may_be_judged(one, devices) for one in case.ranks):
        return False
    return all(_is_so(look, *ALWAYS) for one in case.ranks for look in devices[one.rank].samples)


# --- what the GPUs do ------------------------------------------------------------------------------


def _does(one: RankDevice, busy: tuple[float, float], states: tuple[str, ...], sms: float) -> bool:
    """Whether it was that busy in each sample, without memory traffic, and no other figure speaks against that."""
    fits = one.state in states and (one.sm_active_ratio or 0.0) < sms and rests(one)
    return fits and all(_is_so(look, *busy) for look in one.samples)


def _is_so(look: GpuSample, least: float, most: float) -> bool:
    return (
        look.busy_ratio is not None
        and least <= look.busy_ratio <= most
        and look.memory_ratio == 0.0
    )


# --- in words --------------------------------------------------------------------------------------


def _finding(
    case: Case,
    rank: ClassifiedRank,
    others: Sequence[ClassifiedRank],
    devices: Devices,
    alike: str,
) -> Finding:
    waiting = ranks_text(one.rank for one in others)
    own, many = devices[rank.rank], len(others) > 1
    reason = f"{rank.is_.doing}, and that runs nothing ({_figures([own])}): its stream waits for something that is no kernel"
    theirs = f"the GPU{'s' if many else ''} of {waiting} spin{'' if many else 's'} in the collective ({_figures([devices[one.rank] for one in others])})"
    long = looks.looked_at_for_long(devices)
    finding = blame(
        case,
        Verdict.RANK_WAITING,
        (rank,),
        (show_source(rank), f"py-spy dump --native --pid {rank.pid}  # does a thread of CUDA stand in a function of the job's?"),
        confidence=Confidence.MEDIUM if long and many else Confidence.LOW,
    )  # fmt: skip
    culprits = tuple(replace(one, reason=reason) for one in finding.culprits)
    summary = f"rank {rank.rank} {reason}; {theirs}, and {all_of(len(case.ranks))} have launched the same number of collectives ({alike})"
    sentence = f"rank {rank.rank}: {len(own.samples)} looks at GPU {own.index} in {span(own):.0f} s found no kernel on it"
    return replace(
        finding, culprits=culprits, summary=summary, evidence=(sentence, *finding.evidence)
    )


def _figures(some: Sequence[RankDevice]) -> str:
    """`0 % busy, 125 W`: the last look at each."""
    busy = [one.samples[-1].busy_ratio or 0.0 for one in some]
    watts = [one.samples[-1].power_watts for one in some]
    power = [one for one in watts if one is not None]
    return ", ".join(part for part in (f"{range_words(busy, 100.0)} % busy", f"{range_words(power, 1.0)} W" if power else "") if part)  # fmt: skip
