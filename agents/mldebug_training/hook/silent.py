"""A phase that is not reported, for processes in which the hook cannot work: the job's block runs all the same."""

from __future__ import annotations

from contextlib import ContextDecorator


class SilentPhase(ContextDecorator):
    """Stands in for `mldebug_training.hook.phases.Phase` and does nothing."""

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        return
