"""Marian NMT: `Ep. 7 : Up. 306350 : Sen. 5,630,845 : Cost 34.46 : Time 6.91s : 13596.73 words/s : L.r. 5.3e-05`.

The update counts the whole run; the time is that of all updates since the last line. `[valid] Ep. 2 : Up. 500 : …` is an evaluation.
"""

import re
import zlib

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.records import NUMBER, WHOLE, LogFormat, LogRecord, number

_LINE = re.compile(
    rf"(?P<valid>\[valid\] )?\bEp\. (?P<epoch>\d{{1,9}}) : Up\. (?P<step>{WHOLE}) : (?:Sen\. [\d,]{{1,20}} : Cost (?P<cost>{NUMBER}))?"
)


class MarianFormat:
    """Reads the line of each reporting interval, and those of evaluations."""

    generic = False
    signs = (" : up. ",)

    def parse(self, line: str) -> LogRecord | None:
        """The step, loss and other figures that this line of a log tells, or None where it is not a line of this format."""
        found = _LINE.search(line) if " : Up. " in line else None
        if found is None:
            return None
        if found["valid"]:
            return LogRecord(place=found["step"], mark=zlib.crc32(line.encode()), format="marian")
        return LogRecord(step=int(found["step"]), loss=number(found["cost"]), format="marian")


def create(options: NoOptions) -> LogFormat:
    """Build the log format `marian`: marian NMT: `Ep. 7 : Up. 306350 : Sen. 5,630,845 : Cost 34.46 : Time 6.91s : 13596.73 words/s : L.r. 5.3e-05`."""
    return MarianFormat()
