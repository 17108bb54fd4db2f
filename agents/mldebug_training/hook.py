"""Arms a process that has just started: what is imported later is watched. In anything but training it does nothing."""

from __future__ import annotations

from mldebug_training.imports import after_import
from mldebug_training.phases import watch_phases
from mldebug_training.process import own
from mldebug_training.ranks import is_rank
from mldebug_training.stacks import block
from mldebug_training.steps import count_steps


def arm() -> None:
    """Watch for PyTorch. A rank has its record as soon as torch is there; any other process if it makes a step."""
    after_import("torch.optim.optimizer", count_steps)
    watch_phases()
    if is_rank():
        block()
        after_import("torch", lambda _: own.start())
