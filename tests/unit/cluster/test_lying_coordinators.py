"""The agent that coordinates lies to a person who asks it by `--cluster`: no command writes to his terminal what was not cleaned, and
no report is of another run than the one that he asked for.
"""

import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mldebug.capture.inspection import InspectedRanks, InspectionOptions, RankHolders, RankProfile
from mldebug.cluster.inspection import MAX_PASSED_ON, Inspection
from mldebug.cluster.messages import (
    MAX_REPORT,
    MAX_REPORT_VALUES,
    MAX_VIEW,
    ClusterView,
    PeerView,
    RunNews,
    Signal,
    check_count,
    read,
)
from mldebug.cluster.run_identity import run_id, run_key
from mldebug.cluster.wire import NodeReply, pack
from mldebug.config.schema import AgentConfig, Config
from mldebug.core.errors import EvidenceError, MldebugError
from mldebug.core.model import GpuBrief, NodeCapture
from mldebug.core.report_model import Report
from mldebug.incidents.report_store import ReportStore
from mldebug_agents.cli import inspecting
from mldebug_agents.cli.commands.capture import dump
from mldebug_agents.cli.inspecting import RanksWanted, StoredInspection, file_lines, inspected
from mldebug_agents.cluster.peers.net.client import Peer
from mldebug_agents.cluster.peers.verbs import peer_verbs
from shared.cluster.nodes import run
from shared.incidents import samples

ESCAPE = "\x1b]0;title\x07\x1b[2Jword\u202e"
BAD = ("\x1b", "\x07", "\u202e")
TRACE = "profile-rank0.trace.json.gz"


def inspection_by(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: bytes
) -> StoredInspection:
    """What `mldebug profile --cluster` gets where the coordinator answers so."""
    near = SimpleNamespace(state_dir=tmp_path, answer=None)
    monkeypatch.setattr(inspecting, "ask_nearest", lambda *_, **__: near)

    def post(state_dir: Path, path: str, kind: type[Any], **_: Any) -> Any:
        return msgspec.json.decode(answer, type=kind)

    monkeypatch.setattr(inspecting, "post_to_agent", post)
    config = Config(agent=AgentConfig(state_dir=tmp_path))
    wanted = RanksWanted("train", None, InspectionOptions(what="profile"), True, True)
    return inspected(config, wanted, lambda found: {"profile.txt": found.text().encode()})


def test_no_word_of_it_reaches_the_terminal_as_it_came(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = InspectedRanks(
        profiles=(
            RankProfile(rank=0, pid=1, node=ESCAPE, failure=ESCAPE),
            RankProfile(rank=1, pid=1, node="n1", left_out=ESCAPE, steps=ESCAPE),
        ),
        memory=(RankHolders(rank=2, pid=1, node=ESCAPE, failure=ESCAPE),),
    )
    done = inspection_by(
        monkeypatch, tmp_path, msgspec.json.encode(Inspection(job=ESCAPE, found=found))
    )
    lines = [line for one in done.found.ranks for line in (*one.lines(), *file_lines(one, ""))]
    text = "\n".join([*lines, done.job])
    assert "word" in text
    assert [bad for bad in BAD if bad in text] == []


def test_an_answer_that_is_too_large_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = b'{"rank":0,"pid":0},'
    some = b'{"schema":"mldebug.peer/1","version":"1","job":"a","found":{"profiles":[%b{"rank":0,"pid":0}]}}'
    with pytest.raises(MldebugError, match="more than"):
        inspection_by(monkeypatch, tmp_path, some % (one * (MAX_PASSED_ON // len(one))))


def reply(capture: NodeCapture) -> bytes:
    return pack(NodeReply(node=capture.node, captures=(capture,)))


def of_another(capture: NodeCapture) -> NodeCapture:
    """The same of another run."""
    ranks = tuple(msgspec.structs.replace(one, run_id="another", master="n9:1") for one in capture.job.ranks)  # fmt: skip
    captured = tuple(
        msgspec.structs.replace(one, identity=identity)
        for one, identity in zip(capture.ranks, ranks, strict=True)
    )
    job = msgspec.structs.replace(capture.job, ranks=ranks)
    return msgspec.structs.replace(capture, job=job, ranks=captured)


def test_a_report_is_of_the_run_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A node that sent a capture of a run with more ranks had that one judged, and its ranks named."""
    mine, more = run(1, 2)["a1"], of_another(run(1, 8)["a1"])
    job = run_id(run_key(mine))
    found = InspectedRanks(profiles=(RankProfile(rank=0, pid=1, file=TRACE),), files={TRACE: b"0"})
    both = {"a1": reply(mine), "a2": reply(more)}
    answer = Inspection(job=job, found=found, replies=both)
    done = inspection_by(monkeypatch, tmp_path, msgspec.json.encode(answer))
    assert done.trouble == ""
    (stored,) = ReportStore(tmp_path).list()
    assert len(ReportStore(tmp_path).load(stored.id).ranks) == 2
    alone = msgspec.structs.replace(answer, replies={"a2": reply(more)})
    done = inspection_by(monkeypatch, tmp_path, msgspec.json.encode(alone))
    assert done.trouble.startswith("the report was not stored: no node has sent a capture")


@pytest.mark.parametrize("some", [
    b'"members":[%b]' % b",".join([b'{"node":"","runs":[{"key":[]}]}'] * 999_999),
    b'"members":[{"node":"","runs":[{"key":[%b]}]}]' % b",".join([b'"ab"'] * 5_999_999),
], ids=["runs", "words"])  # fmt: skip
def test_a_view_of_more_than_there_can_be_is_not_decoded(some: bytes) -> None:
    """32 MiB of runs of nodes that are not there took 600 MiB of the agent of whoever looked."""
    body = b'{"schema":"mldebug.peer/1","version":"1","coordinator":"c",%b}' % some
    assert len(body) < MAX_VIEW
    tracemalloc.start()
    try:
        with pytest.raises(EvidenceError, match="more than"):
            read(body, ClusterView)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_view_of_8192_nodes_is_read() -> None:
    gpus = tuple(GpuBrief(index=n, name="NVIDIA H100 80GB HBM3", user="ada", busy=0.99, memory_used=1 << 36, memory_total=1 << 37, watts=650.5, limit_watts=700.0, celsius=66.0) for n in range(8))  # fmt: skip
    signals = tuple(Signal(kind=kind, value=1.0, age=2.0) for kind in ("step", "log", "cpu", "gpu"))
    news = RunNews(key=("torchrun", "4711", "port 29500", "uid 1000"), name="train.py", world_size=65_536, ranks="0-7", step=10_000, signals=signals)  # fmt: skip
    peers = tuple(PeerView(node=f"node{n:05d}", runs=(news, news), gpus=gpus) for n in range(8192))
    assert len(read(msgspec.json.encode(ClusterView(coordinator="c", peers=peers)), ClusterView).peers) == 8192  # fmt: skip


def lying(**more: Any) -> Report:
    honest = samples.report(samples.sleeping())
    diagnosis = msgspec.structs.replace(honest.diagnosis, summary=ESCAPE)
    return msgspec.structs.replace(honest, diagnosis=diagnosis, **more)


def test_a_dump_by_all_agents_is_cleaned_before_it_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    near = SimpleNamespace(state_dir=tmp_path)
    monkeypatch.setattr(dump, "ask_nearest", lambda *_, **__: near)
    monkeypatch.setattr(dump, "post_to_agent", lambda *_, **__: lying(node=ESCAPE))
    dump._by_agents(Config(), "train", False, None, here_only=True)
    shown = capsys.readouterr().out
    assert "word" in shown
    assert [bad for bad in BAD if bad in shown] == []


@pytest.mark.parametrize(("name", "fits"), [("20260101T000000Z-abc", True), ("../x", False), (ESCAPE, False)])  # fmt: skip
def test_the_name_of_a_report_elsewhere_is_a_name(name: str, fits: bool) -> None:
    body = msgspec.json.encode(lying(id=name))
    peers = SimpleNamespace(coordinators=(Peer("c0", 1),), coordinators_of=lambda _: ())
    client = SimpleNamespace(ask=lambda *_, **__: body)
    verb = peer_verbs(peers, client)["/api/v1/dump"]  # type: ignore[arg-type]
    if fits:
        report: Any = verb({"job": "train"}, None)
        assert report.id == name
    else:
        with pytest.raises(MldebugError, match="is no report"):
            verb({"job": "train"}, None)


@pytest.mark.parametrize("part", [b'"gpu_seconds":{%s}', b'"log":[%s]'])
def test_a_report_elsewhere_of_millions_of_values_costs_nothing(part: bytes) -> None:
    values = b",".join(b'"%x":1' % n if b"{" in part else b'"%x"' % n for n in range(2_000_000))
    body = b'{"ranks":[{' + part % values + b"}]}"
    assert len(body) < MAX_REPORT
    peers = SimpleNamespace(coordinators=(Peer("c0", 1),), coordinators_of=lambda _: ())
    client = SimpleNamespace(ask=lambda *_, **__: body)
    verb = peer_verbs(peers, client)["/api/v1/dump"]  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        with pytest.raises(MldebugError, match="more than"):
            verb({"job": "train"}, None)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_report_of_8192_ranks_is_read() -> None:
    honest = samples.report(samples.sleeping())
    (one, *_) = honest.ranks
    body = msgspec.json.encode(
        msgspec.structs.replace(honest, id="20260101T000000Z-abc", ranks=(one,) * 8192)
    )
    check_count(body, MAX_REPORT_VALUES)
    assert body.count(b",") < MAX_REPORT_VALUES / 2
