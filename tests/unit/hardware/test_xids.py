"""The Xid catalogue: every row can be reached from a line of the kernel, and no Xid that operators meet is missing."""

from pathlib import Path

import pytest

from mldebug.core.errors import EvidenceError
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind
from mldebug.hardware.kernel_log.xids import (
    ACTION_WORDS,
    ORDER,
    Action,
    Tier,
    catalogue,
    judge,
    parse_catalogue,
    xid_row,
)
from shared.hardware.kernellines import parse_line

LINES = Path(__file__).parents[2] / "fixtures/kernellog/xids.kmsg"

IN_USE = {
    8, 11, 13, 14, 25, 31, 32, *range(37, 42), *range(43, 47), 48, 54, 56, 57, 58, *range(60, 87), 88, 89, *range(92, 111),
    119, 120, 121, *range(126, 138), *range(139, 174),
}  # fmt: skip
"""What public catalogues and health checks of fleets name."""

PAGED = {46, 48, 61, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 158}
NOT_THE_NODE = {13, 31, 43, 45, 68, 69}
NEXT_WINDOW = {63, 92, 94, 154, 156}


def events() -> list[KernelEvent]:
    found = [parse_line(line) for line in LINES.read_text().splitlines()]
    return [one for one in found if one is not None]


def test_every_row_is_reached_by_a_line_and_every_line_has_a_row() -> None:
    rows = {row.xid for row in catalogue().xids}
    reached = {one.xid for one in events() if one.kind is KernelEventKind.XID}

    assert reached == rows == IN_USE


def test_tiers_are_what_operators_agree_on() -> None:
    tiers = {row.xid: row.tier for row in catalogue().xids}

    assert {number for number, tier in tiers.items() if tier is Tier.FATAL} == PAGED
    assert {tiers[number] for number in NOT_THE_NODE} == {Tier.APPLICATION}
    assert {tiers[number] for number in NEXT_WINDOW} == {Tier.WARNING}


def test_every_action_and_tier_is_used_and_has_words() -> None:
    rows = catalogue().xids

    assert {row.action for row in rows} | {"unknown"} == set(ACTION_WORDS)
    assert set(Action.__args__) == set(ACTION_WORDS)  # type: ignore[attr-defined]
    assert {row.tier for row in rows} | {Tier.UNKNOWN} == set(Tier) == set(ORDER)


def test_nobody_is_told_to_drain_a_node_for_a_bug_of_the_job() -> None:
    for row in catalogue().xids:
        harmless = row.tier in (Tier.APPLICATION, Tier.INFORMATION)
        assert not (harmless and row.action in ("reset_gpu", "reboot_node")), row
        assert not (row.tier is Tier.FATAL and row.action in ("none", "check_job")), row


def test_names_are_unique_and_meanings_fit_into_a_sentence() -> None:
    rows = catalogue().xids

    assert len({row.name for row in rows}) == len(rows)
    assert not [row for row in rows if row.meaning.endswith(".") or not 8 < len(row.meaning) < 90]
    assert catalogue().version


def test_an_unknown_number_stays_unknown() -> None:
    row = xid_row(4711)

    assert (row.tier, row.action, row.class_, row.xid) == (Tier.UNKNOWN, "unknown", "unknown", 4711)


@pytest.mark.parametrize(
    ("line", "tier"),
    [
        ("NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 00 (0x0)", Tier.FATAL),
        ("NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Nonfatal XC0 i0 Link 00 (0x0)", Tier.WARNING),
        ("NVRM: Xid (PCI:0000:ba:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
         Tier.INFORMATION),
        ("NVRM: Xid (PCI:0000:ba:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
         Tier.FATAL),
        ("NVRM: Xid (PCI:0000:ba:00): 4711, something new", Tier.UNKNOWN),
        ("nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 24007, Fatal, Link 44 sourcetrack timeout error", Tier.FATAL),
        ("nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 28006, Non-fatal, Link 46 MC TS", Tier.INFORMATION),
        ("nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error", Tier.WARNING),
        ("nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 22003, Fatal, Minion Halt", Tier.FATAL),
    ],
)  # fmt: skip
def test_what_the_line_itself_says_counts_more_than_the_catalogue(line: str, tier: Tier) -> None:
    event = parse_line(f"4,1,1,-;{line}")

    assert event is not None
    assert judge(event).tier is tier


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version: 1\nxids: []", "version"),
        ('version: "1"\nxids: [{xid: 1, name: a, class: hardware, tier: fatal, action: none, meaning: b, more: 1}]', "more"),
        ('version: "1"\nxids: [{xid: 1, name: a, class: hardware, tier: bad, action: none, meaning: b}]', "tier"),
        ('version: "1"\nxids: [{xid: "1", name: a, class: hardware, tier: fatal, action: none, meaning: b}]', "xid"),
        ("version: [", "cannot be read"),
        ('version: "1"\nxids: [' + 2 * "{xid: 7, name: a, class: link, tier: fatal, action: none, meaning: b}," + "]", "7 twice"),
    ],
)  # fmt: skip
def test_a_catalogue_that_is_wrong_is_refused(text: str, says: str) -> None:
    with pytest.raises(EvidenceError, match=says):
        parse_catalogue(text)
