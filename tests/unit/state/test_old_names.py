"""Fields that were renamed in the code keep their names on disk and between agents of different versions."""

from typing import Any

import msgspec
import pytest

from mldebug.alerts.model import AlertEvent
from mldebug.cluster.messages import ClusterView, PeerView, RunNews, Signal
from mldebug.core.model import Group, HookState, Job, NodeCapture, RankCapture
from mldebug.core.report_model import RankView
from mldebug.diagnosis.exits.model import AttemptExit, LauncherWords
from mldebug.hardware.kernel_log.xids import Xid
from mldebug.incidents.incident import Incident
from mldebug.stall.progress_clock import ProgressMemory, StallMemory
from mldebug.status.snapshot import RunState, Snapshot
from mldebug.storage.filesystems.forecast import Forecast

JOB: Any = {"id": "j", "name": "train", "launcher": "torchrun", "world_size": 1}
# what an earlier version wrote, the attribute that has it now, and its value there
OLDER: list[tuple[type[msgspec.Struct], dict[str, Any], str, Any]] = [
    (StallMemory, {"pulse": {"progressed": 7.0}}, "progress.progressed", 7.0),
    (ProgressMemory, {"heard": True}, "observed", True),
    (Incident, {"id": "i", "job_id": "j", "key": "", "detected_at": 1.0,
                "ending": {"job": JOB}}, "exit.job.id", "j"),
    (LauncherWords, {"said": ["mpirun noticed that process rank 1 exited"]}, "cited",
     ("mpirun noticed that process rank 1 exited",)),
    (AttemptExit, {"job": JOB, "said": {"3": {"step": 7}}}, "hooks", {3: HookState(step=7)}),
    (ClusterView, {"version": "1", "coordinator": "n1", "members": [{"node": "n2"}]}, "peers", (PeerView(node="n2"),)),
    (Forecast, {"save": 8.0}, "checkpoint_bytes", 8.0),
    (Incident, {"id": "i", "job_id": "j", "key": "", "detected_at": 1.0, "asked": {"by": "n1"}}, "queried.by", "n1"),
    (Incident, {"id": "i", "job_id": "j", "key": "", "detected_at": 1.0, "across": [{"node": "n1", "taken_at": 1.0, "job": JOB}]},
     "node_captures", (NodeCapture(node="n1", taken_at=1.0, job=Job(**JOB)),)),
    (NodeCapture, {"node": "n1", "taken_at": 1.0, "job": JOB, "saves": "none yet"}, "checkpoints", "none yet"),
    (PeerView, {"node": "n1", "seen": 2.0}, "seconds_ago", 2.0),
    (RankCapture, {"identity": {"rank": 0, "pid": 7, "world_size": 1, "local_rank": 0}, "process": {"pid": 7}, "said": {"step": 7}}, "hook.step", 7),
    (RunState, {"id": "j", "name": "train", "launcher": "torchrun", "said": {"3": {"step": 7}}}, "hooks", {3: HookState(step=7)}),
    (Snapshot, {"node": "n1", "at": 1.0, "started_at": 1.0, "save_troubles": {"late": 2}}, "checkpoint_troubles", {"late": 2}),
    (Signal, {"kind": "step", "value": 3.0, "age": 1.0, "told": 2.5}, "stale", 2.5),
]  # fmt: skip
# every field whose name in documents is another one than in the code
ALIASES = {
    AlertEvent: {"alert": "alarm", "acknowledged": "told"},
    AttemptExit: {"hooks": "said"},
    ClusterView: {"peers": "members"},
    Forecast: {"checkpoint_bytes": "save"},
    Group: {"class_": "class"},
    Incident: {"exit": "ending", "node_captures": "across", "queried": "asked"},
    LauncherWords: {"cited": "said"},
    NodeCapture: {"checkpoints": "saves"},
    PeerView: {"seconds_ago": "seen"},
    ProgressMemory: {"observed": "heard"},
    RankCapture: {"hook": "said"},
    RankView: {"class_": "class"},
    RunNews: {"published": "told"},
    RunState: {"hooks": "said", "checkpoint_series": "saves"},
    Signal: {"stale": "told"},
    Snapshot: {"checkpoint_series": "saves", "checkpoint_troubles": "save_troubles"},
    StallMemory: {"progress": "pulse"},
    Xid: {"class_": "class"},
}


@pytest.mark.parametrize(
    ("kind", "document", "attribute", "value"), OLDER, ids=lambda one: getattr(one, "__name__", "")
)
def test_an_older_document_is_read_and_written_with_its_names(
    kind: type[msgspec.Struct], document: dict[str, Any], attribute: str, value: Any
) -> None:
    read: Any = msgspec.json.decode(msgspec.json.encode(document), type=kind)
    written = msgspec.json.decode(msgspec.json.encode(read))

    found: Any = read
    for part in attribute.split("."):
        found = getattr(found, part)
    assert found == value
    new = attribute.partition(".")[0]
    old = ALIASES[kind][new]
    assert old in written
    assert new not in written
    assert msgspec.json.decode(msgspec.json.encode(written), type=kind) == read


@pytest.mark.parametrize("kind", ALIASES, ids=lambda kind: kind.__name__)
def test_no_alias_is_lost(kind: type[msgspec.Struct]) -> None:
    names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    assert {name: old for name, old in names if name != old} == ALIASES[kind]
