"""Which fault of a GPU or of the network can be the cause of a stall: it is fatal, and it came when the job stopped.

Pure.

An Xid (an error number of NVIDIA's driver) after which the job went on for an hour explains
nothing; nor does one long after the stall began.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from mldebug.core.model import Fault

GPU_KINDS = frozenset({"xid", "sxid", "gpu_lost", "gpu_init_failed", "gpu_missing", "ecc"})
NETWORK_KINDS = frozenset({"port_down", "nic_fatal"})
BEFORE = 60.0  # seconds: the last sign of progress may be younger than the fault, as logs and queues lag behind
LAG = 10.0  # seconds of that for which looks and clocks alone account
PROMPT = 30.0  # seconds after the begin of the stall: what comes later may be its consequence
UNDATED = 900.0  # seconds before a capture for which nobody knows when the job stopped
ONE_MOMENT = 5.0  # seconds in which the faults of several GPUs are one story


class FittingFault(NamedTuple):
    """A fault that may have caused the stall.

    `prompt`: it came so close to the stop that its time allows confidence `high`.
    """

    fault: Fault
    prompt: bool


def fitting(
    faults: Iterable[Fault],
    stopped_at: float | None,
    until: float,
    *,
    kinds: frozenset[str] = GPU_KINDS,
    gap: float = 0.0,
) -> tuple[FittingFault, ...]:
    """Fatal faults of these kinds from shortly before the job stopped until unix time `until`, in order of time, each once.

    `stopped_at`: unix time since when the job has not moved; None where nobody watched. `gap`: the
    run's usual seconds between two signs of progress; a fault followed by more progress than that
    (or than `LAG`) is not `prompt`.
    """
    earliest = -min(BEFORE, max(LAG, gap))
    begin = until - UNDATED if stopped_at is None else stopped_at - BEFORE
    found = [
        FittingFault(one, stopped_at is not None and earliest <= one.at - stopped_at <= PROMPT)
        for one in _once(faults)
        if one.kind in kinds and one.tier == "fatal" and begin <= one.at <= until + ONE_MOMENT
    ]
    return tuple(sorted(found, key=lambda fit: fit.fault.at))


def _once(faults: Iterable[Fault]) -> Iterable[Fault]:
    """Of two captures the second may confirm what the first had from one read alone."""
    found: dict[Fault, Fault] = {}
    for one in faults:
        same = msgspec.structs.replace(one, confirmed=True)
        if one.confirmed or same not in found:
            found[same] = one
    return found.values()
