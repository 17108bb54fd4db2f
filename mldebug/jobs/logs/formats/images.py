"""Trainings on images that count in columns: StyleGAN's and EDM's ticks, nerfstudio's table, `tf_cnn_benchmarks`, Darknet.

`tick 12    kimg 48.0     time 52m 10s     sec/tick 310.2   …`, `140 (0.47%)   21.996 ms   10 m, 56 s   31.26 M`,
`20\\timages/sec: 139.5 +/- 0.1 (jitter = 0.3)\\t7.969`,
` 2622: 1579.310, 2917.290 avg loss, 0.004 rate, 127.156 seconds, 335616 images`: of Darknet's losses the second is the smoothed one.
"""

import re

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.records import NUMBER, WHOLE, LogFormat, LogRecord, duration, number

_TICK = re.compile(rf"^tick ({WHOLE}) {{1,20}}kimg .{{0,120}}sec/tick {{1,8}}({NUMBER})")
_NERF = re.compile(rf"^({WHOLE}) \([\d.]{{1,8}}%\) {{2,40}}({NUMBER}) ms {{2,40}}\d")
_BENCHMARK = re.compile(rf"^({WHOLE})\timages/sec: .{{1,60}}\)\t({NUMBER})$")
_DARKNET = re.compile(
    rf"^ ?({WHOLE}): {NUMBER}, ({NUMBER}) avg(?: loss)?, {NUMBER} rate, ({NUMBER}) seconds, \d{{1,15}} images"
)


class ImagesFormat:
    """Reads the line of each tick or interval of these trainings on images."""

    generic = False
    signs = ("kimg", "%)  ", "images/sec:", " avg")

    def parse(self, line: str) -> LogRecord | None:
        """The step, loss and other figures that this line of a log tells, or None where it is not a line of this format."""
        if "kimg" in line and (tick := _TICK.match(line)):
            return LogRecord(step=int(tick[1]), step_seconds=duration(tick[2]), format="images")
        if "%)" in line and (row := _NERF.match(line)):
            return LogRecord(step=int(row[1]), step_seconds=duration(row[2], "ms"), format="images")
        if "images/sec: " in line and (row := _BENCHMARK.match(line.rstrip())):
            return LogRecord(step=int(row[1]), loss=number(row[2]), format="images")
        if " rate, " in line and (row := _DARKNET.match(line)):
            return LogRecord(
                step=int(row[1]),
                loss=number(row[2]),
                step_seconds=duration(row[3]),
                format="images",
            )
        return None


def create(options: NoOptions) -> LogFormat:
    """Build the log format `images`: trainings on images that count in columns: StyleGAN's and EDM's ticks, nerfstudio's table, `tf_cnn_benchmarks`."""
    return ImagesFormat()
