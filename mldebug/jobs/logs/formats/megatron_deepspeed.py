"""Megatron-DeepSpeed and Megatron-LM: ` iteration 12/ 95367 | elapsed time per iteration (s): 1.5 | lm loss: 2.3E+00 |`.

GPT-NeoX and NeMo too. All print the same line, the one in s or ms, the other in ms behind a date. `Evaluating iter 3/10` is progress
without a step. DeepSpeed's own timer has the optimizer's step beside the micro-step: `epoch=0/micro_step=35/global_step=7, …`.
"""

import re

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.losses import training_loss
from mldebug.jobs.logs.records import NUMBER, WHOLE, LogFormat, LogRecord, duration

_HEAD = re.compile(rf"\biteration {{1,40}}({WHOLE}) {{0,40}}/ {{0,40}}({WHOLE}) {{0,40}}\|")
_ELAPSED = re.compile(rf"(ms|s)\)?: {{0,20}}({NUMBER})")  # behind one of the words for it
_TIMES = ("elapsed time per iteration (", "train_step_timing in ")  # the other is NeMo's
_WHOLE_RUN = re.compile(rf"\bglobal_step: ({WHOLE})")  # of NeMo, beside the count of an epoch
_TIMER = re.compile(rf"\bmicro_step={WHOLE}/global_step=({WHOLE}),")
_EVALUATION = re.compile(r"\bEvaluating iter \d{1,15}|\bvalidation loss at iteration \d{1,15}")


class MegatronDeepspeedFormat:
    """Reads iteration lines of Megatron and DeepSpeed, wherever they stand in a line (behind `[host:rank]:`, a date, a label)."""

    generic = False
    signs = ("iter", "micro_step")

    def parse(self, line: str) -> LogRecord | None:
        """The step, loss and other figures that this line of a log tells, or None where it is not a line of this format."""
        if "micro_step=" in line and (timer := _TIMER.search(line)):
            return LogRecord(step=int(timer[1]), format="megatron_deepspeed")
        if "iter" not in line:
            return None
        head = _HEAD.search(line)
        if head is None:
            evaluation = _EVALUATION.search(line)
            return (
                LogRecord(place=evaluation[0], format="megatron_deepspeed") if evaluation else None
            )
        elapsed = _elapsed(line, head.end())
        is_epoch = "global_step: " in line  # a plain search is quick, and nearly no line has it
        whole_run = _WHOLE_RUN.search(line, head.end()) if is_epoch else None
        return LogRecord(
            step=int(whole_run[1] if whole_run else head[1]),
            total=None if whole_run else int(head[2]),
            loss=training_loss(line[head.end() :].lower()),
            step_seconds=duration(elapsed[2], elapsed[1]) if elapsed else None,
            format="megatron_deepspeed",
        )


def _elapsed(line: str, start: int) -> re.Match[str] | None:
    """The time of an iteration and its unit, behind the first words for it from `start` on."""
    for words in _TIMES:
        place = line.find(words, start)
        found = _ELAPSED.match(line, place + len(words)) if place >= 0 else None
        if found is not None:
            return found
    return None


def create(options: NoOptions) -> LogFormat:
    """Build the log format `megatron_deepspeed`: Megatron-DeepSpeed and Megatron-LM: ` iteration 12/ 95367 | elapsed time per iteration (s): 1.5 | lm loss: 2.3E+00 |`."""
    return MegatronDeepspeedFormat()
