"""Why a rank is slow, where a measurement says so: rules over what was measured of it and of the others during the same stretches.

| cause | it is given where |
|---|---|
| `quota` | its control group had no CPU time left for half of the loss more than the others' |
| `mount` | it waited for files for half of the loss more than the others |
| `swap` | it read pages back from a disk 20 times a second and more, ten times as often as the others, and has memory on swap, or its node is short of memory (else they are those of a dataset that is mapped into memory) |
| `memory` | its node was short of memory for half of the loss more than the others' nodes |
| `cores` | it gets no CPU, and may run on fewer CPUs than any of the others; or it works longer, on 4 CPUs at most, and every other has twice as many |
| `neighbour` | it gets no CPU, and another program runs on its CPUs |
| `clock` | its GPU runs 5 % slower than every other's, for a reason that the GPU gives and the others do not have |
| `power` | the same, and its power limit is lower than the others' |
| `uneven` | it works longer, with a tenth more memory on its GPU than any other at the same clock: its *work* is larger |

The first that holds is given; none, where none does. Pure.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from mldebug.goodput.evidence import GPU_LIMITS, RankEvidence

CAUSE = 0.5  # of the loss: what explains so much of it is given as the cause
FAULTS, MORE_FAULTS = 20.0, 10.0
SHORT = 0.01  # of the time, from which on a node is short of memory
FEW_CORES = 4  # on which Python, the threads of a library and the workers of a DataLoader are in each other's way
SLOWER = 0.95  # of the slowest other GPU's clock
LARGER = 1.1  # of the largest other rank's memory on a GPU


class Compared(NamedTuple):
    """A slow rank and the others. `loss`: share of the others' time; `kind`: what its stack shows more (`Excess.kind`)."""

    own: RankEvidence
    others: Sequence[RankEvidence]
    loss: float
    kind: str

    def more(self, value: Callable[[RankEvidence], float]) -> bool:
        """Whether this share of the time is larger than the others' by half of the loss."""
        return value(self.own) - median(map(value, self.others)) >= CAUSE * self.loss


class Rule(NamedTuple):
    """`holds`: whether it is this cause; `words`: the cause, to follow "it "; `step`: what to do, `{node}` and `{pid}` filled in."""

    kind: str
    holds: Callable[[Compared], bool]
    words: Callable[[Compared], str]
    step: str


def find_cause(compared: Compared) -> tuple[str, str]:
    """(kind, words) of the first rule that holds; two empty texts where none does, or there is nobody to compare with."""
    if not compared.others:
        return "", ""
    found = next((rule for rule in RULES if rule.holds(compared)), None)
    return (found.kind, found.words(compared)) if found is not None else ("", "")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _shares(c: Compared, value: Callable[[RankEvidence], float]) -> str:
    return (
        f"{_percent(value(c.own))} of the time, the others {_percent(median(map(value, c.others)))}"
    )


def _throttled(one: RankEvidence) -> float:
    return one.throttled


def _file_waiting(one: RankEvidence) -> float:
    return one.file_waiting


def _pressure(one: RankEvidence) -> float:
    return one.memory_pressure


def _quota_words(c: Compared) -> str:
    of = f" of {c.own.quota:.2g} CPUs" if c.own.quota else ""
    return f"has used up its control group's CPU quota{of} {_shares(c, _throttled)}"


def _mount_words(c: Compared) -> str:
    return (
        f"waits for files{f' on {c.own.mount}' if c.own.mount else ''} {_shares(c, _file_waiting)}"
    )


def _swaps(c: Compared) -> bool:
    most = max(one.major_faults for one in c.others)
    short = c.own.swapped > 0 or c.own.memory_pressure >= SHORT
    return short and c.own.major_faults >= max(FAULTS, MORE_FAULTS * most)


def _swap_words(c: Compared) -> str:
    swapped = f", with {c.own.swapped / 2**30:.2g} GiB of it on swap" if c.own.swapped else ""
    return f"reads {c.own.major_faults:.0f} pages a second back from a disk{swapped}"


def _few_cores(c: Compared) -> bool:
    cpus = [one.cpus for one in c.others if one.cpus is not None]
    if c.own.cpus is None or len(cpus) < len(c.others) or c.own.cpus >= min(cpus):
        return False
    few = c.own.cpus <= min(FEW_CORES, min(cpus) / 2)
    return c.kind == "cpu" or (few and c.kind in ("work", "same"))


def _cores_words(c: Compared) -> str:
    fewest = min((one.cpus for one in c.others if one.cpus is not None), default=0)
    return f"may run on {c.own.cpus} CPU{'' if c.own.cpus == 1 else 's'}, the others on {fewest} or more"


def _clocks(c: Compared) -> list[float] | None:
    """The clocks of the others' GPUs; None where one is not known."""
    clocks = [one.gpu_clock for one in c.others if one.gpu_clock]
    return clocks if len(clocks) == len(c.others) and c.own.gpu_clock else None


def _limits(c: Compared) -> list[str]:
    """The reasons that its GPU alone has."""
    others = {limit for one in c.others for limit in one.gpu_limits}
    return [limit for limit in c.own.gpu_limits if limit in GPU_LIMITS and limit not in others]


def _slow_clock(c: Compared) -> bool:
    clocks = _clocks(c)
    return bool(clocks and c.own.gpu_clock and c.own.gpu_clock <= SLOWER * min(clocks))


def _low_power(c: Compared) -> bool:
    limits = [one.gpu_power_limit for one in c.others if one.gpu_power_limit]
    own = c.own.gpu_power_limit
    return bool(own and len(limits) == len(c.others) and own <= SLOWER * min(limits))


def _clock_words(c: Compared) -> str:
    usual = median(_clocks(c) or [0.0])
    why = ", ".join(dict.fromkeys(GPU_LIMITS[limit] for limit in _limits(c)))
    by = f", held back by {why}" if why else ""
    return f"has a GPU at {(c.own.gpu_clock or 0.0) / 1e6:.0f} MHz, the others {usual / 1e6:.0f} MHz{by}"


def _power_words(c: Compared) -> str:
    usual = median(one.gpu_power_limit or 0.0 for one in c.others)
    limits = f"with a power limit of {c.own.gpu_power_limit or 0.0:.0f} W, the others {usual:.0f} W"
    return f"{_clock_words(c)}, {limits}"


def _has_more_work(c: Compared) -> bool:
    memory = [one.gpu_memory for one in c.others if one.gpu_memory]
    larger = bool(
        c.own.gpu_memory
        and len(memory) == len(c.others)
        and c.own.gpu_memory >= LARGER * max(memory)
    )
    return larger and c.kind in ("work", "same") and not _slow_clock(c)


def _uneven_words(c: Compared) -> str:
    usual = median(one.gpu_memory or 0 for one in c.others)
    gib = 2.0**30
    return f"has more work than the others: {(c.own.gpu_memory or 0) / gib:.3g} GiB on its GPU, the others {usual / gib:.3g} GiB"


RULES = (
    Rule(
        "quota",
        lambda c: c.own.throttled > 0 and c.more(_throttled),
        _quota_words,
        "raise the CPU quota of its control group (cpu.max, or the job's request of CPUs): cat /proc/{pid}/cgroup",
    ),
    Rule(
        "mount",
        lambda c: c.own.file_waiting > 0 and c.more(_file_waiting),
        _mount_words,
        "mldebug storage  # on {node}: how fast its mounts answer",
    ),
    Rule(
        "swap",
        _swaps,
        _swap_words,
        "find what takes the memory of {node}: its pages are read back from a disk (`free`, `vmstat 1`)",
    ),
    Rule(
        "memory",
        lambda c: c.own.memory_pressure > 0 and c.more(_pressure),
        lambda c: f"stands on a node that is short of memory {_shares(c, _pressure)}",
        "find what takes the memory of {node}: cat /proc/pressure/memory",
    ),
    Rule(
        "cores",
        _few_cores,
        _cores_words,
        "give it as many CPUs as the others have: taskset -cp {pid}",
    ),
    Rule(
        "neighbour",
        lambda c: bool(c.own.neighbour) and c.kind == "cpu",
        lambda c: f"shares its CPUs with {c.own.neighbour}",
        "move {pid}, or whoever runs beside it on {node}, to other CPUs: taskset -cp {pid}",
    ),
    Rule(
        "power",
        lambda c: _slow_clock(c) and _low_power(c),
        _power_words,
        "nvidia-smi -q -d POWER  # on {node}: why its power limit is lower",
    ),
    Rule(
        "clock",
        lambda c: _slow_clock(c) and bool(_limits(c)),
        _clock_words,
        "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER  # on {node}: what holds its clock back",
    ),
    Rule(
        "uneven",
        _has_more_work,
        _uneven_words,
        "compare what the ranks are given (batch, sequence lengths, stages): no rank is to blame",
    ),
)

OF_GPU = ("power", "clock")
STEPS = {rule.kind: rule.step for rule in RULES}
