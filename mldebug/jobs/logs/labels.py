"""What others put before a line of a job's log: launchers, containers, schedulers and loggers; and Docker's JSON around it.

`[1,3]<stderr>:`, `3: ` (srun), `node-1: ` (pdsh), `[rank3]:`, `(Worker pid=12)` (Ray), `2026-01-02T03:04:05Z stderr F ` (CRI).
"""

import re
from typing import Any

import msgspec

from mldebug.core.text import message_text

MAX_LABELS = 4  # of one line, one inside the other
# Where collectors of logs put the text of a line, and what they put beside it: Docker, Fluent Bit, GKE and Vertex, Loki, CloudWatch, journald
_TEXTS = ("log", "textPayload", "line", "message", "MESSAGE", "msg", "data")
_TRACES = ("exc_info", "exception", "stack_trace", "traceback")  # of loggers that write JSON
_BESIDE = frozenset(
    {"stream", "time", "timestamp", "@timestamp", "ts", "labels", "insertId", "logName", "severity", "pipe", "kubernetes"}
    | {"__REALTIME_TIMESTAMP", "ingestionTime", "logStreamName", "receiveTimestamp", "level"}
)  # fmt: skip

_COUNTER = r"train|epoch|step|iter|val|eval|test|batch|episode|loss"  # a host is not called so
_LABEL = re.compile(
    r"\s{0,4}(?:"
    r"\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:?\d\d) std(?:out|err) [FP] "
    r"|\[\d{1,6},\d{1,6}\](?:<std(?:out|err|diag)>)?:?"
    r"|(?:[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} [\d:]{8} \d{4})?\[\d{1,6}\]<std(?:out|err)>:"  # horovodrun
    r"|\[(?:rank|default|local_rank)[ =]?\d{1,6}\]:?"
    r"|\([A-Za-z_][\w.]{0,60} pid=\d{1,10}(?:, ip=[\w.:]{1,40})?\)"
    r"|\d{1,6}:(?= )(?! [^ ,]{1,24}, [^ ,]{1,24} avg)"  # Darknet begins with its step
    rf"|(?!{_COUNTER})(?=[A-Za-z.]{{0,63}}[\d-])[A-Za-z][\w.-]{{0,63}}:(?= {{1,3}}\S)"
    r")",
    re.IGNORECASE,
)
_LEVEL = r"(?:DEBUG|INFO|WARN(?:ING)?|ERROR|NOTICE)"
_LOGGER = re.compile(
    r"\s{0,4}(?:"
    r"[\[(]?\d{4}[-/]\d\d[-/]\d\d[T ,]{1,2}[\d:.,]{8,18}Z?[\])]?"
    r"|[\[(]?\d\d:\d\d:\d\d(?:[.,]\d{1,6})?[\])]?"
    rf"|\[?{_LEVEL}\]?(?::[\w.]{{1,60}}:)?(?![\w/])"
    r"|\[[\w./-]{1,60}:\d{1,6}(?::\w{1,40})?\]"
    r")[ :|-]{0,4}"
)


def strip_labels(line: str) -> str:
    """The line without the labels that launchers, containers and Ray have put before it."""
    for _ in range(MAX_LABELS):
        label = _LABEL.match(line)
        if label is None:
            break
        line = line[label.end() :]
        line = line[1:] if line[:1] == " " else line  # what follows it may be indented
    return line


def strip_logger(text: str) -> str:
    """The text without the time, level and source file that a logger has put before it."""
    for _ in range(MAX_LABELS):
        head = _LOGGER.match(text)
        if head is None or not head[0].strip():
            break
        text = text[head.end() :]
    return text.strip()


def unwrap_docker(line: str) -> list[str]:
    r"""Return the lines of text in one line of Docker's `json-file` log (`{"log":"…\n","stream":…}`). Any other line is
    returned as it is.
    """
    try:
        found: Any = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return [line]
    text = found.get("log") if isinstance(found, dict) and "stream" in found else None
    if not isinstance(text, str):
        return [line]
    return [part for part in re.split(r"[\r\n]", text) if part]


def unwrap_json(line: str) -> list[str]:
    r"""Return the lines of text in one line of a log collector's JSON (`{"textPayload":"…","timestamp":…}`, also within
    `jsonPayload`). Any other line is returned as it is.
    """
    try:
        found: Any = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return [line]
    if not isinstance(found, dict) or _BESIDE.isdisjoint(found):
        return [line]
    inner = found.get("jsonPayload")
    payload = inner if isinstance(inner, dict) else found
    text = message_text(payload.get("MESSAGE"))
    text = text or next((one for name in _TEXTS if isinstance(one := payload.get(name), str)), None)
    if text is None:
        return [line]
    traces = [one for name in _TRACES if isinstance(one := payload.get(name), str)]
    return [part for part in re.split(r"[\r\n]", "\n".join((text, *traces))) if part]
