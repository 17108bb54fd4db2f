"""A real job of short steps under an agent with the default settings: who is stuck is named within a minute."""

import time

import pytest

from processes.harness import Plan, User, folder_for, running, wait_for
from processes.incidents.watching import settings, watching
from processes.needs import need_torch
from shared.system.patience import PATIENCE

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(400)]
need_torch("the scenarios train with PyTorch")

LIMIT = 60.0  # seconds from the fault to the report
PACE = "0.15"
AFTER = 300  # steps, some 45 s


def test_a_young_job_s_culprit_is_named_within_a_minute() -> None:
    plan = Plan("sleep", after=AFTER, options=("--pace", PACE))
    with (
        folder_for(User()) as folder,
        watching(folder, settings(folder, stall="{}")) as agent,
        running(plan) as job,
    ):
        job.wait_for_step(AFTER - 1)
        began = time.monotonic()
        report = wait_for("the report", lambda: agent.reports(job), LIMIT + 30)[0]
        assert time.monotonic() - began <= LIMIT * PATIENCE
        assert [culprit["rank"] for culprit in report["diagnosis"]["culprits"]] == [2]
