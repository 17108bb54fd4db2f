"""WeNet, WeKws, WeSpeaker: `DEBUG TRAIN Batch 4/203700 loss 12.6 … rank 0`: the epoch, then the batch in it.

`CV` in place of `TRAIN` is an evaluation. Since WeNet 3 the pace stands there too: `TRAIN | steps/sec 2.1| Batch 4/9100 loss …`.
"""

import re

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.losses import training_loss
from mldebug.jobs.logs.records import NUMBER, WHOLE, LogFormat, LogRecord, duration

_LINE = re.compile(
    rf"\b(?P<phase>TRAIN|CV) (?:\| steps/sec {{1,4}}(?P<rate>{NUMBER}) ?\| ?)?Batch (?P<epoch>\d{{1,9}})/(?P<batch>{WHOLE}) loss "
)


class WenetFormat:
    """Reads the line of each reporting interval. The step is the batch, counted within its epoch."""

    generic = False
    signs = (" batch ",)

    def parse(self, line: str) -> LogRecord | None:
        """The step, loss and other figures that this line of a log tells, or None where it is not a line of this format."""
        found = _LINE.search(line) if "Batch " in line else None
        if found is None:
            return None
        if found["phase"] == "CV":
            return LogRecord(place=f"{found['epoch']} {found['batch']}", format="wenet")
        rate = duration(found["rate"]) if found["rate"] else None
        return LogRecord(
            step=int(found["batch"]),
            loss=training_loss(line[found.end("batch") :].lower()),
            step_seconds=1 / rate if rate else None,
            place=found["epoch"],
            format="wenet",
        )


def create(options: NoOptions) -> LogFormat:
    """Build the log format `wenet`: WeNet, WeKws, WeSpeaker: `DEBUG TRAIN Batch 4/203700 loss 12.6 … rank 0`: the epoch, then the batch in it."""
    return WenetFormat()
