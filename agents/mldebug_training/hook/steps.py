"""Counts the steps of PyTorch's optimizers, by the hook that they all call after a step.

With gradient accumulation that is one a step and not one a micro-step. Several optimizers step in rounds, and a round is a step: it
ends when one of them steps again. So where the two of a GAN take turns the busier one counts, thousands of small ones (one a
parameter) make one step, and an optimizer that is made later continues the count.
"""

from __future__ import annotations

import functools
import os
import sys

from mldebug_training.common.imports import after_import
from mldebug_training.common.interrupted import pass_on
from mldebug_training.hook.process import OwnProcess, own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType, ModuleType
    from typing import Any

    from mldebug_training.hook.record import HookRecord

OWN_AND_OPTIMIZERS = 2  # classes that define a step where none calls that of another
NEAR = 8  # frames between a step and the one of its base class that it calls


class Steps:
    """Counts the training steps of this process and reports them. Never raises."""

    def __init__(self, process: OwnProcess) -> None:
        self._own = process
        self._round: set[int] = (
            set()
        )  # who has stepped in it; an id that is used again costs nothing
        self._moved = False  # since the framework's last word
        self.step = 0
        self.calls = 0
        self.within = 0  # steps of a framework, which tells them itself
        self.code: CodeType | None = None  # that calls us

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            self.calls += 1
            if self.within:
                return
            if _may_be_inner(optimizer.__class__) and _is_inner(
                sys._getframe(1), self.code, optimizer
            ):
                return
            if self._round and id(optimizer) not in self._round:
                self._round.add(id(optimizer))
                return
            self._round = {id(optimizer)}
            self._reach(self.step + 1)
            self._moved = True
        except Exception as error:
            pass_on(error)

    def counted(self, step: int) -> None:
        """Report this step, which a framework made without PyTorch's optimizer hook and numbers itself."""
        self._moved = True
        self._reach(step)

    def reached(self, step: int) -> None:
        """Report the step that a framework's loop calls the last one. Where an optimizer has stepped since the last call it
        only corrects the number.
        """
        moved, self._moved = self._moved, False
        if step == self.step or self._own.explicit:
            return
        if moved:
            self.step = step
            self._own.correct(step)
        else:
            self._reach(step)

    def forget(self) -> None:
        """Start counting from 0 in a forked child, which may have been forked inside a framework's step."""
        self._round, self._moved, self.step = set(), False, 0

    def _reach(self, step: int) -> None:
        self.step = step
        if not self._own.explicit:
            self._own.beat(step)


steps = Steps(own)
os.register_at_fork(after_in_child=steps.forget)


def _take(process: OwnProcess, record: HookRecord) -> None:
    from mldebug_training.hook.on_request.requests import take  # nobody asks most processes

    take(process, record)


def count_steps(module: ModuleType) -> None:
    """Count steps of optimizers from now on; called when `torch.optim.optimizer` was imported. torch.compile is told not to
    compile the hook.
    """
    steps.code = _code(module)
    own.answer_requests(_take)
    handle = module.register_optimizer_step_post_hook(steps)

    def shield(dynamo: ModuleType) -> None:
        handle.remove()
        module.register_optimizer_step_post_hook(dynamo.disable(steps))

    after_import("torch._dynamo", shield)


def counts_if_left_out(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the step of a gradient scaler. It skips its optimizer when gradients overflow; the step then counts all the same."""

    @functools.wraps(step)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = steps.calls
        result = step(self, *args, **kwargs)
        if steps.calls == before:
            steps(_innermost(self, *args, **kwargs), (), {})
        return result

    return wrapper


def counts_itself(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap DeepSpeed's step, which has its own count (`global_steps`) and may call its optimizer many times for one step."""

    @functools.wraps(step)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps.within += 1
        try:
            result = step(self, *args, **kwargs)
        finally:
            steps.within -= 1
        _if_number(steps.counted, lambda: self.global_steps)
        return result

    return wrapper


def counts_after(function: Callable[..., Any], count: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of a training loop: after it, `count` called with its arguments gives the step that was reached."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        _if_number(steps.reached, lambda: count(*args, **kwargs))
        return result

    return wrapper


def _if_number(reach: Callable[[int], None], count: Callable[[], Any]) -> None:
    try:
        step = count()
        if isinstance(step, int) and step > 0:
            reach(step)
    except Exception as error:
        pass_on(error)


def _innermost(outer: Any, optimizer: Any = None, *_: Any, **__: Any) -> Any:
    """The optimizer that a scaler was given, or the first one of PyTorch in one of Megatron's."""
    try:
        if optimizer is None:
            optimizer = next(iter(getattr(outer, "chained_optimizers", ())), outer)
            optimizer = getattr(optimizer, "optimizer", optimizer)
    except Exception as error:
        pass_on(error)
    return optimizer


def _code(module: ModuleType) -> CodeType | None:
    """Of the function that PyTorch puts around each optimizer's step; None where it is made in another way."""
    try:
        code: CodeType = module.Optimizer.profile_hook_step(_code).__code__
        return code if "self" in code.co_varnames else None
    except Exception as error:
        pass_on(error)
        return None


@functools.lru_cache(maxsize=64)
def _may_be_inner(kind: type) -> bool:
    """Can a step of it call one of its base class? To look at frames makes each of them dearer, so that not all steps shall pay."""
    return sum("step" in vars(one) for one in kind.__mro__) > OWN_AND_OPTIMIZERS


def _is_inner(frame: FrameType | None, code: CodeType | None, optimizer: object) -> bool:
    """Is this the step of a base class, called by the step of the same optimizer? The outer one counts."""
    inner = False
    for _ in range(NEAR):
        if frame is None or code is None:
            return False
        if frame.f_code is code:
            if inner and frame.f_locals.get("self") is optimizer:
                return True
            inner = True
        frame = frame.f_back
    return False
