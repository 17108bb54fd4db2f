"""Tables of two columns, a value in each line, as loops of reinforcement learning and diffusion print them.

Stable-Baselines3 (`|    total_timesteps | 3584 |`), improved-diffusion (`| step      | 1.11e+04 |`, rounded from 1,000 on: too coarse to be
a step), NeMo-RL, whose list follows a heading: `==== Step 3/1000 ====`, then `  • Loss: 0.12`, `  • Total step time: 32.50s`, and ParlAI, of
which the heading alone is read: `12:00:00 | time:10s total_exs:1200 total_steps:75 epochs:0.02`.
"""

import re

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.records import NUMBER, WHOLE, LogFormat, LogRecord, duration, number, whole

_ROW = re.compile(
    rf"^\| {{1,8}}(?P<name>total_timesteps|step|steps|loss|train/loss) {{1,40}}\| {{1,4}}(?P<value>{NUMBER}) {{0,20}}\|$"
)
_HEADING = re.compile(rf"^=+ Step ({WHOLE})/({WHOLE}) =+$")
_PARLAI = re.compile(rf"\btime:\S{{1,20}} total_exs:\d{{1,15}} total_steps:({WHOLE})(?= |$)")
_BULLET = re.compile(rf"^ {{0,4}}• (?P<name>Loss|Total step time): (?P<value>{NUMBER})(?P<unit>s?)")


class TablesFormat:
    """Reads the rows of a table in a log that hold a step, a loss or the duration of a step."""

    generic = False
    signs = ("loss", "step")

    def parse(self, line: str) -> LogRecord | None:
        """The step, loss and other figures that this line of a log tells, or None where it is not a line of this format."""
        line = line.rstrip()
        if line[:1] == "|" and (row := _ROW.match(line)):
            return _of_row(row["name"], row["value"])
        if line[:1] == "=" and (heading := _HEADING.match(line)):
            return LogRecord(step=int(heading[1]), total=int(heading[2]), format="tables")
        if "total_steps:" in line and (heading := _PARLAI.search(line[:400])):
            return LogRecord(step=int(heading[1]), format="tables")
        if "• " in line and (bullet := _BULLET.match(line)):
            if bullet["name"] == "Loss":
                return _of_row("loss", bullet["value"])
            return LogRecord(
                step_seconds=duration(bullet["value"], bullet["unit"]), format="tables"
            )
        return None


def _of_row(name: str, value: str) -> LogRecord | None:
    if name.endswith("loss"):
        return LogRecord(loss=number(value), format="tables")
    step = whole(value)
    return None if step is None else LogRecord(step=step, format="tables")


def create(options: NoOptions) -> LogFormat:
    """Build the log format `tables`: tables of two columns, a value in each line, as loops of reinforcement learning and diffusion print them."""
    return TablesFormat()
