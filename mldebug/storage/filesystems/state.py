"""The results of the storage collectors: values for metrics, rows for `status --storage`, alerts, and what could not be read ("gaps")."""

from mldebug.core.model import Gap, MeasuredData

Cell = str | int | float | bool | None
Row = dict[str, Cell]  # the key "line" holds what people read


class Measure(MeasuredData, frozen=True, kw_only=True):
    """One value of a metric. `metric`: the metric's name, which the exporter declares."""

    metric: str
    labels: tuple[str, ...] = ()
    value: float
    uids: tuple[int, ...] = ()  # who may see it; empty: everyone


class StorageAlert(MeasuredData, frozen=True, kw_only=True):
    """Something about storage that a person should act on."""

    kind: str  # full_soon, too_full, inodes, stuck, read_only, quota …
    subject: str  # the mount, the quota, the checkpoint folder
    sentence: str
    aside: str = ""  # who causes it: not shown to everyone
    uids: tuple[int, ...] = ()  # who may see it; empty: everyone
    device: str = ""  # of a filesystem that is slow: `0:52`
    operation: str = ""  # which is slow there: read, write, open, metadata
    waiters: dict[
        str, str
    ] = {}  # by run, who of it waits for that: `7 of 8 ranks of train.py wait for data`

    @property
    def whole(self) -> str:
        """The alert's sentence, which job or rank causes it where that is known, and who waits for it."""
        return "; ".join(filter(None, (self.sentence, self.aside, *self.waiters.values())))


class CollectorState(MeasuredData, frozen=True, kw_only=True):
    """The result of one collector's last reading, at unix time `at`."""

    name: str
    at: float
    measures: tuple[Measure, ...] = ()
    rows: dict[str, tuple[Row, ...]] = {}  # by heading: filesystems, quotas, checkpoints …
    alarms: tuple[StorageAlert, ...] = ()
    gaps: tuple[Gap, ...] = ()


class StorageState(MeasuredData, frozen=True, kw_only=True):
    """The last results of all storage collectors."""

    parts: tuple[CollectorState, ...] = ()

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The metric values of all collectors."""
        return tuple(measure for part in self.parts for measure in part.measures)

    @property
    def alarms(self) -> tuple[StorageAlert, ...]:
        """The alerts of all collectors."""
        return tuple(one for part in self.parts for one in part.alarms)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What the collectors could not read, each with the reason."""
        return tuple(gap for part in self.parts for gap in part.gaps)

    @property
    def rows(self) -> dict[str, tuple[Row, ...]]:
        """The table rows of all collectors, by heading."""
        found: dict[str, tuple[Row, ...]] = {}
        for part in self.parts:
            for heading, rows in part.rows.items():
                found[heading] = (*found.get(heading, ()), *rows)
        return found
