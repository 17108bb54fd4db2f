"""The page about storage: the words of `status --storage`, what hangs first, and why something is missing."""

import time

import pytest
from msgspec.structs import replace

from mldebug.core.model import Gap
from mldebug.hardware.host_memory.state import NodeMemory
from mldebug.status.snapshot import Snapshot, SourceState
from mldebug.status.storage_lines import NOTHING, checkpoints_part, storage_lines
from mldebug.storage.filesystems.state import StorageState
from mldebug.web import frame
from mldebug.web.page import PageRequest
from mldebug.web.pages.storage import MOST, NOT_YET, StoragePage, StoragePageData
from mldebug_agents.web.peer_credentials import PeerCredentials, view
from shared.web.pagedata import (
    filesystems,
    hanging_mount,
    memory,
    mounted,
    part,
    quiet,
    saved,
    storage,
)
from shared.web.snapshots import stalled
from shared.web.webtext import HOSTILE, text_of

STRANGER = PeerCredentials(pid=1, uid=54321)


def built(snapshot: Snapshot) -> StoragePageData:
    return StoragePage().build(PageRequest(snapshot=snapshot))


def page(snapshot: Snapshot) -> str:
    html = frame.render("storage", PageRequest(snapshot=snapshot))
    assert html is not None
    return html


def test_every_word_of_the_terminal_stands_in_the_page() -> None:
    result = storage()
    assert result.storage is not None
    state = StorageState(parts=(*result.storage.parts, checkpoints_part(result)))
    text = text_of(page(result)).replace(" ", "")
    for item in storage_lines(state):
        line = item.text.removeprefix("! ").strip()
        for words in line.replace("; ", ": ").replace("  ", ": ").split(": "):
            assert words.replace(" ", "").removesuffix(":") in text, line


def test_what_hangs_is_the_first_alarm_and_the_first_row_and_red() -> None:
    shown = built(storage())
    assert shown.alarms[0] == "/data (nfs01:/data) has not answered for 3 min: 8 ranks use it"
    (group,) = (one for one in shown.groups if one.name == "filesystems")
    assert [one.css_class for one in group.items] == ["bad", "bad", "good", "good"]
    assert group.items[0].title == "/data (nfs01:/data)"
    assert group.items[0].ratio is None
    assert group.items[1].ahead == "412 GiB every 28 min: full in 3 saves, 1 h 24 min"
    assert page(storage()).index("nfs01:/data") < page(storage()).index("nvme0n1p2")


def test_the_row_of_a_tree_that_hangs_is_red_and_that_of_a_mount_of_its_name_is_not() -> None:
    tree = part("trees", {"path": "/data (nfs01:/data)", "line": "x"})
    shown = built(quiet(storage=StorageState(parts=(filesystems(hanging_mount("/data", "nfs01:/data", 9.0)), tree))))  # fmt: skip
    assert [one.items[0].css_class for one in shown.groups] == ["bad", "good"]


def test_an_open_incident_about_storage_is_linked() -> None:
    run = replace(stalled(), verdict="storage_fault", report="rank 2 is blocked on /data")
    state = quiet(run, replace(run, id="other", verdict="rank_busy", incident="other"))
    assert [one.sentence for one in built(state).blocked] == ["rank 2 is blocked on /data"]
    assert f'href="/report?id={run.incident}"' in page(state)
    assert built(quiet(replace(run, report=""))).blocked[0].sentence == "its report is being written"  # fmt: skip


def test_whoever_would_lose_most_comes_first_and_before_him_whom_nobody_knows() -> None:
    lost = [("a", 5.0), ("b", 900.0), ("c", None)]
    states = tuple(saved(series=name, lost_seconds=seconds) for name, seconds in lost)
    found = built(quiet(checkpoint_series=states)).checkpoint_series
    assert [one.place[-1] for one in found] == ["c", "b", "a"]
    again = built(quiet(checkpoint_series=states[::-1])).checkpoint_series
    assert {one.place: one.id for one in again} == {one.place: one.id for one in found}
    assert len({one.id for one in found}) == 3
    assert [one.lost for one in found] == ["", "15 min of work and 104 steps", "5 s of work and 104 steps"]  # fmt: skip


def test_memory_that_is_nearly_used_up_is_an_alarm_with_the_rank_that_grows() -> None:
    shown = built(quiet(memory=memory()))
    assert [one.css_class for one in shown.levels] == ["good", "bad"]
    assert "out of memory in 8 min 40 s; rank 3 grows most" in shown.alarms[0]
    assert shown.ranks[0].own == "64 GiB"  # who holds most


# --- what is missing -----------------------------------------------------------------------------


def test_nothing_known_says_so_and_is_no_all_clear() -> None:
    shown = built(quiet())
    assert (shown.lead, shown.notes) == ("Storage is not known yet", (NOT_YET,))


def test_no_filesystem_to_look_at_says_why() -> None:
    shown = built(quiet(storage=StorageState(parts=(filesystems(),))))
    assert NOTHING in shown.notes
    assert shown.lead == "No storage alarm"


def test_parts_that_are_stuck_or_fail_are_told_and_others_are_not() -> None:
    sources = (
        SourceState(name="storage-trees", stuck=True),
        SourceState(name="checkpoints", success=False, error="OSError: gone"),
        SourceState(name="gpus", stuck=True),
    )
    notes = built(replace(quiet(memory=NodeMemory()), sources=sources)).notes
    assert notes[:2] == ("its storage-trees is stuck", "its checkpoints fails: OSError: gone")
    assert len(notes) == 3


def test_gaps_stand_there_once() -> None:
    gap = Gap(what="memory of /x", reason="permission denied", way_out="run as root")
    state = quiet(memory=NodeMemory(gaps=(gap, gap)), checkpoint_series=(saved(gaps=(gap,)),))
    assert built(state).gaps == (gap,)
    assert "permission denied" in page(state)


# --- who sees what, and bad input ----------------------------------------------------------------


def test_a_stranger_sees_nothing_of_the_jobs_of_others() -> None:
    text = text_of(page(view(storage(), STRANGER, None)))
    for secret in ("llama-7b", "/scratch/ada/ckpt/step", "step_1200"):
        assert secret not in text, secret
    assert "/data (nfs01:/data)" in text  # everyone's


def test_hostile_names_are_text() -> None:
    result = mounted(f"/{HOSTILE}", HOSTILE, HOSTILE, 0.99, 1 << 40)
    rows = ({"quota": HOSTILE, "line": HOSTILE * 9, "used_ratio": 2.5}, {"path": None, "line": None}, {})  # fmt: skip
    state = quiet(
        storage=StorageState(parts=(filesystems(result), part(HOSTILE, *rows), part("quotas", *rows))),
        checkpoint_series=(saved(run=HOSTILE, folder=HOSTILE, series=HOSTILE, sentence=HOSTILE, gaps=(Gap(what=HOSTILE, reason=HOSTILE),)),),
        memory=memory(run=HOSTILE),
    )  # fmt: skip
    html = page(state)
    assert "<img" not in html
    assert "\u202e" not in html
    assert "</script>&" not in html


@pytest.mark.parametrize("ratio", [float("nan"), float("inf"), 1e308, -1.0, True, "x"])
def test_a_ratio_that_cannot_be_breaks_nothing(ratio: float) -> None:
    parts = (part("quotas", {"quota": "w", "used_ratio": ratio, "line": "w: ?"}),)
    assert "w" in text_of(page(quiet(storage=StorageState(parts=parts))))


def test_a_thousand_rows_are_fast_and_more_are_counted() -> None:
    result = storage(ranks=1500, writers=1500)
    page(result)
    began = time.process_time()
    html = page(result)
    assert time.process_time() - began < 1.0  # measured 0.06 s; a busy machine is no defect
    assert html.count("<tr data-row") == MOST
    assert "476 more ranks" in html
    assert "476 more rows" in html
