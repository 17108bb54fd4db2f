"""Adds up the stacks that py-spy has sampled in one rank: the same questions as of a trace, as far as stacks of Python can answer them."""

from collections.abc import Iterable, Sequence

from mldebug.capture.folded_stacks import CountedStack
from mldebug.capture.frames import bare, principal, site
from mldebug.core.model import Frame, MeasuredData

TOP = 8
_COLLECTIVES = ("torch/distributed/", "deepspeed/comm/", "megatron/core/distributed/")
_DEVICE = ("synchronize",)  # `item` and the like have no frame of Python
_DATA = ("torch/utils/data/",)


class SampledProfile(MeasuredData, frozen=True, kw_only=True):
    """Where the thread that trains stood, as shares of its `samples`: in collectives, waiting for the GPU, waiting for data; `places`: lines of
    the job's own code, `functions`: the innermost frames.
    """

    samples: int = 0
    communication: float = 0.0
    device_waits: float = 0.0
    data: float = 0.0
    places: tuple[tuple[str, float], ...] = ()
    functions: tuple[tuple[str, float], ...] = ()


def sampled_profile(stacks: Sequence[CountedStack], pid: int) -> SampledProfile:
    """Add up the samples of one process, of the thread that trains alone."""
    trains = principal(tuple(one.stack for one in stacks), pid)
    mine = [one for one in stacks if trains and one.stack.tid == trains.tid and one.stack.frames]
    total = sum(one.count for one in mine)
    if not total:
        return SampledProfile()

    def share(wanted: Sequence[str]) -> float:
        hits = (one.count for one in mine if any(_is_in(f, wanted) for f in one.stack.frames))
        return sum(hits) / total

    return SampledProfile(
        samples=total,
        communication=share(_COLLECTIVES),
        device_waits=sum(one.count for one in mine if _waits(one.stack.frames)) / total,
        data=share(_DATA),
        places=_top(((_site(one), one.count) for one in mine), total),
        functions=_top(((one.stack.frames[0].place, one.count) for one in mine), total),
    )


def _is_in(frame: Frame, folders: Sequence[str]) -> bool:
    return frame.file.startswith(tuple(folders))


def _waits(frames: Sequence[Frame]) -> bool:
    """Whether it stands in a function of PyTorch that waits for the GPU."""
    return frames[0].file.startswith("torch/cuda/") and bare(frames[0]) in _DEVICE


def _site(one: CountedStack) -> str:
    found = site(one.stack.frames)
    return found.place if found else ""


def _top(counts: Iterable[tuple[str, int]], total: int) -> tuple[tuple[str, float], ...]:
    sums: dict[str, int] = {}
    for place, count in counts:
        if place:
            sums[place] = sums.get(place, 0) + count
    largest = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:TOP]
    return tuple((place, count / total) for place, count in largest)
