"""VITS, RVC, Bert-VITS2, GPT-SoVITS: `INFO:my-voice:[4200, 9.990004373906418e-05]`, the step and the learning rate.

VITS prints all losses in that list: `[2.31, 2.62, 5.07, 30.11, 1.92, 1.25, 4200, 0.0002]`. RVC names them in a line of their own
(`loss_disc=3.959, loss_gen=3.062, loss_fm=7.881,…`), of which none is the whole loss. so-vits-svc is read as a hand-written loop is.
"""

import re

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.labels import strip_logger
from mldebug.jobs.logs.records import NUMBER, WHOLE, LogFormat, LogRecord

_LIST = re.compile(
    rf"(?:^|[:\t |])\[(?:{NUMBER}, ){{0,12}}(?P<step>{WHOLE}), (?:0\.0\d{{1,30}}|\d(?:\.\d{{1,30}})?e-\d{{1,2}})\]$"
)


class VitsFormat:
    """Reads the list of losses, step and learning rate that these trainings print."""

    generic = False
    signs = ("e-0", ", 0.0")

    def parse(self, line: str) -> LogRecord | None:
        """The progress in this line of a log, or None where it is not a line of this format."""
        line = line.rstrip()
        if line[-1:] != "]" or "[" not in line or len(line) > 600:
            return None
        found = _LIST.search(strip_logger(line))
        return LogRecord(step=int(found["step"]), format="vits") if found else None


def create(options: NoOptions) -> LogFormat:
    """Build the log format `vits`."""
    return VitsFormat()
