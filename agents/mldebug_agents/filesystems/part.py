"""The part of the storage desk that looks at filesystems."""

from collections.abc import Sequence

from mldebug.filling.state import Alarm, Measure, Row
from mldebug.model import Gap, Job
from mldebug_agents.workbench import Workbench

INTERVAL = 30.0  # seconds between two looks


class Filesystems:
    """Every mount that a job uses."""

    name = "filesystems"
    interval = INTERVAL

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench

    def look(self, now: float, jobs: Sequence[Job]) -> None:
        """Ask all mounts that the jobs use."""

    def samples(self) -> Sequence[Measure]:
        """Sizes, shares, hours left."""
        return ()

    def status(self) -> dict[str, tuple[Row, ...]]:
        """One row for each mount."""
        return {}

    def alarms(self) -> Sequence[Alarm]:
        """Mounts that are too full, will be soon, or do not answer."""
        return ()

    def gaps(self) -> Sequence[Gap]:
        """Mounts that could not be asked."""
        return ()
