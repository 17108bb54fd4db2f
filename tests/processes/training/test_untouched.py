"""Lightning, the HF Trainer and loops of one's own on gloo, which know nothing of whoever watches: each hung, each healthy, under two agents.

What takes minutes a row; `make test-frameworks` installs what it needs, and MLDEBUG_TEST_FRAMEWORKS=1 makes a missing one a failure.
"""

import os
from pathlib import Path

import pytest

from gpu.untouched import AGENTS, STRUCK, Row, healthy, hung, missing_packages

pytestmark = [pytest.mark.scenario, pytest.mark.long, pytest.mark.timeout(900)]

NEEDED = "MLDEBUG_TEST_FRAMEWORKS"
KINDS = (
    "lightning",
    "lightning-bare",
    "lightning-csv",
    "lightning-tqdm",
    "trainer",
    "trainer-tensorboard",
    "trainer-wandb",
    "jsonl",
    "silent",
    "chatty",
)
HEALTHY_TIMES = {"lightning": 3, "trainer": 3}  # others: once
ON_CPU = ("--cpu", "--pause", "0.03")  # of a small machine
LATE = 60.0  # seconds that a busy machine of two cores may add
HEALTHY = float(os.environ.get("MLDEBUG_HEALTHY_SECONDS", "600"))


def need(kind: str) -> None:
    """Skip where its packages are not installed."""
    missing = missing_packages(kind)
    if missing and os.environ.get(NEEDED):
        pytest.fail(f"{missing[0]} is not installed")
    if missing:
        pytest.skip(f"{missing[0]} is not installed: make test-frameworks")


@pytest.mark.parametrize("fault", list(STRUCK))
@pytest.mark.parametrize("kind", KINDS)
def test_a_hang_is_noticed_and_nobody_is_named_wrongly(kind: str, fault: str, tmp_path: Path) -> None:  # fmt: skip
    need(kind)
    result = hung(tmp_path, Row(kind, fault, STRUCK[fault], nameless=fault == "both"), *ON_CPU)
    assert {name: one["result"] for name, one in result.items()} == dict.fromkeys(AGENTS, "right")
    assert max(one["late_s"] for one in result.values()) < LATE


@pytest.mark.parametrize(
    ("kind", "time"), [(kind, n) for kind in KINDS for n in range(HEALTHY_TIMES.get(kind, 1))]
)
def test_a_healthy_job_raises_no_alarm(kind: str, time: int, tmp_path: Path) -> None:
    """With evaluation, checkpoints and compilation; `time`: how often before."""
    need(kind)
    result = healthy(tmp_path, kind, HEALTHY, *ON_CPU)
    assert {name: one["summary"] for name, one in result.items() if one["result"] != "right"} == {}
    assert set(result) == set(AGENTS)
