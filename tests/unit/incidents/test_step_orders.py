"""What `mldebug profile` and `mldebug memory` refuse before any rank is asked, and what they say of memory."""

import fcntl
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mldebug.capture.inspection import InspectionOptions
from mldebug.capture.memory.sentences import live_facts
from mldebug.capture.profile.hook_answer import HookAnswer, parse_answer
from mldebug.core.errors import MldebugError, UsageError
from mldebug.core.model import Job, RankIdentity
from mldebug_agents.capture.inspection import UNTOUCHED, inspect_ranks
from mldebug_agents.incidents import step_orders
from mldebug_agents.jobs.hook.requests import NO_HOOK, HookResult

RANKS = tuple(RankIdentity(rank=n, world_size=8, pid=100 + n, start_ticks=1) for n in range(2, 6))
JOB = cast("Job", SimpleNamespace(id="j1", ranks=RANKS))
DONE = HookAnswer(layout=1, number=1, state="done", fd=3, bytes=9, first=4, last=6)


class FakeRequests:
    """Ranks that answer as they are told to."""

    def __init__(self, results: dict[int, HookResult] | None = None, busy: Any = ()) -> None:
        self.results, self.busy = results or {}, busy

    def working(self, ranks: Any) -> tuple[int, ...]:
        return tuple(self.busy)

    def ask(self, ranks: Any, order: Any, digest: Any) -> dict[int, Any]:
        return {one.rank: digest(one, self.results[one.rank]) for one in ranks}


def tools(**results: HookResult) -> Any:
    by_rank = {int(name[1:]): one for name, one in results.items()}
    return SimpleNamespace(
        requests=FakeRequests(by_rank), pyspy=SimpleNamespace(record=lambda *_: ()),
        context=SimpleNamespace(host=SimpleNamespace(proc="/proc")),
    )  # fmt: skip


def chosen(wanted: str | None, busy: Any = ()) -> list[int]:
    requests: Any = FakeRequests(busy=busy)
    return [one.rank for one in step_orders.chosen_ranks(JOB, wanted, requests)]


@pytest.mark.parametrize(("wanted", "ranks"), [(None, [2]), ("3,5", [3, 5]), ("2-4", [2, 3, 4])])
def test_ranks_are_chosen(wanted: str | None, ranks: list[int]) -> None:
    assert chosen(wanted) == ranks


@pytest.mark.parametrize("wanted", ["0", "2,9", "x", "0-999999"])
def test_ranks_that_are_not_here_are_refused(wanted: str) -> None:
    with pytest.raises(UsageError):
        chosen(wanted)


def test_one_request_at_a_time() -> None:
    with pytest.raises(MldebugError, match="rank 5 still works on an earlier request"):
        chosen("2", busy=(5,))


def stalled(monkeypatch: pytest.MonkeyPatch, kind: str, pid: int) -> None:
    run = SimpleNamespace(incident_kind=kind, incident="r1", ranks={2: pid})
    answer = SimpleNamespace(answer=SimpleNamespace(snapshot=SimpleNamespace(runs=(run,))))
    monkeypatch.setattr(step_orders, "ask_nearest", lambda *_, **__: answer)
    step_orders.refuse_if_stalled(Path("/x"), JOB, here_only=False)


def test_a_job_with_an_open_stall_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MldebugError, match="a stall of j1 is open"):
        stalled(monkeypatch, "stall", 102)


@pytest.mark.parametrize(("kind", "pid"), [("slowdown", 102), ("", 102), ("stall", 7)])
def test_a_slow_job_and_one_beside_a_stalled_one_are_asked(
    monkeypatch: pytest.MonkeyPatch, kind: str, pid: int
) -> None:
    stalled(monkeypatch, kind, pid)


@pytest.mark.parametrize("wait", ["0s", "1h", "soon"])
def test_a_time_that_is_none_is_refused(wait: str) -> None:
    with pytest.raises(UsageError):
        step_orders.seconds_of(wait)


def test_memory_by_line_and_phase_and_why_it_is_not_known() -> None:
    stack = [["/site-packages/torch/optim/adamw.py", 5, "step"], ["/job/train.py", 9, "train"]]
    file = {
        "layout": 1, "at": 1.0, "step": 7, "device": 0, "capacity": 80 << 30, "free": 30 << 30,
        "snapshot": {
            "frames": [["/job/model.py", 18, "build"], *stack], "stacks": [[0], [1, 2]],
            "held": [[0, 0, 4, 30 << 30, 30 << 30], [0, 1, 2, 10 << 30, 10 << 30]],
            "devices": [{"device": 0, "reserved": 48 << 30, "allocated": 40 << 30, "pieces": 3, "largest_free": 4 << 30}],
        },
    }  # fmt: skip
    found = inspect_ranks(
        tools(
            r2=HookResult(answer=DONE, data=json.dumps(file).encode()),
            r3=HookResult(failure=NO_HOOK),
            r4=HookResult(failure="CUDA is not used yet"),
            r5=HookResult(answer=DONE, data=b"{}"),
        ),
        RANKS,
        InspectionOptions(what="memory"),
    )
    good, untouched, cpu, broken = found.memory
    assert good.found is not None
    assert list(live_facts(good.found)) == [
        "GPU 0 after step 7: 40 GiB in use, PyTorch holds 48 GiB of 80 GiB, 30 GiB are free",
        "held by build (model.py:18): 30 GiB in 4 blocks (other)",
        "held by train (train.py:9): 10 GiB in 2 blocks (optimizer)",
        "held by phase: other 30 GiB, optimizer 10 GiB",
        "8 GiB lie unused in 3 pieces, the largest of 4 GiB",
    ]
    assert list(found.files) == ["memory-rank2.json"]
    assert (untouched.failure, cpu.failure) == (UNTOUCHED, "CUDA is not used yet")
    assert broken.failure.startswith("its answer is not believed")


def test_a_trace_that_is_none_costs_its_rank_alone() -> None:
    whole = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 5}]}'
    taken = inspect_ranks(
        tools(
            r2=HookResult(answer=DONE, data=whole),
            r3=HookResult(answer=DONE, data=whole[:-9]),
            r4=HookResult(failure=NO_HOOK),
            r5=HookResult(failure="the job profiles itself"),
        ),
        RANKS,
        InspectionOptions(what="profile"),
    )
    good, broken, sampled, itself = taken.profiles
    assert (good.steps, good.trace and good.trace.limit) == ("4 to 6", "cpu only")
    assert list(taken.files) == ["profile-rank2.trace.json.gz"]
    assert broken.failure.startswith("this is no whole trace")
    assert sampled.failure.startswith("py-spy could not sample it")
    assert itself.failure == "the job profiles itself"


@pytest.mark.parametrize("taken", [True, False])
def test_an_untouched_rank_is_sampled_once_at_a_time(taken: bool) -> None:
    """Whoever samples it holds a lock that ends with that process."""
    some = tools(r2=HookResult(failure=NO_HOOK))
    rank = RankIdentity(rank=2, world_size=8, pid=os.getpid(), start_ticks=1)
    sampled: list[int] = []
    some.pyspy.record = lambda pid, *_: sampled.append(pid) or ()
    with Path(f"/proc/{os.getpid()}/environ").open("rb") as other:
        if taken:
            fcntl.flock(other, fcntl.LOCK_EX)
        (profile,) = inspect_ranks(some, (rank,), InspectionOptions(what="profile")).profiles
    assert ("one at a time" in profile.failure) is taken
    assert sampled == ([] if taken else [os.getpid()])
    with Path(f"/proc/{os.getpid()}/environ").open("rb") as after:
        fcntl.flock(after, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it is let go of


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"layout": 2, "number": 1, "state": "done"}',
        b'{"layout": 1, "number": 1, "state": "done", "bytes": 1e30}',
        b'{"layout": 1, "number": 1, "state": "x"}',
        b" " * 5000,
    ],
)
def test_an_answer_that_is_none_is_not_believed(data: bytes) -> None:
    with pytest.raises(ValueError, match="it "):
        parse_answer(data)
