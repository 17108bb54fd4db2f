"""The part of the GPU validation that hangs frameworks' own trainings: how its rows are judged and shown, without a GPU."""

import pytest

from gpu.page import page
from gpu.untouched import ROWS, STRUCK, Row, judge

WORKER = Row("trainer", "worker", STRUCK["worker"])
BOTH = Row("fsdp2", "both", STRUCK["both"], nameless=True)


@pytest.mark.parametrize(
    ("row", "verdict", "named", "result"),
    [
        (WORKER, "dataloader_stalled", [1], "right"),
        (WORKER, "dataloader_stalled", [], "right, unnamed"),
        (WORKER, "dataloader_stalled", [0], "WRONG"),
        (WORKER, "rank_busy", [1], "WRONG"),
        (WORKER, "unknown", [], "unknown"),
        (BOTH, "unknown", [], "right"),
        (BOTH, "collective_mismatch", [0], "WRONG"),
    ],
)
def test_a_row_is_judged_by_its_verdict_and_who_is_named(
    row: Row, verdict: str, named: list[int | None], result: str
) -> None:
    assert judge(row, verdict, named) == result


def test_every_framework_meets_every_fault() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) == 18
    assert {row.nameless for row in ROWS if row.fault == "both"} == {True}


def test_rows_are_shown_agent_by_agent() -> None:
    facts = {"result": "right", "worried_after_s": 16.1, "report_after_s": 33.2, "late_s": -26.8, "verdict": "dataloader_stalled", "named": [1]}  # fmt: skip
    data = {"trainer:worker": {"defaults": facts, "timeout 15 s": {"result": "NOT NOTICED", "summary": "no run"}}}  # fmt: skip
    text = page({"parts": {"frameworks": {"status": "done", "seconds": 90, "data": data}}})
    assert "| trainer:worker | defaults | right | 16.1 | 33.2 | -26.8 | dataloader_stalled | [1] |" in text  # fmt: skip
    assert "| trainer:worker | timeout 15 s | NOT NOTICED |" in text
