"""Bandwidths of collectives from payload and time, by the factors that nccl-tests publishes.

`bytes` is what nccl-tests calls size: the larger of the send and receive buffers of one rank. The algorithm bandwidth is
bytes / time; the bus bandwidth multiplies it by a factor of the number of ranks n, so that it can be held against the
links whatever n is. Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from collections.abc import Callable

FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "send_recv": lambda n: 1.0,
    "barrier": lambda n: 0.0,  # moves no payload: only its time counts
}
OPS = tuple(FACTORS)


def algbw(size: int, seconds: float) -> float:
    """Algorithm bandwidth in bytes per second."""
    return size / seconds if seconds > 0 else 0.0


def busbw(op: str, size: int, seconds: float, ranks: int) -> float:
    """Bus bandwidth in bytes per second."""
    return algbw(size, seconds) * FACTORS[op](ranks)
