"""A support bundle holds what helps, and nothing that names anybody."""

import gzip
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fakenvml.library import FakeNvml
from mldebug.config.schema import Config, effective_yaml, load_config
from mldebug.core.errors import AccessError, UsageError
from mldebug.core.model import Gap, Job
from mldebug.hardware.gpu.readings import LostGpu, NodeGpus, NodeWatch
from mldebug.incidents.pseudonyms import Pseudonyms
from mldebug.status.snapshot import RunState, Snapshot, SourceState
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.hardware.gpu.reader import VendorReader
from mldebug_agents.hardware.gpu.vendors import nvidia
from mldebug_agents.state.database import Database
from mldebug_agents.state.messages import Memo
from mldebug_agents.support.bundle import layout, packing
from mldebug_agents.support.bundle.facts import MAX_LOG, agent_log
from mldebug_agents.support.bundle.folder import BundleFolder
from mldebug_agents.support.bundle.kernel_log import read_kernel_log, split_records
from mldebug_agents.support.bundle.layout import ClockPair, GpuReadFailure, Manifest
from mldebug_agents.support.bundle.observer import AgentObserver
from mldebug_agents.support.bundle.recorder import Recorder
from mldebug_agents.support.replay.player import Player
from mldebug_agents.support.replay.recording import load
from mldebug_agents.web.listeners import open_unix
from processes.agent.light import LightJob, light_job
from processes.harness import wait_for
from shared.incidents.bundles import unpacked
from shared.system.patience import PATIENCE

HOST, DOMAIN, USER = "trn-gpu-017", "acme.example", "alice"
UUID, SERIAL = "3b7c1111-2222-3333-4444-555555555555", "1653023011111"
SECRETS = ("hf_abcdefghijklmnopqrstuvwx", "hunter2222", "AKIAABCDEFGHIJKLMNOP")
ORIGINALS = (HOST, DOMAIN, USER, UUID, SERIAL, "llm-secret-project", "10.1.2.3", *SECRETS)
KNOWN = {"node": (f"{HOST}.{DOMAIN}",), "user": (USER,)}
MANIFEST = Manifest(began_at=1.0, ended_at=2.0, clocks=ClockPair(unix=2.0, monotonic=1.0))
KERNEL = f"""\
4,10,1000000,-;NVRM: GPU at PCI:0000:45:00: GPU-{UUID}
 SUBSYSTEM=pci
 DEVICE=+pci:0000:45:00.0
3,11,2000000,-;NVRM: Xid (PCI:0000:45:00): 79, pid=12, name=python
5,12,3000000,-;nfs: server nas.{DOMAIN} not responding, still trying
5,13,4000000,-;systemd: user {USER} on {HOST} from 10.1.2.3 token={SECRETS[0]}
"""


def planted() -> dict[str, bytes]:
    """Files of every kind that a bundle has, with everything in them that must not leave the house."""
    path = f"/home/{USER}/llm-secret-project/run 7/train.py"
    run = RunState(id="r", name="train.py", launcher="x", user=USER, log=path, gpus={0: f"GPU-{UUID}"})  # fmt: skip
    status = Snapshot(node=f"{HOST}.{DOMAIN}", at=1.0, started_at=0.0, runs=(run,))
    gpu = {"uuid": f"GPU-{UUID}", "index": 0, "serial": SERIAL}
    log = f"INFO run of {USER}: {path}: password={SECRETS[1]} at https://u:{SECRETS[1]}@{HOST}.{DOMAIN}/\n"
    return {
        layout.STATUSES: msgspec.json.encode(status) + b"\n",
        layout.FULL: json.dumps({"at": 1.0, "gpus": [gpu]}).encode() + b"\n",
        layout.KERNEL: KERNEL.encode(),
        layout.AGENT_LOG: log.encode() + f"board S/N: {SERIAL}, key {SECRETS[2]}\n".encode(),
        layout.CONFIG: f"channels:\n  ops:\n    token: {SECRETS[1]}\n    host: {HOST}\n".encode(),
        f"reports/20261121-{HOST}/report.json": json.dumps(
            {"node": HOST, "jobs": [{"user": USER, "argv": ["--api-key", SECRETS[2]]}], "by": path}
        ).encode(),
        "broken.json": f'{{"node": "{HOST}", "user": "{USER}'.encode(),
    }


def test_no_original_is_left_in_any_file_name_or_header(tmp_path: Path) -> None:
    gap = msgspec.convert({"what": f"report of {HOST}", "reason": f"/home/{USER}/x: no"}, Gap)  # fmt: skip
    manifest = msgspec.structs.replace(MANIFEST, gaps=(gap,))
    content, result = packing.redact_and_pack(planted(), manifest, "bundle", KNOWN)
    everything = content + gzip.decompress(content)  # headers of both too
    left = [one for one in ORIGINALS if one.lower().encode() in everything.lower()]
    assert left == []
    assert len(result.files) == len(planted())
    assert {"node", "user", "uuid", "serial", "secret", "ip", "folder"} <= set(result.replaced)


def test_joins_still_work_and_values_still_decode(tmp_path: Path) -> None:
    content, _ = packing.redact_and_pack(planted(), MANIFEST, "bundle", KNOWN)
    path = tmp_path / "b.tar.gz"
    path.write_bytes(content)
    recording = load(path)
    uuid = recording.full[0].gpus[0].uuid
    assert uuid.startswith("GPU-0000")
    assert recording.statuses[0].runs[0].gpus == {0: uuid}
    assert recording.kernel is not None
    assert uuid.encode() in recording.kernel[0]
    assert b"DEVICE=+pci:0000:45:00.0" in recording.kernel[0]
    assert len(recording.kernel) == 4


def test_the_file_is_for_its_owner_and_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    packing.write(path, b"one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(UsageError):
        packing.write(path, b"two")
    assert path.read_bytes() == b"one"
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError):
        packing.write(tmp_path / "link", b"two")


def test_a_place_that_will_not_do_is_refused_before_anything_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    for wrong in (tmp_path / "there", tmp_path / "no" / "b.tar.gz"):
        with pytest.raises(UsageError):
            packing.check(wrong)
    packing.check(tmp_path / "b.tar.gz")
    assert not (tmp_path / "b.tar.gz").exists()


# --- gathering -----------------------------------------------------------------------------------


def test_what_is_too_long_loses_its_beginning_and_says_so() -> None:
    folder = BundleFolder(max_file=10, max_total=12)
    folder.add("a.log", b"first\nsecond\nx\n")
    assert folder.files["a.log"] == b"second\nx\n"
    assert "6 of 15" in folder.gaps[0].reason
    folder.add_json("b.json", {"key": "x" * 100})
    assert "b.json" not in folder.files
    assert folder.gaps[1].what == "b.json"
    folder.add("c.log", b"1\n2\n3\n4\n5\n6\n7\n8\n9\n")
    assert sum(map(len, folder.files.values())) <= 12


def test_what_goes_wrong_costs_only_itself() -> None:
    folder = BundleFolder()

    def fails() -> None:
        raise RuntimeError("of our own")

    folder.attempt("one", fails)
    folder.attempt("two", lambda: folder.add("two", b"2"))
    folder.attempt("three", lambda: folder.add("three", Path("/nowhere/at/all").read_bytes()))
    assert list(folder.files) == ["two"]
    assert [one.what for one in folder.gaps] == ["one", "three"]


def test_kernel_records_keep_their_second_lines_and_the_newest_stay(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(KERNEL)
    assert read_kernel_log(str(log), 0.0) == KERNEL.encode()
    late = read_kernel_log(str(log), 2.5)
    assert late.startswith(b"5,12,")
    few = read_kernel_log(str(log), 0.0, max_bytes=150)
    assert few.endswith(KERNEL.encode()[-20:])
    assert len(few) <= 150
    assert len(split_records(KERNEL.encode())) == 4


def test_a_long_kernel_log_is_read_whole(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    lines = [f"4,{n},{n}000000,-;line {n} {'x' * (n % 300)}\n DEVICE=+pci:{n}\n" for n in range(900)]  # fmt: skip
    log.write_text("".join(lines))
    result = read_kernel_log(str(log), 0.0)
    assert result == log.read_bytes()
    assert len(split_records(result)) == 900


def test_a_kernel_log_that_is_closed_says_how_to_open_it(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no such file"):
        read_kernel_log(str(tmp_path / "none"), 0.0)
    if os.geteuid() != 0:
        (tmp_path / "kmsg").touch(0o000)
        with pytest.raises(AccessError, match="permission denied"):
            read_kernel_log(str(tmp_path / "kmsg"), 0.0)


def test_the_agents_log_may_be_a_file_or_a_pipe(tmp_path: Path) -> None:
    folder = BundleFolder()
    read, write = os.pipe()
    os.write(write, b"INFO one\nINFO two\n")
    os.close(write)
    agent_log(folder, Path(f"/dev/fd/{read}"))
    os.close(read)
    assert folder.files[layout.AGENT_LOG] == b"INFO one\nINFO two\n"
    long = tmp_path / "log"
    long.write_bytes(b"INFO a line\n" * (MAX_LOG // 10))
    agent_log(folder, long)
    assert MAX_LOG - 100 < len(folder.files[layout.AGENT_LOG]) <= MAX_LOG
    assert folder.files[layout.AGENT_LOG].startswith(b"INFO a line\n")
    agent_log(folder, None)
    assert "journalctl" in folder.gaps[-1].way_out


# --- what an agent says --------------------------------------------------------------------------


def answer(at: float, watch: float | None, full: float | None, error: str = "") -> Snapshot:
    return Snapshot(
        node="n",
        at=at,
        started_at=0.0,
        sources=(SourceState(name="gpus", success=not error, error=error),),
        gpu_watch=None if watch is None else NodeWatch(at=watch),
        gpus=None if full is None else NodeGpus(at=full, lost=(LostGpu(index=0, reason="x"),)),
    )


def test_each_read_of_an_agent_is_taken_once_and_a_failure_too() -> None:
    eye = AgentObserver()
    for one in (
        answer(10.0, 9.0, 5.0),
        answer(10.0, 9.0, 5.0),
        answer(10.3, 9.0, 5.0),
        answer(10.6, 10.5, 5.0),
        answer(11.5, None, 11.2, "blocked"),
        answer(12.0, None, 11.2, "blocked"),
        answer(12.2, 12.1, 11.2),
    ):
        eye.take(one)
    result = eye.finish()
    assert [one.at for one in result.watch] == [9.0, 10.5, 12.1]
    assert [one.at for one in result.full] == [5.0, 11.2]
    assert result.failed == [GpuReadFailure(at=11.5, read="watch", error="blocked")]
    assert [one.at for one in result.statuses] == [10.0, 11.5, 12.2]
    assert all(one.gpus is None and one.gpu_watch is None for one in result.statuses)


def test_a_node_without_gpus_has_no_failures() -> None:
    eye = AgentObserver()
    eye.take(answer(10.0, None, None))
    eye.take(answer(11.0, None, None))
    assert eye.finish().failed == []


# --- a whole node --------------------------------------------------------------------------------


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    (tmp_path / "nvml").mkdir()
    return FakeNvml(tmp_path / "nvml", "training")


@pytest.fixture
def tools(tmp_path: Path, fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeTools]:
    """Tools with the driver's library a fake; the helper gets the variable with its birth."""
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "mldebug.yaml"
    file.write_text(f"agent: {{state_dir: {tmp_path / 'state'}, listen: ''}}\n")
    with open_tools(load_config(file)) as one:
        options = nvidia.Options(library=fake.library)
        gpus = VendorReader(one.context.spawner, one.context.host, options=options)
        yield replace(one, gpus=gpus)
        gpus.close()


def test_without_an_agent_the_gpus_are_read_here_and_replay_as_they_were(
    tmp_path: Path, tools: NodeTools, fake: FakeNvml
) -> None:
    state = tmp_path / "state"
    (state / "reports").mkdir(parents=True, mode=0o700)
    database = Database(state / "agent.sqlite")  # open and locked, as a living agent has it
    database.remember(Memo("gpus/r", b'{"gpus": {}}'))
    with light_job(tmp_path / "job") as job:
        for rank, pid in job.ranks.items():
            fake.set(f"nvmlDeviceGetComputeRunningProcesses_v3 {rank}", pid, 1 << 30)
        wait_for(
            "its ranks", lambda: any(_is(job, one) for one in tools.capture.finder.find().jobs), 30
        )
        recorder = Recorder(tools, 1.2)
        manifest = recorder.record()
    assert manifest.read_by == "mldebug support-bundle"
    assert not manifest.counted
    content, _ = packing.redact_and_pack(recorder.folder.files, manifest, "bundle")
    path = tmp_path / "b.tar.gz"
    packing.write(path, content)
    names = {name.partition("/")[2] for name in unpacked(path)}
    assert {layout.MANIFEST, layout.CONFIG, layout.DOCTOR, layout.VERSIONS, layout.WATCH} <= names
    recording = load(path)
    assert recording.config is not None
    assert "the agent's memory" not in {one.what for one in manifest.gaps}, manifest.gaps
    assert {name: json.loads(value) for name, value in recording.memory.items()} == {
        "gpus/r": {"gpus": {}}
    }
    assert len(recording.watch) >= 2
    assert [one.utilization_ratio for one in recording.watch[0].gpus] == [0.86, 0.88]
    player = Player(recording, Config())
    for event in player.events:
        player.play(event)
    shown = player.snapshot()
    assert shown.gpus is not None
    assert len(shown.gpus.gpus) == 2
    assert {one.component for one in shown.health} >= {"gpu_ecc", "gpu_count", "gpu_temperature"}
    assert "the agent's process" in {one.what for one in manifest.gaps}
    (run,) = (one for one in recording.statuses[-1].runs if one.ranks == job.ranks)
    assert (run.world_size, sorted(run.gpus)) == (2, [0, 1])


def _is(job: LightJob, found: Job) -> bool:
    return {one.rank: one.pid for one in found.ranks} == job.ranks


def test_beside_an_agent_that_hangs_the_gpus_are_left_alone(
    tmp_path: Path, tools: NodeTools, fake: FakeNvml
) -> None:
    fake.count_calls()
    (tmp_path / "state").mkdir(mode=0o700)
    with open_unix(tmp_path / "state"):  # takes connections, and never answers
        recorder = Recorder(tools, 0.0)
        manifest = recorder.record()
    assert manifest.read_by == "nobody"
    assert fake.calls() == []
    (gap,) = (one for one in manifest.gaps if one.what == "GPUs and status")
    assert "does not answer" in gap.reason


def test_it_ends_sooner_when_somebody_has_enough(tools: NodeTools) -> None:
    began = time.monotonic()
    manifest = Recorder(tools, 600.0, enough=lambda: True).record()
    assert time.monotonic() - began < 30.0 * PATIENCE
    assert manifest.ended_at - manifest.began_at < 30.0


def test_the_effective_config_goes_through_unharmed() -> None:
    config = effective_yaml(Config()).encode()
    content, _ = packing.redact_and_pack({layout.CONFIG: config}, MANIFEST, "bundle", {})
    assert content
    files = packing.redacted({layout.CONFIG: config}, Pseudonyms())
    assert b"stall:" in files[layout.CONFIG]
