"""The watch against one-second recordings of two H200 ranks, whole, cut, stretched, and with parts of them removed."""

import msgspec
import pytest

from mldebug.stall.device_levels import DeviceLevels
from mldebug.stall.signals import RunLook, Stage
from shared.hardware.recordings import looks, phases, stretch
from shared.stall.traces import Story, watch

WAITS = "rank 0 waits for its GPU in train_step (rec_train.py:24)"
LONG = 420.0


def decision_on(
    name: str, seconds: float = LONG, *, timeout: float | str = 15.0, **parts: bool
) -> Story:
    """What the watch says to a recording whose last second goes on; the recorder's own samples are used."""
    recording = looks(name, **parts)
    longer = stretch(recording, seconds) if seconds else recording
    return watch(longer, blind=False, timeout=timeout)


def fault_at(name: str) -> float:
    """Seconds from the first look to the fault."""
    return phases(name)[-1][0] - looks(name)[0].at


FOUND = [
    # recording, parts left out, seconds from the fault to the incident, words
    ("sleep", {}, (13, 17), "rank 1 sleeps in slow_data_loader"),
    ("sleep", {"gpu": False}, (13, 17), "rank 1 sleeps in slow_data_loader"),
    ("sleep", {"log": False}, (13, 19), "rank 1 sleeps in slow_data_loader"),
    ("sleep", {"log": False, "gpu": False}, (13, 19), "rank 1 sleeps in slow_data_loader"),
    ("stop", {}, (13, 17), "rank 1 is stopped"),
    ("stop", {"gpu": False}, (13, 17), "rank 1 is stopped"),
    ("stop", {"log": False}, (13, 19), "rank 1 is stopped"),
    ("stop", {"log": False, "gpu": False}, (13, 19), "rank 1 is stopped"),
    ("kernel", {}, (13, 17), "ranks 0-1: each waits for its GPU"),
    ("kernel", {"log": False}, (13, 19), "ranks 0-1: each waits for its GPU"),
    ("kernel", {"gpu": False}, (298, 302), "each waits for its GPU in train_step"),
    ("frozen", {}, (13, 17), "ranks 0-1: each waits for its GPU"),
    ("frozen", {"log": False}, (13, 19), "ranks 0-1: each waits for its GPU"),
    ("frozen", {"gpu": False}, (298, 302), "(what its GPU does is not known)"),
    ("loop", {}, (298, 302), "rank 1 runs tokenize_forever"),
    ("loop", {"gpu": False}, (298, 302), "rank 1 runs tokenize_forever"),
    ("loop", {"log": False}, (298, 306), "rank 1 runs tokenize_forever"),
    # nothing shows that it has made a step: it may be preparing its data, so it is blamed only before NCCL ends the job
    ("loop", {"log": False, "gpu": False}, (448, 456), "rank 1 runs tokenize_forever"),
]


@pytest.mark.parametrize(("name", "without", "window", "words"), FOUND)
def test_a_recorded_hang_is_found_and_only_it(
    name: str, without: dict[str, bool], window: tuple[float, float], words: str
) -> None:
    story = decision_on(name, **without)

    assert len(story.opened) == 1
    assert window[0] <= story.opened[0] - fault_at(name) <= window[1]
    blamed = story.first(Stage.BLAMED)
    assert words in blamed.sentence
    assert name in ("kernel", "frozen") or WAITS in blamed.sentence


@pytest.mark.parametrize("name", ["kernel", "frozen"])
def test_without_log_and_gpu_spinning_ranks_cannot_be_told_from_working_ones(name: str) -> None:
    assert decision_on(name, log=False, gpu=False).opened == []


@pytest.mark.parametrize("name", ["sleep", "stop", "kernel", "frozen"])
def test_auto_finds_them_too(name: str) -> None:
    story = decision_on(name, timeout="auto")

    blamed = story.first(Stage.BLAMED)
    assert len(story.opened) == 1
    assert 30 <= blamed.timeout <= 120
    assert story.opened[0] - fault_at(name) == pytest.approx(blamed.timeout, abs=5)


@pytest.mark.parametrize("name", ["sleep", "stop", "kernel", "frozen"])
def test_auto_without_a_log_takes_a_minute(name: str) -> None:
    story = decision_on(name, timeout="auto", log=False)

    assert len(story.opened) == 1
    assert 58 <= story.opened[0] - fault_at(name) <= 66


PARTS = [
    {},
    {"gpu": False},
    {"log": False},
    {"log": False, "gpu": False},
    {"checkpoint": False},
    {"checkpoint": False, "gpu": False},
    {"checkpoint": False, "log": False},
    {"checkpoint": False, "log": False, "gpu": False},
]


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("timeout", [10.0, 15.0, "auto"])
def test_train_evaluate_checkpoint_and_slow_input_are_silent(
    parts: dict[str, bool], timeout: float | str
) -> None:
    healthy = [look for look in looks("sleep", **parts) if look.at < phases("sleep")[-1][0] + 5]

    story = watch(healthy, blind=False, timeout=timeout)

    assert story.opened == [], story.first(Stage.BLAMED).sentence


def phase(name: str, wanted: str, **parts: bool) -> list[RunLook]:
    """The looks of the first phase of that name, with the training before it."""
    times = [*phases(name), (float("inf"), "")]
    index = next(i for i, (_, found) in enumerate(times) if found == wanted)
    return [look for look in looks(name, **parts) if look.at < times[index + 1][0] - 1]


@pytest.mark.parametrize("wanted", ["evaluate", "checkpoint", "slow_input"])
def test_a_healthy_phase_that_goes_on_for_five_minutes(wanted: str) -> None:
    """Evaluation keeps its GPUs at work; the checkpoint's rank and the slow input's steps go on moving."""
    story = watch(_longer(phase("sleep", wanted)), blind=False, timeout=15.0, busy_timeout=400.0)

    assert story.opened == [], story.first(Stage.BLAMED).sentence
    assert Stage.CONFIRMED in story.stages


@pytest.mark.parametrize("timeout", [10.0, 15.0, "auto"])
def test_a_checkpoint_may_outlast_the_patience_with_busy_ranks(timeout: float | str) -> None:
    longer = _longer(phase("sleep", "checkpoint"))

    assert watch(longer, blind=False, timeout=timeout, busy_timeout=20.0).opened == []


def test_bytes_that_nobody_may_read_leave_a_checkpoint_a_busy_rank() -> None:
    longer = _longer(phase("sleep", "checkpoint", checkpoint=False))

    assert len(watch(longer, blind=False, timeout=15.0, busy_timeout=120.0).opened) == 1


@pytest.mark.parametrize("elsewhere", [True, False])
def test_without_a_log_a_wait_for_the_checkpoint_of_another_node_is_captured_and_silent(
    elsewhere: bool,
) -> None:
    here = [
        msgspec.structs.replace(look, ranks=look.ranks[1:], elsewhere=elsewhere)
        for look in _longer(phase("sleep", "checkpoint", log=False))
    ]

    story = watch(here, blind=False)

    began = next(at for at, name in phases("sleep") if name == "checkpoint") - here[0].at
    assert bool(story.opened) == (not elsewhere)
    assert began + 55 <= story.captured[0] <= began + 75


def _longer(before: list[RunLook]) -> list[RunLook]:
    """Its last seconds go on for about five minutes."""
    last = before[-8:]  # a whole period of slow input
    laps = (_again(look, before[-9], last[-1], lap) for lap in range(1, 36) for look in last)
    return [*before, *laps]


def _again(look: RunLook, before: RunLook, last: RunLook, lap: int) -> RunLook:
    """The same second once more, `lap` rounds later: counters go on, logs do not."""
    ranks = tuple(
        msgspec.structs.replace(
            rank,
            switches=rank.switches + lap * (end.switches - start.switches),
            io_bytes=rank.io_bytes + lap * (end.io_bytes - start.io_bytes),
            written_bytes=rank.written_bytes + lap * (end.written_bytes - start.written_bytes),
        )
        for rank, start, end in zip(look.ranks, before.ranks, last.ranks, strict=True)
    )
    return msgspec.structs.replace(
        look, at=look.at + lap * (last.at - before.at), ranks=ranks, progress=last.progress
    )


def test_a_kept_capture_shows_the_silent_evaluation() -> None:
    story = decision_on("sleep", 0)

    first = story.captured[0]
    assert phases("sleep")[1][0] + 13 <= looks("sleep")[0].at + first <= phases("sleep")[2][0]
    assert "computes on its GPU" in story.first(Stage.CONFIRMED).sentence


def test_a_killed_rank_ends_the_attempt_without_a_stall() -> None:
    story = decision_on("kill", 0)

    assert story.opened == []
    assert story.stages[-1] is Stage.ENDED


def test_the_agent_that_comes_in_the_middle_of_the_hang() -> None:
    hang = [look for look in looks("sleep") if look.at > phases("sleep")[-1][0] + 20]
    story = watch(stretch(hang, 300), blind=False)

    assert len(story.opened) == 1
    assert story.first(Stage.BLAMED).sentence.startswith("already stalled when the agent came")


# --- levels of the devices -----------------------------------------------------------------------------


def test_devices_are_read_by_the_levels_the_run_has_shown() -> None:
    recorded = {
        name: [look for look in looks("sleep") if start + 3 < look.at < end - 1]
        for (start, name), (end, _) in zip(phases("sleep"), phases("sleep")[1:], strict=False)
    }

    def ratio(name: str, rank: int) -> float:
        known = [look.ranks[rank].device_progress for look in recorded[name]]
        return sum(map(bool, known)) / len(known)

    assert ratio("train", 0) == ratio("train", 1) == 1
    assert ratio("evaluate", 0) == ratio("evaluate", 1) == 1
    assert ratio("checkpoint", 1) == 0
    hang = [look for look in looks("sleep") if look.at > phases("sleep")[-1][0] + 3]
    assert {rank.device_progress for look in hang for rank in look.ranks} == {False}


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_the_levels_know_no_unit_and_no_machine(scale: float) -> None:
    levels = DeviceLevels()
    for _ in range(30):
        levels.look(690 * scale, None)
    assert levels.look(125 * scale, None) is None  # nothing learned without memory traffic
    for _ in range(30):
        assert levels.look(690 * scale, 35)

    assert levels.look(126 * scale, None) is False
    assert levels.look(680 * scale, None) is True


def test_an_unreadable_device_is_unknown() -> None:
    assert DeviceLevels().look(None, None) is None


def test_a_device_that_hardly_differs_is_told_by_its_memory_alone() -> None:
    levels = DeviceLevels()
    levels.look(100, 0)
    levels.look(110, 5)

    assert levels.look(110, 0) is False
    assert levels.look(101, 3) is True
