"""Who holds CUDA memory, in words: by line and phase, fragmented or full, and what a smaller setting would save."""

from collections.abc import Iterator

from mldebug.capture.memory.holders import FORWARD, OPTIMIZER, OTHER
from mldebug.core.model import HeldLine, MemoryFailure, MemoryHolders
from mldebug.core.text import plural
from mldebug.core.units import size_words

SHOWN = 6  # lines
LEAST = 0.01  # of what is held: smaller lines are not shown
KEEPS_MUCH = (
    1 / 3
)  # of what is held: a line of the job that keeps so much is looked at before any setting
NO_PYTHON = "no Python line (a thread of autograd)"


def failure_facts(failure: MemoryFailure) -> Iterator[str]:
    """Sentences for a report about an allocation that failed: which line asked for it, which lines hold the memory, and whether the free
    memory is in pieces too small.
    """
    holders = failure.holders
    place = f", asked at {failure.asked_at}" if failure.asked_at else ""
    step = f", in step {failure.step + 1}" if failure.step is not None else ""
    yield (
        f"{size_words(failure.requested)} could not be had on GPU {holders.device}{place}{step}: PyTorch held"
        f" {size_words(holders.reserved)} of {size_words(failure.capacity)}, {size_words(failure.free)} were free"
    )
    for line in holder_lines(holders):
        yield f"held by {line}"
    if holders.phases:
        yield f"held by phase: {phase_words(holders)}"
    yield shape_words(failure)


def live_facts(found: MemoryFailure) -> Iterator[str]:
    """Sentences about the memory of a GPU on which no allocation has failed: by line of code, by phase of the step, and how much is unused."""
    holders = found.holders
    step = f" after step {found.step}" if found.step is not None else ""
    yield (
        f"GPU {holders.device}{step}: {size_words(holders.allocated)} in use, PyTorch holds {size_words(holders.reserved)}"
        f" of {size_words(found.capacity)}, {size_words(found.free)} are free"
    )
    for line in holder_lines(holders):
        yield f"held by {line}"
    if holders.phases:
        yield f"held by phase: {phase_words(holders)}"
    yield unused_words(holders)


def holder_lines(holders: MemoryHolders, shown: int = SHOWN) -> Iterator[str]:
    """The lines that hold most: `build (model.py:18): 40.00 GiB in 96 blocks (model)`."""
    large = [one for one in holders.lines if one.memory_bytes >= LEAST * holders.allocated]
    for one in large[:shown]:
        yield line_words(one)
    rest = holders.elsewhere + sum(
        one.memory_bytes for one in holders.lines if one not in large[:shown]
    )
    if rest:
        yield f"other lines: {size_words(rest)}"


def line_words(one: HeldLine) -> str:
    """One line of the job's code and the GPU memory that it holds: `build (model.py:18): 30.0 GiB in 12 blocks (optimizer)`."""
    blocks = plural(one.blocks, "block")
    return f"{one.place or NO_PYTHON}: {size_words(one.memory_bytes)} in {blocks} ({one.phase})"


def phase_words(holders: MemoryHolders) -> str:
    """`optimizer 30.0 GiB, forward 12.0 GiB`."""
    return ", ".join(f"{phase} {size_words(size)}" for phase, size in holders.phases.items())


def unused_words(holders: MemoryHolders) -> str:
    """`1.2 GiB lie unused in 212 pieces, the largest of 20.0 MiB`."""
    if not holders.unused:
        return "nothing lies unused in PyTorch's cache"
    pieces, largest = plural(holders.pieces, "piece"), size_words(holders.largest_free)
    return f"{size_words(holders.unused)} lie unused in {pieces}, the largest of {largest}"


def shape_words(failure: MemoryFailure) -> str:
    """Whether the memory was fragmented or full."""
    unused = unused_words(failure.holders)
    if failure.missing:
        return (
            f"truly full: {unused}, so {size_words(failure.missing)} were missing even in one piece"
        )
    return f"fragmented: {unused}; in one piece it would have been enough"


def remedies(failure: MemoryFailure, world_size: int) -> tuple[str, ...]:
    """What a person can do: look at the line that keeps much of the memory outside of all phases of a step, then what a smaller setting
    would save, the most first. Empty where neither holds much.
    """
    holders = failure.holders
    largest = max(holders.lines, key=lambda one: one.memory_bytes, default=None)
    if largest is None or largest.phase != OTHER or not largest.place or largest.memory_bytes < KEEPS_MUCH * holders.allocated:  # fmt: skip
        return savings(failure, world_size)
    kept, all_of_it = size_words(largest.memory_bytes), size_words(holders.allocated)
    look = f"look first at what {largest.place} keeps: {kept} of {all_of_it} in use, made outside forward, backward and optimizer"
    return (look, *savings(failure, world_size))


def savings(failure: MemoryFailure, world_size: int) -> tuple[str, ...]:
    """What a smaller setting would save, the most first; empty where nothing that a setting changes holds much."""
    phases, least = failure.holders.phases, LEAST * failure.holders.allocated
    activations, state = phases.get(FORWARD, 0), phases.get(OPTIMIZER, 0)
    found = []
    if activations > least:
        enough = " (enough)" if activations // 2 >= failure.missing else " (not enough by itself)"
        found.append(
            (
                activations // 2,
                f"half the micro batch saves about {size_words(activations // 2)} of activations{enough}",
            )
        )
    if state > least and world_size > 1:
        saved = state * (world_size - 1) // world_size
        enough = " (enough)" if saved >= failure.missing else " (not enough by itself)"
        found.append(
            (
                saved,
                f"optimizer state over {world_size} ranks (ZeRO, FSDP) saves about {size_words(saved)}{enough}",
            )
        )
    return tuple(words for _, words in sorted(found, reverse=True))
