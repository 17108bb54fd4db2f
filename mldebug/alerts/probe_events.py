"""Alerts about `mldebug probe` measurements that have become slower or faster than usual. Pure.

Probes run rarely, so an alert lasts until later runs are as usual again.
"""

from collections.abc import Iterable, Iterator

from mldebug.alerts.model import Alert, Severity
from mldebug.alerts.node_events import SubjectAlerts
from mldebug.core.redact import safe_line
from mldebug.probes.history import JudgedSeries, SeriesTrend, sentence

PROBES = "probe/"


def of_probes(judged: Iterable[JudgedSeries] | None) -> Iterator[SubjectAlerts]:
    """One alert for each series of measurements that has shifted.

    None means that the history was not read, and changes nothing.
    """
    if judged is not None:
        shifted = (one for one in judged if one.standing is SeriesTrend.SHIFTED)
        yield SubjectAlerts(alerts=tuple(map(_alert, shifted)), watched=(PROBES,))


def _alert(one: JudgedSeries) -> Alert:
    series = one.series
    labels = {
        "op": series.op,
        "bytes": str(series.bytes),
        "dtype": series.dtype,
        "ranks": str(series.ranks),
        "device": safe_line(series.device, 100),
        "nodes": safe_line(series.nodes, 150),
        "settings": safe_line(series.settings, 150),
    }
    return Alert(
        key=PROBES + "/".join(labels.values()),
        kind="probe_shift",
        severity=Severity.WARNING,
        sentence=f"probe: {sentence(one)}",
        labels={name: value for name, value in labels.items() if value},
        next_steps=("mldebug probe history", "mldebug probe collectives, once more, while nobody computes here"),
    )  # fmt: skip
