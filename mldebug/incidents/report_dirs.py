"""The report stores that a user may want to read."""

from pathlib import Path

from mldebug.config.schema import SYSTEM_STATE_DIR, load_config
from mldebug.incidents.report_store import ReportStore


def report_stores_of(config: Path | None) -> tuple[ReportStore, ...]:
    """This user's own reports; where no config file says which, those of the node's service too."""
    own = load_config(config).agent.state_dir
    folders = [own] if config or own == SYSTEM_STATE_DIR else [own, SYSTEM_STATE_DIR]
    return tuple(ReportStore(folder, config=config) for folder in folders)
