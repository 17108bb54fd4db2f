"""Who holds CUDA memory, by line and phase: added up from blocks and the Python stacks that made them.

A line is the innermost one of the job's own code, as elsewhere in reports. The phase follows from the functions of PyTorch that are on
the stack; a block without any Python frame was made by a thread of autograd, in the backward pass. A call inside `backward` that
computes a forward again (checkpointing) counts as backward.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mldebug.capture.frames import site
from mldebug.capture.stacks.form import named_frame
from mldebug.core.model import Frame, HeldLine, MemoryHolders

MAX_LINES = 12
BACKWARD, OPTIMIZER, FORWARD, OTHER = "backward", "optimizer", "forward", "other"
_RULES = (
    (OPTIMIZER, r"torch/optim/|deepspeed/ops/adam/|apex/optimizers/|bitsandbytes/optim/", ""),
    ("checkpoint", r"torch/serialization\.py|torch/distributed/checkpoint/|safetensors/", ""),
    (BACKWARD, r"torch/autograd/", r"_engine_run_backward|backward|apply"),
    (BACKWARD, r"torch/_tensor\.py", r"backward"),
    ("model", r"torch/nn/modules/", r"_apply|__init__|reset_parameters|to|cuda|to_empty"),
    (FORWARD, r"torch/nn/modules/module\.py", r"_call_impl|_wrapped_call_impl"),
    ("data", r"torch/utils/data/", ""),
    ("model", r"", r"load_state_dict"),
)  # in this order: what a forward inside of backward makes is backward's
_COMPILED = tuple((phase, re.compile(f"(?:^|/)(?:{path})"), re.compile(names or ".*")) for phase, path, names in _RULES)  # fmt: skip


class HeldStack(NamedTuple):
    """Blocks in use that one stack has made; `frames` the innermost first."""

    frames: tuple[Frame, ...]
    blocks: int
    memory_bytes: int


class DeviceTotals(NamedTuple):
    """The sizes of one GPU's allocator (bytes), as in `MemoryHolders`."""

    device: int
    reserved: int
    allocated: int
    requested: int
    pieces: int
    largest_free: int
    private: int
    left_out: int


def held_by_line(totals: DeviceTotals, stacks: Iterable[HeldStack]) -> MemoryHolders:
    """Add up what the stacks of one GPU hold. One that several blocks share is looked at once, where it is the same object."""
    known: dict[int, tuple[str, str]] = {}
    stacks = tuple(stacks)
    lines: dict[tuple[str, str], list[int]] = {}
    phases: dict[str, int] = {}
    for one in stacks:
        found = known.get(id(one.frames))
        if found is None:
            found = known[id(one.frames)] = place_of(one.frames), phase_of(one.frames)
        phase = found[1]
        line = lines.setdefault(found, [0, 0])
        line[0] += one.memory_bytes
        line[1] += one.blocks
        phases[phase] = phases.get(phase, 0) + one.memory_bytes
    largest = sorted(lines.items(), key=lambda item: (-item[1][0], item[0]))
    return MemoryHolders(
        device=totals.device,
        reserved=totals.reserved,
        allocated=totals.allocated,
        requested=totals.requested,
        pieces=totals.pieces,
        largest_free=totals.largest_free,
        private=totals.private,
        lines=tuple(
            HeldLine(place=place, phase=phase, memory_bytes=size, blocks=blocks)
            for (place, phase), (size, blocks) in largest[:MAX_LINES]
        ),
        phases=dict(sorted(phases.items(), key=lambda item: -item[1])),
        elsewhere=sum(size for _, (size, _) in largest[MAX_LINES:]) + totals.left_out,
    )


def phase_of(frames: Sequence[Frame]) -> str:
    """What the process did when it made a block: optimizer, checkpoint, backward, model, forward, data, or other."""
    if not frames:
        return BACKWARD
    for phase, path, names in _COMPILED:
        if any(path.search(one.path) and names.fullmatch(one.function) for one in frames):
            return phase
    return OTHER


def place_of(frames: Sequence[Frame]) -> str:
    """The innermost line of the job's own code: `build (model.py:18)`; without one the nearest to it; "" without frames."""
    found = site(frames) or next(iter(frames), None)
    return f"{found.function} ({found.file}:{found.line})" if found else ""


def frame_of(file: str, line: int, function: str) -> Frame:
    """The frame at a file, line and function as PyTorch's memory snapshot names them, paths shortened."""
    return named_frame(file, str(max(0, line)), function)
