"""Which save is the last complete one, what is lost, and when a save that does not grow has died."""

import msgspec
import pytest

from mldebug.storage.checkpoints.history import (
    CheckpointReading,
    CheckpointSeries,
    SeriesMemory,
    printable,
    size_change,
)
from mldebug.storage.checkpoints.model import CheckpointVerdict, Completeness
from mldebug.storage.checkpoints.state import newest_of, series_state

START = 1_700_000_000.0
GIB = 1 << 30
WHOLE = CheckpointVerdict(layout="distributed", state=Completeness.COMPLETE, shards=4)
CUT = CheckpointVerdict(
    layout="distributed", state=Completeness.INCOMPLETE, why="there is no .metadata", shards=3
)
NAME = ("run", "/ckpt", "step_#")


def look_at(
    step: int, at: float, verdict: CheckpointVerdict = WHOLE, **more: object
) -> CheckpointReading:
    facts = {"size": GIB, "files": 5, "oldest": at - 20, "newest": at, "inode": step}
    return CheckpointReading(name=f"step_{step}", verdict=verdict, **(facts | more))  # type: ignore[arg-type]


def looked(
    series: CheckpointSeries,
    now: float,
    *ones: CheckpointReading,
    whole: bool = True,
    step: int | None = None,
) -> None:
    series.look(now, ones, whole=whole, step=step)


def test_the_last_complete_save_and_what_would_be_lost() -> None:
    series = CheckpointSeries()
    looked(series, START, look_at(100, START - 900), look_at(200, START - 300))
    state = series_state(series, NAME, START, step=288)
    assert state.last is not None
    assert (state.last.name, state.last.size, state.last.seconds) == ("step_200", GIB, 20.0)
    assert (state.lost_seconds, state.lost_steps) == (320.0, 88)
    assert state.sentence == (
        "last complete checkpoint step_200 5 min ago (1 GiB in 20 s, 51.2 MiB/s);"
        " if it dies now 5 min 20 s of work and 88 steps are lost"
    )


def test_a_save_that_is_written_is_progress_and_one_that_died_is_not() -> None:
    series = CheckpointSeries()
    first = look_at(100, START - 300)
    looked(series, START, first)
    assert series.grown_at is None
    for second in range(15, 60, 15):
        now = START + second
        looked(series, now, first, look_at(200, now - 1, CUT, size=second * 1000, open=True))
        assert series.grown_at == now
        assert series.checkpoints[-1].state is Completeness.WRITING
    dead = look_at(200, START + 44, CUT, size=45_000)
    for second in range(60, 100, 15):
        looked(series, START + second, first, dead)
        assert series.checkpoints[-1].state is Completeness.WRITING
    looked(series, START + 120, first, dead)
    assert series.grown_at == START + 45
    assert series.checkpoints[-1].state is Completeness.INCOMPLETE
    state = series_state(series, NAME, START + 120)
    assert state.last is not None
    assert state.last.name == "step_100"
    assert state.left_bytes == 45_000
    assert "step_200 is incomplete: there is no .metadata (43.9 KiB left over)" in state.sentence


def test_a_save_that_others_write_is_no_progress_of_this_job() -> None:
    series = CheckpointSeries()
    looked(series, START)
    for second in range(15, 60, 15):
        looked(series, START + second, look_at(200, START + second, CUT, size=second))
    assert series.grown_at is None
    assert series.checkpoints[-1].state is Completeness.WRITING


def test_an_open_file_that_does_not_grow_is_no_progress() -> None:
    series = CheckpointSeries()
    looked(series, START, look_at(100, START - 4000, CUT, open=True))
    before = series.grown_at
    for second in range(15, 600, 15):
        looked(series, START + second, look_at(100, START - 4000, CUT, open=True))
    assert series.grown_at == before


def test_an_incomplete_save_of_before_is_not_called_dead_at_first_sight() -> None:
    """The clock of its server may be minutes behind, and it may be just being written."""
    series = CheckpointSeries()
    looked(series, START, look_at(100, START - 200, CUT))
    assert series.checkpoints[-1].state is Completeness.UNKNOWN
    looked(series, START + 61, look_at(100, START - 200, CUT))
    assert series.checkpoints[-1].state is Completeness.INCOMPLETE
    old = CheckpointSeries()
    looked(old, START, look_at(100, START - 4000, CUT))
    assert old.checkpoints[-1].state is Completeness.INCOMPLETE


def test_a_save_that_is_written_over_is_no_longer_the_last_complete_one() -> None:
    series = CheckpointSeries()
    whole = CheckpointReading(
        name="last.pt", size=GIB, files=1, oldest=START - 100, newest=START - 100, verdict=WHOLE
    )
    looked(series, START, whole)
    assert [one.name for one in series.complete] == ["last.pt"]
    half = CheckpointReading(
        name="last.pt", size=GIB // 2, files=1, oldest=START + 14, newest=START + 14, verdict=CUT
    )
    looked(series, START + 15, half)
    assert series.complete == ()
    assert series_state(series, NAME, START + 15).lost_seconds is None
    again = CheckpointReading(
        name="last.pt", size=GIB, files=1, oldest=START + 29, newest=START + 29, verdict=WHOLE
    )
    looked(series, START + 30, again, step=70)
    assert (series.complete[-1].began, series.complete[-1].ended) == (START + 15, START + 29)


def test_rotation_is_no_loss() -> None:
    series = CheckpointSeries()
    for number in range(1, 9):
        now = START + number * 600
        two = [look_at(step, START + step * 600) for step in (number - 1, number) if step]
        looked(series, now, *two)
    assert [one.name for one in series.complete] == ["step_7", "step_8"]
    assert series.period == 600.0
    half = look_at(7, START + 7 * 600, CUT, size=GIB // 3)
    looked(series, START + 8 * 600 + 15, half, look_at(8, START + 8 * 600))
    assert series_state(series, NAME, START + 8 * 600 + 15).left_bytes == 0


def test_what_was_not_listed_is_not_missing_and_nothing_is_said_of_losses() -> None:
    series = CheckpointSeries()
    looked(series, START, look_at(100, START - 300))
    looked(series, START + 30, whole=False)
    assert [one.name for one in series.complete] == ["step_100"]
    state = series_state(series, NAME, START + 30, trouble="permission denied for a part of it")
    assert (state.lost_seconds, state.lost_steps) == (None, None)
    assert "what would be lost is not known: permission denied" in state.sentence


@pytest.mark.parametrize("skew", [300.0, -300.0, 7200.0])
def test_the_clock_of_the_file_server_is_learned_from_what_grows(skew: float) -> None:
    series = CheckpointSeries()
    looked(series, START)
    for second in (15, 30, 45):
        half = look_at(
            100, START + second - 1 + skew, CUT, size=second, oldest=START + 5 + skew, open=True
        )
        looked(series, START + second, half)
    done = look_at(100, START + 50 + skew, size=GIB, oldest=START + 5 + skew)
    looked(series, START + 60, done)
    (kept,) = series.complete
    assert abs(series.memory.skew - skew) <= 20
    assert kept.began is not None
    assert 0 <= START + 60 - kept.ended <= 45
    assert 10 <= kept.ended - kept.began <= 60
    lost = series_state(series, NAME, START + 100).lost_seconds
    assert lost is not None
    assert 40 <= lost <= 110


def test_sizes_are_compared_with_those_before() -> None:
    series = CheckpointSeries()
    ones = [look_at(step, START + step, size=GIB) for step in (1, 2, 3)]
    looked(series, START + 10, *ones, look_at(4, START + 5, size=GIB * 9 // 10))
    assert size_change(series.complete[-1], series.memory.complete) == pytest.approx(-0.1)
    assert "10% smaller than those before it" in series_state(series, NAME, START + 10).sentence


def test_the_memory_of_an_earlier_agent_is_taken_up() -> None:
    series = CheckpointSeries()
    looked(series, START)
    looked(
        series,
        START + 15,
        look_at(100, START + 14, CUT, size=5, oldest=START + 10, open=True),
        step=99,
    )
    looked(series, START + 30, look_at(100, START + 29, oldest=START + 10))
    (kept,) = series.complete
    later = CheckpointSeries(SeriesMemory(complete=list(series.memory.complete)))
    looked(later, START + 500, look_at(100, START + 29, oldest=START + 10))
    assert later.complete == (kept,)


def test_no_name_breaks_what_is_sent() -> None:
    assert printable("step\udcff_1\n").encode()
    series = CheckpointSeries()
    looked(
        series,
        START,
        CheckpointReading(
            name="step\udcff_\n1", size=1, files=1, oldest=START, newest=START, verdict=WHOLE
        ),
    )
    assert "\n" not in series_state(series, NAME, START).sentence


def test_no_name_inside_a_save_breaks_what_is_sent() -> None:
    broken = CheckpointVerdict(
        layout="torch_save", state=Completeness.INCOMPLETE, why="\udcff\x1b[31m\n.pt is empty"
    )
    series = CheckpointSeries(settle=0.0)
    looked(series, START)
    looked(series, START + 1, look_at(1, START - 900, broken), look_at(2, START - 800, long_why()))
    result = series_state(series, ("run", "/a\x1b[31m\n/b", "step_#"), START + 1)
    assert msgspec.json.encode(result)
    assert msgspec.json.encode(series.checkpoints)
    assert result.sentence.isprintable()
    assert max(len(one.why) for one in series.checkpoints) <= 300


def long_why() -> CheckpointVerdict:
    return CheckpointVerdict(
        layout="huggingface", state=Completeness.INCOMPLETE, why="x" * 1_000_000
    )


def test_a_part_that_was_taken_over_from_an_earlier_save_is_not_its_beginning() -> None:
    series = CheckpointSeries()
    looked(series, START, look_at(1, START - 3600))
    looked(
        series, START + 30, look_at(1, START - 3600), look_at(2, START + 20, oldest=START - 9000)
    )
    last = series_state(series, NAME, START + 30)
    assert last.last is not None
    assert (last.last.name, last.last.seconds, last.lost_seconds) == ("step_2", None, 10.0)


def test_who_wrote_a_save_of_before_is_not_known() -> None:
    series = CheckpointSeries()
    series.look(START, [look_at(1, START - 300)], whole=True, world_size=4)
    both = [look_at(1, START - 300), look_at(2, START + 5)]
    series.look(START + 10, both, whole=True, world_size=4)
    series.look(START + 20, both, whole=True, world_size=3)  # after an elastic restart
    assert [one.world_size for one in series.checkpoints] == [None, 4]


def test_a_run_resumes_from_its_newest_series() -> None:
    states = []
    for folder, at in (("/a", START - 50), ("/b", START - 10)):
        series = CheckpointSeries()
        looked(series, START, look_at(1, at))
        states.append(series_state(series, ("run", folder, "step_#"), START))
    newest = newest_of(states, "run")
    assert newest is not None
    assert newest.folder == "/b"
    assert newest_of(states, "other") is None


def test_what_is_lost_is_at_most_that_where_the_newest_is_not_known() -> None:
    series = CheckpointSeries()
    closed = CheckpointVerdict(state=Completeness.UNKNOWN, why="permission denied")
    looked(series, START, look_at(100, START - 900), look_at(200, START - 300, closed))
    sentence = series_state(series, NAME, START).sentence
    assert "if it dies now at most 15 min 20 s of work are lost" in sentence
    assert "step_200: nobody can say whether it is complete: permission denied" in sentence
