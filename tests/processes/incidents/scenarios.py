"""Every way to get stuck, and what mldebug has to say about it: the table that test_scenarios.py runs."""

from dataclasses import dataclass, field
from typing import Any

HIGH, MEDIUM, LOW = "high", "medium", "low"


@dataclass(frozen=True)
class Expected:
    """The right answer. `ranks` are the culprits, in order; () means that nobody may be named."""

    verdict: str
    ranks: tuple[int, ...]
    confidence: tuple[str, ...]  # any of these
    kind: str = "rank"


@dataclass(frozen=True)
class Scenario:
    """One job: the arguments of `harness.Plan`, and the right answer."""

    name: str
    plan: dict[str, Any]
    expected: Expected
    busy: tuple[int, ...] = ()  # ranks that go on moving while the job is stuck
    marks: tuple[str, ...] = field(default=())


def one(name: str, verdict: str, *confidence: str, **plan: Any) -> Scenario:
    """A fault that strikes rank 2 of 4, which has to be named."""
    busy = plan.pop("busy", ())
    marks = plan.pop("marks", ())
    arguments = {"fault": name} | plan
    expected = Expected(verdict, tuple(arguments.get("struck", (2,))), confidence)
    return Scenario(name, arguments, expected, busy, marks)


def nobody(name: str, verdict: str, *confidence: str, **plan: Any) -> Scenario:
    """A job in which nobody may be named."""
    return Scenario(name, {"fault": name} | plan, Expected(verdict, (), confidence))


def renamed(name: str, scenario: Scenario) -> Scenario:
    """The same, as a scenario of another name."""
    return Scenario(name, scenario.plan, scenario.expected, scenario.busy, scenario.marks)


# Of those that tell what their relation, named beside them, tells as well
NIGHTLY = ("long",)

SCENARIOS = (
    one("sleep", "rank_waiting", MEDIUM, marks=("smoke",)),
    one("loop", "rank_busy", MEDIUM, busy=(2,)),
    one("gil", "rank_waiting", MEDIUM),
    # loop; it runs always where nobody may attach
    one("regex", "rank_busy", MEDIUM, busy=(2,), marks=NIGHTLY),
    one("stopped", "rank_stopped", HIGH, marks=("smoke",)),
    one("fifo", "rank_blocked_io", MEDIUM),
    one("input", "rank_waiting", HIGH, stdin="pipe"),
    one("pdb", "rank_waiting", HIGH, stdin="pipe", marks=NIGHTLY),  # input
    one("lock", "rank_waiting", MEDIUM),
    one("lock_order", "rank_waiting", MEDIUM, marks=NIGHTLY),  # lock
    one("dead", "rank_exited", HIGH),
    one("mismatch", "collective_mismatch", LOW, struck=(6, 7), world_size=8, marks=("smoke",)),
    one("skip", "collective_mismatch", MEDIUM),
    nobody("same_line", "unknown", LOW),
    one("late", "init_incomplete", MEDIUM),
    one("spawn", "rank_blocked_io", HIGH),
    one("full_pipe", "rank_blocked_io", MEDIUM, struck=(0,), stdout="pipe"),
    one("teardown", "rank_waiting", MEDIUM),
    one("prepare", "rank_busy", LOW, struck=(1, 2), busy=(1, 2)),
    one("thread", "rank_waiting", MEDIUM, busy=(0, 1, 2, 3)),
    nobody("tp_skip", "collective_mismatch", LOW, struck=(0,)),
    # ddp_loop, and sleep
    renamed("ddp_sleep", one("sleep", "rank_waiting", MEDIUM, options=("--ddp",), marks=NIGHTLY)),
    renamed("ddp_loop", one("loop", "rank_busy", MEDIUM, options=("--ddp",), busy=(2,))),
)
