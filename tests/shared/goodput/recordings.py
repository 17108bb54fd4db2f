"""Simulated Flight Recorders of ranks on GPUs whose hosts do nothing but wait for them."""

import random

from mldebug.core.model import FlightRecord, TimedCall, TimedCalls
from mldebug.core.ranksets import fold_ranks
from mldebug.goodput.evidence import RankShares
from mldebug.goodput.straggler import SampledStretch

STEP = 0.1  # seconds of work of each rank before each of its collectives


def records(
    extra: dict[int, float],
    ranks: int = 4,
    calls: int = 40,
    noise: float = 0.0,
    members: str = "",
    uneven: float = 0.0,
    seed: int = 0,
) -> dict[int, FlightRecord]:
    """What the ranks have recorded of `calls` collectives to which each comes after its own work: `extra` seconds more for some; `noise`, and work
    that differs (`uneven`), are shares of it.
    """
    dice = random.Random(seed)
    taken: dict[int, list[TimedCall]] = {rank: [] for rank in range(ranks)}
    begun = 1000.0
    for number in range(1, calls + 1):
        came = {
            rank: begun + STEP * (1 + dice.gauss(0, noise) + dice.uniform(-uneven, uneven)) + extra.get(rank, 0.0)
            for rank in range(ranks)
        }  # fmt: skip
        ended = max(came.values()) + 0.005
        for rank, at in came.items():
            taken[rank].append(TimedCall(sequence=number, seconds=ended - at, created_at=at))
        begun = ended
    folded = members or fold_ranks(range(ranks))
    return {
        rank: FlightRecord(timed=(TimedCalls(group="0", backend="nccl", members=folded, calls=tuple(some)),))
        for rank, some in taken.items()
    }  # fmt: skip


def on_gpus(ranks: int = 4) -> SampledStretch:
    """All hosts wait for their GPUs alike: their stacks tell nothing."""
    shares = tuple(RankShares(rank=n, samples=100, waiting=0.95, on_gpu=0.95) for n in range(ranks))
    return SampledStretch(at=0.0, seconds=5.0, ranks=shares, world_size=ranks)
