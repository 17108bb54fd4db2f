"""What log collectors export as a file, as the lines that the processes wrote: JSON, JSON lines and CSV. Pure.

| collector | form |
|---|---|
| Grafana Loki | `logcli -o jsonl`: `{"labels":{"pod":…},"line":…,"timestamp":…}`; HTTP API: `{"data":{"result":[{"stream":{…},"values":[[ns,line],…]}]}}` |
| Amazon CloudWatch | `{"events":[{"logStreamName":…,"timestamp":…,"message":…}]}`; Insights: `{"results":[[{"field":"@message","value":…},…]]}`, CSV |
| Google Cloud Logging | a JSON list of `{"textPayload":…,"timestamp":…,"resource":{"labels":{"pod_name":…}}}`, the newest first |
| Datadog | CSV with `Date,Host,Service,Message`; API: `{"data":[{"attributes":{"host":…,"message":…,"timestamp":…}}]}` |
| Elasticsearch, Kibana | `{"hits":{"hits":[{"_source":{"message":…,"@timestamp":…}}]}}`, CSV |
| Splunk | `{"result":{"_raw":…,"_time":…,"host":…}}` in lines, `{"results":[{"_raw":…}]}`, CSV |
| Azure Monitor | CSV with `TimeGenerated [UTC],PodName,LogMessage`; API: `{"tables":[{"columns":[{"name":…}],"rows":[[…]]}]}` |
| OpenTelemetry | `{"resourceLogs":[…]}` of its file exporter, `{"body":…,"resource":{…}}` in lines |
| Graylog, Sumo Logic | CSV with `timestamp,source,message`, `_messagetime,_sourceHost,_raw` |
| Docker, Fluent Bit, Vector, New Relic, journald | JSON lines |
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from mldebug.core.text import message_text

MAX_RECORDS = 1_000_000
MAX_VALUES = 4_000_000  # of one document: each takes some sixty bytes, also an empty one
# Names are compared as `_plain` makes them, for collectors write `pod_name`, `podName`, `Pod Name`, `k8s.pod.name`
_TEXTS = ("textpayload", "line", "log", "message", "msg", "content", "raw", "body", "logmessage", "logentry")  # fmt: skip
_TIMES = (
    "timestamp", "time", "ts", "date", "eventtime", "realtimetimestamp", "timegenerated", "timegeneratedutc", "timegeneratedlocaltime", "messagetime",
    "timeunixnano", "observedtimeunixnano",
)  # fmt: skip
# Who wrote it, the nearest first. One of them need not tell writers apart: pods share a node, containers of a name stand on each node
_WRITERS = (
    "pod", "podname", "k8spodname", "kubernetespodname", "logstreamname", "logstream", "containername", "host", "hostname", "sourcehost", "nodename",
    "kubernetesnodename", "computer", "instance", "instanceid", "filename", "source", "pid",
)  # fmt: skip
_WITHIN = (
    "result",
    "attributes",
    "_source",
    "jsonPayload",
    "kubernetes",
    "labels",
    "resource",
    "stream",
)
_CODE = re.compile(r".*\.py(?::\d+)?")  # a logger's `source` is a line of code
_OF_A_LINE = re.compile(r"(?:^|[._-])(?:level|severity|stream|trace|span|thread|logger|request|offset|time|line)(?:$|[._-])")  # fmt: skip
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_NUMBER = re.compile(r"\d{9,20}(?:\.\d{1,9})?")
_FORMS_OF_TIME = {
    "@": "%b %d, %Y @ %H:%M:%S.%f",
    "/": "%m/%d/%Y, %I:%M:%S.%f %p",
}  # Kibana, Azure; by a mark of theirs

_Writer = tuple[str, ...]  # all that a record says of who wrote it, the nearest first


class _Record(NamedTuple):
    """One message: unix time in seconds (None where it has none that is known), who wrote it, its text."""

    at: float | None
    writer: _Writer
    text: str


def unexported(text: str) -> str:
    """Turn an export of a log service (Loki, CloudWatch and the like) back into the lines that the processes wrote, ordered by time. Where
    several processes wrote, `WRITER | ` stands before each line. A text that is no known export is returned as it is.
    """
    records = _records(text) if text.count("\n") <= MAX_RECORDS else []
    if not records:
        return text
    names = _names(tuple(dict.fromkeys(one.writer for one in records)))
    lines = (
        f"{names[one.writer]} | {line}" if len(names) > 1 else line
        for one in _in_order(records)
        for line in one.text.rstrip("\r\n").split("\n")
    )
    return "\n".join(lines) + "\n"


def _names(writers: tuple[_Writer, ...]) -> dict[_Writer, str]:
    """A name for each of them that no other has: the shortest way to say it that tells all apart."""
    ways: tuple[Callable[[_Writer], str], ...] = (
        lambda one: "".join(one[:1]).rpartition("/")[2],
        lambda one: "".join(one[:1]),
        "-".join,
    )
    for way in ways:
        found = {one: _NO_NAME.sub("-", way(one)).strip("-._")[:200] or "unknown" for one in writers}  # fmt: skip
        if len(set(found.values())) == len(writers):
            return found
    return {one: f"writer-{number}" for number, one in enumerate(writers)}


def _in_order(records: list[_Record]) -> list[_Record]:
    records = records[::-1] if _newest_first(records) else records
    if any(one.at is None for one in records):
        return records
    return sorted(records, key=lambda one: one.at or 0.0)  # equal times stay as they were written


def _newest_first(records: list[_Record]) -> bool:
    """By what each writer wrote, since some collectors list one after the other; else by all together."""
    times: dict[_Writer, list[float]] = {}
    for one in records:
        if one.at is not None:
            times.setdefault(one.writer, []).append(one.at)
    falls = sum(_falls(some) for some in times.values())
    return (falls or _falls([one.at for one in records if one.at is not None])) > 0


def _falls(times: list[float]) -> int:
    """How many times are later than the next one, less those that are earlier; most lines may have been written in one moment."""
    return sum((a > b) - (a < b) for a, b in pairwise(times))


def _records(text: str) -> list[_Record]:
    """The records of an export; empty where it is none."""
    start = text.lstrip("\ufeff \t\r\n")[:1]
    if start not in ("{", "["):
        return _of_csv(text)
    whole = decoded(text)
    found = _of_rows(_rows_of(whole)) if whole is not None else _of_lines(text)
    return found[:MAX_RECORDS]


def decoded(text: str) -> Any:
    """The value of a text of JSON; None where it is none, or has more values than an export."""
    if text.count(",") > MAX_VALUES:
        return None
    try:
        return msgspec.json.decode(text.strip("\ufeff \t\r\n"))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None  # it is no JSON, and read as the text that it is


def _of_lines(text: str) -> list[_Record]:
    """JSON lines; empty where one of them is none. The last one may be cut off."""
    lines = [line for line in text.split("\n") if line.strip()]
    found: list[_Record] = []
    for number, line in enumerate(lines, 1):
        row = decoded(line) if line.lstrip()[:1] == "{" else None
        if not isinstance(row, dict):
            return found if number == len(lines) and row is None else []
        record = _record(row)
        some = [record] if record else _of_rows(_rows_of(row))
        if not some:
            return []
        found += some
    return found


def _rows_of(whole: Any) -> Iterable[Any]:
    """The rows of one JSON document."""
    if isinstance(whole, list):
        return whole
    if not isinstance(whole, dict):
        return ()
    data, hits, results = whole.get("data"), whole.get("hits"), whole.get("results")
    if isinstance(data, dict) and isinstance(data.get("result"), list):
        return _rows_of_loki(data["result"])
    if isinstance(hits, dict) and isinstance(hits.get("hits"), list):
        return list(hits["hits"])
    if isinstance(results, list):
        return [_row_of_fields(row) if isinstance(row, list) else row for row in results]
    if isinstance(whole.get("resourceLogs"), list):
        return _rows_of_opentelemetry(whole["resourceLogs"])
    if isinstance(whole.get("tables"), list):
        return _rows_of_tables(whole["tables"])
    rows = next((one for one in (whole.get("events"), data, whole.get("entries")) if isinstance(one, list)), None)  # fmt: skip
    return rows if rows is not None else (whole,)


def _rows_of_loki(streams: list[Any]) -> Iterator[Any]:
    for one in streams:
        if isinstance(one, dict) and isinstance(one.get("values"), list):
            for value in one["values"]:
                if isinstance(value, list) and len(value) > 1:
                    yield {"timestamp": value[0], "line": value[1], "labels": one.get("stream")}


def _rows_of_opentelemetry(batches: list[Any]) -> Iterator[Any]:
    for batch in _dicts(batches):
        resource = batch.get("resource")
        writer = _pairs(resource.get("attributes")) if isinstance(resource, dict) else {}
        for scope in _dicts(batch.get("scopeLogs")):
            for one in _dicts(scope.get("logRecords")):
                yield {**one, "attributes": _pairs(one.get("attributes")), "resource": writer, "body": _value(one.get("body"))}  # fmt: skip


def _rows_of_tables(tables: list[Any]) -> Iterator[Any]:
    for table in _dicts(tables):
        names = [str(one.get("name")) for one in _dicts(table.get("columns"))]
        rows = table.get("rows")
        for row in rows if isinstance(rows, list) else ():
            yield dict(zip(names, row, strict=False)) if isinstance(row, list) else row


def _dicts(some: Any) -> Iterator[dict[str, Any]]:
    return (one for one in (some if isinstance(some, list) else ()) if isinstance(one, dict))


def _pairs(attributes: Any) -> dict[str, Any]:
    """`[{"key": …, "value": {"stringValue": …}}]` as a mapping."""
    return {str(one.get("key")): _value(one.get("value")) for one in _dicts(attributes)}


def _value(typed: Any) -> Any:
    return typed.get("stringValue") if isinstance(typed, dict) else typed


def _row_of_fields(fields: list[Any]) -> dict[str, Any]:
    return {str(one.get("field")): one.get("value") for one in fields if isinstance(one, dict)}


def _of_rows(rows: Iterable[Any]) -> list[_Record]:
    """The records of rows; none at all where one of them is no record."""
    found: list[_Record] = []
    for row in rows:
        record = _record(row) if isinstance(row, dict) else None
        if record is None:
            return []
        found.append(record)
    return found


def _record(row: Mapping[str, Any]) -> _Record | None:
    """One record; None for a row without a text or without anything beside it that a collector writes."""
    parts = list(_parts(row))
    text = next((part[name] for part in parts for name in _TEXTS if isinstance(part.get(name), str)), None)  # fmt: skip
    text = text if text is not None else message_text(row.get("MESSAGE"))
    when = next((part[name] for part in parts for name in _TIMES if isinstance(part.get(name), str | int | float)), None)  # fmt: skip
    if text is None or when is None:
        return None
    return _Record(_time(when), _writer(parts), text)


def _writer(parts: list[Mapping[str, Any]]) -> _Writer:
    """All that the parts of a record say of who wrote it; without a known name its labels, but those that change from line to line."""
    found = {name: value for name in _WRITERS for part in parts if (value := _name(part.get(name)))}
    if found:
        return tuple(found.values())
    labels = [part[name] for part in parts for name in ("labels", "stream") if isinstance(part.get(name), dict)]  # fmt: skip
    named = sorted({name: value for some in labels for name, value in some.items() if isinstance(value, str)}.items())  # fmt: skip
    return tuple(f"{name}.{value}" for name, value in named if not _OF_A_LINE.search(name))


def _name(value: Any) -> str:
    """As text, or as Beats write it: `{"name": …}`."""
    value = value.get("name") if isinstance(value, dict) else value
    return value if isinstance(value, str) and not _CODE.fullmatch(value) else ""


def _parts(row: Mapping[str, Any], depth: int = 2) -> Iterator[Mapping[str, Any]]:
    """The row and what stands inside it, the outer first, names as `_plain` makes them; the tags of Datadog, `["pod_name:x"]`, too."""
    yield {_plain(name): value for name, value in row.items()}
    for name in _WITHIN:
        inner = row.get(name)
        if isinstance(inner, dict) and depth:
            yield from _parts(inner, depth - 1)
    tags = row.get("tags")
    if isinstance(tags, list):
        pairs = (one.partition(":") for one in tags if isinstance(one, str))
        yield {_plain(name): value for name, _, value in pairs}


@lru_cache(maxsize=1024)
def _plain(name: str) -> str:
    """A field's name without case, blanks and punctuation."""
    return "".join(filter(str.isalnum, name.lower()))


def _time(when: str | float) -> float | None:
    """Unix seconds: of an ISO time, or of a number of seconds, milliseconds, microseconds or nanoseconds."""
    try:
        if isinstance(when, str) and not _NUMBER.fullmatch(when):
            when = when.strip()
            form = next((one for mark, one in _FORMS_OF_TIME.items() if mark in when), "")
            one = datetime.strptime(when, form) if form else datetime.fromisoformat(when)
            return one.timestamp()
        number = float(when)
    except (ValueError, OverflowError, OSError):
        return None  # no time that there can be
    for _ in range(3):
        number = number / 1000 if number > 1e11 else number
    return number


def _of_csv(text: str) -> list[_Record]:
    head, _, _ = text.lstrip("\ufeff").partition("\n")
    names = [one.strip().strip('"') for one in head.split(",")]
    plain = set(map(_plain, names))
    if not (plain & set(_TEXTS) and plain & set(_TIMES)):
        return []
    found = [_record({str(k).strip(): v for k, v in row.items()}) for row in _rows_of_csv(text)]
    return [one for one in found if one is not None][:MAX_RECORDS]


def _rows_of_csv(text: str) -> Iterator[dict[str, Any]]:
    try:
        yield from csv.DictReader(text.lstrip("\ufeff").splitlines(keepends=True))
    except csv.Error:
        return  # a field beyond csv's own limit: what was read before it counts
