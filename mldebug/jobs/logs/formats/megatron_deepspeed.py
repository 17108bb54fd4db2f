"""Megatron-DeepSpeed and Megatron-LM: ` iteration 12/ 95367 | elapsed time per iteration (s): 1.5 | lm loss: 2.3E+00 |`.

Both print the same line, the one in s or ms, the other in ms behind a date. `Evaluating iter 3/10` is progress
without a step.
"""

import re

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.records import NUMBER, WHOLE, LogFormat, LogRecord, duration, number

_HEAD = re.compile(rf"\biteration {{1,40}}({WHOLE}) {{0,40}}/ {{0,40}}({WHOLE}) {{0,40}}\|")
_ELAPSED = re.compile(rf"elapsed time per iteration \((ms|s)\): {{0,20}}({NUMBER})")
_LOSS = re.compile(rf"\| {{0,4}}(?:[\w-]{{1,20}} )?loss: {{0,20}}({NUMBER})")
_EVALUATION = re.compile(r"\bEvaluating iter \d{1,15}|\bvalidation loss at iteration \d{1,15}")


class MegatronDeepspeedFormat:
    """Reads the iteration line wherever it stands: behind `[host:rank]:`, a date, a scheduler's label."""

    generic = False

    def parse(self, line: str) -> LogRecord | None:
        """Return the record, None for any other line."""
        if "iter" not in line:
            return None
        head = _HEAD.search(line)
        if head is None:
            evaluation = _EVALUATION.search(line)
            return (
                LogRecord(place=evaluation[0], format="megatron_deepspeed") if evaluation else None
            )
        elapsed = _ELAPSED.search(line, head.end())
        loss = _LOSS.search(line, head.end() - 1)
        return LogRecord(
            step=int(head[1]),
            total=int(head[2]),
            loss=number(loss[1]) if loss else None,
            step_seconds=duration(elapsed[2], elapsed[1]) if elapsed else None,
            format="megatron_deepspeed",
        )


def create(options: NoOptions) -> LogFormat:
    """Build the format."""
    return MegatronDeepspeedFormat()
