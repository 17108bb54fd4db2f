"""Stacks that a log collector has exported are read as those that the processes wrote."""

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from mldebug.capture.dump_folder import captures_from_dumps
from mldebug.capture.log_exports import unexported
from mldebug.cli.commands.diagnose import judge, read_evidence

STEP = ("all_reduce (torch/distributed/distributed_c10d.py:2924)", "step (train.py:88)", "<module> (train.py:120)")  # fmt: skip
ODD = ("sleep_on (train.py:54)", "step (train.py:80)", "<module> (train.py:120)")


class Message(NamedTuple):
    pod: str
    at: float
    text: str


def dump(rank: int) -> list[str]:
    frames = ODD if rank == 2 else STEP
    head = (f"Process {4711 + rank}: python train.py", "Python v3.11.9 (/usr/bin/python3.11)", "", f'Thread {4711 + rank} (idle): "MainThread"')  # fmt: skip
    return [*head, *(f"    {frame}" for frame in frames)]


def messages() -> list[Message]:
    """The lines of four pods, mixed as a collector gets them."""
    lines = {rank: dump(rank) for rank in range(4)}
    return [
        Message(f"train-{rank}", 1_790_000_000 + number + rank / 10, lines[rank][number])
        for number in range(len(lines[0]))
        for rank in range(4)
    ]


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def logcli(found: list[Message]) -> str:
    return "\n".join(json.dumps({"labels": {"pod": one.pod, "job": "x"}, "line": one.text, "timestamp": iso(one.at)}) for one in found)  # fmt: skip


def loki_api(found: list[Message]) -> str:
    pods = sorted({one.pod for one in found})
    streams = [{"stream": {"pod": pod}, "values": [[str(int(one.at * 1e9)), one.text] for one in reversed(found) if one.pod == pod]} for pod in pods]  # fmt: skip
    return json.dumps({"status": "success", "data": {"resultType": "streams", "result": streams}}, indent=1)  # fmt: skip


def cloudwatch(found: list[Message]) -> str:
    return json.dumps({"events": [{"logStreamName": f"job/default/{one.pod}", "timestamp": int(one.at * 1000), "message": one.text, "ingestionTime": 1} for one in found], "searchedLogStreams": []})  # fmt: skip


def insights(found: list[Message]) -> str:
    rows = [[{"field": "@timestamp", "value": iso(one.at)}, {"field": "@message", "value": one.text}, {"field": "@logStream", "value": one.pod}] for one in found]  # fmt: skip
    return json.dumps({"results": rows, "status": "Complete"})


def google(found: list[Message]) -> str:
    return json.dumps([{"insertId": "1", "textPayload": one.text, "timestamp": iso(one.at), "resource": {"type": "k8s_container", "labels": {"pod_name": one.pod}}} for one in reversed(found)], indent=2)  # fmt: skip


def google_json_payload(found: list[Message]) -> str:
    return json.dumps([{"jsonPayload": {"message": one.text, "levelname": "INFO"}, "timestamp": iso(one.at), "resource": {"labels": {"pod_name": one.pod}}} for one in found])  # fmt: skip


def datadog_csv(found: list[Message]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, quoting=csv.QUOTE_ALL)
    rows.writerow(("Date", "Host", "Service", "Message"))
    rows.writerows((iso(one.at), one.pod, "train", one.text) for one in reversed(found))
    return text.getvalue()


def datadog_api(found: list[Message]) -> str:
    return json.dumps({"data": [{"id": "a", "type": "log", "attributes": {"host": one.pod, "message": one.text, "timestamp": iso(one.at)}} for one in found]})  # fmt: skip


def elastic(found: list[Message]) -> str:
    return json.dumps({"hits": {"total": 3, "hits": [{"_index": "x", "_source": {"message": one.text, "@timestamp": iso(one.at), "kubernetes": {"pod_name": one.pod}}} for one in found]}})  # fmt: skip


def insights_csv(found: list[Message]) -> str:
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(("@timestamp", "@logStream", "@message"))
    rows.writerows((iso(one.at), one.pod, one.text) for one in found)
    return "\ufeff" + text.getvalue()


def kubectl_prefix(found: list[Message]) -> str:
    return "\n".join(f"[pod/{one.pod}/pytorch] {one.text}" for one in found)


def compose(found: list[Message]) -> str:
    return "\n".join(f"{one.pod}  | {one.text}" for one in found)


FORMS: tuple[Callable[[list[Message]], str], ...] = (
    logcli, loki_api, cloudwatch, insights, google, google_json_payload, datadog_csv, datadog_api, elastic, insights_csv, kubectl_prefix, compose,
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_each_form_gives_the_ranks_and_their_frames(
    form: Callable[[list[Message]], str], tmp_path: Path
) -> None:
    (tmp_path / "export.log").write_text(form(messages()))
    ranks = [rank for one in captures_from_dumps(tmp_path) for rank in one.ranks]
    assert {one.identity.rank: one.identity.pid for one in ranks} == {n: 4711 + n for n in range(4)}
    report = judge(read_evidence(tmp_path)).report
    assert [one.rank for one in report.diagnosis.culprits] == [2], report.diagnosis.summary
    assert "sleep_on" in report.diagnosis.summary


@pytest.mark.parametrize("form", FORMS[:10], ids=lambda form: form.__name__)
def test_a_whole_dump_in_one_message_is_read(
    form: Callable[[list[Message]], str], tmp_path: Path
) -> None:
    """What one `print` or one logger call wrote."""
    whole = [Message(f"train-{rank}", 1_790_000_000 + rank, "\n".join(dump(rank))) for rank in range(4)]  # fmt: skip
    (tmp_path / "export.json").write_text(form(whole))
    ranks = [rank for one in captures_from_dumps(tmp_path) for rank in one.ranks]
    assert len(ranks) == 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n".join(dump(0)),
        json.dumps([{"pid": 1, "thread_id": 2, "frames": [], "active": False}]),
        '{"log": "no time beside it"}',
        "Date,Price\n1,2\n",
        '{"a": ' * 5000,
        "[" * 100_000,
        '[{"textPayload": "x", "timestamp": "2026-01-01T00:00:00Z"}, 7]',
        'time,message\n"' + "x" * 200_000,
    ],
)  # fmt: skip
def test_what_is_no_export_stays_as_it_is(text: str) -> None:
    assert unexported(text) in (text, "\n")


def test_lines_without_times_keep_their_order() -> None:
    rows = [{"line": f"line {number}", "timestamp": "never", "labels": {}} for number in range(3)]
    assert unexported("\n".join(json.dumps(row) for row in rows)) == "line 0\nline 1\nline 2\n"


def rows_of(found: list[Message], who: Callable[[Message], dict[str, object]]) -> str:
    """JSON lines, the writer as this function writes it."""
    return "\n".join(json.dumps({"line": one.text, "timestamp": iso(one.at), **who(one)}) for one in found)  # fmt: skip


WRITERS: dict[str, Callable[[Message], dict[str, object]]] = {
    "Filebeat": lambda one: {"kubernetes": {"pod": {"name": one.pod}}, "host": {"name": "node-1"}},
    "a label of OpenTelemetry": lambda one: {"labels": {"k8s_pod_name": one.pod}},
    "a label that nobody foresees": lambda one: {"labels": {"app": "x", "task": one.pod, "level": one.text[:5]}},
    "a label of the release beside it": lambda one: {"kubernetes": {"pod_name": one.pod, "labels": {"instance": "train"}}},
    "tags of Datadog": lambda one: {"host": "node-1", "tags": ["env:x", f"pod_name:{one.pod}"]},
    "torchrun's files": lambda one: {"labels": {"filename": f"/logs/attempt_0/{one.pod[-1]}/stderr.log"}},
    "one container's name on each node": lambda one: {"container_name": "train", "host": one.pod},
    "a long log stream": lambda one: {"logStreamName": f"{'ip-10-0-0-1.us-west-2.compute.internal-application.' * 2}{one.pod}_default_pytorch-{'a' * 64}.log"},
    "longer than any name": lambda one: {"pod": "x" * 300 + one.pod},
}  # fmt: skip


@pytest.mark.parametrize("who", WRITERS.values(), ids=WRITERS)
def test_lines_of_several_writers_never_make_one_stack(
    who: Callable[[Message], dict[str, object]], tmp_path: Path
) -> None:
    (tmp_path / "export.jsonl").write_text(rows_of(messages(), who))
    report = judge(read_evidence(tmp_path)).report
    assert len(report.ranks) == 4
    assert [one.rank for one in report.diagnosis.culprits] == [2], report.diagnosis.summary
    assert "ranks 0-1,3 wait in all_reduce" in report.diagnosis.summary


@pytest.mark.parametrize("pod", [None, "node-1"], ids=["a pod each", "one host"])
def test_lines_of_one_moment_are_turned_round_where_the_newest_come_first(pod: str | None) -> None:
    """A dump takes less than the millisecond that collectors keep."""
    found = [Message(pod or f"train-{rank}", 1_790_000_000 + rank, line) for rank in range(4) for line in dump(rank)]  # fmt: skip
    lines = [line.rpartition(" | ")[2] for line in unexported(datadog_csv(found)).split("\n")]
    assert lines == [line for rank in range(4) for line in dump(rank)] + [""]


def test_times_of_kibana_s_table_are_read() -> None:
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(("@timestamp", "kubernetes.pod.name", "message"))
    rows.writerows((f"Nov 26, 2026 @ 01:02:0{second}.123", "train-0", f"line {second}") for second in (3, 1, 2))  # fmt: skip
    assert unexported(text.getvalue()) == "line 1\nline 2\nline 3\n"


def test_a_last_line_that_is_cut_off_takes_nothing_with_it() -> None:
    text = logcli(messages())
    assert unexported(text[:-30]) == unexported(logcli(messages()[:-1]))
    assert unexported(f"{text}\nno JSON\n{text}").startswith('{"labels"')


def test_a_time_that_there_cannot_be_is_none() -> None:
    assert unexported(json.dumps({"line": "x", "timestamp": 10**400})) == "x\n"
