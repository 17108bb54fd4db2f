"""What a metric is: a family, declared once for the exposition and for the reference page, and its samples.

Each family also says when it is absent and how important it is, which client_python's do not; `text` hands them to it.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from functools import partialmethod
from typing import Literal

import msgspec

from mldebug.status.snapshot import Snapshot

Kind = Literal["gauge", "counter", "info", "histogram"]


class Importance(IntEnum):
    """What is left out first when there are too many series: the family with the highest number."""

    AGENT = 0  # the agent itself and its incidents: bounded, never left out
    RUN = 1  # a few series per run
    DETAIL = 2  # many series per run
    RANK = 3  # series per rank


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One metric. `name` is without the `_total` of a counter and the `_info` of an info, as OpenMetrics has it."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    absent: str = "never"  # when there is no sample
    importance: Importance = Importance.AGENT

    @property
    def series(self) -> str:
        """The name of its series in PromQL; those of a histogram also end in `_bucket`, `_sum` and `_count`."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")


class FamilyTable:
    """The families of one group, one row each, in the order in which a page shows them.

    `labels` of the table stand before those of a row; `absent` and `importance` hold for the rows that do not say another.
    """

    def __init__(
        self, *labels: str, absent: str = "never", importance: Importance = Importance.AGENT
    ) -> None:
        self._labels, self._absent, self._importance = labels, absent, importance
        self._rows: list[Family] = []

    @property
    def families(self) -> tuple[Family, ...]:
        """All rows so far, in order."""
        return tuple(self._rows)

    def labelled(self, *labels: str, absent: str = "") -> "FamilyTable":
        """A part of this table whose families all have these labels before their own; they stand among the table's other families in the order of declaration."""
        part = FamilyTable(
            *(*self._labels, *labels), absent=absent or self._absent, importance=self._importance
        )
        part._rows = self._rows
        return part

    def row(
        self,
        kind: Kind,
        name: str,
        help_: str,
        *labels: str,
        absent: str = "",
        importance: Importance | None = None,
    ) -> Family:
        """Declare one family of metrics; `name` is without the prefix `mldebug_` and without the suffix that its kind adds."""
        family = Family(
            name=f"mldebug_{name}",
            kind=kind,
            help=help_,
            labels=(*self._labels, *labels),
            absent=absent or self._absent,
            importance=self._importance if importance is None else importance,
        )
        self._rows.append(family)
        return family

    gauge = partialmethod(row, "gauge")
    counter = partialmethod(row, "counter")
    info = partialmethod(row, "info")
    histogram = partialmethod(row, "histogram")


class Histogram(msgspec.Struct, frozen=True):
    """Numbers of observations by upper bound; the last number is of those above all bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]  # not cumulative, one more than bounds
    sum: float


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One value of one family. `exemplar` is a label name and its value, for counters."""

    family: Family
    labels: tuple[str, ...] = ()  # values, in the order of family.labels
    value: float | Histogram = 1.0
    exemplar: tuple[str, str] | None = None


class MetricGroup(msgspec.Struct, frozen=True):
    """What a file in `metrics/` creates: its families, and a function that reads their samples off a snapshot.

    `samples` yields what can be read, and nothing for what cannot: absent beats stale.
    """

    families: tuple[Family, ...]
    samples: Callable[[Snapshot], Iterator[Sample]]


def storage_measures(families: Iterable[Family], snapshot: Snapshot) -> Iterator[Sample]:
    """One sample for each measure of the storage monitor that bears the name of one of these families."""
    by_name = {family.name: family for family in families}
    for measure in snapshot.storage.measures if snapshot.storage else ():
        if measure.metric in by_name:
            yield Sample(by_name[measure.metric], measure.labels, measure.value)
