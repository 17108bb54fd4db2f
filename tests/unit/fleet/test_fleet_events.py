"""Events of a fleet: what an agent makes of what it knows, their ids, and what a hub believes of another node."""

import string

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug.alerts.model import Alert, AlertEvent, EventState, Severity
from mldebug.core.errors import EvidenceError
from mldebug.core.model import Culprit
from mldebug.fleet.batches import MAX_EVENTS, batch_of, packed
from mldebug.fleet.events import MAX_EVENT, AnyEvent, content, kind_of, with_id
from mldebug.fleet.making import events_of
from mldebug.fleet.validation import SKEW, EventRefusedError, believed
from mldebug.goodput.account.job_goodput import AttemptGoodput, JobGoodput
from mldebug.hardware.gpu.readings import GpuReading, NodeGpus
from mldebug.hardware.health.model import ComponentHealth, HealthState
from mldebug.probes.history import JudgedSeries, ProbeRun, ProbeSeries, SeriesTrend
from mldebug.storage.checkpoints.history import KnownCheckpoint
from mldebug.storage.checkpoints.model import Completeness
from mldebug.storage.checkpoints.state import SeriesState
from shared.fleet.fleet_events import NOW, fault, health, incident, one_of_each, over
from shared.web.snapshots import AT, moving, snapshot

SECRET = "hf_abcdefghijklmnopqrstuvwx"

KINDS = {
    str(kind.__struct_config__.tag) for kind in AnyEvent.__args__
}  # a note is sent by no agent


def raw(event: AnyEvent, **changes: object) -> bytes:
    return msgspec.json.encode(msgspec.to_builtins(event) | changes)


def refusal(data: bytes, sender: str = "n1") -> str:
    with pytest.raises(EventRefusedError) as caught:
        believed(data, sender, NOW)
    return caught.value.reason


# --- what is believed ------------------------------------------------------------------------------


@pytest.mark.parametrize("event", one_of_each(), ids=kind_of)
def test_what_an_agent_sends_is_believed(event: AnyEvent) -> None:
    assert believed(msgspec.json.encode(event), "n1", NOW) == event


def test_there_is_an_example_of_each_kind() -> None:
    assert {kind_of(event) for event in one_of_each()} == KINDS - {"note"}


def test_fields_of_a_newer_agent_are_ignored_and_a_newer_schema_is_refused() -> None:
    assert believed(raw(fault(), colour="red"), "n1", NOW) == fault()
    assert refusal(raw(fault(), schema=2)) == "schema"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"node": "n2"}, "name"),
        ({"node": "n1 "}, "malformed"),
        ({"node": ""}, "malformed"),
        ({"at": NOW + SKEW + 1}, "future"),
        ({"since": NOW + SKEW + 1}, "future"),
        ({"ended": 4e9}, "future"),
        ({"at": -1.0}, "malformed"),
        ({"at": 1e300}, "malformed"),
        ({"at": "now"}, "malformed"),
        ({"sentence": "x" * 601}, "malformed"),
        ({"sentence": "a\x1b[31mb"}, "malformed"),
        ({"sentence": "a\nb"}, "malformed"),
        ({"sentence": "a\u202eb"}, "malformed"),
        ({"sentence": "\u009b31m"}, "malformed"),
        ({"sentence": "x" * MAX_EVENT}, "size"),
        ({"id": "0"}, "malformed"),
        ({"id": "../" + "0" * 29}, "malformed"),
        ({"kind": "unheard"}, "malformed"),
        ({"revision": 0}, "malformed"),
        ({"revision": 1 << 70}, "malformed"),
        ({"uid": -2}, "malformed"),
        ({"state": "won"}, "malformed"),
    ],
)
def test_what_is_not_believed(changes: dict[str, object], reason: str) -> None:
    assert refusal(raw(fault(), **changes)) == reason


def test_escapes_that_hide_a_character_are_not_believed() -> None:
    data = raw(fault())
    assert refusal(data.replace(b"uncorrectable", b"\\u001b[31m")) == "malformed"
    assert refusal(data.replace(b"uncorrectable", b"\\\\\\u001b")) == "malformed"
    quoted = with_id(msgspec.structs.replace(fault(), sentence='a "path" C:\\new \\u0041'))
    assert believed(msgspec.json.encode(quoted), "n1", NOW) == quoted


def test_a_long_list_is_not_believed() -> None:
    culprit = {"kind": "gpu", "node": "n2"}
    assert refusal(raw(incident(), culprits=[culprit] * 9)) == "malformed"
    seconds = {f"use{number}": 1.0 for number in range(17)}
    assert refusal(raw(one_of_each()[3], gpu_seconds=seconds)) == "malformed"


def test_a_clock_that_is_a_little_ahead_is_believed() -> None:
    ahead = with_id(msgspec.structs.replace(fault(), at=NOW + SKEW - 1))
    assert believed(msgspec.json.encode(ahead), "n1", NOW) == ahead


@given(st.binary(max_size=300))
def test_garbage_is_refused_and_never_raises_another_error(data: bytes) -> None:
    assert refusal(data) == "malformed"


@given(st.text(string.printable, max_size=40), st.sampled_from(sorted(KINDS)))
def test_any_json_of_a_kind_is_refused_or_an_event(text: str, kind: str) -> None:
    data = msgspec.json.encode({"kind": kind, "node": text, "subject": text, "at": 1, "id": text})
    with pytest.raises(EventRefusedError):
        believed(data, "n1", NOW)


# --- ids -------------------------------------------------------------------------------------------


def test_the_same_event_has_the_same_id_whenever_it_is_looked_at() -> None:
    later = with_id(msgspec.structs.replace(fault(), at=NOW + 60))
    assert later.id == fault().id


@pytest.mark.parametrize(
    "changes",
    [{"node": "n2"}, {"subject": "other"}, {"revision": 2}, {"sentence": "other"}, {"state": "changed"}],
)  # fmt: skip
def test_another_event_has_another_id(changes: dict[str, object]) -> None:
    assert with_id(msgspec.structs.replace(fault(), **changes)).id != fault().id


def test_an_end_has_one_id_whatever_came_before_it() -> None:
    end = over(fault(), NOW + 5)
    assert with_id(msgspec.structs.replace(end, revision=7)).id == end.id
    assert over(fault(), NOW + 6).id != end.id  # it went on meanwhile


# --- batches ---------------------------------------------------------------------------------------


def test_a_batch_is_read_as_it_was_packed() -> None:
    batch = batch_of(packed("n1", "1.0", one_of_each(), {"probe": 2}))
    assert (batch.node, batch.version, batch.lost) == ("n1", "1.0", {"probe": 2})
    assert [believed(bytes(one), "n1", NOW) for one in batch.events] == list(one_of_each())


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"node":"n1","events":[{]}', b'{"schema":"mldebug.fleet/2","node":"n1"}', b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_batch_is_refused_with_a_reason(body: bytes) -> None:
    with pytest.raises(EvidenceError, match=r"malformed|schema"):
        batch_of(body)


def test_a_batch_has_so_many_events_at_most() -> None:
    body = msgspec.json.encode({"node": "n1", "events": [{}] * (MAX_EVENTS + 1)})
    with pytest.raises(EvidenceError):
        batch_of(body)


# --- what an agent makes ---------------------------------------------------------------------------


def alert(key: str, kind: str, **more: object) -> AlertEvent:
    made = Alert(
        key=key, kind=kind, severity=Severity.CRITICAL, sentence=f"token={SECRET} hangs", **more
    )  # type: ignore[arg-type]
    return AlertEvent(alert=made, state=EventState.FIRING, started=AT)


def test_an_incident_becomes_an_event_without_secrets() -> None:
    culprit = Culprit(kind="rank", rank=3, node="n2", pid=7, reason=f"password={SECRET}\nsleeps")
    stall = alert("incident/i1", "stall", labels={"run": "5c01", "job": "train.py"}, blamed=(culprit,), verdict="rank_busy",
                  confidence="high", report="i1", uid=1000, since=AT - 30)  # fmt: skip
    (made,) = events_of(snapshot(), [stall])
    data = msgspec.json.encode(with_id(made))
    assert SECRET.encode() not in data
    event = believed(data, snapshot().node, AT)
    assert (kind_of(event), event.job, event.run, event.uid) == (
        "incident",
        "train.py",
        "5c01",
        1000,
    )
    assert msgspec.to_builtins(event)["culprits"] == (
        {"kind": "rank", "node": "n2", "rank": 3, "reason": "password=*** sleeps"},
    )


def test_what_is_pending_or_of_another_subject_is_no_event() -> None:
    pending = msgspec.structs.replace(alert("incident/i1", "stall"), state=EventState.PENDING)
    assert list(events_of(snapshot(), [pending, alert("storage/x", "storage_full")])) == []


def test_a_fault_names_its_gpu_by_uuid_and_serial() -> None:
    reading = GpuReading(uuid="GPU-a", index=3, serial="1320", name="H100")
    found = snapshot(gpus=NodeGpus(at=AT, gpus=(reading,)))
    (made,) = events_of(found, [alert("health/gpu_ecc/GPU-a", "gpu_ecc", labels={"uuid": "GPU-a"})])
    assert msgspec.to_builtins(made)["gpu"] == {"uuid": "GPU-a", "serial": "1320", "index": 3, "model": "H100"}  # fmt: skip


def test_a_snapshot_becomes_events_that_a_hub_believes() -> None:
    step = KnownCheckpoint(name="step_5", state=Completeness.COMPLETE, step=5, ended=AT - 10)
    died = KnownCheckpoint(name="step_6", state=Completeness.INCOMPLETE, ended=AT - 5)
    saves = SeriesState(run="5c01", folder="/ckpt", series="step_#", last=step, newest=died)
    run = msgspec.structs.replace(moving(), checkpoint_series=(saves,))
    ended = AttemptGoodput(run="5c01", attempt=1, began=AT - 100, ended=AT - 1, outcome="failed", gpu_seconds={"productive": 9.0})  # fmt: skip
    goodput = JobGoodput(name="train.py", user="ada", uid=1000, began=AT - 900, at=AT, attempts=2, newest=(ended,))  # fmt: skip
    series = ProbeSeries(op="all_reduce", bytes=1, dtype="f", ranks=8, device="H100", nodes="n1", torch="2", nccl="2", nccl_algo="", variables="")  # fmt: skip
    probe = JudgedSeries(series=series, standing=SeriesTrend.SHIFTED, runs=9, median=1.0, mad=0.1,
                         last=(ProbeRun(at=AT - 7, seconds=1.0, busbw=5.0),), change=-0.2)  # fmt: skip
    ecc = ComponentHealth(component="gpu_ecc", state=HealthState.UNHEALTHY, uuid="GPU-a")
    found = snapshot(run, goodput=(goodput,), probes=(probe,), health=(ecc,))
    made = [believed(msgspec.json.encode(with_id(one)), found.node, AT) for one in events_of(found, ())]  # fmt: skip
    assert [kind_of(one) for one in made] == ["attempt", "job", "checkpoint", "checkpoint", "probe", "node_health"]  # fmt: skip
    assert msgspec.to_builtins(made[-1])["components"] == {"gpu_ecc": "unhealthy"}
    assert len({one.subject for one in made}) == len(made)


def test_what_is_looked_at_again_has_the_same_content() -> None:
    later = msgspec.structs.replace(health("n1", NOW + 9))
    assert content(later) == content(health("n1", NOW))
