"""What log collectors export as a file, as the lines that the processes wrote: JSON, JSON lines and CSV. Pure.

| collector | form |
|---|---|
| Grafana Loki | `logcli -o jsonl`: `{"labels":{"pod":…},"line":…,"timestamp":…}`; HTTP API: `{"data":{"result":[{"stream":{…},"values":[[ns,line],…]}]}}` |
| Amazon CloudWatch | `{"events":[{"logStreamName":…,"timestamp":…,"message":…}]}`; Insights: `{"results":[[{"field":"@message","value":…},…]]}`, CSV |
| Google Cloud Logging | a JSON list of `{"textPayload":…,"timestamp":…,"resource":{"labels":{"pod_name":…}}}`, the newest first |
| Datadog | CSV with `Date,Host,Service,Message`; API: `{"data":[{"attributes":{"host":…,"message":…,"timestamp":…}}]}` |
| Elasticsearch, Kibana | `{"hits":{"hits":[{"_source":{"message":…,"@timestamp":…}}]}}`, CSV |
| Docker, Fluent Bit, journald | JSON lines |
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

MAX_RECORDS = 1_000_000
_TEXTS = ("textPayload", "line", "log", "message", "@message", "MESSAGE", "msg", "Message", "Content", "content")  # fmt: skip
_TIMES = ("timestamp", "@timestamp", "time", "ts", "Date", "date", "Timestamp", "Time", "eventTime", "__REALTIME_TIMESTAMP")  # fmt: skip
# Who wrote it, the nearest first
_WRITERS = ("pod", "pod_name", "logStreamName", "@logStream", "container_name", "host", "Host", "hostname", "node_name", "instance", "_HOSTNAME", "filename")  # fmt: skip
_WITHIN = ("attributes", "_source", "jsonPayload", "kubernetes", "labels", "resource", "stream")
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_NUMBER = re.compile(r"\d{9,20}(?:\.\d{1,9})?")


class _Record(NamedTuple):
    """One message: unix time in seconds (None where it has none that is known), who wrote it, its text."""

    at: float | None
    writer: str
    text: str


def unexported(text: str) -> str:
    """The lines that processes wrote, in the order of time, each behind `WRITER | ` where several wrote; the text itself where it is no export that is known."""
    records = _records(text)
    if not records:
        return text
    writers = len({one.writer for one in records}) > 1
    lines = (
        f"{one.writer or 'unknown'} | {line}" if writers else line
        for one in _in_order(records)
        for line in one.text.rstrip("\r\n").split("\n")
    )
    return "\n".join(lines) + "\n"


def _in_order(records: list[_Record]) -> list[_Record]:
    times = [one.at for one in records if one.at is not None]
    if len(times) < len(records):
        return records
    newest_first = sum(a > b for a, b in pairwise(times)) > len(times) / 2
    return sorted(reversed(records) if newest_first else records, key=lambda one: one.at or 0.0)


def _records(text: str) -> list[_Record]:
    """The records of an export; empty where it is none."""
    start = text.lstrip("\ufeff \t\r\n")[:1]
    if start not in ("{", "["):
        return _of_csv(text)
    whole = _decoded(text)
    found = list(_of_rows(_rows_of(whole))) if whole is not None else _of_lines(text)
    return found[:MAX_RECORDS]


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text.strip("\ufeff \t\r\n"))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None  # it is no JSON, and read as the text that it is


def _of_lines(text: str) -> list[_Record]:
    """JSON lines; empty where one of the first is none."""
    found: list[_Record] = []
    for line in text.split("\n"):
        if not line.strip():
            continue
        row = _decoded(line) if line.lstrip()[:1] == "{" else None
        record = _record(row) if isinstance(row, dict) else None
        if record is None:
            return []
        found.append(record)
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
        return [_row_of_fields(row) for row in results if isinstance(row, list)]
    rows = next((one for one in (whole.get("events"), data, whole.get("entries")) if isinstance(one, list)), None)  # fmt: skip
    return rows if rows is not None else (whole,)


def _rows_of_loki(streams: list[Any]) -> Iterator[Any]:
    for one in streams:
        if isinstance(one, dict) and isinstance(one.get("values"), list):
            for value in one["values"]:
                if isinstance(value, list) and len(value) > 1:
                    yield {"timestamp": value[0], "line": value[1], "labels": one.get("stream")}


def _row_of_fields(fields: list[Any]) -> dict[str, Any]:
    return {str(one.get("field")): one.get("value") for one in fields if isinstance(one, dict)}


def _of_rows(rows: Iterable[Any]) -> Iterator[_Record]:
    """The records of rows; none at all where one of them is no record."""
    found = [_record(row) if isinstance(row, dict) else None for row in rows]
    if all(one is not None for one in found):
        yield from (one for one in found if one is not None)


def _record(row: Mapping[str, Any]) -> _Record | None:
    """One record; None for a row without a text or without anything beside it that a collector writes."""
    parts = list(_parts(row))
    text = next((part[name] for part in parts for name in _TEXTS if isinstance(part.get(name), str)), None)  # fmt: skip
    when = next((part[name] for part in parts for name in _TIMES if isinstance(part.get(name), str | int | float)), None)  # fmt: skip
    if text is None or when is None:
        return None
    writer = next((part[name] for part in reversed(parts) for name in _WRITERS if isinstance(part.get(name), str)), "")  # fmt: skip
    return _Record(_time(when), _NO_NAME.sub("-", writer.rpartition("/")[2]).strip("-")[:100], text)


def _parts(row: Mapping[str, Any], depth: int = 2) -> Iterator[Mapping[str, Any]]:
    """The row and what stands inside it, the outer first."""
    yield row
    for name in _WITHIN:
        inner = row.get(name)
        if isinstance(inner, dict) and depth:
            yield from _parts(inner, depth - 1)


def _time(when: str | float) -> float | None:
    """Unix seconds: of an ISO time, or of a number of seconds, milliseconds, microseconds or nanoseconds."""
    if isinstance(when, str) and not _NUMBER.fullmatch(when):
        try:
            return datetime.fromisoformat(when.strip()).timestamp()
        except ValueError:
            return None
    number = float(when)
    for _ in range(3):
        number = number / 1000 if number > 1e11 else number
    return number


def _of_csv(text: str) -> list[_Record]:
    head, _, _ = text.lstrip("\ufeff").partition("\n")
    names = [one.strip().strip('"') for one in head.split(",")]
    if not (set(names) & set(_TEXTS) and set(names) & set(_TIMES)):
        return []
    found = [_record({str(k).strip(): v for k, v in row.items()}) for row in _rows_of_csv(text)]
    return [one for one in found if one is not None][:MAX_RECORDS]


def _rows_of_csv(text: str) -> Iterator[dict[str, Any]]:
    try:
        yield from csv.DictReader(text.lstrip("\ufeff").splitlines(keepends=True))
    except csv.Error:
        return  # a field beyond csv's own limit: what was read before it counts
