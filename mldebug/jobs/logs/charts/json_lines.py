"""Files of JSON lines with a line for each step: `trainer_log.jsonl` of LLaMA-Factory, `metrics.jsonl`, MMEngine's `scalars.json`.

Most writers open the file, append a line and close it again. Only a line that has a step counts; an epoch alone is none.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from mldebug.jobs.logs.charts.chart_parser import ChartParser, step_record
from mldebug.jobs.logs.records import LogRecord

MAX_LINE = 64 << 10
MAX_VALUES = 200
_STEPS = ("global_step", "trainer/global_step", "current_steps", "global_steps", "step", "steps", "iteration", "iter", "num_updates", "update", "train_step", "trainer_step")  # fmt: skip
_TOTALS = ("total_steps", "max_steps", "total_iters", "max_iters")
_OTHERS = frozenset(("percentage", "epoch", "elapsed_time", "remaining_time", *_STEPS, *_TOTALS))


class JsonLinesParser(ChartParser):
    """Parses one JSON object a line; a line that is none is passed over."""

    def __init__(self) -> None:
        super().__init__()
        self._dropping = False

    def restart(self) -> None:
        """The next bytes are the beginning of a file."""
        super().restart()
        self._dropping = False

    def resync(self, at: int = 0) -> None:
        """Go on at offset `at` of the file: the cut-off line is skipped."""
        super().resync(at)
        self._dropping = at > 0

    def _take(self) -> Iterator[LogRecord]:
        *complete, self._held = self._held.split(b"\n")
        if len(self._held) > MAX_LINE:
            self.oversized += 1
            self._held, self._dropping = b"", True
        if complete and self._dropping:
            del complete[0]
            self._dropping = False
        for line in complete:
            if line.strip():
                self.lines += 1
                record = _of_line(line) if len(line) <= MAX_LINE else None
                if record is not None:
                    yield record


def _of_line(line: bytes) -> LogRecord | None:
    """What a line tells; None where it is no object of JSON, or tells no step of training."""
    try:
        found: Any = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    flat = dict(_flat(found))
    step = next((_count(flat[name]) for name in _STEPS if name in flat), None)
    values = {name: value for name, value in flat.items() if name not in _OTHERS}
    record = step_record(step, values, "jsonl")
    total = next((_count(flat[name]) for name in _TOTALS if name in flat), None)
    return msgspec.structs.replace(record, total=total) if record and total else record


def _flat(found: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of an object and of the objects in it, by name: `train/loss`."""
    for name, value in list(found.items())[:MAX_VALUES]:
        inner = value.items() if isinstance(value, dict) else ()
        for part, one in [("", value), *((f"/{key}", it) for key, it in list(inner)[:MAX_VALUES])]:
            if isinstance(one, int | float) and not isinstance(one, bool) and abs(one) < 1e300:
                yield f"{name}{part}", float(one)


def _count(value: float) -> int | None:
    return int(value) if value.is_integer() and 0 <= value < 1e15 else None
