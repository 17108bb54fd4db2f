"""Tells when the job has to stop by itself, so that the end of its time limit does not cut off its last checkpoint.

It is time to stop when less time is left than twice the longest step and checkpoint together, as measured in this run.
"""

from __future__ import annotations

import os
import re
import time

from mldebug_training.common.interrupted import pass_on
from mldebug_training.common.shared_files import start_ticks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SLURM = "slurm"
SLURM_END = "SLURM_JOB_END_TIME"  # unix time; as it was when the job started
ASSUMED_SAVE = 120.0  # seconds, until one was measured
WINDOW = 1000  # intervals after which the longest one is forgotten

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")


class TimeLimit:
    """When a run has to end, and whether it must stop now. All times are seconds.

    `duration`: the limit, counted from the start of this process, `"99h50m"` or seconds; `"slurm"` or None: until the end of
    the Slurm job, or no limit outside of one. `save`: how long a checkpoint is taken to last until one was measured. Raises
    ValueError for an invalid duration.
    """

    def __init__(
        self,
        duration: float | str | None = None,
        *,
        save: float | str = ASSUMED_SAVE,
        clock: Callable[[], float] = time.time,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._clock = clock
        self._save = seconds(save)
        self._measured_save = False
        self._longest = self._longest_before = self._span = 0.0
        self._intervals = 0
        if duration is None or duration == SLURM:
            self.end = slurm_end(environ)
        else:
            self.end = clock() - _age() + seconds(duration)
        self.trouble = ""
        if self.end is None and duration == SLURM:
            self.trouble = f"no time limit: {SLURM_END} is not set"

    def interval(self, length: float, turns: int = 1) -> None:
        """Note that `turns` steps took `length` seconds together, checkpoints not counted.

        The first call is ignored, because its steps include loading and compiling.
        """
        self._intervals += 1
        if self._intervals == 1:
            return
        self._longest = max(self._longest, length / turns)
        self._span = length - length / turns
        if self._intervals % WINDOW == 0:
            self._longest_before, self._longest = self._longest, 0.0

    def saved(self, length: float) -> None:
        """Note that a checkpoint took `length` seconds to write. `grace` uses the longest one of the run."""
        self._save = max(self._save, length) if self._measured_save else length
        self._measured_save = True

    @property
    def grace(self) -> float:
        """Seconds that must be left: twice the longest recent step and checkpoint, and the steps between two checks."""
        return 2 * (max(self._longest, self._longest_before) + self._save) + self._span

    def reason(self) -> str | None:
        """Why the run must stop now, as a sentence; None while there is time."""
        if self.end is None:
            return None
        left = self.end - self._clock()
        if left >= self.grace:
            return None
        return f"{left:.0f} s of its time are left, a step and a save may take {(self.grace - self._span) / 2:.0f} s"


def slurm_end(environ: Mapping[str, str]) -> float | None:
    """When the Slurm job's time limit ends, in unix seconds, from `SLURM_JOB_END_TIME`; None where it is not set or there is no
    limit.
    """
    text = environ.get(SLURM_END, "")
    is_time = (
        text.isascii() and text.isdigit() and 9 <= len(text) <= 11
    )  # "unlimited" is some 2**32
    return float(text) if is_time and int(text) < 2**32 - 2 else None


def seconds(duration: float | str) -> float:
    """Parse a duration into seconds: a number (`90`) or a text (`"90m"`, `"1d12h"`). Raises ValueError for anything else."""
    if isinstance(duration, str):
        parts = _PART.findall(duration)
        if not parts or "".join(number + unit for number, unit in parts) != duration.replace(
            " ", ""
        ):
            raise ValueError(f"{duration!r} is no duration: write it like 99h50m")
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 <= duration < float("inf"):
        raise ValueError(f"{duration!r} is no duration: seconds, or a text like 99h50m")
    return float(duration)


def _age() -> float:
    """How long this process has lived; 0 where /proc does not say."""
    try:
        started = start_ticks() / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except Exception as error:
        pass_on(error)
        return 0.0
