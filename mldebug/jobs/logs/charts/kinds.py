"""Which files hold charts, by their name, and what parses each."""

from collections.abc import Mapping

from mldebug.jobs.logs.charts.chart_parser import ChartParser
from mldebug.jobs.logs.charts.csv_table import CsvParser
from mldebug.jobs.logs.charts.tensorboard import TfEventsParser
from mldebug.jobs.logs.charts.wandb import WandbParser

PARSERS: Mapping[str, type[ChartParser]] = {
    "tensorboard": TfEventsParser,
    "wandb": WandbParser,
    "csv": CsvParser,
}
"""By kind of file, as `event_kind` names it."""


def event_kind(name: str) -> str:
    """The parser for a file of that name: "tensorboard", "wandb" or "csv"; "" where it holds no charts."""
    if "events.out.tfevents" in name:
        return "tensorboard"
    if name.endswith(".wandb"):
        return "wandb"
    return "csv" if name in ("metrics.csv", "progress.csv") else ""
