"""What a training script can report about itself to mldebug, and helpers that it may call (standard library only, Python >= 3.9).

Reporting never raises and never waits: where it is impossible, the training goes on without it. The helpers are imported at their
first use.
"""

from __future__ import annotations

from mldebug_training.common.interrupted import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mldebug_training.helpers.deadline import TimeLimit
    from mldebug_training.helpers.first import MainProcessError, main_process_first
    from mldebug_training.helpers.memory import MemoryGuard
    from mldebug_training.helpers.overflow.detector import OverflowDetector, detect_overflow
    from mldebug_training.helpers.overflow.findings import BatchReachedError, OverflowFoundError
    from mldebug_training.helpers.rank_print import rank_print
    from mldebug_training.helpers.switches.switches import Switches
    from mldebug_training.helpers.weights import dump_weights
    from mldebug_training.hook.phases import Phase
    from mldebug_training.hook.silent import SilentPhase

__all__ = [
    "BatchReachedError",
    "MainProcessError",
    "MemoryGuard",
    "OverflowDetector",
    "OverflowFoundError",
    "Switches",
    "TimeLimit",
    "detect_overflow",
    "dump_weights",
    "heartbeat",
    "main_process_first",
    "phase",
    "rank_print",
]

_HELPERS = {
    "BatchReachedError": "helpers.overflow.findings",
    "MainProcessError": "helpers.first",
    "MemoryGuard": "helpers.memory",
    "OverflowDetector": "helpers.overflow.detector",
    "OverflowFoundError": "helpers.overflow.findings",
    "Switches": "helpers.switches.switches",
    "TimeLimit": "helpers.deadline",
    "detect_overflow": "helpers.overflow.detector",
    "dump_weights": "helpers.weights",
    "main_process_first": "helpers.first",
    "rank_print": "helpers.rank_print",
}


def __getattr__(name: str) -> Any:
    if name not in _HELPERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HELPERS[name]}"), name)


def phase(name: str) -> Phase | SilentPhase:
    """A context (or decorator) that reports its block as a phase, as in `with phase("evaluate"):`; phases may be nested."""
    try:
        from mldebug_training.hook.phases import Phase

        return Phase(name)
    except Exception as error:  # another system than Linux, a Python that lacks what it takes
        pass_on(error)
        from mldebug_training.hook.silent import SilentPhase

        return SilentPhase()


def heartbeat(step: int, **scalars: float) -> None:
    """Report that a step was reached, with values of it: `heartbeat(step, loss=loss.item())`. Takes microseconds; never raises.

    From the first call with a valid step on, steps of optimizers are no longer counted. Values are int, float and scalars of
    NumPy; others are left out, tensors too, because reading one on a GPU would wait for the GPU.
    """
    try:
        from mldebug_training.hook.process import own
        from mldebug_training.hook.values import of_scalars, of_step

        number = of_step(step)
        own.report_steps()
        record = own.record
        if record is not None and scalars:
            record.write_scalars(of_scalars(scalars))
        own.beat(number)
    except Exception as error:
        pass_on(error)
