"""Keras: ` 3/100 ━━━━━━━━━━━━━━ 0s 5ms/step - accuracy: 0.5 - loss: 0.3`, and the bars before version 3.

Those are ` 3/100 [=>.......] - ETA: 1s`, and with `verbose=2` one line an epoch, `100/100 - 12s - 8ms/step - loss: 0.3`. A set of unknown size has `3/Unknown`. The bars of other programs begin with the
bar or with what they count.
"""

import re

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.records import NUMBER, WHOLE, LogFormat, LogRecord, duration, number

_BAR = re.compile(
    rf"^(?:\[[^\]]{{0,80}}\]:?)?\s{{0,20}}(?P<step>{WHOLE})/(?P<total>{WHOLE}|Unknown) {{1,4}}"
    r"(?:[━╸╺]{1,100}|\[[=>.]{1,100}\]|(?=\d{1,9}(?:s|ms) \d)|- \d{1,9}(?:s|ms) - (?=[^\n]{0,40}/step))"
)
_SECONDS = re.compile(rf"({NUMBER})(us|ms|s)/step\b")
_LOSS = re.compile(rf" - loss: ({NUMBER})")


class KerasFormat:
    """Reads the progress bar of Keras' `fit`, which is redrawn in one line."""

    generic = False
    signs = ("━", "╸", "[=", "[>", "step", "/unknown")

    def parse(self, line: str) -> LogRecord | None:
        """The step, loss and other figures that this line of a log tells, or None where it is not a line of this format."""
        if "/" not in line or not (bar := _BAR.search(line)):
            return None
        seconds, loss = _SECONDS.search(line, bar.end()), _LOSS.search(line, bar.end())
        return LogRecord(
            step=int(bar["step"]),
            total=int(bar["total"]) if bar["total"].isdigit() else None,
            loss=number(loss[1]) if loss else None,
            step_seconds=duration(seconds[1], seconds[2]) if seconds else None,
            format="keras",
        )


def create(options: NoOptions) -> LogFormat:
    """Build the log format `keras`: keras: ` 3/100 ━━━━━━━━━━━━━━ 0s 5ms/step - accuracy: 0.5 - loss: 0.3`, and the bars before version 3."""
    return KerasFormat()
