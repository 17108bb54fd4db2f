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
from mldebug.capture.exports.log_exports import unexported
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


def splunk(found: list[Message]) -> str:
    return "\n".join(json.dumps({"preview": False, "offset": n, "result": {"_raw": one.text, "_time": iso(one.at), "host": "gpu-0", "kubernetes.pod_name": one.pod, "linecount": "1"}}) for n, one in enumerate(found))  # fmt: skip


def splunk_web(found: list[Message]) -> str:
    rows = [{"_raw": one.text, "_time": iso(one.at), "host": one.pod, "source": "/var/log/x.log", "_indextime": "1"} for one in reversed(found)]  # fmt: skip
    return json.dumps({"preview": False, "init_offset": 0, "results": rows})


def splunk_csv(found: list[Message]) -> str:
    return _csv(("_serial", "_time", "host", "sourcetype", "_raw"), [(str(n), iso(one.at), one.pod, "kube", one.text) for n, one in enumerate(found)])  # fmt: skip


def azure_csv(found: list[Message]) -> str:
    when = "%-m/%-d/%Y, %-I:%M:%S.%f %p"
    rows = [(datetime.fromtimestamp(one.at, UTC).strftime(when), one.pod, "trainer", one.text) for one in reversed(found)]  # fmt: skip
    return _csv(("TimeGenerated [UTC]", "PodName", "ContainerName", "LogMessage"), rows)


def azure_api(found: list[Message]) -> str:
    columns = [{"name": name, "type": "string"} for name in ("TimeGenerated", "Computer", "PodName", "LogEntry")]  # fmt: skip
    rows = [[iso(one.at), "aks-gpu-0", one.pod, one.text] for one in found]
    return json.dumps({"tables": [{"name": "PrimaryResult", "columns": columns, "rows": rows}]})


def opentelemetry(found: list[Message]) -> str:
    return "\n".join(json.dumps({"timestamp": iso(one.at), "body": one.text, "severityText": "INFO", "attributes": {"log.iostream": "stderr"}, "resource": {"k8s.pod.name": one.pod, "k8s.node.name": "gpu-0"}}) for one in found)  # fmt: skip


def otlp(found: list[Message]) -> str:
    """As the collector's file exporter writes it: one batch a line."""

    def batch(pod: str) -> str:
        records = [{"timeUnixNano": str(int(one.at * 1e9)), "body": {"stringValue": one.text}, "attributes": [{"key": "log.iostream", "value": {"stringValue": "stderr"}}]} for one in found if one.pod == pod]  # fmt: skip
        resource = {"attributes": [{"key": "k8s.pod.name", "value": {"stringValue": pod}}]}
        return json.dumps({"resourceLogs": [{"resource": resource, "scopeLogs": [{"scope": {}, "logRecords": records}]}]})  # fmt: skip

    return "\n".join(batch(pod) for pod in sorted({one.pod for one in found}))


def graylog_csv(found: list[Message]) -> str:
    return _csv(("timestamp", "source", "message"), [(iso(one.at), one.pod, one.text) for one in found])  # fmt: skip


def sumo_logic_csv(found: list[Message]) -> str:
    return _csv(("_messagetime", "_sourceHost", "_raw"), [(str(int(one.at * 1000)), one.pod, one.text) for one in found])  # fmt: skip


def new_relic(found: list[Message]) -> str:
    return json.dumps([{"timestamp": int(one.at * 1000), "message": one.text, "pod_name": one.pod, "plugin.source": "kubernetes"} for one in found])  # fmt: skip


def vector(found: list[Message]) -> str:
    return "\n".join(json.dumps({"file": f"/var/log/pods/{one.pod}.log", "kubernetes": {"pod_name": one.pod, "pod_node_name": "n"}, "message": one.text, "source_type": "kubernetes_logs", "stream": "stderr", "timestamp": iso(one.at)}) for one in found)  # fmt: skip


def _csv(names: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(names)
    table.writerows(rows)
    return text.getvalue()


def stern(found: list[Message]) -> str:
    return "\n".join(f"{one.pod} pytorch {one.text}" for one in found)


def kubetail(found: list[Message]) -> str:
    return "\n".join(f"[{one.pod} pytorch] {one.text}" for one in found)


def logcli_plain(found: list[Message]) -> str:
    return "\n".join(f'{iso(one.at)} {{container="pytorch", pod="{one.pod}"}} {one.text}' for one in found)  # fmt: skip


def aws_logs_tail(found: list[Message]) -> str:
    return "\n".join(f"{iso(one.at)} llm/default/{one.pod} {one.text}" for one in found)


def swarm(found: list[Message]) -> str:
    return "\n".join(f"{one.pod}.1.x7f2ab@gpu-0    | {one.text}" for one in found)


def sagemaker(found: list[Message]) -> str:
    return "\n".join(f"[1,mpirank:{one.pod[-1]},algo-1]<stderr>:{one.text}" for one in found)


FORMS: tuple[Callable[[list[Message]], str], ...] = (
    logcli, loki_api, cloudwatch, insights, google, google_json_payload, datadog_csv, datadog_api, elastic, insights_csv, kubectl_prefix, compose,
    splunk, splunk_web, splunk_csv, azure_csv, azure_api, opentelemetry, otlp, graylog_csv, sumo_logic_csv, new_relic, vector,
    stern, kubetail, logcli_plain, aws_logs_tail, swarm, sagemaker,
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
