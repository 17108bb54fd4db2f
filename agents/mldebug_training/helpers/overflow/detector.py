"""Finds the first module of a model whose weights or activations turn inf or nan, and what its numbers were before.

    with OverflowDetector(model):
        train()

Forward hooks compute the smallest and largest absolute number of all weights, inputs and outputs on the device that holds them; one
transfer to the host when the model's forward is over brings all of them. So a report comes a little later, and still names the first module.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from itertools import islice

from mldebug_training.common.interrupted import pass_on
from mldebug_training.helpers.overflow.findings import Findings
from mldebug_training.helpers.overflow.frames import ModuleCall, TensorRow
from mldebug_training.helpers.overflow.measuring import MAX_LEAVES, Measures, leaves
from mldebug_training.helpers.overflow.modules import (
    ModuleHook,
    in_backward,
    in_capture,
    named,
    refuse_compiled,
)
from mldebug_training.helpers.rank_print import own_rank, write_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Self

    from mldebug_training.helpers.overflow.frames import TensorFault

FRAMES = 21
MAX_WAITING = 20_000  # tensors of a model whose own forward is never called


class OverflowDetector:
    """Watches a model until `close`, which leaves no hook behind. Also a context manager.

    A batch is one call of the model's own forward; the first is 0. Raises ValueError for a compiled model, which calls no
    hooks. Whatever else goes wrong in here never reaches the training.

    on_found       "raise" OverflowFoundError, "report" and go on, "exit" at once with code 70, or "ignore", only to trace
    frames         how many calls of modules a report shows
    trace_batches  batches that are written in full: numbers, or (first, last)
    stop_after     raise BatchReachedError when this batch is over
    gradients      watch what comes back through the modules, too
    underflow      a module that loses all its numbers is a finding as well
    skip           patterns of the names of modules that are not looked at: ["*.mask"]
    each_call      look after each call and not after each batch: a GPU is waited for each time
    folder         write there, one file per rank, and one sentence to stderr
    """

    def __init__(
        self,
        model: Any,
        *,
        on_found: str = "raise",
        frames: int = FRAMES,
        trace_batches: Iterable[int | tuple[int, int]] = (),
        stop_after: int | None = None,
        gradients: bool = False,
        underflow: bool = False,
        skip: Sequence[str] = (),
        each_call: bool = False,
        folder: str | None = None,
    ) -> None:
        refuse_compiled(model)
        self._findings = Findings(on_found, trace_batches, stop_after, underflow, folder)
        self._last: deque[ModuleCall] = deque(maxlen=max(1, frames))
        self._gradients, self._each = gradients, each_call
        self._waiting: list[ModuleCall] = []
        self._measures = Measures()
        self._calls: Counter[str] = Counter()
        self._callback_queued = False  # the autograd engine, to call us when it is through
        self._wanted = False
        self._handles: list[Any] = []
        self.batch = -1
        self._watch(model, skip)

    @property
    def found(self) -> list[TensorFault]:
        """The faults (inf, nan, underflow) that were reported so far."""
        return self._findings.found

    def end_batch(self) -> None:
        """Judge the batch that has just ended. Only needed for a model whose own forward is never called. Raises as
        `on_found` says.
        """
        waiting, self._waiting = self._waiting, []
        self._measures.fetch()
        self._findings.judge(self.batch, waiting, self._last)

    def close(self) -> None:
        """Remove all hooks from the model."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        self._wanted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
        if error is not None:  # it is what the program ends with
            self._findings.report_only()
        self.end_batch()

    def _watch(self, model: Any, skip: Sequence[str]) -> None:
        for name, module in named(model, skip):
            after = ModuleHook(self._after, name)
            self._handles.append(module.register_forward_hook(after, with_kwargs=True))
            if self._gradients:
                self._watch_weights(name, module)
        self._handles.append(model.register_forward_pre_hook(ModuleHook(self._begin)))
        self._handles.append(model.register_forward_hook(ModuleHook(self._end)))
        self._wanted = self._findings.wants(0)

    def _begin(self, *_: Any) -> None:
        if in_backward():
            return
        if self._waiting:  # the forward before this one failed
            self.end_batch()
        self.batch += 1
        self._callback_queued = False
        self._calls.clear()
        self._wanted = self._findings.wants(self.batch) and not in_capture()

    def _end(self, *_: Any) -> None:
        if not in_backward():
            self.end_batch()
            self._findings.stop(self.batch)

    def _after(self, name: str, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if not self._wanted or in_backward():
            return
        try:
            self._note(name, module, args, kwargs, output)
        except Exception as error:
            pass_on(error)
            return
        if self._each or self._measures.count > MAX_WAITING:
            self.end_batch()

    def _note(self, name: str, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        self._calls[name] += 1
        rows = [*self._rows("weight", module.named_parameters(recurse=False))]
        rows += self._rows("buffer", module.named_buffers(recurse=False))
        inputs = [*leaves(args, "input"), *leaves(kwargs, "input")]
        outputs = list(islice(leaves(output, "output"), MAX_LEAVES))
        rows += self._rows("input", inputs[:MAX_LEAVES])
        rows += self._rows("output", outputs)
        self._waiting.append(ModuleCall(name, type(module).__name__, self._calls[name], rows))
        if self._gradients:
            self._watch_outputs(name, module, outputs)

    def _rows(self, role: str, tensors: Iterable[tuple[str, Any]]) -> list[TensorRow]:
        return [TensorRow(role, label, self._measures.put(tensor)) for label, tensor in tensors]

    def _watch_outputs(self, name: str, module: Any, outputs: list[tuple[str, Any]]) -> None:
        for label, tensor in outputs:
            if getattr(tensor, "requires_grad", False):
                tensor.register_hook(ModuleHook(self._back, name, type(module).__name__, label))

    def _watch_weights(self, name: str, module: Any) -> None:
        for label, weight in module.named_parameters(recurse=False):
            if weight.requires_grad:
                back = ModuleHook(self._back, name, type(module).__name__, label)
                self._handles.append(weight.register_hook(back))

    def _back(self, name: str, kind: str, label: str, gradient: Any) -> None:
        if not self._wanted:
            return
        try:
            row = TensorRow("gradient", f"gradient of {label}", self._measures.put(gradient))
            self._waiting.append(ModuleCall(name, kind, 1, (row,), backward=True))
            if not self._callback_queued:
                sys.modules["torch"].autograd.Variable._execution_engine.queue_callback(
                    self.end_batch
                )
                self._callback_queued = True
        except Exception as error:
            pass_on(error)


def detect_overflow(value: Any, name: str) -> str:
    """Print on stderr where this tensor, or one in this tuple, dict or model output, contains inf or nan. Waits for the GPU.

    `name`: how the value is called in the message. Returns "nan", "inf" or "-inf" for the first bad tensor, "" for none; never
    raises.
    """
    try:
        measures = Measures()
        rows = [TensorRow("output", label, measures.put(one)) for label, one in leaves(value, name)]
        measures.fetch()
        bad = [row for row in rows if row.numbers.fault]
        for row in bad:
            text = f"mldebug: {row.label} holds {row.numbers.fault}"
            write_lines(text, rank=own_rank(), file=sys.stderr)
        return bad[0].numbers.fault if bad else ""
    except Exception as error:
        pass_on(error)
        return ""
