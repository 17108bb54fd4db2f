"""Bars that Rich draws, and those that look like them: Lightning's default, Ultralytics since 8.3.186.

`Epoch 4/9 ━━━━━━━╸━━━━ 107/291 0:00:33 • 0:00:09 7.00it/s v_num: 0 loss: 0.5` (with `-` on a terminal without Unicode),
`3/100 10.4G 0.46 640: 56% ━━━━━━╸───── 107/199 4.2it/s 27.1s<20.9s`.
"""

import re

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.counter_kind import CounterKind, kind_of
from mldebug.jobs.logs.labels import strip_logger
from mldebug.jobs.logs.losses import training_loss
from mldebug.jobs.logs.records import NUMBER, WHOLE, LogFormat, LogRecord, duration, epoch, whole

_BAR = re.compile(
    rf"(?<=[^━╸╺─\r\n])[━╸╺─-][━╸╺─ -]{{3,120}} (?P<step>{WHOLE})/(?P<total>{WHOLE}|--)"
    rf"(?= {{1,4}}(?:\d{{1,4}}:\d\d(?::\d\d)?|-:--:--|{NUMBER} ?(?:it/s|s/it)))"
)
_WHAT = re.compile(r"[^━╸╺─\r\n]+\Z")
_PERCENT = re.compile(r"(?<=.)\d{1,3}% {1,9}\Z")
_RATE = re.compile(rf"(?<![\w.])(?P<rate>{NUMBER}) ?(?P<unit>it/s|s/it)")


class RichFormat:
    """Reads progress bars that the library rich draws; those of evaluations count as progress without a step."""

    generic = False
    signs = ("━", "─", "---")

    def parse(self, line: str) -> LogRecord | None:
        """The step, loss and other figures that this line of a log tells, or None where it is not a line of this format."""
        if "/" not in line or not ("━" in line or "─" in line or " ---" in line):
            return None
        bar = _BAR.search(line[:2000])
        if bar is None:
            return None
        what = strip_logger(_before(line[: bar.start()]).strip())
        phase = kind_of(what)
        if phase is CounterKind.EVALUATION:
            return LogRecord(place=f"{epoch(what)} {bar['step']}/{bar['total']}", format="rich")
        if phase is CounterKind.OTHER:
            return None
        rate = _RATE.search(line, bar.end())
        seconds = duration(rate["rate"]) if rate else None
        return LogRecord(
            step=int(bar["step"]),
            total=whole(bar["total"]),
            loss=training_loss(line[bar.end() :].lower()),
            step_seconds=1 / seconds if seconds and rate and rate["unit"] == "it/s" else seconds,
            place=epoch(what) or (what.split()[0] if what[:1].isdigit() else ""),
            format="rich",
        )


def _before(text: str) -> str:
    """What stands before a bar, behind another one and without the percentage."""
    found = _WHAT.search(text[-180:])
    return _PERCENT.sub("", found[0])[-160:] if found else ""


def create(options: NoOptions) -> LogFormat:
    """Build the log format `rich`: bars that Rich draws, and those that look like them: Lightning's default, Ultralytics since 8.3.186."""
    return RichFormat()
