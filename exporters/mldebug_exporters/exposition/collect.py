"""Collect all samples of one snapshot of the agent and make them valid: labels cleaned, no series twice, no more series than the budget."""

import logging
from collections.abc import Iterable, Mapping

import msgspec

from mldebug.core.redact import clean
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import (
    Family,
    FamilyTable,
    Histogram,
    Importance,
    MetricGroup,
    Sample,
)
from mldebug_exporters.exposition.hidden_labels import HiddenLabels

log = logging.getLogger("mldebug")

LONGEST = 200  # characters of a label value: a name of 10 KB helps nobody

_TABLE = FamilyTable()
SERIES = _TABLE.gauge("series", "Series in this exposition, these included.")
BUDGET = _TABLE.gauge("series_budget", "Series that may be exposed: `metrics: {series_budget: …}`.")
DROPPED = _TABLE.gauge(
    "series_dropped",
    "Series left out: whole families over the budget, and single series that would stand there twice.",
    *("family", "reason"),
    absent="while nothing is left out",
)
SUCCESS = _TABLE.gauge(
    "metrics_success",
    "1 where this group of metrics could be made from the last snapshot.",
    "group",
)
OWN = _TABLE.families

Values = dict[tuple[str, ...], Sample]  # by cleaned label values


class MetricsPage(msgspec.Struct, frozen=True):
    """The metrics to write: each family, in order, with its samples by their cleaned label values."""

    families: tuple[tuple[Family, Values], ...]


def collect(
    groups: Mapping[str, MetricGroup], snapshot: Snapshot, pseudonyms: HiddenLabels | None = None
) -> MetricsPage:
    """Collect the samples of all groups, within the snapshot's series budget.

    A metric shows for each group (1 or 0) whether reading it succeeded. `pseudonyms` hides private
    labels; None shows them.
    """
    book = _SampleTable(pseudonyms)
    for name, group in groups.items():
        book.declare(group.families)
        book.add(_one(SUCCESS, (name,), float(_fill(book, name, group, snapshot))))
    return _within(book, snapshot.series_budget)


def series(sample: Sample) -> int:
    """The number of series that a sample makes: 1, of a histogram one for each bucket, plus sum and count."""
    return len(sample.value.counts) + 2 if isinstance(sample.value, Histogram) else 1


class _SampleTable:
    """Samples by family."""

    def __init__(self, pseudonyms: HiddenLabels | None = None) -> None:
        self._pseudonyms = pseudonyms
        self.families: dict[str, Family] = {}
        self.values: dict[str, Values] = {}
        self.twice: dict[str, int] = {}
        self._clean: dict[str, str] = {}
        self.declare(OWN)

    def declare(self, families: Iterable[Family]) -> None:
        """Add families. One without samples is shown all the same, with its help text."""
        for family in families:
            self.families[family.name] = family
            self.values[family.name] = {}

    def add(self, sample: Sample) -> None:
        """Add a sample to its family.

        If one with the same labels is there already, the new one is only counted as a double.
        """
        name, cleaned = sample.family.name, self._clean
        labels = tuple([cleaned.get(text) or self._cleaned(text) for text in sample.labels])
        if self._pseudonyms is not None:
            labels = self._pseudonyms.hidden(sample.family, labels, owned=sample.owned)
        values = self.values[name]
        if labels in values:
            self.twice[name] = self.twice.get(name, 0) + series(sample)
        else:
            values[labels] = sample

    def _cleaned(self, text: str) -> str:
        self._clean[text] = cleaned = clean(text, LONGEST)
        return cleaned


def _fill(book: _SampleTable, name: str, group: MetricGroup, snapshot: Snapshot) -> bool:
    try:
        for sample in group.samples(snapshot):
            book.add(sample)
    except Exception as error:  # noqa: BLE001 - the one place that catches
        log.warning("metrics %s failed: %s: %s", name, type(error).__name__, error)
        return False
    return True


def _within(book: _SampleTable, budget: int) -> MetricsPage:
    """Leave out whole families, the least important and last declared first, until the rest fits."""
    sizes = {name: sum(map(series, values.values())) for name, values in book.values.items()}
    dropped = {(name, "duplicate"): count for name, count in book.twice.items()}
    total = sum(sizes.values()) + 2 + len(dropped)
    last_first = [*book.families.values()][::-1]
    for family in sorted(last_first, key=lambda one: -one.importance):
        if total <= budget or family.importance is Importance.AGENT:
            break
        if size := sizes[family.name]:
            total += 1 - size
            dropped[family.name, "budget"] = size
            del book.values[family.name]
    book.add(_one(SERIES, (), total))
    book.add(_one(BUDGET, (), budget))
    for labels, count in sorted(dropped.items()):
        book.add(_one(DROPPED, labels, count))
    return MetricsPage(tuple((book.families[name], values) for name, values in book.values.items()))


def _one(family: Family, labels: tuple[str, ...], value: float) -> Sample:
    return Sample(family, labels, value)
