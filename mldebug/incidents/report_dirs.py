"""The report stores that a user may want to read: the user's own, and the service's."""

from pathlib import Path

from mldebug.config.schema import SYSTEM_STATE_DIR, load_config
from mldebug.incidents.report_store import ReportStore


def report_stores_of(config: Path | None) -> tuple[ReportStore, ...]:
    """The store in the configured state folder; where no config file is given, that of the node's service too."""
    own = load_config(config).agent.state_dir
    folders = [own] if config or own == SYSTEM_STATE_DIR else [own, SYSTEM_STATE_DIR]
    return tuple(ReportStore(folder, config=config) for folder in folders)
