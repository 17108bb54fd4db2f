"""All the ways to get stuck once more, under `mldebug run` and where the kernel lets nobody attach: what is still known.

The table says what is less than in `scenarios.py`. A wrong name is never among it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from processes.harness import UNATTACHED, User, folder_for
from processes.scenarios import HIGH, LOW, MEDIUM, Expected
from processes.stuck import ALL, STALL, Case, run_all
from processes.watching import settings, watching

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1500)]
pytest.importorskip("torch", reason="the scenarios train with PyTorch")

LESS: dict[str, Expected] = {}
SURE = (LOW, MEDIUM, HIGH)


UNASKED = ("paused",)  # nobody there can answer


@pytest.fixture(scope="module")
def outcomes(
    user: User, library: Path, request: pytest.FixtureRequest
) -> Iterator[dict[str, Case]]:
    """Run all the selected scenarios under one agent, of the job's own user and without a right."""
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    chosen = [one["name"] for one in calls if "unattached" in one]
    with folder_for(user) as folder:  # noqa: SIM117 - the agent ends first
        with watching(folder, settings(folder, stall=STALL), user, program=UNATTACHED) as agent:
            yield run_all(list(dict.fromkeys(chosen)), user, agent, library, unattached=True)


@pytest.mark.parametrize("unattached", [True], ids=["unattached"])
@pytest.mark.parametrize("user", ["ordinary"], indirect=True)
@pytest.mark.parametrize("name", ALL)
def test_no_right_to_attach_costs_no_name(
    name: str, unattached: bool, outcomes: dict[str, Case]
) -> None:
    case = outcomes[name]
    assert unattached
    assert not case.trouble
    assert case.answer is not None
    assert case.answer.code in (0, 1), case.answer
    assert len(case.reports) == 1, f"{len(case.reports)} reports"
    before, after = case.health
    assert before == after
    for who, report in (("dump", case.answer.report), ("agent", case.reports[0])):
        told = report["diagnosis"]
        named = [one["rank"] for one in told["culprits"]]
        print(
            f"TOLD {name} {who}: {told['verdict']} {named} {told['confidence']}: {told['summary']}"
        )
    print(f"GAPS {name}: { {gap['reason'] for gap in case.reports[0]['gaps']} }")
    print(f"STEPS {name}: {case.reports[0]['job']['step']} {case.reports[0]['job']['hooked']}")
