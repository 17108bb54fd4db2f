"""Counts what PyTorch's optimizers do, by the hook that they all call after a step.

With gradient accumulation that is one a step and not one a micro-step. Of several optimizers the busiest counts: those of a
GAN take turns, and thousands of small ones (one a parameter) step once each.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from mldebug_training.imports import after_import
from mldebug_training.process import Process, own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


class Steps:
    """The hook. Never raises."""

    def __init__(self, process: Process) -> None:
        self._own = process
        self._counts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._most = 0

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
            if count > self._most:
                self._most = count
                if not self._own.explicit:
                    self._own.beat(count)
        except Exception:
            pass


def count_steps(module: ModuleType) -> None:
    """`torch.optim.optimizer` is there: count from now on. The compiler, once it is there, is told to leave the hook alone."""
    hook = Steps(own)
    handle = module.register_optimizer_step_post_hook(hook)

    def shield(dynamo: ModuleType) -> None:
        handle.remove()
        module.register_optimizer_step_post_hook(dynamo.disable(hook))

    after_import("torch._dynamo", shield)
