"""VITS, RVC, Bert-VITS2, GPT-SoVITS: `INFO:my-voice:[4200, 9.990004373906418e-05]`, the step and the learning rate.

VITS prints all losses in that list: `[2.31, 2.62, 5.07, 30.11, 1.92, 1.25, 4200, 0.0002]`. RVC names them in a line of their own
(`loss_disc=3.959, loss_gen=3.062, loss_fm=7.881,…`), of which none is the whole loss. so-vits-svc is read as a hand-written loop is.

Any program may print a list that ends with a count and a small number (`anchors: [3, 0.0123]`): it is only this one where a logger's `INFO`
stands right before it, nothing but fractions before the count, and a learning rate behind it.
"""

import re

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.records import WHOLE, LogFormat, LogRecord

_LIST = re.compile(
    r"\bINFO\]?(?::[^:\[\]]{1,80}:|[ \t]{1,8}(?:\|[^|\[\]]{1,80})?(?:\| )?)\[(?:-?\d{1,9}\.\d{1,30}(?:e[-+]\d{1,2})?, |nan, ){0,12}"
    rf"(?P<step>{WHOLE}), (?:0\.00\d{{1,30}}|\d(?:\.\d{{1,30}})?e-0[3-9])\]$"
)


class VitsFormat:
    """Reads the list of losses, step and learning rate that these trainings print."""

    generic = False
    signs = ("e-0", ", 0.00")

    def parse(self, line: str) -> LogRecord | None:
        """The step, loss and other figures that this line of a log tells, or None where it is not a line of this format."""
        line = line.rstrip()
        if line[-1:] != "]" or "INFO" not in line or len(line) > 600:
            return None
        found = _LIST.search(line)
        return LogRecord(step=int(found["step"]), format="vits") if found else None


def create(options: NoOptions) -> LogFormat:
    """Build the log format `vits`."""
    return VitsFormat()
