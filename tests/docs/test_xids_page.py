"""docs/kernel-log.md is made from the catalogue, and up to date."""

from pathlib import Path

import pytest

from mldebug.hardware.kernel_log.model import KernelEventKind
from mldebug.hardware.kernel_log.xids import Tier, catalogue
from shared.docs.xids_page import TIERS, page

PAGE = Path(__file__).parents[2] / "docs/kernel-log.md"


def test_the_page_is_up_to_date(request: pytest.FixtureRequest) -> None:
    made = page(catalogue())
    if request.config.getoption("--update-golden"):
        PAGE.write_text(made, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == made, (
        "make it anew with: pytest tests/docs/test_xids_page.py --update-golden"
    )


def test_everything_stands_on_it() -> None:
    result = page(catalogue())

    assert not [
        kind
        for kind in KernelEventKind
        if kind is not KernelEventKind.XID and f"| `{kind.value}` |" not in result
    ]
    assert not [row for row in catalogue().xids if f"| {row.xid} | `{row.name}` |" not in result]
    assert set(TIERS) == set(Tier)


def test_a_row_fits_its_table() -> None:
    for line in page(catalogue()).splitlines():
        if line.startswith("| ") and line.split()[1].isdigit():
            assert line.count("|") == 8
