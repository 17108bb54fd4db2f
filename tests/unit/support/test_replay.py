"""A recorded node is judged as it was when it lived."""

import gzip
import itertools
import resource
import tarfile
import time
from pathlib import Path

import msgspec
import pytest

from mldebug.cli.main import main
from mldebug.config.schema import Config, HealthConfig, load_config
from mldebug.core.errors import EvidenceError, UsageError
from mldebug.core.model import Job, RankIdentity
from mldebug.hardware.gpu.expected import ExpectedGpus
from mldebug.hardware.gpu.readings import (
    GpuEvent,
    GpuReading,
    GpuWatch,
    LostGpu,
    NodeGpus,
    NodeWatch,
)
from mldebug.status.snapshot import RunState, Snapshot
from mldebug_agents.cli.node_listing import NodeListing, jobs_shown, status_lines
from mldebug_agents.support.bundle import layout
from mldebug_agents.support.bundle.layout import ClockPair, GpuReadFailure, Manifest
from mldebug_agents.support.replay.player import Player
from mldebug_agents.support.replay.recording import MAX_BYTES, MAX_LINES, Recording, load
from mldebug_agents.support.replay.running import Replay, replay_state_dir
from mldebug_agents.support.replay.serving import replay_settings
from mldebug_agents.web.listeners import is_served
from shared.hardware.recordings import phases
from shared.incidents.bundles import JOB, UUIDS, h200_bundle, write

T0 = 1_795_000_000.0
BOOT = 5000.0  # the kernel's clock at T0
MANIFEST = Manifest(
    began_at=T0,
    ended_at=T0 + 60,
    clocks=ClockPair(unix=T0 + 60, monotonic=BOOT + 60),
    read_by="agent",
)
BUS = "00000000:45:00.0"


def devices(name: str, folder: Path) -> dict[float, str]:
    """Time -> what the GPUs of the run do, as a replay of a real recording says it."""
    player = Player(load(h200_bundle(name, folder)), Config())
    table: dict[float, str] = {}
    for event in player.events:
        player.play(event)
        for run in player.snapshot().runs:
            assert run.id == JOB
            table[player.clock.at] = run.devices
    return table


def test_real_training_and_a_real_hang_have_the_fingerprint_that_they_had(tmp_path: Path) -> None:
    result = devices("sleep", tmp_path)
    spans = [*phases("sleep"), (max(result), "end")]
    during = {}
    for (begin, name), (end, _) in itertools.pairwise(spans):
        late = [one for at, one in result.items() if begin + (end - begin) / 2 < at < end - 1]
        during.setdefault(name, late)
    assert all("compute" in one for one in during["train"][-5:]), during["train"]
    last = result[max(result)]
    assert "GPU 0 waits in a collective (100 % busy" in last, last
    assert "GPU 1 runs nothing" in last, last


def test_a_rank_that_was_stopped_has_not_arrived(tmp_path: Path) -> None:
    result = devices("stop", tmp_path)
    assert "GPU 1 runs nothing" in result[max(result)]


def test_a_recording_says_that_it_is_one(tmp_path: Path) -> None:
    snapshots: list[Snapshot] = []
    replay = Replay(load(h200_bundle("kill", tmp_path)), Config(), snapshots.append, speed=0)
    assert "replay ended after" in replay.run()
    assert {one.replay for one in snapshots} == {replay.words}
    assert replay.words.startswith("h200 2026-")
    assert [one.at for one in snapshots] == sorted(one.at for one in snapshots)


# --- faults --------------------------------------------------------------------------------------


def run() -> RunState:
    return RunState(id="r", name="train.py", launcher="torchrun", world_size=1, ranks={0: 77}, gpus={0: UUIDS[0]})  # fmt: skip


def status(at: float, **changes: object) -> Snapshot:
    shown = msgspec.structs.replace(run(), **changes)
    return Snapshot(node="n1", at=at, started_at=T0 - 100, runs=(shown,))


def full(at: float, **changes: object) -> NodeGpus:
    gpu = GpuReading(uuid=UUIDS[0], index=0, bus_id=BUS)
    return NodeGpus(at=at, gpus=(msgspec.structs.replace(gpu, **changes),))


def record(sequence: int, seconds: float, text: str) -> bytes:
    return f"3,{sequence},{int(seconds * 1e6)},-;{text}\n".encode()


def played(recording: Recording, until: float = T0 + 1000) -> Player:
    player = Player(recording, recording.config or Config())
    for event in player.events:
        if event.at <= until:
            player.play(event)
    return player


def test_kernel_records_come_when_their_time_has_come_and_name_the_rank() -> None:
    xid = "NVRM: Xid (PCI:0000:45:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    recording = Recording(
        manifest=MANIFEST,
        statuses=(status(T0), status(T0 + 50)),
        full=(full(T0), full(T0 + 30)),
        watch=(NodeWatch(at=T0 + 10), NodeWatch(at=T0 + 40)),
        kernel=(record(1, BOOT - 7, "old news"), record(2, BOOT + 20, xid)),
    )
    before = played(recording, T0 + 15).snapshot()
    assert before.kernel is not None
    assert before.kernel.records == 1
    assert before.kernel_events == ()
    after = played(recording).snapshot()
    (event,) = after.kernel_events
    assert (event.run, event.rank) == ("r", 0)
    assert event.burst.first_at == pytest.approx(T0 + 20, abs=0.01)
    assert after.kernel is not None
    assert [(one.xid, one.count, one.uuid) for one in after.kernel.xids] == [(79, 1, UUIDS[0])]


@pytest.mark.parametrize(("guessed", "by", "who"), [((), "gpu", ", rank 0"), ((0,), "environment", ", probably rank 0")])  # fmt: skip
def test_how_sure_it_was_which_rank_works_on_a_gpu_is_recorded(
    guessed: tuple[int, ...], by: str, who: str
) -> None:
    xid = "NVRM: Xid (PCI:0000:45:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    recording = Recording(
        manifest=MANIFEST,
        statuses=(status(T0, gpus_guessed=guessed),),
        full=(full(T0), full(T0 + 30)),
        watch=(NodeWatch(at=T0 + 10), NodeWatch(at=T0 + 40)),
        kernel=(record(1, BOOT + 20, xid),),
    )
    snap = played(recording).snapshot()
    (event,) = snap.kernel_events
    (sentence,) = snap.runs[0].kernel
    assert (event.by, snap.runs[0].gpus_guessed) == (by, guessed)
    assert sentence.endswith(who)


def test_events_of_before_a_rank_began_are_not_its_own() -> None:
    xid = "NVRM: Xid (PCI:0000:45:00): 31, pid=12, name=python, Ch 00000001"
    recording = Recording(
        manifest=MANIFEST,
        statuses=(status(T0),),
        full=(full(T0),),
        kernel=(record(1, BOOT - 3600, xid),),
    )
    rank = RankIdentity(rank=0, pid=77, world_size=1, started_at=T0 - 60)
    job = Job(id="r", name="train.py", launcher="torchrun", ranks=(rank,))
    snap = played(msgspec.structs.replace(recording, jobs=(job,))).snapshot()
    assert [one.rank for one in snap.kernel_events] == [None]
    assert [one.rank for one in played(recording).snapshot().kernel_events] == [0]


def test_a_missing_gpu_is_known_by_what_the_agent_remembered() -> None:
    expected = ExpectedGpus()
    both = (GpuReading(uuid=UUIDS[0], index=0, bus_id=BUS), GpuReading(uuid=UUIDS[1], index=1))
    expected.look(NodeGpus(at=T0 - 900, gpus=both), view="/")
    memory = {"expected_gpus": msgspec.json.encode(expected)}
    reads = (full(T0), full(T0 + 30))
    recording = Recording(manifest=MANIFEST, statuses=(status(T0),), full=reads)
    assert not codes(played(recording))
    remembering = msgspec.structs.replace(recording, memory=memory)
    assert "gpu_missing" in codes(played(remembering))


def codes(player: Player) -> set[str]:
    health = player.snapshot().health
    return {one.reason_code for one in health if one.component == "gpu_count" and one.state != "healthy"}  # fmt: skip


def test_a_read_that_failed_takes_its_values_away() -> None:
    recording = Recording(
        manifest=MANIFEST,
        statuses=(status(T0),),
        full=(full(T0),),
        watch=(NodeWatch(at=T0, gpus=(GpuWatch(uuid=UUIDS[0], index=0, power_watts=100.0),)),),
        failed=(
            GpuReadFailure(at=T0 + 5, read="watch", error="blocked"),
            GpuReadFailure(at=T0 + 9, read="full", error="blocked"),
        ),
    )
    assert played(recording, T0 + 1).snapshot().gpu_watch is not None
    after = played(recording, T0 + 6).snapshot()
    assert after.gpu_watch is None
    assert after.gpus is not None
    assert played(recording).snapshot().gpus is None


def test_xids_that_the_library_told_are_counted_once() -> None:
    event = GpuEvent(at=T0 + 1, uuid=UUIDS[0], index=0, bus_id=BUS, xid=63)
    recording = Recording(
        manifest=MANIFEST,
        statuses=(status(T0), status(T0 + 30)),
        full=(full(T0),),
        watch=(NodeWatch(at=T0 + 1, events=(event,)), NodeWatch(at=T0 + 5)),
        kernel=(),
    )
    kernel = played(recording).snapshot().kernel
    assert kernel is not None
    assert [(one.xid, one.count) for one in kernel.xids] == [(63, 1)]


@pytest.mark.parametrize(("counted", "total"), [(False, 130.0), (True, 30.0)])
def test_counters_are_made_monotone_unless_they_are_already(counted: bool, total: float) -> None:
    recording = Recording(
        manifest=msgspec.structs.replace(MANIFEST, counted=counted),
        full=(
            full(T0, energy_joules=100.0),
            full(T0 + 1, energy_joules=0.0),
            full(T0 + 2, energy_joules=30.0),
        ),
    )
    gpus = played(recording).snapshot().gpus
    assert gpus is not None
    assert gpus.gpus[0].energy_joules == total


def test_a_log_that_could_not_be_read_is_a_gap_and_no_calm() -> None:
    recording = Recording(manifest=MANIFEST, statuses=(status(T0),))
    snap = played(recording).snapshot()
    assert [one.what for one in snap.gaps] == ["kernel log"]
    assert snap.kernel is not None
    assert not snap.kernel.readable


def test_a_lost_gpu_stays_with_its_rank() -> None:
    lost = LostGpu(index=0, uuid=UUIDS[0], bus_id=BUS, reason="GPU is lost", code="gpu_is_lost")
    recording = Recording(
        manifest=MANIFEST,
        statuses=(status(T0),),
        full=(full(T0), NodeGpus(at=T0 + 30, lost=(lost,))),
    )
    assert played(recording).snapshot().runs[0].gpus == {0: UUIDS[0]}


# --- reading -------------------------------------------------------------------------------------


def test_what_is_no_bundle_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(b"hello")
    with pytest.raises(EvidenceError, match=r"x\.tar\.gz"):
        load(tmp_path / "x.tar.gz")
    with pytest.raises(EvidenceError, match="manifest"):
        load(tmp_path)
    with pytest.raises(EvidenceError):
        load(tmp_path / "absent")


def test_a_malformed_line_is_named(tmp_path: Path) -> None:
    write(tmp_path, MANIFEST, {layout.WATCH: b'{"at": 1.0}\n{"at": "soon"}\n'})
    with pytest.raises(EvidenceError, match=r"watch\.jsonl:2"):
        load(tmp_path)


def test_an_empty_recording_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    write(tmp_path, MANIFEST, {})
    with pytest.raises(EvidenceError, match="nothing"):
        Replay(load(tmp_path), Config(), lambda _: None)


def test_links_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "evil.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo("b/manifest.json")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(entry)
    with pytest.raises(EvidenceError, match="manifest"):
        load(path)


def hole(name: bytes, size: int) -> bytes:
    """The header of a sparse file of old GNU tar: nothing but one hole of that size."""
    header = bytearray(512)
    numbers = {100: (8, 0o600), 124: (12, 0), 136: (12, 0), 386: (12, size), 398: (12, 0), 483: (12, size)}  # fmt: skip
    for start, (width, value) in numbers.items():
        header[start : start + width] = b"%0*o\0" % (width - 1, value)
    header[: len(name)], header[156:157], header[257:265] = name, b"S", b"ustar  \0"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@pytest.mark.parametrize("size", [700 << 20, 8 << 30])
def test_a_hole_in_an_archive_is_no_content(tmp_path: Path, size: int) -> None:
    path = tmp_path / "b.tar.gz"
    path.write_bytes(gzip.compress(hole(b"x/memory.json", size) + bytes(1024)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EvidenceError, match="packed"):
        load(path)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < MAX_BYTES


def test_an_archive_of_endless_files_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    entry = tarfile.TarInfo("b/x").tobuf()
    path.write_bytes(gzip.compress(entry * 10_001 + bytes(1024)))
    with pytest.raises(EvidenceError, match="10,000 files"):
        load(path)


@pytest.mark.parametrize(
    ("name", "line", "times"),
    [
        (layout.WATCH, b'{"at":1}\n', MAX_LINES + 1),
        (layout.WATCH, b"\n", MAX_LINES + 1),
        (layout.KERNEL, b"\r", 400_001),
    ],
)
def test_more_lines_than_can_be_played_are_refused_in_words(
    tmp_path: Path, name: str, line: bytes, times: int
) -> None:
    write(tmp_path, MANIFEST, {name: line * times})
    with pytest.raises(EvidenceError, match=rf"{name} has {times:,} lines"):
        load(tmp_path)


def test_a_kernel_record_of_many_lines_is_taken_in_linear_time(tmp_path: Path) -> None:
    lines = b"3,1,100,-;x\n" + (b" " + b"y" * 100 + b"\n") * 300_000
    write(tmp_path, MANIFEST, {layout.KERNEL: lines})
    before = time.process_time()
    (record,) = load(tmp_path).kernel or ()
    assert record == lines
    assert time.process_time() - before < 5


@pytest.mark.parametrize("at", [1e18, -1e300, -1.0])
@pytest.mark.parametrize("field", ["began_at", "ended_at", "unix", "monotonic"])
def test_a_time_that_cannot_be_is_refused_in_words(tmp_path: Path, field: str, at: float) -> None:
    clocks = {"unix": T0, "monotonic": 1.0}
    times = {"began_at": T0, "ended_at": T0}
    (clocks if field in clocks else times)[field] = at
    manifest = Manifest(**times, clocks=ClockPair(**clocks))
    write(tmp_path, manifest, {layout.WATCH: b'{"at": 1.0}\n'})
    with pytest.raises(EvidenceError, match=r"manifest\.json is malformed: .* is no time"):
        load(tmp_path)


def test_a_reading_of_no_time_is_refused_in_words(tmp_path: Path) -> None:
    write(tmp_path, MANIFEST, {layout.WATCH: b'{"at": 1.0}\n{"at": 1e300}\n'})
    with pytest.raises(EvidenceError, match=r"watch\.jsonl:2 is malformed: 1e\+300 is no time"):
        load(tmp_path)


def test_it_plays_at_the_speed_that_was_asked_for() -> None:
    recording = Recording(manifest=MANIFEST, statuses=(status(T0), status(T0 + 3)))
    now, waits = [100.0], []

    class Sleeper:
        def get(self, timeout: float) -> None:
            waits.append(timeout)
            now[0] += timeout

    replay = Replay(recording, Config(), lambda _: None, speed=2.0, monotonic=lambda: now[0])
    replay._wake = Sleeper()  # type: ignore[assignment]
    replay.run()
    assert sum(waits) == pytest.approx(1.5)


def test_a_loop_begins_anew_until_it_is_told_to_stop() -> None:
    recording = Recording(manifest=MANIFEST, statuses=(status(T0),))
    snapshots: list[Snapshot] = []

    def publish(snapshot: Snapshot) -> None:
        snapshots.append(snapshot)
        if len(snapshots) == 3:
            replay.stop()

    replay = Replay(recording, Config(), publish, speed=0, loop=True)
    replay.run()
    assert len(snapshots) == 3


# --- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("--loop",),
        ("--speed", "2x"),
        ("--state-dir", "x"),
        ("--replay", "BUNDLE", "--speed", "fast"),
        ("--replay", "BUNDLE", "--speed", "-1x"),
        ("--replay", "nowhere"),
    ],
)
def test_wrong_usage_ends_with_2_and_a_way_out(
    tmp_path: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = h200_bundle("kill", tmp_path / "b")
    given = [str(bundle) if one == "BUNDLE" else one for one in arguments]
    assert main(["agent", *given]) == 2
    assert "way out:" in capsys.readouterr().err


def test_the_place_of_a_replay_leaves_nothing_behind(tmp_path: Path) -> None:
    wanted = tmp_path / "state"
    with replay_state_dir(wanted, Config()) as (file, door), door:
        assert load_config(file).agent.state_dir == wanted
        assert is_served(wanted)
        with pytest.raises(UsageError), replay_state_dir(wanted, Config()):
            pass
        assert is_served(wanted)
    assert list(wanted.iterdir()) == []
    with replay_state_dir(None, Config()) as (file, door), door:
        folder = file.parent
        assert folder.stat().st_mode & 0o077 == 0
    assert not folder.exists()


def test_files_of_somebody_else_are_left_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "mldebug.yaml").write_text("mine")
    with pytest.raises(UsageError), replay_state_dir(tmp_path, Config()):
        pass
    assert (tmp_path / "mldebug.yaml").read_text() == "mine"


def test_status_shows_the_runs_of_a_recording_and_says_that_it_is_one() -> None:
    recording = Recording(manifest=MANIFEST, statuses=(status(T0),))
    shown = Player(recording, Config(), "n1 of yesterday").snapshot()
    listing = NodeListing(
        node="here", now=T0, jobs=jobs_shown((), shown), remarks=(), gaps=(), agent=shown
    )
    text = "\n".join(line.plain for line in status_lines(listing))
    assert "a replay of n1 of yesterday" in text
    assert "train.py" in text
    assert "mldebug dump" not in text


def test_the_config_of_the_recorded_node_is_obeyed_unless_another_is_given(tmp_path: Path) -> None:
    there = Config(health=HealthConfig(gpus=8))
    recording = Recording(manifest=MANIFEST, statuses=(status(T0),), config=there)
    assert replay_settings(recording, None).health.gpus == 8
    assert replay_settings(recording, None).agent == Config().agent
    (tmp_path / "own.yaml").write_text("health: {gpus: 4}\n")
    assert replay_settings(recording, tmp_path / "own.yaml").health.gpus == 4
