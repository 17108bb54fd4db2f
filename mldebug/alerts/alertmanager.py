"""Read notifications that Alertmanager sends to a webhook (version 4), and find the run that each alert is about.

Pure.

Source: prometheus.io/docs/alerting/latest/configuration/#webhook_config.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from mldebug.core.errors import UsageError
from mldebug.core.model import Job
from mldebug.core.redact import safe_line

VERSION = "4"


class AlertmanagerAlert(msgspec.Struct, frozen=True):
    """One alert of a notification; fields that are not needed here are ignored."""

    status: str
    labels: dict[str, str] = {}


class AlertmanagerPayload(msgspec.Struct, frozen=True):
    """One notification: the body of Alertmanager's POST."""

    version: str
    alerts: tuple[AlertmanagerAlert, ...] = ()


class RunLabels(NamedTuple):
    """The labels of an alert that name a run, its job and its node; "" for a label that the alert has not."""

    run: str
    job: str
    node: str

    @property
    def words(self) -> str:
        """The labels for a sentence: `run='train', node='n1'`, or that there are none."""
        named = (f"{name}={value!r}" for name, value in self._asdict().items() if value)
        return ", ".join(named) or "no label run, job or node"


def wanted(body: bytes) -> tuple[RunLabels, ...]:
    """The labels of the firing alerts in a notification, each once.

    `body`: JSON. Raises UsageError where it is no version 4 notification.
    """
    try:
        payload = msgspec.json.decode(body, type=AlertmanagerPayload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise UsageError("this is no payload of Alertmanager's webhook", _HOW) from None
    if payload.version != VERSION:
        raise UsageError(f"its version is {safe_line(payload.version, 20)!r} and not '4'", _HOW)
    firing = (alert.labels for alert in payload.alerts if alert.status == "firing")
    return tuple(dict.fromkeys(map(_of, firing)))


def chosen(jobs: Mapping[str, Job], one: RunLabels, node: str) -> Iterator[Job]:
    """The runs that an alert's labels mean: those that `run` names, else those that `job` names, else all if its node is this `node`.

    If `run` is given and matches none, nothing is yielded. `job` may name no run, as Prometheus
    puts its scrape job there.
    """
    if one.run:
        yield from (job for job in jobs.values() if one.run in (job.id, job.name))
        return
    named = [job for job in jobs.values() if one.job in (job.id, job.name)]
    yield from named
    if not named and _is(one.node, node):
        yield from jobs.values()


def sentence(unknown: Iterable[RunLabels], node: str, jobs: Mapping[str, Job]) -> str:
    """A sentence that alerts match no run of this node: the labels of the first 4, and the first 4 runs that there are."""
    have = ", ".join(f"{job.id} ({job.name})" for job in list(jobs.values())[:4]) or "none"
    named = "; ".join(one.words for one in list(unknown)[:4])
    return f"no run here is meant by {named}; runs on {node}: {have}"


def _of(labels: Mapping[str, str]) -> RunLabels:
    return RunLabels(*(safe_line(labels.get(name, ""), 200) for name in RunLabels._fields))


def _is(label: str, node: str) -> bool:
    """`node1`, `node1.example`, `node1:9753`."""
    short = label.partition(":")[0].partition(".")[0]
    return bool(short) and short == node.partition(".")[0]


_HOW = "webhook_configs: [{url: http://NODE:9753/api/v1/alerts, …}], see docs/actions.md"
