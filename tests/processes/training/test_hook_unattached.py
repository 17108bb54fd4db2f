"""All the ways to get stuck once more, under `mldebug run` and where the kernel lets nobody attach: what is still known.

The table says where it is another verdict than in `scenarios.py`, and why. A wrong name is never among it.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from processes.harness import UNATTACHED, User, folder_for
from processes.incidents.scenarios import HIGH, LOW, MEDIUM, Expected
from processes.incidents.stuck import ALL, STALL, Case, run_all
from processes.incidents.watching import settings, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1500)]
need_torch("the scenarios train with PyTorch")

OTHERS: dict[str, tuple[Expected, ...]] = {
    # more than stacks alone can tell: the Flight Recorder counts
    "same_line": (Expected("collective_mismatch", (2,), (HIGH,)),),
    "mismatch": (Expected("collective_mismatch", (6, 7), (HIGH,)),),
    "skip": (Expected("collective_mismatch", (2,), (HIGH,)),),
    "tp_skip": (Expected("collective_mismatch", (), (MEDIUM,)),),
    # less: nobody knows who holds the interpreter lock
    "loop": (Expected("rank_busy", (2,), (LOW,)),),
    "thread": (Expected("rank_busy", (2,), (LOW, MEDIUM)),),
    # the C code that holds the lock leaves the hook no turn
    "regex": (Expected("unknown", (), (LOW,)), Expected("rank_busy", (2,), (LOW,))),
    # without a native stack a wait inside the backward pass is told by its rest, and a crowded machine disturbs that
    "ddp_sleep": (Expected("unknown", (), (LOW,)), Expected("rank_waiting", (2,), (MEDIUM, HIGH))),
    "ddp_loop": (Expected("unknown", (), (LOW,)), Expected("rank_busy", (2,), (LOW, MEDIUM))),
    # a rank that computes may give its hook no turn on a crowded machine: then it may be whom the other one polls for, and nobody is named
    "prepare": (Expected("rank_busy", (1, 2), (LOW,)), Expected("rank_waiting", (), (LOW,))),
    # what file it reads stands in /proc/PID/syscall, which is closed as well
    "input": (Expected("rank_blocked_io", (2,), (MEDIUM, HIGH)),),
    "pdb": (Expected("rank_waiting", (2,), (MEDIUM, HIGH)),),
    "fuse": (Expected("rank_blocked_io", (2,), (MEDIUM, HIGH)),),
    "fuse_open": (Expected("rank_blocked_io", (2,), (MEDIUM, HIGH)),),
}
RAISED = ("sleep", "gil", "fifo", "full_pipe", "late", "teardown")
"""`medium` where one may attach; here the hook may prove it, if all answer in time. All others: as sure as there."""
UNASKED = ("paused",)  # nobody there can answer
# Each way in which one knows less here; the others run nightly
ALWAYS = ("sleep", "regex", "input", "skip", "fuse", "paused")


@pytest.fixture(scope="module")
def outcomes(user: User, library: Any, request: pytest.FixtureRequest) -> Iterator[dict[str, Case]]:
    """Run all the selected scenarios under one agent, of the job's own user and without a right."""
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    chosen = [one["name"] for one in calls if "unattached" in one]
    with folder_for(user) as folder:  # noqa: SIM117 - the agent ends first
        with watching(folder, settings(folder, stall=STALL), user, program=UNATTACHED) as agent:
            yield run_all(list(dict.fromkeys(chosen)), user, agent, library, unattached=True)


@pytest.mark.parametrize("unattached", [True], ids=["unattached"])
@pytest.mark.parametrize("user", ["ordinary"], indirect=True)
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in ALWAYS else pytest.mark.long) for one in ALL]
)
def test_no_right_to_attach_costs_no_name(
    name: str, unattached: bool, outcomes: dict[str, Case]
) -> None:
    case = outcomes[name]
    assert unattached
    assert not case.trouble
    assert case.answer is not None
    assert case.answer.code in (0, 1), case.answer
    before, after = case.health
    assert before == after
    assert len(case.reports) == 1, f"{len(case.reports)} reports"
    for report in (case.answer.report, case.reports[0]):
        _check(name, report["diagnosis"], case)
    gaps = {gap["reason"] for gap in case.reports[0]["gaps"]}
    result = any("the stack shown is the hook's" in reason for reason in gaps)
    assert result != (name in UNASKED), gaps


def _check(name: str, table: dict[str, Any], case: Case) -> None:
    """One of the right answers, and the processes that belong to them."""
    found = table["verdict"], tuple(one["rank"] for one in table["culprits"])
    usual = case.scenario.expected
    if name in RAISED:
        usual = Expected(usual.verdict, usual.ranks, (MEDIUM, HIGH))
    right = OTHERS.get(name, (usual,))
    allowed = [one.confidence for one in right if (one.verdict, one.ranks) == found]
    assert allowed, f"{found}: {table['summary']}\n{table}"
    assert any(table["confidence"] in one for one in allowed), table
    for culprit in table["culprits"]:
        right_pids = case.culprits.get(culprit["rank"], (culprit["pid"],))
        assert culprit["pid"] in right_pids, table
