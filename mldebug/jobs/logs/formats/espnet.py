"""ESPnet: `5epoch:train:5301-5350batch: iter_time=0.001, loss=6.5, train_time=0.014`.

`valid` in place of `train` is an evaluation.
"""

import re

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.losses import training_loss
from mldebug.jobs.logs.records import NUMBER, WHOLE, LogFormat, LogRecord, duration

_LINE = re.compile(
    rf"\b(?P<epoch>\d{{1,9}})epoch:(?P<phase>train|valid):{WHOLE}-(?P<step>{WHOLE})batch: "
)
_SECONDS = re.compile(rf"\btrain_time=(?P<seconds>{NUMBER})")


class EspnetFormat:
    """Reads the line of each reporting interval. The step is the last batch of the interval, counted within its epoch."""

    generic = False
    signs = ("batch:",)

    def parse(self, line: str) -> LogRecord | None:
        """The step, loss and other figures that this line of a log tells, or None where it is not a line of this format."""
        found = _LINE.search(line) if "epoch:" in line else None
        if found is None:
            return None
        if found["phase"] == "valid":
            return LogRecord(place=f"{found['epoch']} {found['step']}", format="espnet")
        seconds = _SECONDS.search(line, found.end())
        return LogRecord(
            step=int(found["step"]),
            loss=training_loss(line[found.end() :].lower()),
            step_seconds=duration(seconds["seconds"]) if seconds else None,
            place=found["epoch"],
            format="espnet",
        )


def create(options: NoOptions) -> LogFormat:
    """Build the log format `espnet`: ESPnet: `5epoch:train:5301-5350batch: iter_time=0.001, loss=6.5, train_time=0.014`."""
    return EspnetFormat()
