"""PaddlePaddle before version 2, whose loss is called cost: `Pass 133, Batch 650, Cost 35.525531`.

Its trainer in C++ prints ` Pass=23 Batch=500 samples=800000 AvgCost=2.51 CurrentCost=2.56`. The batch counts within its pass.
`Test with Pass 3, Cost 2.4` and `Test samples=97383 cost=2.87` are evaluations.
"""

import re
import zlib

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.records import NUMBER, WHOLE, LogFormat, LogRecord, number

_LINE = re.compile(
    rf"\bPass (?P<epoch>\d{{1,9}}), Batch (?P<step>{WHOLE}), (?:Train )?Cost (?P<cost>{NUMBER})"
    rf"|(?:\bPass=(?P<epoch2>\d{{1,9}}) )?\bBatch=(?P<step2>{WHOLE}) samples=\d{{1,15}} AvgCost=(?P<mean>{NUMBER})(?: CurrentCost=(?P<cost2>{NUMBER}))?"
)
_TEST = re.compile(
    rf"\bTest (?:with Pass \d{{1,9}}, (?:Batch \d{{1,15}}, )?Cost |samples=\d{{1,15}} cost=)(?P<cost>{NUMBER})"
)


class PaddleFormat:
    """Reads the line of each reporting interval, and those of evaluations."""

    generic = False
    signs = ("cost ", "cost=")

    def parse(self, line: str) -> LogRecord | None:
        """The step, loss and other figures that this line of a log tells, or None where it is not a line of this format."""
        if "Test " in line and _TEST.search(line):
            return LogRecord(mark=zlib.crc32(line.encode()), format="paddle")
        found = _LINE.search(line) if "Batch" in line else None
        if found is None:
            return None
        return LogRecord(
            step=int(found["step"] or found["step2"]),
            loss=number(found["cost"] or found["cost2"] or found["mean"]),
            place=found["epoch"] or found["epoch2"] or "",
            format="paddle",
        )


def create(options: NoOptions) -> LogFormat:
    """Build the log format `paddle`: PaddlePaddle before version 2: `Pass 133, Batch 650, Cost 35.525531`."""
    return PaddleFormat()
