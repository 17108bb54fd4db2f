"""Who holds the CUDA memory of a process that works, asked between two steps: the form that is written when memory runs out
(`mldebug_training.hook.on_request.memory_history`). The job has to be started with `mldebug run --memory-history`.
"""

from __future__ import annotations

from mldebug_training.hook.on_request.memory_history import history
from mldebug_training.hook.on_request.step_task import DeclinedError, StepTask, unnamed


class MemoryLook(StepTask):
    """Writes once who holds the memory of the device that is current in the thread that steps."""

    def at_step(self, step: int) -> None:
        """Look after the first step that ends."""
        known = history()
        if known is None:
            raise DeclinedError("the job was not started with `mldebug run --memory-history`")
        if known.why:
            raise DeclinedError(known.why)
        data = known.look()
        self.hand_over(unnamed(f"{self._path}.memory", data), first=step, last=step)
