"""Whether a glance at the system calls of ranks shows that none of them differs, and how it is read."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.goodput.comparison.blocked_calls import (
    IN_A_ROW,
    RUNNING,
    BlockedCalls,
    Glance,
    GlanceMemory,
    is_blind,
    some_rank_differs,
)
from mldebug.goodput.evidence import RankShares
from mldebug_agents.capture.stacks.call_reader import CallReader, blocked_call
from mldebug_agents.system.host import Host

WAIT, SLEEP, READ = "202:1810", "230:750", "0:5a0"


def glance(*ranks: Mapping[str, float]) -> Glance:
    found = tuple(BlockedCalls(rank=n, calls=dict(calls)) for n, calls in enumerate(ranks))
    return Glance(ranks=found, world_size=len(ranks))


def waiting(*shares: float, rest: str = SLEEP) -> Glance:
    """Ranks that wait so much of the time, and sleep the rest of it."""
    return glance(*({WAIT: share, rest: 1 - share} for share in shares))


def stacks(ranks: int, waits: float = 0.1) -> tuple[RankShares, ...]:
    """What stacks of such ranks show."""
    one = RankShares(rank=0, samples=100, waiting=waits, places={"fetch (t.py)": 1 - waits})
    return (one,) * ranks


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
def test_a_rank_that_waits_a_tenth_less_differs_and_equal_ones_do_not(ranks: int) -> None:
    equal, slow = [0.12] * ranks, [0.03] + [0.12] * (ranks - 1)
    assert not some_rank_differs(waiting(*equal))
    assert some_rank_differs(waiting(*slow))
    wobbling = [0.1 + 0.005 * (rank % 4) for rank in range(ranks)]
    assert not some_rank_differs(waiting(*wobbling))


def test_a_rank_differs_whatever_it_does_instead() -> None:
    """It sleeps deeper, computes, or reads: the others wait for it in the call that all share."""
    for call in (SLEEP, "230:5a0", READ, RUNNING):
        usual = {WAIT: 0.12, SLEEP: 0.88}
        slow = {WAIT: 0.02, SLEEP: 0.88}
        slow[call] = slow.get(call, 0.0) + 0.1
        assert some_rank_differs(glance(usual, slow, usual, usual))


def test_what_the_others_wait_in_many_calls_counts_together() -> None:
    usual = {f"202:{depth}": 0.025 for depth in range(4)} | {SLEEP: 0.9}
    slow = {"202:0": 0.01, SLEEP: 0.99}
    assert some_rank_differs(glance(usual, usual, slow, usual))


def test_two_slow_ranks_of_eight_differ_and_uneven_ones_do_not() -> None:
    assert some_rank_differs(waiting(0.2, 0.02, 0.2, 0.2, 0.2, 0.02, 0.2, 0.2))
    assert not some_rank_differs(waiting(0.20, 0.29, 0.25, 0.32, 0.22, 0.27, 0.3, 0.24))


@pytest.mark.parametrize(
    ("shown", "shares"),
    [
        (waiting(0.1, 0.1, 0.1), ()),
        (Glance(ranks=waiting(0.1, 0.1).ranks, world_size=3), stacks(3)),
        (Glance(world_size=0), stacks(2)),
        (waiting(0.1, 0.1, 0.1, rest=RUNNING), stacks(3)),
        (glance({"1:a": 1.0}, {"1:b": 1.0}, {"1:c": 1.0}), stacks(3)),
        (waiting(0.0, 0.0, 0.0), stacks(3, waits=0.4)),
    ],
    ids=["no stacks yet", "one could not be read", "nobody", "they compute", "nothing in common", "two things are one call"],
)  # fmt: skip
def test_a_glance_that_shows_nothing_wants_stacks(
    shown: Glance, shares: Sequence[RankShares]
) -> None:
    assert is_blind(shown, shares)
    assert GlanceMemory().wants_stacks(shown, shares)


def test_a_glance_at_equal_ranks_is_enough_some_times_in_a_row() -> None:
    memory, equal = GlanceMemory(), waiting(0.1, 0.1, 0.1)
    answers = [memory.wants_stacks(equal, stacks(3)) for _ in range(IN_A_ROW + 1)]
    assert answers == [False] * IN_A_ROW + [True]
    memory.sampled()
    assert not memory.wants_stacks(equal, stacks(3))


def test_a_small_difference_that_stays_is_seen_in_the_mean_of_some() -> None:
    """Each glance alone hides it: another rank is as low in each."""
    memory = GlanceMemory()
    turns = [(0.05, 0.12, 0.12, 0.07), (0.05, 0.07, 0.12, 0.12), (0.05, 0.12, 0.07, 0.12)]
    assert [memory.wants_stacks(waiting(*one), stacks(4)) for one in turns] == [False, True, True]


def test_ranks_that_all_do_something_else_want_stacks() -> None:
    memory = GlanceMemory()
    assert not memory.wants_stacks(waiting(0.1, 0.1, 0.1), stacks(3))
    assert memory.wants_stacks(glance(*({WAIT: 0.1, SLEEP: 0.7, READ: 0.2},) * 3), stacks(3))


def test_only_a_new_glance_shows_that_ranks_are_alike() -> None:
    memory, equal = GlanceMemory(), waiting(0.1, 0.1, 0.1)
    assert not memory.shows_alike(stacks(3)), "there is none"
    memory.wants_stacks(equal, ())
    assert memory.shows_alike(stacks(3))
    assert not memory.shows_alike(()), "nothing was sampled"
    memory.sampled()
    assert not memory.shows_alike(stacks(3)), "stacks were sampled since"
    memory.wants_stacks(waiting(0.1, 0.01, 0.1), stacks(3))
    assert not memory.shows_alike(stacks(3))
    memory.wants_stacks(equal, stacks(3))
    memory.forget()
    assert not memory.shows_alike(stacks(3))


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("running\n", RUNNING),
        ("202 0x7f 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd1000 0x7fa0\n", "202:2000"),
        ("-1 0x7ffd2000 0x7fa0\n", "-1:1000"),
        ("", ""),
        ("202 what\n", ""),
        ("202 0x0 0x0 0x0 0x0 0x0 0x0 nothing 0x0\n", ""),
    ],
)
def test_a_call_is_known_by_its_number_and_the_depth_of_the_stack(text: str, call: str) -> None:
    assert blocked_call(text, 0x7FFD3000) == call


def stat(pid: int, start: int = 7, stack: int = 0x7FFD3000) -> str:
    fields = ["0"] * 49
    fields[0], fields[19], fields[25] = "S", str(start), str(stack)
    return f"{pid} (python) {' '.join(fields)}\n"


def node(folder: Path, texts: Mapping[int, str], **changes: int) -> Job:
    """A folder like /proc, and the job of these ranks."""
    for pid, text in texts.items():
        (folder / f"proc/{pid}").mkdir(parents=True)
        (folder / f"proc/{pid}/stat").write_text(stat(pid, **changes))
        (folder / f"proc/{pid}/syscall").write_text(text)
    ranks = tuple(RankIdentity(rank=n, world_size=len(texts), pid=pid, start_ticks=7) for n, pid in enumerate(texts))  # fmt: skip
    return Job(id="j", name="t.py", launcher="torchrun", world_size=len(texts), ranks=ranks)


def reader(folder: Path, between: Sequence[object] = range(4)) -> CallReader:
    """One that looks once for each of these."""
    clock: Iterator[float] = iter([0.0, *([0.5] * len(between)), 9.0])
    return CallReader(Host(str(folder)), pause=lambda _: None, steady=lambda: next(clock))


CALL = "202 0x7f 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd1000 0x7fa0\n"


def test_the_calls_of_all_ranks_are_read(tmp_path: Path) -> None:
    job = node(tmp_path, {50: CALL, 51: "running\n"})
    shown = reader(tmp_path).glance(job, 5.0)
    assert [one.calls for one in shown.ranks] == [{"202:2000": 1.0}, {RUNNING: 1.0}]
    assert shown.world_size == 2


@pytest.mark.parametrize("changes", [{"start": 8}, {"stack": 0}], ids=["another process", "hidden"])
def test_a_rank_that_is_another_process_now_or_hides_its_stack_is_left_out(tmp_path: Path, changes: dict[str, int]) -> None:  # fmt: skip
    job = node(tmp_path, {50: CALL}, **changes)
    assert reader(tmp_path).glance(job, 5.0).ranks == ()


def test_a_rank_whose_calls_may_not_be_read_is_left_out(tmp_path: Path) -> None:
    job = node(tmp_path, {50: CALL, 51: ""})
    assert [one.rank for one in reader(tmp_path).glance(job, 5.0).ranks] == [0]
