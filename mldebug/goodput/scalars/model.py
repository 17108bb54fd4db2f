"""One moment of a run's training figures, and what the rules find in them."""

from collections.abc import Mapping
from enum import StrEnum
from statistics import median

import msgspec

LOSS, STEP_SECONDS, BATCH_SIZE = "loss", "step_seconds", "batch_size"
SEQUENCE_LENGTH = "sequence_length"
SERIES = (
    *(LOSS, "grad_norm", "learning_rate", STEP_SECONDS, "tokens_per_second"),
    *("tokens_per_second_per_gpu", "samples_per_second", "tflops", "mfu", "memory", "loss_scale"),
    *("skipped_iterations", "nan_iterations", "reward", BATCH_SIZE),
)
"""The figures of which a history is kept, in the order in which people see them; a log cannot add another."""

SILENCE, GPU_BUSY, WAITING = "silence_seconds", "gpu_busy_percent", "waiting_percent"
ACTIVITY = (SILENCE, GPU_BUSY, WAITING)
"""What the agent sees of a run at each look, whether it steps or not: seconds without progress, how busy its GPUs are, how many of its ranks
wait.
"""

LARGEST = 1e60
"""The largest amount that is judged, far beyond what 32 bits can hold: sums of its squares are finite."""


class EventKind(StrEnum):
    """What a rule can find. The words are values of users' routes and metrics."""

    NOT_FINITE = "loss_not_finite"
    SPIKE = "loss_spike"
    DIVERGED = "loss_diverged"
    THROUGHPUT = "throughput_drop"
    ROLLBACK = "rollback"
    DATA_REPEATED = "data_repeated"


class TrainingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one record of a run's log. `at`: unix seconds. `values`: as the log has them, nan and inf too."""

    at: float
    step: int | None
    total: int | None = None  # steps of the run, where its log tells
    values: dict[str, float] = {}
    attempt: str = ""  # which start of the job; another word is another start
    surroundings: dict[str, str] = {}  # what else may change: {"ranks": "8"}

    def number(self, name: str) -> float | None:
        """The value of one figure; None where it has none, or one that is not finite or beyond `LARGEST`."""
        value = self.values.get(name)
        return value if value is not None and abs(value) <= LARGEST else None


class TrainingEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to the training figures of a run. Times are unix seconds."""

    kind: EventKind
    at: float
    step: int | None
    sentence: str  # one, without a full stop
    ended: float | None = None  # None: it lasts


def usual(values: list[float]) -> tuple[float, float]:
    """The median of values, and their spread: the median distance from it, scaled to a standard deviation of normal noise."""
    middle = median(values)
    return middle, 1.4826 * median([abs(value - middle) for value in values])


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What differs between two surroundings, as words: `ranks 8, now 6`; "" for nothing."""
    names = [name for name in before.keys() | now.keys() if before.get(name) != now.get(name)]
    return ", ".join(
        f"{name} {before.get(name) or 'none'}, now {now.get(name) or 'none'}"
        for name in sorted(names)
    )
