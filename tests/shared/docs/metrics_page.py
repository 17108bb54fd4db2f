"""The reference page of all metrics.

It is made from their declarations, so it agrees with what a scrape gives.
"""

from collections.abc import Iterator, Mapping

from mldebug_exporters.exposition.collect import OWN
from mldebug_exporters.exposition.families import Family, Importance, MetricGroup

HEAD = """\
# Metrics

<!-- Made from the declarations in exporters/mldebug_exporters/metrics/ by
     pytest tests/docs/test_metrics_page.py --update-golden
     Do not edit. -->

`GET /metrics` at `agent: {listen: …}` serves what the agent saw at its last look (`stall: {interval: 5s}`): a scrape never
touches the node. Prometheus gets OpenMetrics, with the id of the newest report as exemplar of
`mldebug_incidents_total` (Prometheus keeps exemplars with `--enable-feature=exemplar-storage`); everybody else gets the
classic text format.

What cannot be read has no sample: a value is never kept from an earlier look. Counters begin at 0 when the agent starts,
those of a run when the agent meets it. Join the series of a run with its name by
`… * on(run) group_left(name) mldebug_run_info`.

At most `metrics: {series_budget: 5000}` series are exposed. Over it whole families are left out, the ones marked *rank*
first, then *detail*, then *run*; `mldebug_series_dropped` says which. Label values are one line of at most 200 characters.
"""

MARKS = {
    Importance.AGENT: "",
    Importance.RUN: "run",
    Importance.DETAIL: "detail",
    Importance.RANK: "rank",
}


def page(groups: Mapping[str, MetricGroup], summaries: Mapping[str, str]) -> str:
    """The reference page in Markdown.

    `groups`: metric groups by name; `summaries`: the first line of each group's module docstring.
    """
    lines = [HEAD]
    for name, group in groups.items():
        lines += _table(name, summaries[name], group.families)
    lines += _table("exposition", "The exposition itself.", OWN)
    return "\n".join(lines)


def _table(name: str, meaning: str, families: tuple[Family, ...]) -> Iterator[str]:
    yield f"## {name}\n\n{meaning}\n"
    yield "| series | type | labels | meaning | absent | goes |"
    yield "|---|---|---|---|---|---|"
    yield from map(_row, families)
    yield ""


def _row(family: Family) -> str:
    labels = " ".join(f"`{label}`" for label in family.labels)
    cells = (f"`{family.series}`", family.kind, labels, family.help, family.absent)
    return f"| {' | '.join((*cells, MARKS[family.importance]))} |"
