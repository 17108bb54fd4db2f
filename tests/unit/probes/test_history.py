"""History of probes: noise and one bad run are nothing, a lasting change is found; what is stored survives what a disk does."""

import contextlib
import os
import queue
import random
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from mldebug.alerts.probe_events import of_probes
from mldebug.core.errors import EvidenceError
from mldebug.probes.history import (
    ACCEPTED,
    LAST,
    LEAST,
    RECENT,
    ProbeRun,
    ProbeSeries,
    SeriesTrend,
    TrendDetector,
    current,
    judge,
    judge_all,
    sentence,
)
from mldebug_agents.probes.history import monitor, store
from mldebug_agents.probes.history.monitor import ProbeHistoryReader
from mldebug_agents.probes.history.store import NAME, add_runs, load, unpack
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from mldebug_agents.system.workers import Result, Worker
from mldebug_exporters.prometheus import Prometheus
from shared.web.snapshots import snapshot

SERIES = ProbeSeries(
    op="all_reduce", bytes=1 << 24, dtype="float32", ranks=8, device="NVIDIA H200", nodes="n1",
    torch="2.9.0", nccl="2.27.5", nccl_algo="", variables="",
)  # fmt: skip
USUAL = 400e9
Noise = Callable[[random.Random], float]
NOISES: dict[str, Noise] = {
    "a steady machine": lambda dice: dice.gauss(1.0, 0.01),
    "an unsteady machine": lambda dice: max(0.01, dice.gauss(1.0, 0.1)),
    "times that are long now and then": lambda dice: 1 / (1 + dice.expovariate(1 / 0.05)),
}


def runs(speeds: list[float], scale: float = USUAL) -> list[ProbeRun]:
    return [
        ProbeRun(at=float(number), seconds=1.0, busbw=scale * one)
        for number, one in enumerate(speeds)
    ]


def standings(speeds: list[float]) -> list[SeriesTrend]:
    """After each run."""
    walk, found = TrendDetector(), []
    for one in speeds:
        walk.add(one)
        found.append(walk.standing)
    return found


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_noise_alone_alarms_in_less_than_one_of_1000_series(noise: Noise) -> None:
    dice = random.Random(7)
    alarmed = sum(
        SeriesTrend.SHIFTED in standings([noise(dice) for _ in range(100)]) for _ in range(1001)
    )
    assert alarmed <= 1


@given(st.integers(0, 10**9), st.integers(LEAST, 80))
def test_a_lasting_drop_of_10_percent_is_found_with_the_third_run(seed: int, before: int) -> None:
    dice = random.Random(seed)
    level = [1.0] * before + [0.9] * LAST
    speeds = [one * dice.uniform(0.99, 1.01) for one in level]
    found = standings(speeds)
    assert SeriesTrend.SHIFTED not in found[:-1]
    assert found[-1] is SeriesTrend.SHIFTED
    assert judge(SERIES, runs(speeds)).standing is SeriesTrend.SHIFTED


@given(st.integers(0, 10**9), st.integers(0, 60), st.floats(0.0, 0.9))
def test_one_bad_run_is_nothing(seed: int, place: int, bad: float) -> None:
    dice = random.Random(seed)
    speeds = [dice.uniform(0.99, 1.01) for _ in range(61)]
    speeds[place] = bad
    assert SeriesTrend.SHIFTED not in standings(speeds)


def test_an_improvement_is_told_as_one() -> None:
    judged = judge(SERIES, runs([1.0] * 10 + [1.2] * 3))
    assert judged.standing is SeriesTrend.IMPROVED
    assert "20% faster than usual in each of the last 3 runs" in sentence(judged)


def test_a_shift_is_told_until_it_is_over_or_the_usual() -> None:
    found = standings([1.0] * 20 + [0.8] * (ACCEPTED + LAST))
    assert found[20:22] == [SeriesTrend.STEADY] * 2
    assert set(found[22:-1]) == {SeriesTrend.SHIFTED}
    assert found[-1] is SeriesTrend.STEADY
    assert standings([1.0] * 20 + [0.8] * 3 + [1.0])[-1] is SeriesTrend.STEADY


def test_a_slow_drift_of_shifted_runs_never_becomes_the_measure() -> None:
    """Runs since the shift are no part of the usual ones: the median told stays the one of before."""
    judged = judge(SERIES, runs([1.0] * 10 + [0.8] * 20))
    assert judged.median == USUAL
    assert judged.change == pytest.approx(-0.2)


def test_the_last_speeds_and_the_band_are_told_for_a_drawing() -> None:
    judged = judge(SERIES, runs([1.0] * 50 + [0.8123456] * 3))
    assert len(judged.speeds) == RECENT
    assert judged.speeds[-4:] == (400e9, 324.9e9, 324.9e9, 324.9e9)
    assert judged.low == pytest.approx(0.95 * USUAL)
    assert judged.high == pytest.approx(1.05 * USUAL)


def test_few_runs_say_nothing() -> None:
    judged = judge(SERIES, runs([1.0] * (LEAST - 1) + [0.1] * LAST))
    assert judged.standing is SeriesTrend.FEW
    assert (judged.median, judged.change, sentence(judged)) == (None, None, "")
    assert (judged.low, judged.high, len(judged.speeds)) == (None, None, LEAST - 1 + LAST)


def test_a_barrier_is_judged_by_its_time() -> None:
    slow = [ProbeRun(at=1.0, seconds=one, busbw=0.0) for one in [1e-5] * 10 + [2e-5] * 3]
    judged = judge(msgspec.structs.replace(SERIES, op="barrier", bytes=0), slow)
    assert judged.standing is SeriesTrend.SHIFTED
    assert "50% slower" in sentence(judged)
    assert "per second" in sentence(judged)


def test_shifted_ones_stand_first() -> None:
    steady, shifted = [1.0] * 20, [1.0] * 10 + [0.8] * 3
    other = msgspec.structs.replace(SERIES, op="broadcast")
    result = judge_all([(SERIES, runs(steady)), (other, runs(shifted)), (SERIES, [])])
    assert [one.standing for one in result] == [SeriesTrend.SHIFTED, SeriesTrend.STEADY]


def test_a_series_of_an_older_version_is_not_current() -> None:
    newer = msgspec.structs.replace(SERIES, torch="2.10.0")
    ring = msgspec.structs.replace(SERIES, nccl_algo="Ring")
    later = [ProbeRun(at=1000.0, seconds=1.0, busbw=USUAL)]
    result = judge_all([(SERIES, runs([1.0] * 10 + [0.8] * 3)), (newer, later), (ring, later)])
    assert result[0].standing is SeriesTrend.SHIFTED
    assert {one.series for one in current(result)} == {newer, ring}


# --- on disk -------------------------------------------------------------------------------------


def measured(at: float, busbw: float = USUAL, **changes: object) -> tuple[ProbeSeries, ProbeRun]:
    series = msgspec.structs.replace(SERIES, **changes)
    return series, ProbeRun(at=at, seconds=1.0, busbw=busbw)


def test_what_is_kept_is_found_again_series_by_series(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    assert load(state_dir) == ()
    add_runs(state_dir, [measured(1.0), measured(1.0, op="broadcast")])
    added = add_runs(state_dir, [measured(2.0, 1e9), measured(3.0, nccl_algo="Ring")])
    assert added == load(state_dir)
    assert [(one.op, one.nccl_algo, [run.at for run in runs]) for one, runs in added] == [
        ("all_reduce", "", [1.0, 2.0]),
        ("broadcast", "", [1.0]),
        ("all_reduce", "Ring", [3.0]),
    ]
    assert added[0][1][1].busbw == 1e9
    assert unpack((state_dir / NAME).read_bytes()) == added
    assert stat.S_IMODE((state_dir / NAME).stat().st_mode) == 0o600
    assert [one.name for one in state_dir.iterdir()] == [NAME]


def test_rows_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_RUNS", 5)
    monkeypatch.setattr(store, "MOST_SERIES", 3)
    for at in range(8):
        add_runs(tmp_path, [measured(float(at))])
    added = add_runs(tmp_path, [measured(10.0 + size, bytes=size) for size in range(3)])
    assert [one.bytes for one, _ in added] == [0, 1, 2]  # the oldest series has gone whole
    added = add_runs(tmp_path, [measured(20.0 + at, bytes=2) for at in range(8)])
    assert [run.at for run in added[-1][1]] == [23.0, 24.0, 25.0, 26.0, 27.0]


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    def write(begin: int) -> None:
        for at in range(begin, begin + 10):
            add_runs(tmp_path, [measured(float(at))])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(0, 40, 10)))
    ((_, runs_),) = load(tmp_path)
    assert [run.at for run in runs_] == [float(at) for at in range(40)]


def test_a_writer_that_does_not_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "WAIT", 0.1)
    before = add_runs(tmp_path, [measured(1.0)])
    with contextlib.closing(sqlite3.connect(tmp_path / NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(EvidenceError, match="locked"):
            add_runs(tmp_path, [measured(2.0)])
        other.execute("ROLLBACK")
    assert load(tmp_path) == before


@pytest.mark.parametrize("damage", [b"no database at all " * 200, None], ids=["other", "torn"])
def test_a_damaged_file_is_set_aside(tmp_path: Path, damage: bytes | None) -> None:
    add_runs(tmp_path, [measured(float(at), bytes=size) for at in range(20) for size in range(20)])
    file = tmp_path / NAME
    whole = file.read_bytes()
    broken = damage or whole[:100] + b"\xff" * 4096 + whole[4196:]
    file.write_bytes(broken)
    with pytest.raises(EvidenceError):
        load(tmp_path)
    with pytest.raises(EvidenceError):
        unpack(broken)
    assert [runs for _, runs in add_runs(tmp_path, [measured(9.0)])] == [(measured(9.0)[1],)]
    assert (tmp_path / f"{NAME}.broken").read_bytes() == broken


def test_whatever_a_disk_makes_of_it_is_one_sentence_or_nothing(tmp_path: Path) -> None:
    """Bytes of text that are none, columns that hold something else, figures without end."""
    add_runs(tmp_path, [measured(float(at), bytes=size) for at in range(5) for size in range(5)])
    file, dice, count = tmp_path / NAME, random.Random(7), 0
    whole = file.read_bytes()
    for number in range(1500):
        broken = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            broken[dice.randrange(len(broken))] = dice.randrange(256)
        try:
            for _, runs_ in unpack(bytes(broken)):
                assert all(0 <= run.busbw < float("inf") for run in runs_)
        except EvidenceError:
            count += 1
            if count % 8 == 0:
                file.write_bytes(broken)
                found = dict(add_runs(tmp_path, [measured(1e9 + number)]))
                assert found[SERIES][-1].at == 1e9 + number
                (tmp_path / f"{NAME}.broken").unlink(missing_ok=True)
    assert count > 100


@pytest.mark.parametrize("made", ["CREATE TABLE runs (a, b)", "CREATE TABLE series (x)"])
def test_a_table_that_others_made_is_set_aside(tmp_path: Path, made: str) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / NAME)) as link:
        link.execute(made)
        link.commit()
    assert [one for one, _ in add_runs(tmp_path, [measured(1.0)])] == [SERIES]
    assert (tmp_path / f"{NAME}.broken").exists()


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    before = add_runs(tmp_path, [measured(1.0)])
    limit = (tmp_path / NAME).stat().st_size + 2048
    program = f"""
import resource, signal
from pathlib import Path
from mldebug.core.errors import EvidenceError
from mldebug.alerts.probe_events import of_probes
from unit.probes.test_history import add_runs, measured
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    add_runs(Path({str(tmp_path)!r}), [measured(2.0, bytes=size) for size in range(2000)])
except EvidenceError as error:
    print("told:", error.message)
"""
    tests = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": tests},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "told:" in done.stdout, done.stderr
    assert load(tmp_path) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root probes for another user's agent")
def test_what_root_has_measured_belongs_to_whom_the_state_dir_belongs_to(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    os.chown(state_dir, 65534, 65534)
    add_runs(state_dir, [measured(1.0)])
    facts = (state_dir / NAME).stat()
    assert (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)) == (65534, 65534, 0o600)


def test_a_series_that_another_version_has_written_is_left_out(tmp_path: Path) -> None:
    before = add_runs(tmp_path, [measured(1.0)])
    with contextlib.closing(sqlite3.connect(tmp_path / NAME, isolation_level=None)) as link:
        link.execute("INSERT INTO series VALUES (99, '{}')")
        link.execute("INSERT INTO runs VALUES (99, 1, 1, 1)")
    assert load(tmp_path) == before


def test_a_link_or_a_stranger_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / NAME).symlink_to(other)
    with pytest.raises(EvidenceError, match="not a file of its own"):
        load(tmp_path)
    with pytest.raises(EvidenceError, match="not a file of its own"):
        add_runs(tmp_path, [measured(1.0)])
    assert other.read_text() == "precious"
    with pytest.raises(EvidenceError, match="File exists"):
        add_runs(other, [measured(1.0)])


# --- in the agent --------------------------------------------------------------------------------


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as one:
        yield one


def test_the_agent_reads_what_changed_and_says_what_it_cannot_read(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = ProbeHistoryReader(tmp_path, reader)
    assert watch.look(None) == ()
    past_ = add_runs(tmp_path, [measured(float(at)) for at in range(12)])
    assert watch.look(None) == judge_all(past_)
    reads: list[bytes] = []
    monkeypatch.setattr(monitor, "unpack", lambda content: reads.append(content) or unpack(content))
    watch.look(None)
    assert not reads
    past_ = add_runs(tmp_path, [measured(100.0, op="broadcast")])
    assert len(watch.look(None)) == 2
    assert len(reads) == 1
    (tmp_path / NAME).write_bytes(b"no database" * 100)
    with pytest.raises(EvidenceError, match="not a database"):
        watch.look(None)
    (tmp_path / NAME).unlink()
    assert watch.look(None) == ()


def test_a_board_forgets_what_it_cannot_read(tmp_path: Path, reader: Reader) -> None:
    inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
    add_runs(tmp_path, [measured(1.0)])
    history = monitor.ProbeHistoryReader(tmp_path, reader)
    probe_history_monitor = monitor.ProbeHistoryMonitor(
        Worker(monitor.WORKER, history.look, inbox, 60.0)
    )
    probe_history_monitor.tick()
    result = inbox.get(timeout=60)
    assert result is not None
    assert probe_history_monitor.on_result(result)
    assert [one.runs for one in probe_history_monitor.show(snapshot()).probes or ()] == [1]
    assert probe_history_monitor.on_result(result._replace(value=None, error=EvidenceError("torn")))
    assert probe_history_monitor.show(snapshot()).probes is None
    assert not probe_history_monitor.on_result(result._replace(worker="memory"))


def test_a_shift_is_a_metric_and_an_event_until_it_is_over() -> None:
    slow = judge(SERIES, runs([1.0] * 10 + [0.8] * 3))
    few = judge(msgspec.structs.replace(SERIES, op="barrier", bytes=0, nccl_algo="Ring"), [ProbeRun(at=5.0, seconds=1e-5, busbw=0.0)])  # fmt: skip
    text = Prometheus().render(snapshot(probes=(slow, few)))[0].decode()
    found = {
        (one.name, one.labels["op"], one.labels["settings"]): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name.startswith("mldebug_probe_")
    }
    assert found == {
        ("mldebug_probe_busbw_bytes_per_second", "all_reduce", ""): 0.8 * USUAL,
        ("mldebug_probe_last_run_timestamp_seconds", "all_reduce", ""): 12.0,
        ("mldebug_probe_shifted", "all_reduce", ""): 1.0,
        ("mldebug_probe_last_run_timestamp_seconds", "barrier", "NCCL_ALGO=Ring"): 5.0,
    }
    assert not list(of_probes(None))
    (word,) = of_probes((slow, few))
    (alarm,) = word.alerts
    assert (alarm.kind, alarm.severity) == ("probe_shift", "warning")
    assert alarm.sentence.startswith(
        "probe: all_reduce of 16777216 bytes, 8 ranks on n1: 20% slower"
    )
    (well,) = of_probes((few,))
    assert well.is_over(alarm.key)
