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
    """The importance of a metric family.

    When there are too many series, families with the highest number are left out first.
    """

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
        """The name of the family's series in PromQL.

        Series of a histogram also end in `_bucket`, `_sum` and `_count`.
        """
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")


class FamilyTable:
    """Declares the metric families of one group, one row each, in the order in which the reference page shows them.

    `labels` are the first labels of every family. `absent` and `importance` are defaults for rows
    that give none.
    """

    def __init__(
        self, *labels: str, absent: str = "never", importance: Importance = Importance.AGENT
    ) -> None:
        self._labels, self._absent, self._importance = labels, absent, importance
        self._rows: list[Family] = []

    @property
    def families(self) -> tuple[Family, ...]:
        """The metric families declared so far, in the order of their declaration."""
        return tuple(self._rows)

    def labelled(self, *labels: str, absent: str = "") -> "FamilyTable":
        """A table that adds its families to this one, each with `labels` after this table's labels and before the row's own."""
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
    """One value of one metric (a "family" in Prometheus's words) with its labels.

    `exemplar`: for counters, the name of a label and its value that lead to an example, such as a report's id.
    """

    family: Family
    labels: tuple[str, ...] = ()  # values, in the order of family.labels
    value: float | Histogram = 1.0
    exemplar: tuple[str, str] | None = None
    owned: bool = False  # it is of a user's jobs alone, not of the node


class MetricGroup(msgspec.Struct, frozen=True):
    """What each file in `metrics/` creates: metric families, and a function that yields their samples from a snapshot of the agent.

    `samples` yields nothing for a value that cannot be read: no value is better than an old one.
    """

    families: tuple[Family, ...]
    samples: Callable[[Snapshot], Iterator[Sample]]


def known(labels: tuple[str, ...], *figures: tuple[Family, float | None]) -> Iterator[Sample]:
    """One sample for each value that is not None, all with these values of the labels."""
    for family, value in figures:
        if value is not None:
            yield Sample(family, labels, value)


def storage_measures(families: Iterable[Family], snapshot: Snapshot) -> Iterator[Sample]:
    """One sample for each value of the storage monitor whose metric name is that of one of these families."""
    by_name = {family.name: family for family in families}
    for measure in snapshot.storage.measures if snapshot.storage else ():
        if measure.metric in by_name:
            family = by_name[measure.metric]
            yield Sample(family, measure.labels, measure.value, owned=bool(measure.uids))
