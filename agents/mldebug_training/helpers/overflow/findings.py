"""What the detector does about the module calls of a batch: finds the first bad one, reports it, and ends the run if wanted."""

from __future__ import annotations

import os
import socket
import sys
import threading

from mldebug_training.common.interrupted import pass_on
from mldebug_training.helpers.overflow.frames import fault_of, render, sentence, underflow_of
from mldebug_training.helpers.rank_print import own_rank, write_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable

    from mldebug_training.helpers.overflow.frames import ModuleCall, TensorFault

WAYS = ("raise", "report", "exit", "ignore")
EXIT_CODE = 70  # EX_SOFTWARE
MAX_REPORTS = 10  # of one detector: a run that goes on with nan would write for ever


class OverflowFoundError(ArithmeticError):
    """A number became inf or nan or, with `underflow`, too small; `fault` says where."""

    def __init__(self, text: str, fault: TensorFault) -> None:
        super().__init__(text)
        self.fault = fault


class BatchReachedError(RuntimeError):
    """The batch `stop_after`, after which the run should stop, has ended."""


class Findings:
    """Finds the first overflow (inf, nan) or underflow in the module calls of each batch, by the options of
    `OverflowDetector`; reports it to stderr or to a file in `folder`, and raises or ends the process where `on_found`
    says so.

    `found`: the faults that were reported, at most `MAX_REPORTS`; of bad batches in a row only the first. Raises
    ValueError for an unknown `on_found`.
    """

    def __init__(
        self,
        on_found: str,
        trace_batches: Iterable[int | tuple[int, int]],
        stop_after: int | None,
        underflow: bool,
        folder: str | None,
    ) -> None:
        if on_found not in WAYS:
            raise ValueError(f"on_found is one of {', '.join(WAYS)}, not {on_found!r}")
        pairs = [one if isinstance(one, (tuple, list)) else (one, one) for one in trace_batches]
        self._traced = [(int(first), int(last)) for first, last in pairs]
        self.on_found, self._stop_after = on_found, stop_after
        self._underflow, self._folder = underflow, folder
        self._bad = -9  # the last batch that was
        self.found: list[TensorFault] = []

    def report_only(self) -> None:
        """From now on only report faults: neither raise nor end the process."""
        self.on_found = "report"

    def wants(self, batch: int) -> bool:
        """Whether this batch has to be measured."""
        return self.on_found != "ignore" or self._is_traced(batch)

    def judge(self, batch: int, frames: list[ModuleCall], last: deque[ModuleCall]) -> None:
        """Judge the module calls (`frames`) of a batch, whose numbers have been fetched. `last`: the newest calls, which a
        report shows.

        Raises OverflowFoundError, or ends the process with code 70, where `on_found` says so.
        """
        try:
            fault = self._look(batch, frames, last)
        except Exception as error:
            pass_on(error)
            return
        if fault is not None and self.on_found == "raise":
            raise OverflowFoundError(f"batch {batch}: {sentence(fault)}", fault)
        if fault is not None and self.on_found == "exit":
            _exit()

    def stop(self, batch: int) -> None:
        """Raise BatchReachedError where `stop_after` is this batch or an earlier one."""
        if self._stop_after is not None and batch >= self._stop_after:
            raise BatchReachedError(f"batch {batch} is over, and stop_after is {self._stop_after}")

    def _look(
        self, batch: int, frames: list[ModuleCall], last: deque[ModuleCall]
    ) -> TensorFault | None:
        if frames and self._is_traced(batch):
            self._write(f"mldebug: batch {batch}", render(frames))
        for frame in frames:
            last.append(frame)
            fault = self._fault(frame)
            if fault is not None:
                if batch > self._bad + 1 and len(self.found) < MAX_REPORTS:
                    self.found.append(fault)
                    heading = f"mldebug: batch {batch}: {sentence(fault)}"
                    self._write(heading, f"the last {len(last)} calls:\n{render(last)}")
                self._bad = batch
                return fault
        return None

    def _fault(self, frame: ModuleCall) -> TensorFault | None:
        if self.on_found == "ignore":
            return None
        return fault_of(frame) or (underflow_of(frame) if self._underflow else None)

    def _is_traced(self, batch: int) -> bool:
        return any(first <= batch <= last for first, last in self._traced)

    def _write(self, heading: str, table: str) -> None:
        rank = own_rank()
        path = self._path(rank)
        if path and write_lines(f"{heading}\n{table}", rank=rank, file=path):
            write_lines(f"{heading}\nmore in {path}", rank=rank, file=sys.stderr)
        else:
            write_lines(f"{heading}\n{table}", rank=rank, file=sys.stderr)

    def _path(self, rank: int | None) -> str:
        """Of this rank's file; empty where there is to be none, or can be none."""
        if self._folder is None:
            return ""
        try:
            os.makedirs(self._folder, exist_ok=True)
        except OSError as error:
            pass_on(error)
            return ""
        who = "" if rank is None else f"rank{rank}-"
        return os.path.join(self._folder, f"overflow-{who}{socket.gethostname()}-{os.getpid()}.txt")


def _exit() -> None:
    """At once: what a job does at its end may wait for the other ranks. What was printed gets a second."""
    thread = threading.Thread(target=lambda: (sys.stdout.flush(), sys.stderr.flush()), daemon=True)
    thread.start()
    thread.join(1.0)
    os._exit(EXIT_CODE)
