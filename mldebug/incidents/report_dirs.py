"""The report stores that a user may want to read: the user's own, and the service's."""

from collections.abc import Sequence
from pathlib import Path

from mldebug.config.schema import SYSTEM_STATE_DIR, load_config
from mldebug.core.errors import AccessError, EvidenceError, MldebugError
from mldebug.core.report_model import Report
from mldebug.incidents.report_store import ReportStore


def report_stores_of(config: Path | None) -> tuple[ReportStore, ...]:
    """The store in the configured state folder; where no config file is given, that of the node's service too."""
    own = load_config(config).agent.state_dir
    folders = [own] if config or own == SYSTEM_STATE_DIR else [own, SYSTEM_STATE_DIR]
    return tuple(ReportStore(folder, config=config) for folder in folders)


def find_report(stores: Sequence[ReportStore], wanted: str) -> tuple[ReportStore, Report]:
    """The report with this id, the beginning of one, or `latest`, from the first store that has it.

    Raises what the first store has to say, or that a later one is closed to this user.
    """
    errors: list[MldebugError] = []
    for store in stores:
        try:
            return store, store.load(wanted)
        except (EvidenceError, AccessError) as error:
            errors.append(error)
    there = [error for error in errors[1:] if isinstance(error, AccessError)]
    raise next(iter(there), errors[0])
