"""From answers of NCCL RAS to a progress signal: a rank has launched a collective since the answer before.

Weaker than a step: a launch says nothing of completion, and a thread of its own may launch something for ever in a job that
hangs. So in a run that reports steps it counts only for a time in which no rank would be blamed anyway.
"""

from mldebug.capture.nccl_ras.progress import brief, moved
from mldebug.core.model import NcclRas
from mldebug.stall.signals import STEPS, Progress, ProgressKind, RunLook

LIMIT = 0.75  # of the time after which torch ends a collective, without a step


class CollectiveProgress:
    """Compares successive NCCL RAS answers about one attempt of a run. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._last: NcclRas | None = None
        self._last_at = 0.0
        self._moves = 0
        self._moved_at = 0.0

    def take(self, answer: NcclRas, at: float) -> None:
        """Add one more answer of NCCL RAS. Two answers that cannot be compared show no progress.

        A count that grew between two answers may have grown right after the first: a hang that began since is not the younger for it.
        """
        if self._last is not None and moved(self._last, answer):
            self._moves, self._moved_at = self._moves + 1, max(self._moved_at, self._last_at)
        self._last, self._last_at = brief(answer), at

    def forget(self) -> None:
        """Forget the last answer, so that the next one is compared with none; other evidence covers the time between."""
        self._last = None

    def signals(self, look: RunLook) -> tuple[Progress, ...]:
        """The last state of the signal, for this look; none before the first movement, and none any more past the limit."""
        if not self._moves or self._moved_at > stepped_at(look) + LIMIT * look.evidence_lives:
            return ()
        at = min(self._moved_at, look.at)
        return (Progress(kind=ProgressKind.RAS, value=self._moves, at=at),)


def stepped_at(look: RunLook) -> float:
    """When the run last reported a step, a log record or a heartbeat; infinite where it reports none."""
    times = [signal.at for signal in look.progress if signal.kind in STEPS]
    return max(times, default=float("inf"))
