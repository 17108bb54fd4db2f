"""fastai's bars: `Epoch 2/5 : |████------| 45.00% [45/100 00:10<00:12 0.5123]`, of the library fastprogress.

A training's and an evaluation's look alike, so they are progress without a step. Its table is read by `mldebug.jobs.logs.headed_tables`; a bar
without `Epoch` is that of a download.
"""

import re
import zlib

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.records import WHOLE, LogFormat, LogRecord

_BAR = re.compile(
    rf"Epoch \d{{1,9}}/\d{{1,9}} : \|[^|]{{0,160}}\| [\d.]{{1,8}}% \[(?P<step>{WHOLE})/{WHOLE} [\d:]{{1,12}}<[\d:?]{{1,12}}"
)


class FastaiFormat:
    """Reads the bars below an epoch; each tells that the job went on, and no step."""

    generic = False
    signs = ("epoch",)

    def parse(self, line: str) -> LogRecord | None:
        """The progress in this line of a log, or None where it is not a line of this format."""
        bar = _BAR.search(line[:400]) if "% [" in line else None
        if bar is None or bar["step"] == "0":
            return None
        return LogRecord(mark=zlib.crc32(bar[0].encode()), format="fastai")


def create(options: NoOptions) -> LogFormat:
    """Build the log format `fastai`: fastai's bars, `Epoch 2/5 : |████------| 45.00% [45/100 00:10<00:12 0.5123]`."""
    return FastaiFormat()
