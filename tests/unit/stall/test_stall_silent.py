"""When the watch must be silent, and whether it kept a capture all the same."""

from collections.abc import Callable

import pytest

from shared.stall.plots import LIGHT, chat, irregular, restart, save_in_pieces, trained, unlogged
from shared.stall.traces import (
    BLIND,
    COMPILES,
    COPIES,
    EVALUATES,
    EXITED,
    JOINS,
    LOADS,
    ONE_LINE,
    RENDEZVOUS,
    SAVES,
    SLEEPS,
    SPINS,
    TRAINS,
    WAITS,
    WORKS,
    Run,
    watch,
)

BURSTS = WORKS._replace(phase="checkpoint_save", cpu=0.2, switches=100.0, io=1e6)
ON_GPU = SPINS._replace(device=True, phase="evaluate")


def slow(run: Run, timeout: float = 1800.0) -> Run:
    """Its collectives may take so long."""
    run.backend, run.collective_timeout = "gloo", timeout
    return run


# --- it must be silent: trace, settings, whether a capture was kept ------------------------------------

SILENT: dict[str, tuple[Callable[[], Run], dict[str, object], bool]] = {
    "a healthy run": (lambda: trained(600), {}, False),
    "healthy, always in one line at full CPU": (
        lambda: Run().train(600, does=ONE_LINE),
        {"timeout": 15.0},
        False,
    ),
    "a growing checkpoint": (
        lambda: trained().play(440, {0: SAVES}, others=SPINS).train(30),
        {"timeout": 15.0, "busy_timeout": 20.0},
        False,
    ),
    "a growing checkpoint, auto": (
        lambda: trained().play(440, {0: SAVES}, others=SPINS).train(30),
        {},
        False,
    ),
    "a growing checkpoint of 20 min where collectives may last so long": (
        lambda: trained(backend="gloo").play(1200, {0: SAVES}, others=SPINS).train(30),
        {"timeout": 15.0},
        False,
    ),
    "a checkpoint in pieces, 12 s of fsync behind each": (
        lambda: save_in_pieces(trained(), 440, 13).train(30),
        {"timeout": 15.0, "busy_timeout": 20.0},
        False,
    ),
    "a checkpoint between short sleeps, always seen in one": (
        lambda: (
            trained()
            .play(440, {0: SLEEPS._replace(io=5e6, writes=5e6, switches=5.0)}, others=SPINS)
            .train(30)
        ),
        {"timeout": 15.0, "busy_timeout": 20.0},
        False,
    ),
    "a growing checkpoint of all ranks, one is through early": (
        lambda: trained().play(440, {3: SPINS}, others=SAVES).train(30),
        {"timeout": 15.0},
        False,
    ),
    "a growing checkpoint, never a log": (
        lambda: unlogged().play(60, TRAINS).play(440, {0: SAVES}, others=SPINS).play(60, TRAINS),
        {},
        False,
    ),
    "a checkpoint of another node, no log here": (
        lambda: unlogged(elsewhere=True).play(120, TRAINS).play(430, SPINS).play(60, TRAINS),
        {},
        True,
    ),
    "log lines 10 min apart on NCCL": (
        lambda: trained(6000, every=600).play(3000, WAITS, every=lambda _: 600.0),
        {},
        True,
    ),
    "a checkpoint nobody can see grow": (
        lambda: trained().play(60, {0: SAVES._replace(writes=0)}, others=SPINS).train(30),
        {"timeout": 15.0},
        True,
    ),
    "evaluation of 60 s on GPUs": (
        lambda: trained().play(60, SPINS._replace(device=True)).train(30),
        {"timeout": 15.0},
        True,
    ),
    "evaluation of 20 min on GPUs": (
        lambda: trained().play(1200, SPINS._replace(device=True)).train(30),
        {},
        True,
    ),
    "evaluation of 40 min on GPUs, as the run has made one before": (
        lambda: (
            trained()
            .play(1500, SPINS._replace(device=True))
            .train(60)
            .play(2200, SPINS._replace(device=True))
            .train(30)
        ),
        {},
        True,
    ),
    "evaluation of 20 min in Python": (lambda: trained().play(1200, WORKS).train(30), {}, True),
    "evaluation of 60 s, GPU unreadable": (
        lambda: trained().play(60, BLIND).train(30),
        {"timeout": 15.0},
        True,
    ),
    "rank 0 evaluates for 4 min": (
        lambda: trained().play(240, {0: WORKS}).train(30),
        {},
        True,
    ),
    "rank 0 says for 20 min that it evaluates": (
        lambda: slow(trained()).play(1200, {0: WORKS._replace(phase="evaluate")}).train(30),
        {},
        True,
    ),
    "rank 0 says for 40 min that it saves": (
        lambda: slow(trained(), 3600.0).play(2400, {0: BURSTS}).train(30),
        {},
        True,
    ),
    "all say for 40 min that they evaluate, in one line on GPUs": (
        lambda: slow(trained(), 3600.0).play(2400, ON_GPU).train(30),
        {},
        True,
    ),
    "no log, rank 0 says for 20 min that it evaluates": (
        lambda: slow(unlogged()).play(1200, {0: WORKS._replace(phase="evaluate")}).play(30, TRAINS),
        {},
        False,
    ),
    "one rank compiles for 40 s": (
        lambda: trained().play(40, {1: COMPILES}).train(30),
        {"timeout": 15.0},
        True,
    ),
    "one waits for a child that works for 40 s": (
        lambda: trained().play(40, {1: EVALUATES}).train(30),
        {"timeout": 15.0},
        True,
    ),
    "slow input: asleep, but a step now and then": (
        lambda: trained().play(120, LIGHT).train(30),
        {"timeout": 15.0},
        True,
    ),
    "silent but stepping": (lambda: trained().play(900, TRAINS), {"timeout": 15.0}, True),
    "silent but stepping, never a log": (lambda: unlogged().play(900, TRAINS), {}, False),
    "no log, GPU unreadable, always in one line": (
        lambda: unlogged().play(900, ONE_LINE._replace(device=None)),
        {},
        False,
    ),
    "no log, evaluation, GPU unreadable": (lambda: unlogged().play(900, BLIND), {}, False),
    "irregular steps": (lambda: irregular(Run()), {}, False),
    "steps of 100 s": (
        lambda: Run().play(3000, WAITS._replace(device=True), every=lambda _: 100.0),
        {},
        False,
    ),
    "steps of 300 s that look frozen": (
        lambda: trained(1500, every=300).play(3000, WAITS, every=lambda _: 300.0),
        {},
        True,  # once, before the rhythm was known
    ),
    "a batch-size ramp that looks frozen": (
        lambda: Run().play(1800, WAITS, every=lambda step: 1.0 + step * 0.7),
        {},
        False,
    ),
    "a chatty thread in a healthy job": (lambda: chat(trained(), 1, TRAINS).train(300), {}, False),
    "a normal exit": (
        lambda: trained().play(5, {0: SLEEPS}, others=EXITED).play(300, EXITED),
        {"timeout": 15.0},
        False,
    ),
    "an upload after the others have left": (
        lambda: trained().play(900, {0: WORKS}, others=EXITED),
        {"timeout": 15.0},
        True,
    ),
    "an elastic restart": (
        lambda: restart(trained()).play(100, {0: WORKS}, others=RENDEZVOUS).train(60),
        {"timeout": 15.0},
        False,
    ),
    "an elastic restart in the middle of suspicion": (
        lambda: restart(trained().play(11, {3: SLEEPS})).play(60, RENDEZVOUS).train(60),
        {"timeout": 15.0},
        False,
    ),
    "indexing for 30 min before the first step": (
        lambda: chat(Run(), 1800, {0: WORKS}, RENDEZVOUS).train(60),
        {"timeout": 15.0},
        False,
    ),
    "compiling for 20 min before the first step": (
        lambda: chat(Run(), 20, TRAINS).play(1200, COMPILES).train(60),
        {"timeout": 15.0},
        False,
    ),
    "rendezvous for 4 min": (
        lambda: Run().play(20, TRAINS).play(240, RENDEZVOUS).train(60),
        {},
        False,
    ),
    "workers of a DataLoader at work": (
        lambda: trained().play(60, {1: LOADS._replace(children_cpu=3.0)}).train(30),
        {"timeout": 15.0},
        True,
    ),
    "slow reading without CPU": (
        lambda: trained().play(60, {1: LOADS._replace(io=1e6)}).train(30),
        {"timeout": 15.0},
        True,
    ),
    "a checkpoint copied by a child": (
        lambda: trained().play(60, {0: COPIES}).train(30),
        {},
        True,
    ),
    "a checkpoint written by a thread": (
        lambda: trained().play(60, {0: JOINS._replace(io=5e6)}).train(30),
        {"timeout": 15.0},
        True,
    ),
    "looks now and then whether its child is done": (
        lambda: trained().play(60, {1: SLEEPS._replace(switches=0.25, children_cpu=0.5)}).train(30),
        {"timeout": 15.0},
        True,
    ),
    "a pause shorter than the timeout": (
        lambda: trained().play(25, {3: SLEEPS}).train(30),
        {},
        False,
    ),
    "a pause nearly as long as the timeout": (
        lambda: trained().play(28, {3: SLEEPS}).train(30),
        {},
        True,
    ),
    "a pause nearly as long as the timeout, others work": (
        lambda: trained().play(28, {3: SLEEPS}, others=WORKS).train(30),
        {},
        False,
    ),
    "a number is obeyed: 500 s": (
        lambda: trained().play(400, {3: SLEEPS}).train(30),
        {"timeout": 500.0},
        False,
    ),
}


@pytest.mark.parametrize("name", SILENT)
def test_it_is_silent(name: str) -> None:
    trace, chosen, captured = SILENT[name]

    story = watch(trace().looks, **chosen)

    assert story.opened == [], [d.sentence for _, d in story.decisions if d.open]
    assert bool(story.captured) == captured
