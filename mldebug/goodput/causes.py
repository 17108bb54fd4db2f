"""Why a rank is slow, where a measurement says so: rules over what was measured of it and of the others during the same stretches.

| cause | it is given where |
|---|---|
| `quota` | its control group had no CPU time left for half of the loss more than the others' |
| `mount` | it waited for files for half of the loss more than the others |
| `swap` | it read pages back from a disk 20 times a second and more, ten times as often as the others, and has memory on swap, or its node is short of memory (else they are those of a dataset that is mapped into memory) |
| `memory` | its node was short of memory for half of the loss more than the others' nodes |
| `cores` | it gets no CPU, and may run on fewer CPUs than any of the others; or it works longer, on 4 CPUs at most, and every other has twice as many |
| `neighbour` | it gets no CPU, and another program runs on its CPUs |
| `gpu_neighbour` | it takes longer for what the others do, too, and another program computes on its GPU, and on none of the others' |
| `clock` | its GPU runs 5 % slower than every other's, for a reason that the GPU gives and the others do not have |
| `power` | the same, and its power limit is lower than the others' |
| `link` | it takes longer for what the others do, too, or waits for data, and a port of its node has errors that do not stop, flaps, or is slower than it was, while the nodes of most others have none; or its node's ports carry 5 % less than those of most others |
| `uneven` | it works longer, with a tenth more memory on its GPU than any other at the same clock: its *work* is larger; where all hosts wait for their GPUs, the memory grew as the steps became slower |

The first that holds is given; none, where none does. Pure.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from statistics import median
from typing import NamedTuple, TypeVar

from mldebug.core.units import percent
from mldebug.goodput.evidence import GPU_LIMITS, RankEvidence

CAUSE = 0.5  # of the loss: what explains so much of it is given as the cause
FAULTS, MORE_FAULTS = 20.0, 10.0
SHORT = 0.01  # of the time, from which on a node is short of memory
FEW_CORES = 4  # on which Python, the threads of a library and the workers of a DataLoader are in each other's way
SLOWER = 0.95  # of the slowest other GPU's clock; of what the ports of most others' nodes carry
LINK, GPU_NEIGHBOUR, UNEVEN, MOUNT = "link", "gpu_neighbour", "uneven", "mount"
FEW_LINKS = 0.5  # of the others, which may stand on the same node
LARGER = 1.1  # of the largest other rank's memory on a GPU


Number = TypeVar("Number", int, float)


class OtherRanks:
    """What was measured of the ranks that are not slow. Each figure is found once, however many slow ranks are compared with it."""

    def __init__(self, evidence: Sequence[RankEvidence]) -> None:
        self._all = evidence

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def throttled(self) -> float:
        """The median share without CPU quota."""
        return median(one.throttled for one in self._all)

    @cached_property
    def file_waiting(self) -> float:
        """The median share of waiting for files."""
        return median(one.file_waiting for one in self._all)

    @cached_property
    def memory_pressure(self) -> float:
        """The median share in which their nodes were short of memory."""
        return median(one.memory_pressure for one in self._all)

    @cached_property
    def linked_badly(self) -> float:
        """The share of them on nodes with a port that has errors, 0 to 1."""
        return sum(bool(one.link) for one in self._all) / len(self._all)

    @cached_property
    def port_gigabits(self) -> float:
        """What the ports of their nodes carry, Gb/s, in the median; 0 where it is not known of most."""
        return median(one.port_gigabits for one in self._all)

    @cached_property
    def most_faults(self) -> float:
        """The most pages a second that one has read back."""
        return max(one.major_faults for one in self._all)

    @cached_property
    def fewest_cpus(self) -> int | None:
        """The fewest CPUs on which one may run; None where it is not known of each."""
        return min(_of_each(one.cpus for one in self._all), default=None)

    @cached_property
    def clocks(self) -> list[float]:
        """The clocks of their GPUs; empty where one is not known."""
        return _of_each(one.gpu_clock for one in self._all)

    @cached_property
    def power_limits(self) -> list[float]:
        """The power limits of their GPUs; empty where one is not known."""
        return _of_each(one.gpu_power_limit for one in self._all)

    @cached_property
    def memory(self) -> list[int]:
        """The bytes that each has on its GPU; empty where one is not known."""
        return _of_each(one.gpu_memory for one in self._all)

    @cached_property
    def have_gpus_alone(self) -> bool:
        """Whether no other program computes on any of their GPUs, as far as that is known of each."""
        return all(one.gpu_neighbour == "" for one in self._all)

    @cached_property
    def limits(self) -> frozenset[str]:
        """The reasons for which the clock of one of their GPUs is cut."""
        return frozenset(limit for one in self._all for limit in one.gpu_limits)


def _of_each(values: Iterable[Number | None]) -> list[Number]:
    """The values; none of them where one is not known, or 0."""
    every = list(values)
    known = [value for value in every if value]
    return known if len(known) == len(every) else []


class Compared(NamedTuple):
    """A slow rank and the others. `loss`: the share of their time (0 to 1) that the others lose by waiting for it; `kind`: the work in
    which its stack is found more often than theirs (`Excess.kind`).
    """

    own: RankEvidence
    others: OtherRanks
    loss: float
    kind: str

    def more(self, own: float, others: float) -> bool:
        """Whether `own`, a share of the slow rank's time (0 to 1), is above 0 and exceeds `others`, the same share of the others' time,
        by at least half of the loss."""
        return own > 0 and own - others >= CAUSE * self.loss


class Rule(NamedTuple):
    """One possible cause of a slow rank. `holds`: whether the evidence shows this cause; `words`: the cause as a phrase that follows
    "it "; `step`: what to do about it, a text in which `{node}` and `{pid}` are filled in.
    """

    kind: str
    holds: Callable[[Compared], bool]
    words: Callable[[Compared], str]
    step: str


def find_cause(compared: Compared) -> tuple[str, str]:
    """Why a rank is slower than the others, as the kind of the cause and a phrase: those of the first of `RULES` that holds.
    Two empty texts where none does, or there is no other rank.
    """
    if not len(compared.others):
        return "", ""
    found = next((rule for rule in RULES if rule.holds(compared)), None)
    return (found.kind, found.words(compared)) if found is not None else ("", "")


def _shares(own: float, others: float) -> str:
    return f"{percent(own)} of the time, the others {percent(others)}"


def _quota_words(c: Compared) -> str:
    of = f" of {c.own.quota:.2g} CPUs" if c.own.quota else ""
    return f"has used up its control group's CPU quota{of} {_shares(c.own.throttled, c.others.throttled)}"


def _mount_words(c: Compared) -> str:
    where = f" on {c.own.mount}" if c.own.mount else ""
    return f"waits for files{where} {_shares(c.own.file_waiting, c.others.file_waiting)}"


def _swaps(c: Compared) -> bool:
    short = c.own.swapped > 0 or c.own.memory_pressure >= SHORT
    return short and c.own.major_faults >= max(FAULTS, MORE_FAULTS * c.others.most_faults)


def _swap_words(c: Compared) -> str:
    swapped = f", with {c.own.swapped / 2**30:.2g} GiB of it on swap" if c.own.swapped else ""
    return f"reads {c.own.major_faults:.0f} pages a second back from a disk{swapped}"


def _few_cores(c: Compared) -> bool:
    fewest = c.others.fewest_cpus
    if c.own.cpus is None or fewest is None or c.own.cpus >= fewest:
        return False
    few = c.own.cpus <= min(FEW_CORES, fewest / 2)
    return c.kind == "cpu" or (few and c.kind in ("work", "same"))


def _cores_words(c: Compared) -> str:
    own = f"{c.own.cpus} CPU{'' if c.own.cpus == 1 else 's'}"
    return f"may run on {own}, the others on {c.others.fewest_cpus} or more"


def _limits(c: Compared) -> list[str]:
    """The reasons that its GPU alone has."""
    return [one for one in c.own.gpu_limits if one in GPU_LIMITS and one not in c.others.limits]


def _slow_clock(c: Compared) -> bool:
    """Where all hosts wait for their GPUs, a lower clock tells no cause: of a GPU that computes more the power limit cuts it."""
    if c.kind == "gpu":
        return False
    own, others = c.own.gpu_clock, c.others.clocks
    return bool(own and others) and (own or 0.0) <= SLOWER * min(others)


def _low_power(c: Compared) -> bool:
    own, others = c.own.gpu_power_limit, c.others.power_limits
    return bool(own and others) and (own or 0.0) <= SLOWER * min(others)


def _clock_words(c: Compared) -> str:
    why = ", ".join(dict.fromkeys(GPU_LIMITS[limit] for limit in _limits(c)))
    by = f", held back by {why}" if why else ""
    own, usual = (c.own.gpu_clock or 0.0) / 1e6, median(c.others.clocks) / 1e6
    return f"has a GPU at {own:.0f} MHz, the others {usual:.0f} MHz{by}"


def _power_words(c: Compared) -> str:
    usual = median(c.others.power_limits)
    limits = f"with a power limit of {c.own.gpu_power_limit or 0.0:.0f} W, the others {usual:.0f} W"
    return f"{_clock_words(c)}, {limits}"


def _has_link_errors(c: Compared) -> bool:
    return bool(c.own.link) and c.others.linked_badly < FEW_LINKS and c.kind in ("same", "data")


def _has_slow_ports(c: Compared) -> bool:
    own, usual = c.own.port_gigabits, c.others.port_gigabits
    return 0 < own <= SLOWER * usual and c.kind in ("same", "data")


def _ports_words(c: Compared) -> str:
    own, usual = c.own.port_gigabits, c.others.port_gigabits
    return f"stands on a node whose ports carry {own:g} Gb/s, those of most others {usual:g}"


def _has_more_work(c: Compared) -> bool:
    own, others = c.own.gpu_memory, c.others.memory
    larger = bool(own and others) and (own or 0) >= LARGER * max(others)
    return larger and c.kind in ("work", "same", "gpu") and not _slow_clock(c)


def _uneven_words(c: Compared) -> str:
    own, usual = (c.own.gpu_memory or 0) / 2**30, median(c.others.memory) / 2**30
    return f"has more work than the others: {own:.3g} GiB on its GPU, the others {usual:.3g} GiB"


_TO_THE_PORT = "mldebug status  # on {node}: its ports; then the cable, the transceiver and the switch's end of it"
RULES = (
    Rule(
        "quota",
        lambda c: c.more(c.own.throttled, c.others.throttled),
        _quota_words,
        "raise the CPU quota of its control group (cpu.max, or the job's request of CPUs): cat /proc/{pid}/cgroup",
    ),
    Rule(
        MOUNT,
        lambda c: c.more(c.own.file_waiting, c.others.file_waiting),
        _mount_words,
        "mldebug status --storage  # on {node}: how fast its mounts answer",
    ),
    Rule(
        "swap",
        _swaps,
        _swap_words,
        "find what takes the memory of {node}: its pages are read back from a disk (`free`, `vmstat 1`)",
    ),
    Rule(
        "memory",
        lambda c: c.more(c.own.memory_pressure, c.others.memory_pressure),
        lambda c: (
            "stands on a node that is short of memory "
            + _shares(c.own.memory_pressure, c.others.memory_pressure)
        ),
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
        GPU_NEIGHBOUR,
        lambda c: (
            bool(c.own.gpu_neighbour) and c.others.have_gpus_alone and c.kind in ("same", "gpu")
        ),
        lambda c: f"shares its GPU with {c.own.gpu_neighbour}, which computes there",
        "nvidia-smi  # on {node}: whose program computes on the GPU of {pid}; have it end, or move it",
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
        LINK,
        _has_link_errors,
        lambda c: f"stands on a node whose {c.own.link}",
        _TO_THE_PORT,
    ),
    Rule(
        LINK,
        _has_slow_ports,
        _ports_words,
        _TO_THE_PORT,
    ),
    Rule(
        UNEVEN,
        _has_more_work,
        _uneven_words,
        "compare what the ranks are given (batch, sequence lengths, stages): no rank is to blame",
    ),
)

OF_GPU = ("power", "clock", GPU_NEIGHBOUR)
STEPS = {rule.kind: rule.step for rule in RULES}
