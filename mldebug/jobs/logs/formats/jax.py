"""JAX: MaxText (`completed step: 12, seconds: 1.234`), Levanter (`Progress on:train 12.0it/850it`), CLU (`[12] loss=7.1`).

Levanter's bar is tqdm's where its output is a terminal, and `tqdm_loggable`'s else. That one prints counts with three digits:
from 1,000 on (`1.23kit`) a count is too coarse to be a step, and the record is progress where count, rate or loss are new.
"""

import re
import zlib

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.counter_kind import CounterKind, kind_of
from mldebug.jobs.logs.losses import training_loss
from mldebug.jobs.logs.records import NUMBER, WHOLE, LogFormat, LogRecord, duration

_MAXTEXT = re.compile(
    rf"\bcompleted (?P<hidden>profiler activation/deactivation )?step: (?P<step>{WHOLE})(?:, seconds: (?P<seconds>{NUMBER}))?"
)
_MAXTEXT_EVAL = re.compile(r"\b(?:Completed eval (?:step: |after train step )|eval metrics after step: )(\d{1,15})")  # fmt: skip
_CLU = re.compile(  # and big_vision: values by name behind the step, in a line of absl
    rf"^(?:[IWE]\d{{4,8}} [^\]\n]{{1,120}}\] )?\[(?P<step>{WHOLE})\] (?=[A-Za-z][\w/. -]{{0,60}}=)(?P<values>.*)"
)
_STEPS_PER_SECOND = re.compile(rf"\bsteps_per_sec=({NUMBER})")
_CLU_EVALUATION = re.compile(r"(?:\b|_)(?:eval|val|valid|validation|test)(?:\b|_)")
_LOGGED_BAR = re.compile(
    r"\bProgress on:(?P<what>[\w /.-]{0,80}?):? (?P<done>[\d.]{1,8}|-)(?P<kilo>[kMG]?)it/(?P<total>[\d.]{1,8}|-)(?P<more>[kMG]?)(?:it)? "
    r"rate:(?P<rate>-|[\d,.]{1,12}(?:it/s|s/it))"
)


class JaxFormat:
    """Reads what the training loops of MaxText and Levanter log; their evaluations are progress without a step."""

    generic = False
    signs = ("completed", "eval metrics", "progress on", "logging_writer", "loss=")

    def parse(self, line: str) -> LogRecord | None:
        """The step, loss and other figures that this line of a log tells, or None where it is not a line of this format."""
        if "step" in line and (found := _MAXTEXT.search(line)):
            return _of_maxtext(found, line)
        if "eval" in line and (found := _MAXTEXT_EVAL.search(line)):
            return LogRecord(place=f"eval {found[1]}", mark=_mark(line), format="jax")
        if "=" in line and "[" in line[:160] and (found := _CLU.search(line[:4000])):
            return _of_clu(found)
        if "Progress on:" in line and (found := _LOGGED_BAR.search(line[:4000])):
            return _of_bar(found, line)
        return None


def _of_maxtext(found: re.Match[str], line: str) -> LogRecord | None:
    if not (found["hidden"] or found["seconds"]):
        return None
    return LogRecord(
        step=int(found["step"]),
        loss=training_loss(line[found.end() :].lower()),
        step_seconds=duration(found["seconds"]) if found["seconds"] else None,
        format="jax",
    )


def _of_clu(found: re.Match[str]) -> LogRecord:
    values = found["values"].lower()
    loss = training_loss(values)
    if loss is None and _CLU_EVALUATION.search(values):
        return LogRecord(place=f"eval {found['step']}", mark=_mark(values), format="jax")
    rate = _STEPS_PER_SECOND.search(values)
    seconds = duration(rate[1]) if rate else None
    return LogRecord(
        step=int(found["step"]),
        loss=loss,
        step_seconds=1 / seconds if seconds else None,
        format="jax",
    )


def _of_bar(found: re.Match[str], line: str) -> LogRecord | None:
    loss = training_loss(line[found.end() :].lower())
    news = f"{found['done']}{found['kilo']} {found['rate']} {loss}"
    kind = kind_of(found["what"])
    if kind is CounterKind.EVALUATION:
        return LogRecord(place=f"eval {found['done']}{found['kilo']}", mark=_mark(news), format="jax")  # fmt: skip
    if kind is CounterKind.OTHER:
        return None
    whole = not found["kilo"] and found["done"] != "-"
    return LogRecord(
        step=round(float(found["done"])) if whole else None,
        total=round(float(found["total"])) if whole and _is_whole(found) else None,
        loss=loss,
        step_seconds=_seconds(found["rate"]) if whole else None,
        mark=0 if whole else _mark(news),
        format="jax",
    )


def _is_whole(found: re.Match[str]) -> bool:
    return not found["more"] and found["total"] != "-"


def _seconds(rate: str) -> float | None:
    """Seconds per step out of `2.3it/s` or `1,234.5s/it`."""
    value = duration(rate.replace(",", "").removesuffix("it/s").removesuffix("s/it"))
    return 1 / value if value and rate.endswith("it/s") else value


def _mark(text: str) -> int:
    return zlib.crc32(text.encode())


def create(options: NoOptions) -> LogFormat:
    """Build the log format `jax`: JAX: MaxText (`completed step: 12, seconds: 1.234`), Levanter (`Progress on:train 12.0it/850it`), CLU (`[12] loss=7.1`)."""
    return JaxFormat()
