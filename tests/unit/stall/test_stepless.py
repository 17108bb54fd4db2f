"""A job that tells no step: each kind of hang is noticed on time, and no start-up is taken for one."""

import math
from collections.abc import Callable, Mapping

import pytest

from mldebug.core.model import Role
from shared.stall.plots import chat
from shared.stall.traces import (
    COMPILES,
    COPIES,
    EVALUATES,
    JOINS,
    ONE_LINE,
    RENDEZVOUS,
    SLEEPS,
    SPINS,
    TRAINS,
    WAITS,
    WORKS,
    Does,
    Run,
    watch,
)

SETTINGS: tuple[tuple[Mapping[str, float], float], ...] = (({"timeout": 15.0}, 20.0), ({}, 90.0))
"""Settings, and within how many seconds of the last sign of life a hang must be noticed."""
FAULT = 117.0  # seconds of training before it: no multiple of the pauses between samples

UNKNOWN = Does(Role.BUSY, "runs find_packed (model.py:12)", class_name="busy", cpu=1.0, state="R")
BY_DEVICE = UNKNOWN._replace(device=False)
SYNC = WAITS._replace(doing="waits for its GPU", operation="", class_name="device_sync")
POLLS = Does(Role.INERT, "polls in wait (file_baton.py:49)", class_name="poll", cpu=0.02, switches=10.0)  # fmt: skip
DOWNLOADS = Does(Role.INERT, "reads a socket in download", class_name="socket", cpu=0.02, switches=20.0)  # fmt: skip
READS = Does(
    Role.INERT,
    "reads a file in load",
    class_name="storage",
    state="D",
    io=3e6,
    cpu=0.02,
    switches=50.0,
)
# measured of two ranks on gloo: 20 small steps a second, each of which sleeps for 50 of its 52 ms, on a machine without a free core
LIGHT = Does(
    Role.INERT,
    "polls (it sleeps, looks and sleeps again) in step (silent.py:33)",
    class_name="poll",
    cpu=0.02,
    process_cpu=0.03,
    switches=50.0,
    io=17e3,
)
# measured of two ranks on gloo that are stuck in `while not work.is_completed(): pass`: no switch and no byte
ASKS = WAITS._replace(
    doing="waits for a collective in part (silent.py:90)", operation="", cpu=0.45, state="R"
)
HOLDS = Does(Role.INERT, "waits for a file lock", class_name="file_lock", cpu=0.01, switches=10.0)


def begun(backend: str = "nccl", lines: int = 5) -> Run:
    """A job that prints a few lines at its start, and nothing more."""
    run = Run()
    run.backend = backend
    return chat(run, lines, TRAINS, TRAINS)


def trains(does: Does = TRAINS, backend: str = "nccl") -> Run:
    return begun(backend).play(FAULT - 5, does)


HANGS: dict[str, tuple[Callable[[], Run], Mapping[int, Does], float]] = {
    "all spin on their GPUs": (lambda: trains().play(200, SPINS), {}, FAULT),
    "all spin, always in one line before": (
        lambda: trains(ONE_LINE).play(200, SPINS),
        {},
        FAULT,
    ),
    "all spin in frames that nobody knows": (
        lambda: trains().play(200, BY_DEVICE),
        dict.fromkeys(range(4), SYNC),
        FAULT,
    ),
    "one is blocked, the others spin": (
        lambda: trains().play(200, {3: SLEEPS}, others=SPINS),
        {},
        FAULT,
    ),
    "one is blocked, the others spin where nobody knows, and no GPU can be read": (
        lambda: trains().play(200, {3: SLEEPS}, others=UNKNOWN),
        dict.fromkeys(range(3), SYNC),
        FAULT,
    ),
    "all spin without a GPU": (
        lambda: trains(backend="gloo").play(200, UNKNOWN),
        dict.fromkeys(range(4), WAITS),
        FAULT,
    ),
    "both ask for their collective in one line of Python": (
        lambda: trains(backend="gloo").play(200, ASKS),
        {},
        FAULT,
    ),
    "one is dead in a thread": (lambda: trains().play(200, {2: JOINS}, others=SPINS), {}, FAULT),
    "one polls": (lambda: trains().play(200, {1: POLLS}, others=SPINS), {}, FAULT),
    "all poll for a file that nobody will write, a thread beside them chats": (
        lambda: trains(backend="gloo").play(200, POLLS._replace(io=100.0)),
        {},
        FAULT,
    ),
    "all wait": (lambda: trains(backend="gloo").play(200, WAITS), {}, FAULT),
    "all in a barrier at the start": (lambda: begun().play(200, WAITS), {}, 5.0),
    "all spin in a barrier at the start": (lambda: begun().play(200, SPINS), {}, 5.0),
    "all in a barrier at the start, and not a line": (lambda: Run().play(200, WAITS), {}, 0.0),
}


@pytest.mark.parametrize(("settings", "within"), SETTINGS, ids=("15 s", "default"))
@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_noticed_on_time(name: str, settings: Mapping[str, float], within: float) -> None:
    trace, native, since = HANGS[name]

    story = watch(trace().looks, native=native, **settings)

    assert len(story.opened) == 1, [str(one.sentence) for _, one in story.decisions][-1]
    late = story.opened[0] - since
    assert settings.get("timeout", 60.0) - 5 <= late <= within


def test_who_stands_in_frames_that_nobody_knows_is_judged_at_the_timeout_where_steps_are_told_too() -> None:  # fmt: skip
    run = Run().train(60)
    run.play(100, {1: SLEEPS}, others=UNKNOWN)

    story = watch(run.looks, native={0: SYNC, 2: SYNC, 3: SYNC}, timeout=15.0)

    assert story.opened[0] - 60 <= 18
    assert story.decisions[-1][1].suspects == (1,)


def test_what_a_native_stack_has_shown_ends_with_the_frames_that_it_was_of() -> None:
    moves = UNKNOWN._replace(stands=False, device=None)
    run = Run().train(60)
    run.play(13, {1: SLEEPS}, others=UNKNOWN).play(100, {1: SLEEPS}, others=moves)

    story = watch(run.looks, native={0: SYNC, 2: SYNC, 3: SYNC}, timeout=15.0, busy_timeout=60.0)

    assert story.opened[0] - 60 >= 59


def test_a_native_stack_is_asked_for_seldom_where_it_tells_nothing() -> None:
    """It stops a rank for a moment, and this job may compute in one line of C for an hour."""
    story = watch(trains(UNKNOWN).play(3600, UNKNOWN).looks)

    assert story.opened == []
    assert len(story.captured) <= 1 + 3600 / 600


SILENT: dict[str, Callable[[], Run]] = {
    "the first step compiles": lambda: begun().play(400, COMPILES).play(60, TRAINS),
    "rank 0 compiles, the others wait": lambda: begun().play(400, {0: COMPILES}).play(60, TRAINS),
    "rank 0 prepares data, the others are in a barrier": (
        lambda: begun().play(430, {0: WORKS}).play(60, TRAINS)
    ),
    "the same for 20 minutes on gloo": (
        lambda: begun("gloo").play(1200, {0: WORKS}).play(60, TRAINS)
    ),
    "the same on gloo, and not a line": (
        lambda: begun("gloo", lines=0).play(1200, {0: WORKS}).play(60, TRAINS)
    ),
    "the same for an hour, the others wait for its lock": (
        lambda: begun().play(3600, {0: WORKS}, others=HOLDS).play(60, TRAINS)
    ),
    "children of rank 0 prepare data": (
        lambda: begun().play(400, {0: EVALUATES}, others=SPINS).play(60, TRAINS)
    ),
    "all prepare data in one line of C": lambda: begun().play(900, UNKNOWN).play(60, TRAINS),
    "all read a large file": lambda: begun().play(400, READS).play(60, TRAINS),
    "rank 0 downloads, the others wait": (
        lambda: begun().play(430, {0: DOWNLOADS}, others=WAITS).play(60, TRAINS)
    ),
    "all download": lambda: begun().play(900, DOWNLOADS).play(60, TRAINS),
    "a child of rank 0 copies the weights": (
        lambda: begun().play(400, {0: COPIES}, others=SPINS).play(60, TRAINS)
    ),
    "rendezvous for 4 min": lambda: begun().play(240, RENDEZVOUS).play(60, TRAINS),
    "it trains": lambda: trains().play(900, TRAINS),
    "rank 0 prepares data, then all train in small steps between which they sleep": (
        lambda: begun("gloo", lines=0).play(45, {0: WORKS}).play(900, LIGHT)
    ),
    "two such steps a second": (
        lambda: begun("gloo").play(900, LIGHT._replace(switches=5.0, io=1.7e3, cpu=0.005))
    ),
    "such steps, always seen in their sleep": (
        lambda: begun("gloo").play(900, LIGHT._replace(class_name="sleep"))
    ),
    "all train, always seen in a loop that asks for their collective": (
        lambda: begun("gloo").play(900, ASKS._replace(io=5e6))
    ),
    "such steps, and nobody may read their I/O": (
        lambda: begun("gloo").play(900, LIGHT._replace(io=-math.inf))
    ),
    "it trains, always in one line": lambda: trains(ONE_LINE).play(900, ONE_LINE),
    "it trains on CPUs, always in one line": (
        lambda: begun("gloo").play(900, ONE_LINE._replace(device=None))
    ),
}


@pytest.mark.parametrize(("settings", "_"), SETTINGS, ids=("15 s", "default"))
@pytest.mark.parametrize("name", SILENT)
def test_a_start_is_no_hang(name: str, settings: Mapping[str, float], _: float) -> None:
    story = watch(SILENT[name]().looks, **settings)

    assert story.opened == [], [one.sentence for _, one in story.decisions if one.open]
