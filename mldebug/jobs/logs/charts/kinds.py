"""Which files hold charts, by their name, and what parses each."""

import re
from collections.abc import Mapping

from mldebug.jobs.logs.charts.chart_parser import ChartParser
from mldebug.jobs.logs.charts.csv_table import CsvParser
from mldebug.jobs.logs.charts.json_lines import JsonLinesParser
from mldebug.jobs.logs.charts.tensorboard import TfEventsParser
from mldebug.jobs.logs.charts.wandb import WandbParser

PARSERS: Mapping[str, type[ChartParser]] = {
    "tensorboard": TfEventsParser,
    "wandb": WandbParser,
    "csv": CsvParser,
    "jsonl": JsonLinesParser,
}
"""By kind of file, as `event_kind` names it."""

_JSON_LINES = re.compile(
    r"(?:^|.*[_.-])(?:log|logs|log_history|metrics?|scalars?|stats|losses|loss|history|progress)(?:[_.-][\w.-]{0,40})?\.(?:jsonl|ndjson)|(?:scalars|metrics)\.json|.*\.log\.json",
    re.IGNORECASE,
)  # a data set is called so by nobody


def event_kind(name: str) -> str:
    """The parser for a file of that name: "tensorboard", "wandb", "csv" or "jsonl"; "" where it holds no charts."""
    if "events.out.tfevents" in name:
        return "tensorboard"
    if name.endswith(".wandb"):
        return "wandb"
    if name in ("metrics.csv", "progress.csv"):
        return "csv"
    return "jsonl" if _JSON_LINES.fullmatch(name) else ""
