"""A log that grows but tells no step: it says something about the run only where a rank's main thread has written it, and not for ever."""

from collections.abc import Callable, Mapping

import msgspec
import pytest

from mldebug.core.model import Role
from shared.stall.plots import CHATTY, chat, unlogged
from shared.stall.traces import (
    COMPILES,
    LOADS,
    SLEEPS,
    SPINS,
    TRAINS,
    WAITS,
    WORKS,
    Does,
    Run,
    watch,
)

SETTINGS: tuple[tuple[Mapping[str, float], float], ...] = (
    ({"timeout": 15.0}, 20.0),
    ({}, 90.0),
    ({"interval": 5.0}, 90.0),
)
"""Settings, and within how many seconds of the fault it must be noticed; shipped are looks 5 s apart."""
FAULT = 120.0

SAYS = TRAINS._replace(prints=80.0)
ON_GPU = TRAINS._replace(device=True)
QUEUES = LOADS._replace(switches=0.2)  # a DataLoader's wait wakes every 5 s
ASKS = Does(
    Role.INERT,
    "polls (it sleeps, looks and sleeps again) in wait_for_server (train.py:9)",
    class_name="poll",
    switches=1.0,
    cpu=0.005,
    io=20.0,
    prints=20.0,
)
"""A rank that looks for something outside the job, and prints that it still looks."""
MONITORED = WAITS._replace(io=200.0)  # a thread beside it writes a line a second
CPU_WAITS = WAITS._replace(switches=0.1)

HANGS: dict[str, Callable[[], Run]] = {
    "all said something up to the fault": (
        lambda: chat(unlogged(), 120, SAYS).play(300, {3: SLEEPS}, others=SPINS)
    ),
    "the same, and a worker that brings nothing": (
        lambda: chat(unlogged(), 120, SAYS).play(300, {3: QUEUES}, others=SPINS)
    ),
    "the same without GPUs": (
        lambda: gloo(chat(unlogged(), 120, SAYS).play(300, {3: QUEUES}, others=CPU_WAITS))
    ),
    "a thread beside a victim goes on": (
        lambda: chat(chat(unlogged(), 120, SAYS), 300, {0: MONITORED, 3: QUEUES}, SPINS)
    ),
    "a thread beside the culprit goes on": (
        lambda: chat(chat(unlogged(), 120, SAYS), 300, {3: CHATTY}, SPINS)
    ),
    "a monitor of its own writes into the log": (
        lambda: chat(unlogged().play(120, TRAINS), 300, {3: SLEEPS}, SPINS, every=20)
    ),
    "all wait, and a thread goes on": (
        lambda: gloo(chat(unlogged().play(120, TRAINS), 300, MONITORED))
    ),
    "a warning every half minute up to the fault": (
        lambda: chat(unlogged(), 120, SAYS, every=30).play(300, {3: QUEUES}, others=SPINS)
    ),
}


def gloo(run: Run) -> Run:
    """The same looks of a job without GPUs."""
    run.looks = [type(one)(**{**_fields(one), "backend": "gloo"}) for one in run.looks]
    return run


def _fields(look: object) -> dict[str, object]:
    return {name: getattr(look, name) for name in look.__struct_fields__}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("settings", "within"), SETTINGS, ids=("15 s", "quick looks", "default"))
@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_noticed_whatever_the_log_says(
    name: str, settings: Mapping[str, float], within: float
) -> None:
    story = watch(HANGS[name]().looks[:: int(settings.get("interval", 1))], **settings)

    assert len(story.opened) == 1, story.decisions[-1][1].sentence
    assert settings.get("timeout", 60.0) - 5 <= story.opened[0] - FAULT <= within


HEALTHY: dict[str, Callable[[], Run]] = {
    "rank 0 prints while it waits for a server, the others for it": (
        lambda: chat(unlogged().play(60, TRAINS), 200, {0: ASKS}, every=5).play(60, TRAINS)
    ),
    "the same every 40 s": (
        lambda: chat(unlogged().play(60, TRAINS), 200, {0: ASKS}, every=40).play(60, TRAINS)
    ),
    "all print and train": lambda: chat(unlogged(), 900, SAYS),
    "rank 0 indexes and prints": (
        lambda: chat(Run(), 250, {0: WORKS._replace(prints=80.0)}).play(60, TRAINS)
    ),
    "rank 0 evaluates on its CPU and says how far it is": (
        lambda: chat(unlogged().play(60, ON_GPU), 400, {0: WORKS._replace(prints=80.0)}).play(
            60, ON_GPU
        )
    ),
    "a thread prints while all compile": lambda: chat(Run(), 900, COMPILES).play(60, TRAINS),
    "a thread prints in a healthy job": lambda: chat(unlogged(), 900, TRAINS),
}


@pytest.mark.parametrize("interval", [1, 5])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_job_that_prints_raises_nothing(name: str, interval: int) -> None:
    story = watch(HEALTHY[name]().looks[::interval], interval=float(interval))

    assert story.opened == [], [one.sentence for _, one in story.decisions if one.open]


def test_lines_of_a_rank_that_only_looks_again_buy_time_but_not_for_ever() -> None:
    run = chat(unlogged().play(60, TRAINS), 400, {0: ASKS}, every=5)

    opened = watch(run.looks).opened

    assert len(opened) == 1
    assert 235 <= opened[0] - 60 <= 260


def test_of_a_run_with_ranks_elsewhere_any_line_may_be_a_main_threads() -> None:
    run = unlogged(elsewhere=True)
    story = watch(chat(run.play(60, TRAINS), 230, {0: SLEEPS}).play(60, TRAINS).looks)

    assert story.opened == []


def test_where_counters_may_not_be_read_any_line_may_be_a_main_threads() -> None:
    """They read as 0, which is not that nothing was written: a rank that waits for a server was an alarm after a minute."""
    asks = ASKS._replace(switches=0.2)
    run = chat(unlogged().play(60, TRAINS), 200, {0: asks}, every=5).play(60, TRAINS)
    closed = {"io_bytes": 0, "written_bytes": 0, "thread_written_bytes": 0}
    run.looks = [
        msgspec.structs.replace(
            one, ranks=tuple(msgspec.structs.replace(rank, **closed) for rank in one.ranks)
        )
        for one in run.looks
    ]

    assert watch(run.looks).opened == []
    assert watch(run.looks[::5], interval=5.0).opened == []
