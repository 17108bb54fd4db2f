"""When the watch speaks and what it says: made-up traces (the recordings: test_stall_recorded.py)."""

from collections.abc import Callable

import pytest

from mldebug.stall.signals import Stage
from shared.stall.plots import CHATTY, chat, ramp, restart, trained, unlogged
from shared.stall.traces import (
    BLIND,
    COMPILES,
    EXITED,
    LOOPS,
    ONE_LINE,
    RENDEZVOUS,
    SAVES,
    SLEEPS,
    SPINS,
    STOPPED,
    TRAINS,
    WAITS,
    WORKS,
    Run,
    watch,
)

# --- it must speak: trace, settings, the window in which it opens, words that it says -----------------

SPEAKS: dict[str, tuple[Callable[[], Run], dict[str, object], tuple[float, float], str]] = {
    "one sleeps": (
        lambda: trained().play(60, {3: SLEEPS}),
        {"timeout": 15.0},
        (74, 76),
        "no step for 15 s (usual gap 1 s); 3 ranks wait in all_reduce; rank 3 sleeps in slow_data_loader",
    ),
    "auto after short steps": (
        lambda: trained().play(60, {3: SLEEPS}),
        {},
        (89, 91),
        "no step for 30 s",
    ),
    "auto after 10 s steps": (
        lambda: trained(300, every=10).play(120, {3: SLEEPS}),
        {},
        (349, 351),
        "no step for 50 s (usual gap 10 s)",
    ),
    "auto is at most 240 s": (
        lambda: trained(3000, every=100).play(400, {3: SLEEPS}),
        {},
        (3239, 3241),
        "no step for 240 s (usual gap 100 s)",
    ),
    "too few gaps: 45 s": (
        lambda: trained(4).play(400, {3: SLEEPS}),
        {},
        (48, 50),
        "no step for 45 s",
    ),
    "too few gaps of a run whose first step took a minute: 75 s": (
        lambda: Run().play(59, COMPILES).train(1).play(400, {3: SLEEPS}),
        {},
        (134, 137),
        "no step for 75 s",
    ),
    "steps of 300 s get 450 s": (
        lambda: trained(6000, every=300).play(700, {3: SLEEPS}),
        {},
        (6449, 6451),
        "no step for 450 s",
    ),
    "a spinning waiter is a waiter": (
        lambda: trained().play(60, {3: SLEEPS}, others=SPINS),
        {"timeout": 15.0},
        (74, 76),
        "3 ranks wait in all_reduce; rank 3 sleeps",
    ),
    "spinning waiters, GPU unreadable, an inert culprit": (
        lambda: trained().play(60, {3: SLEEPS}, others=BLIND),
        {"timeout": 15.0},
        (74, 76),
        "3 ranks wait in all_reduce (what its GPU does is not known); rank 3 sleeps",
    ),
    "all wait, frozen": (
        lambda: trained().play(60, WAITS),
        {"timeout": 15.0},
        (74, 76),
        "4 ranks wait in all_reduce",
    ),
    "all spin, GPUs make no progress": (
        lambda: trained().play(60, SPINS),
        {"timeout": 15.0},
        (74, 76),
        "4 ranks wait in all_reduce",
    ),
    "all spin, GPU unreadable: late": (
        lambda: trained().play(400, BLIND),
        {"timeout": 15.0},
        (359, 361),
        "4 ranks wait in all_reduce (what its GPU does is not known)",
    ),
    "a stopped rank": (
        lambda: trained().play(60, {2: STOPPED}, others=SPINS),
        {"timeout": 15.0},
        (74, 76),
        "rank 2 is stopped",
    ),
    "a rank is gone, the others wait": (
        lambda: trained().play(60, {2: EXITED}, others=SPINS),
        {"timeout": 15.0},
        (74, 76),
        "rank 2 has exited",
    ),
    "all sleep: the job is paused": (
        lambda: trained().play(60, STOPPED),
        {"timeout": 15.0},
        (74, 76),
        "ranks 0-3: each is stopped",
    ),
    "busy rank, auto: 5 min": (
        lambda: trained().play(500, {0: WORKS}),
        {},
        (359, 361),
        "3 ranks wait in all_reduce; rank 0 runs evaluate",
    ),
    "busy rank: four timeouts": (
        lambda: trained().play(800, {0: WORKS}),
        {"timeout": 100.0},
        (459, 461),
        "rank 0 runs evaluate",
    ),
    "busy rank: busy_timeout as configured": (
        lambda: trained().play(500, {0: WORKS}),
        {"busy_timeout": 60.0},
        (119, 121),
        "rank 0 runs evaluate",
    ),
    "busy rank: before NCCL gives up": (
        lambda: trained().play(700, {0: WORKS}),
        {"timeout": 120.0},
        (509, 511),
        "no step for 450 s",
    ),
    "a rank that loops in one line is busy": (
        lambda: trained().play(500, {1: LOOPS}, others=SPINS),
        {"timeout": 15.0},
        (359, 361),
        "rank 1 runs tokenize_forever",
    ),
    "its GPU computes for ever": (
        lambda: trained().play(500, {1: SPINS._replace(device=True)}, others=SPINS),
        {"timeout": 15.0},
        (359, 361),
        "rank 1 computes on its GPU",
    ),
    "all GPUs compute for ever": (
        lambda: trained().play(2400, SPINS._replace(device=True)),
        {},
        (1859, 1870),
        "4 ranks wait in all_reduce (GPU at work)",
    ),
    "compiling too long": (
        lambda: trained().play(500, {1: COMPILES}),
        {"timeout": 15.0},
        (359, 361),
        "rank 1 compiles",
    ),
    "busy first, then frozen": (
        lambda: trained().play(100, {0: WORKS}).play(60, {0: SLEEPS}),
        {"timeout": 30.0},
        (173, 178),
        "rank 0 sleeps",
    ),
    "steps of 400 s are blamed before NCCL gives up": (
        lambda: trained(8000, every=400).play(1200, {3: SLEEPS}),
        {},
        (8449, 8451),
        "no step for 450 s",
    ),
    "checkpoint that grows for ever": (
        lambda: trained().play(1200, {0: SAVES}, others=SPINS),
        {},
        (509, 511),
        "no step for 450 s (usual gap 1 s); 3 ranks wait in all_reduce; rank 0 has written 360 GB and moves (saves)",
    ),
    "a debug log that grows for ever, nobody knows by whom": (
        lambda: trained().play(1200, {0: WORKS._replace(writes=2e6)}, others=SPINS),
        {"timeout": 15.0},
        (509, 511),
        "rank 0 has written 0.9 GB and moves (runs evaluate",
    ),
    "a debug log of a rank that sleeps": (
        lambda: trained().play(60, {3: SLEEPS._replace(io=2e6, writes=2e6)}, others=SPINS),
        {"timeout": 15.0},
        (74, 76),
        "rank 3 sleeps",
    ),
    "a debug log of ranks that wait": (
        lambda: trained().play(60, SPINS._replace(io=2e6, writes=2e6)),
        {"timeout": 15.0},
        (74, 76),
        "4 ranks wait in all_reduce",
    ),
    "checkpoint that stops to grow": (
        lambda: (
            trained()
            .play(60, {0: SAVES}, others=SPINS)
            .play(60, {0: SLEEPS._replace(state="D")}, others=SPINS)
        ),
        {"timeout": 15.0},
        (133, 136),
        "rank 0 sleeps",
    ),
    "no signal at all: 60 s": (
        lambda: unlogged().play(60, TRAINS).play(120, {3: SLEEPS}),
        {},
        (119, 123),
        "no rank has moved for 60 s (no progress signal); 3 ranks wait",
    ),
    "no signal, a checkpoint that grows for ever": (
        lambda: unlogged().play(60, TRAINS).play(700, {0: SAVES}, others=SPINS),
        {},
        (508, 545),  # samples are up to a minute apart
        "rank 0 has written",
    ),
    "no signal, other nodes, all wait: before NCCL gives up": (
        lambda: unlogged(elsewhere=True).play(60, TRAINS).play(700, SPINS),
        {},
        (508, 516),
        "4 ranks wait in all_reduce",
    ),
    "no signal, other nodes, one sleeps here: 60 s": (
        lambda: unlogged(elsewhere=True).play(60, TRAINS).play(120, {3: SLEEPS}),
        {},
        (119, 123),
        "rank 3 sleeps",
    ),
    "no signal, other nodes, one exited here: 60 s": (
        lambda: unlogged(elsewhere=True).play(60, TRAINS).play(120, {3: EXITED}, others=SPINS),
        {},
        (119, 126),
        "rank 3 has exited",
    ),
    "no signal, other nodes, a number is obeyed": (
        lambda: unlogged(elsewhere=True).play(60, TRAINS).play(120, SPINS),
        {"timeout": 15.0},
        (74, 78),
        "4 ranks wait in all_reduce",
    ),
    "no signal, spinning on idle GPUs": (
        lambda: unlogged().play(60, ONE_LINE).play(120, SPINS),
        {},
        (119, 123),
        "4 ranks wait in all_reduce",
    ),
    "no signal, one works and the others wait": (
        lambda: unlogged().play(60, TRAINS).play(500, {0: WORKS}),
        {},
        (359, 362),
        "rank 0 runs evaluate",
    ),
    "an unreadable log does not keep a hang alive": (
        lambda: chat(unlogged().play(60, TRAINS), 400, {3: CHATTY}),
        {},
        (119, 124),
        "no progress signal",
    ),
    "a chatty thread during a hang": (
        lambda: chat(trained(), 60, {3: CHATTY}),
        {"timeout": 15.0},
        (74, 76),
        "rank 3 sleeps",
    ),
    "init: somebody never came": (
        lambda: chat(Run(), 20, TRAINS).play(400, RENDEZVOUS),
        {},
        (319, 324),
        "before the first step",
    ),
    "init without a log: recognised by its class": (
        lambda: Run().play(20, TRAINS).play(400, RENDEZVOUS),
        {},
        (319, 324),
        "4 ranks wait in init_process_group",
    ),
    "init: a wait that polls looks alive to every counter": (
        lambda: Run().play(20, TRAINS).play(400, RENDEZVOUS._replace(switches=100.0)),
        {},
        (319, 340),
        "4 ranks wait in init_process_group",
    ),
    "init_timeout as configured": (
        lambda: chat(Run(), 20, TRAINS).play(400, RENDEZVOUS),
        {"init_timeout": 60.0},
        (79, 82),
        "before the first step",
    ),
    "init: indexing first, then nothing": (
        lambda: chat(Run(), 600, {0: WORKS}, RENDEZVOUS).play(400, RENDEZVOUS),
        {},
        (899, 921),  # samples are 15 s apart
        "before the first step",
    ),
    "after an elastic restart the first step never comes": (
        lambda: restart(trained()).play(20, TRAINS).play(400, RENDEZVOUS),
        {"timeout": 15.0},
        (380, 390),
        "before the first step",
    ),
    "two ranks": (
        lambda: trained(ranks=2).play(60, {1: SLEEPS}),
        {"timeout": 15.0},
        (74, 76),
        "rank 0 waits in all_reduce; rank 1 sleeps in slow_data_loader (train.py:7)",
    ),
    "64 ranks": (
        lambda: trained(ranks=64).play(60, {17: SLEEPS}),
        {"timeout": 15.0},
        (74, 76),
        "63 ranks wait in all_reduce; rank 17 sleeps",
    ),
    "after a batch-size ramp": (
        lambda: ramp(Run()).play(400, {3: SLEEPS}),
        {},
        (1940, 2045),
        "rank 3 sleeps",
    ),
}


@pytest.mark.parametrize("name", SPEAKS)
def test_it_speaks(name: str) -> None:
    trace, chosen, (soonest, latest), words = SPEAKS[name]

    story = watch(trace().looks, **chosen)

    assert len(story.opened) == 1, story.stages
    assert soonest <= story.opened[0] <= latest
    blamed = story.first(Stage.BLAMED)
    assert words in blamed.sentence
    assert "already" not in blamed.sentence
    assert blamed.capture
