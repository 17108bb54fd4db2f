"""The load of GPUs in plain figures, for one reading without a learned baseline, from which no state can be judged.

Pure.

`GPU 1: 0 % busy, 122 W; GPUs 0,2-7: 100 % busy, 120 to 126 W, no memory traffic`
"""

from collections.abc import Collection, Iterable

from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.hardware.gpu.readings import GpuWatch, NodeWatch
from mldebug.hardware.gpu.samples import MOVES_RATIO, ratio, watts

STEP = 0.1  # of the time busy: GPUs within one step are told together
_Kind = tuple[int | None, bool | None]


def plain_sentence(watch: NodeWatch, uuids: Collection[str] = ()) -> str:
    """A sentence about the load of the GPUs (or of those in `uuids`): first those that do not answer, then the least busy ones, which may keep others waiting.

    "" without GPUs.
    """
    groups: dict[_Kind, list[GpuWatch]] = {}
    for gpu in watch.gpus:
        if not uuids or gpu.uuid in uuids:
            groups.setdefault(_kind(gpu), []).append(gpu)
    ordered = sorted(groups.items(), key=lambda item: _place(item[0]))
    lost = [one for one in watch.lost if not uuids or one.uuid in uuids]
    gone = [f"GPU {one.index} does not answer: {one.reason}" for one in lost]
    return "; ".join([*gone, *(_say(group) for _, group in ordered)])


def _place(kind: _Kind) -> tuple[bool, int]:
    return (kind[0] is None, kind[0] or 0)


def _kind(gpu: GpuWatch) -> _Kind:
    busy = ratio(gpu.utilization_ratio)
    return (None if busy is None else round(busy / STEP), _still(gpu))


def _still(gpu: GpuWatch) -> bool | None:
    """Is it busy without touching its memory? A collective that waits looks so, and so does a kernel that spins."""
    busy, traffic = ratio(gpu.utilization_ratio), ratio(gpu.memory_utilization_ratio)
    if busy is None or traffic is None:
        return None
    return busy > MOVES_RATIO and traffic <= MOVES_RATIO


def _say(group: list[GpuWatch]) -> str:
    numbers = shorten_ranks(fold_ranks(one.index for one in group))
    busy = _span((ratio(one.utilization_ratio) for one in group), 100.0, "% busy")
    power = _span((watts(one.power_watts) for one in group), 1.0, "W")
    parts = [one for one in (busy, power) if one]
    parts += ["no memory traffic"] if _still(group[0]) else []
    return f"GPU{'s' if len(group) > 1 else ''} {numbers}: {', '.join(parts) or 'tells nothing'}"


def _span(values: Iterable[float | None], scale: float, unit: str) -> str:
    figures = [value * scale for value in values if value is not None]
    if not figures:
        return ""
    low, high = f"{min(figures):.0f}", f"{max(figures):.0f}"
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
