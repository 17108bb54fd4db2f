"""From answers of NCCL RAS (NCCL's own status service) to a progress signal: some rank has launched a collective since the
previous answer.

A launch is weaker evidence than a step: it does not say that the collective completed, and a thread may launch some for ever in a
job that hangs. So it counts only within 0.75 of the collective timeout after the last step, log record or heartbeat; always in a
run that reports none of these.
"""

from mldebug.capture.nccl_ras.progress import brief, moved
from mldebug.core.model import NcclRas
from mldebug.stall.signals import STEPS, Progress, ProgressKind, RunLook

LIMIT = 0.75  # of the time after which torch ends a collective, without a step


class CollectiveProgress:
    """Compares successive answers of NCCL RAS about one attempt (start) of a run. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._last: NcclRas | None = None
        self._last_at = 0.0
        self._moves = 0
        self._moved_at = 0.0

    def take(self, answer: NcclRas, at: float) -> None:
        """Add the answer of NCCL RAS that came at time `at`. Two answers that cannot be compared show no progress.

        A count that grew between two answers may have grown right after the first, so the progress is dated to the first answer.
        """
        if self._last is not None and moved(self._last, answer):
            self._moves, self._moved_at = self._moves + 1, max(self._moved_at, self._last_at)
        self._last, self._last_at = brief(answer), at

    def forget(self) -> None:
        """Forget the last answer: the next answer is compared with nothing and shows no progress."""
        self._last = None

    def signals(self, look: RunLook) -> tuple[Progress, ...]:
        """The progress signal for this look, as a tuple of one; empty before the first launch was noticed, and where that launch
        came later than 0.75 of the collective timeout after the last step.
        """
        if not self._moves or self._moved_at > stepped_at(look) + LIMIT * look.evidence_lives:
            return ()
        at = min(self._moved_at, look.at)
        return (Progress(kind=ProgressKind.RAS, value=self._moves, at=at),)


def stepped_at(look: RunLook) -> float:
    """When the run last reported a step, a log record or a heartbeat, in monotonic seconds; infinite where it reports none."""
    times = [signal.at for signal in look.progress if signal.kind in STEPS]
    return max(times, default=float("inf"))
