"""What pages are built of: runs, ranks, incidents; and that nothing in them becomes markup."""

import re
import time
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from mldebug.alerts.view import EventsView, EventView
from mldebug.core.model import Gap, HookState, Role
from mldebug.core.text import rfc3339
from mldebug.hardware.health.model import ComponentHealth, HealthState, SuggestedAction
from mldebug.hardware.health.sentences import GpuName
from mldebug.incidents.report_entry import ReportEntry
from mldebug.status.snapshot import Snapshot
from mldebug.web import frame
from mldebug.web.incident_list import rows_of
from mldebug.web.page import PageRequest
from mldebug.web.rank_grid import MOST, grid
from shared.web.snapshots import AT, REPORT, moving, stalled
from shared.web.webpages import HOSTILE, hanging, hostile, shown, training

ENTRY = ReportEntry(
    id=REPORT, verdict="rank_waiting", confidence="high", job="pretrain.py", job_id="7f3a", state="open",
    sentence="rank 2 sleeps; 7 wait", time="2026-11-21T05:50:41Z", kind="stall", user="ada", ranks=8,
)  # fmt: skip
VOID = {"meta", "link", "br", "input", "rect"}


class Elements(HTMLParser):
    """Every element, which must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def page(
    name: str, snapshot: Snapshot, id: str = "", *entries: ReportEntry, unread: str = ""
) -> str:
    html = frame.render(name, PageRequest(snapshot=snapshot, id=id, entries=entries, unread=unread))
    assert html is not None
    return html


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_what_happened_on_the_node_long_ago_stands_below_with_its_time() -> None:
    found = ComponentHealth(component="memory", state=HealthState.DEGRADED, reason="the kernel killed a process for memory", action=SuggestedAction.CHECK_JOB, at=AT - 7200)  # fmt: skip
    before = replace(shown(moving("7f3a")), at=AT, health=(found,))
    html = page("runs", before)
    assert "killed a process for memory, 2 h ago → look at the job" in text_of(html)
    assert html.index('id="runs"') < html.index('id="earlier"') < html.index("killed a process")
    now = page("runs", replace(before, health=(replace(found, at=AT - 60),)))
    assert "memory, 1 min ago →" in text_of(now)
    assert now.index("killed a process") < now.index('id="runs"')
    lasting = page("runs", replace(before, health=(replace(found, at=None),)))
    assert lasting.index("killed a process") < lasting.index('id="runs"')


def test_an_alert_of_a_run_that_is_over_is_shown_once() -> None:
    one = EventView(key="a", kind="abnormal_end", severity="critical", state="firing", sentence="Rank 1 was killed", started=AT - 90, report="R1")  # fmt: skip
    before = replace(shown(moving("7f3a")), at=AT, events=EventsView(events=(one,)))
    assert "Rank 1 was killed, 1 min 30 s ago (report R1)" in text_of(page("runs", before))
    over = replace(ENTRY, id="R1", job_id="gone", kind="abnormal_end", sentence="Rank 1 was killed", time=rfc3339(AT - 90))  # fmt: skip
    html = page("runs", before, "", over)
    assert html.count("Rank 1 was killed") == 1
    assert 'href="/report?id=R1"' in html


# --- the frame -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(frame.pages()))
@pytest.mark.parametrize("empty", [True, False])
def test_every_page_is_clean_html_and_loads_only_ours(name: str, empty: bool) -> None:
    runs = () if empty else (training(), hanging(), hostile())
    run = hostile().id if name == "run" and not empty else ""
    html = frame.render(
        name, PageRequest(snapshot=shown(*runs), id=run, entries=() if empty else (ENTRY,))
    )
    if html is None:
        assert name == "run"
        return
    for tag, attributes in Elements(html).found:
        assert "style" not in attributes, tag
        assert not [one for one in attributes if one.startswith("on")], tag
        assert tag not in ("img", "iframe", "style"), tag
        for where in ("href", "src", "action"):
            assert re.match(
                r"/(?!/)|#|data:,|data:image/svg\+xml,|$", attributes.get(where) or ""
            ), attributes


def test_the_menu_has_every_place_with_a_key_of_its_own() -> None:
    keys = [one.key for one in frame.pages().values() if one.key]
    assert len(keys) == len(set(keys))
    assert not set(keys) & {"g", "j", "k", "u"}
    html = page("runs", shown())
    for name, one in frame.pages().items():
        assert (f'href="/{name}" data-key="{one.key}"' in html) == bool(one.key)
    assert 'data-key="r" aria-current="page"' in html


@pytest.mark.parametrize(("name", "id"), [("runs", ""), ("run", "7f3a")])
def test_what_the_ranks_do_is_said_once(name: str, id: str) -> None:
    html = page(name, shown(hanging()), id, ENTRY)
    assert "no step for 75 s (usual gap 0.4 s)" in html
    assert html.count("ranks wait in all_reduce") == 0
    assert html.count("sleeps in slow_data_loader") == 1
    unnamed = page(
        name, shown(replace(hanging(), report="", incident="")), id
    )  # only its state says it
    assert unnamed.count("ranks wait in all_reduce") == 1


def test_a_page_stays_the_same_until_the_agent_looks_again() -> None:
    state = shown(training(), hanging())
    assert page("runs", state) == page("runs", state)


def test_others_runs_and_a_replay_are_told() -> None:
    state = shown(hidden_runs=3, replay="bundle <b>")
    assert "It hides 3 runs of other users" in page("runs", state)
    assert "A replay of bundle &lt;b&gt;" in page("runs", state)


# --- runs ----------------------------------------------------------------------------------------


def test_the_run_with_an_incident_comes_first_and_says_what_status_says() -> None:
    text = text_of(page("runs", shown(training(), hanging()), "", ENTRY))
    assert text.index("pretrain.py") < text.index("llama-7b")
    assert "1 incident open" in text
    assert "stalled: no step for 75 s (usual gap 0.4 s)" in text
    assert "watching: last step 1.2 s ago (usual gap 0.4 s); a stall after 30 s (5 times" in text
    assert "0.4 s per step" in text


def test_what_is_said_of_the_node_stands_below_an_open_incident_and_else_above() -> None:
    with_incident = text_of(page("runs", shown(hanging(), cluster="2 of 3 answer")))
    assert with_incident.index("pretrain.py") < with_incident.index("other nodes: 2 of 3 answer")
    without = text_of(page("runs", shown(training(), cluster="2 of 3 answer")))
    assert without.index("other nodes: 2 of 3 answer") < without.index("llama-7b")


def test_the_sentence_is_said_once_on_the_page_of_a_run() -> None:
    sentence = "Rank 3 sleeps in load (train.py:7)"
    older = replace(ENTRY, id="20261122T000000Z-7f3a", sentence="An older sentence")
    html = page(
        "run",
        shown(replace(hanging(), report=sentence)),
        "7f3a",
        replace(ENTRY, sentence=sentence),
        older,
    )
    assert html.count(sentence) == 1
    assert "An older sentence" in html


def test_a_report_is_linked_only_once_it_is_there() -> None:
    state = shown(hanging())
    link = f'href="/report?id={REPORT}"'
    for name, id in (("runs", ""), ("run", "7f3a")):
        assert link not in page(name, state, id)
        assert link in page(name, state, id, replace(ENTRY, id="20261122T0"), ENTRY)


def test_an_incident_before_is_told_with_a_run_that_goes_on() -> None:
    html = page("runs", shown(moving("7f3a")), "", replace(ENTRY, state="recovered"))
    assert "before: Rank stuck , recovered, 2026-11-21 05:50:41 UTC" in text_of(html)


def test_no_job_at_all_is_said_in_a_sentence() -> None:
    assert "No training job runs here" in page("runs", shown())


def test_whoever_was_woken_by_a_run_that_is_gone_finds_it_beside_the_quiet_node() -> None:
    yesterday = replace(ENTRY, id="20261119T0-x", time="2026-11-19T05:50:41Z")
    asked_for = replace(ENTRY, id="20261121T0-manual", kind="manual")
    crash = replace(ENTRY, kind="abnormal_end", state="ended", sentence="rank 1 was killed")
    html = page("runs", shown(), "", crash, asked_for, yesterday)
    assert "No training job runs here" in html
    assert "rank 1 was killed" in html
    assert html.count('href="/report?id=') == 1
    assert "are over" not in page("runs", shown(hanging()), "", crash)
    assert page("runs", shown(), "", *(9 * [crash])).count('href="/report?id=') == 5


def test_what_the_agent_cannot_do_stands_above() -> None:
    broken = shown(reports_lost=2, sources=())
    assert "2 reports or states could not be stored" in page("runs", broken)


# --- one run -------------------------------------------------------------------------------------


def test_a_run_that_is_over_or_somebody_elses_is_no_page() -> None:
    assert frame.render("run", PageRequest(snapshot=shown(training()), id="other")) is None
    assert frame.render("run", PageRequest(snapshot=shown(training()))) is None


def test_the_culprit_is_marked_in_the_grid_and_leads_the_table() -> None:
    found = grid(hanging())
    assert [one.rank for one in found.cells] == list(range(8))
    assert [one.rank for one in found.cells if one.culprit] == [2]
    assert found.rows[0].rank == 2
    assert (found.rows[0].letter, found.rows[0].doing) == ("I", "slow_data_loader at data.py:41")
    assert [(kind.name, kind.count, kind.ranks) for kind in found.legend] == [
        ("sleep", 1, "2"),
        ("collective", 7, "0-1,3-7"),
    ]
    html = page("run", shown(hanging()), "7f3a")
    assert html.count('class="cell r-inert culprit"') == 1
    assert html.count('<tr id="rank-2" data-row tabindex="-1" class="culprit">') == 1


def test_what_a_job_calls_itself_never_becomes_a_command() -> None:
    run = replace(moving(), id="x; touch /tmp/owned; `id` $(id)")
    html = page("run", shown(run), run.id)
    assert "mldebug dump --job &#39;x; touch /tmp/owned; `id` $(id)&#39;" in html


def test_ranks_tell_their_steps_phases_and_who_is_behind() -> None:
    facts = {
        0: HookState(step=43, step_age=0.1),
        1: HookState(step=40, phase="data_wait", phase_age=9.0),
    }
    run = replace(moving(ranks=3), hooks=facts, lost=(3,), exits={3: "killed by SIGKILL (9)"})
    lost, first, second, silent = grid(run).rows
    assert (lost.rank, lost.kind, lost.doing, lost.pid) == (3, "exited", "killed by SIGKILL (9)", None)  # fmt: skip
    assert (first.step, first.kind) == ("43", "stepping")
    assert (second.step, second.kind, second.doing) == ("40, 3 behind", "data_wait", "in data_wait for 9.0 s")  # fmt: skip
    assert (silent.step, silent.kind) == ("", "runs")


def test_a_rank_that_nobody_looked_at_is_not_called_well_while_its_run_is_quiet() -> None:
    run = replace(stalled(), classes={}, hooks={1: HookState(step=9, step_age=75.0)})
    roles = {one.rank: (one.role, one.kind) for one in grid(run).cells}
    assert roles[0] == ("unseen", "not looked at yet")
    assert roles[1] == ("unseen", "between steps")
    assert "moving" not in {role for role, _ in roles.values()}


def test_a_gpu_is_called_by_its_number_where_it_is_known() -> None:
    run = replace(training(2), gpus_guessed=(1,))
    names = {run.gpus[1]: GpuName(5, "0000:41:00")}
    assert [one.gpu for one in grid(run, names).cells] == ["GPU-0000000…", "GPU 5, perhaps"]


def test_a_class_of_unknown_role_is_unclear_and_never_blamed() -> None:
    run = replace(moving(ranks=2), classes={0: "novel"})
    assert [one.role for one in grid(run).cells] == [Role.UNCLEAR, "moving"]


def test_a_rank_that_ended_while_it_was_watched_is_shown_once() -> None:
    run = replace(moving(ranks=2), lost=(5,), exits={5: "exit code 1", 1: "exit code 1"})
    assert [one.rank for one in grid(run).cells] == [0, 1, 5]


def test_gaps_of_its_own_processes_stand_on_its_page_once() -> None:
    gaps = tuple(Gap(what="environ", reason="denied", pid=pid) for pid in (100, 101, 999))
    html = page("run", shown(moving(), gaps=gaps), "5c01")
    assert html.count("<b>environ</b>") == 1


def test_how_quiet_it_is_is_drawn_against_its_limit() -> None:
    html = page("run", shown(replace(moving(), quiet_seconds=21.0)), "5c01")
    assert 'class="bar quiet"' in html
    assert '<rect width="70.0"' in html
    assert 'class="bar' not in page("run", shown(stalled()), "7f3a")


def test_a_huge_run_is_cut_and_says_so() -> None:
    run = moving(ranks=MOST + 5)
    assert len(grid(run).cells) == MOST
    assert "… and 5 more ranks" in page("run", shown(run), "5c01")


@pytest.mark.parametrize("name", ["run", "runs"])
def test_1024_ranks_are_rendered_in_50_ms(name: str) -> None:
    state = shown(*(replace(hanging(1024, 700), id=f"r{one}") for one in range(4)))
    page(name, state, "r1", ENTRY)  # the templates are compiled once
    times = []
    for _ in range(5):
        began = time.process_time()
        page(name, state, "r1", ENTRY)
        times.append(time.process_time() - began)
    assert min(times) < 0.05


# --- incidents -----------------------------------------------------------------------------------


def test_an_incident_says_verdict_state_when_and_whose() -> None:
    text = text_of(page("incidents", shown(), "", replace(ENTRY, state="ended")))
    for word in ("Rank stuck", "high", "job ended", "2026-11-21 05:50:41 UTC", "pretrain.py , 8 ranks, ada"):  # fmt: skip
        assert word in text
    assert "No incident open" in text


def test_only_an_incident_of_a_run_that_lives_is_open() -> None:
    (alive,), (left,) = rows_of([ENTRY], shown(hanging())), rows_of([ENTRY], shown())
    assert (alive.state, alive.open) == ("open", True)
    assert (left.state, left.open) == ("never closed", False)


def test_an_incident_without_a_report_yet_leads_to_its_run() -> None:
    html = page("incidents", shown(hanging()))
    assert 'href="/run?id=7f3a" data-go>Looked into now</a>' in html


def test_what_cannot_be_read_is_listed_with_the_reason() -> None:
    html = page("incidents", shown(), "", ReportEntry(id="x", broken="it is <cut> off"))
    assert "it is &lt;cut&gt; off" in html
    assert "Reports cannot be listed: closed." in page("incidents", shown(), unread="closed")


def test_a_verdict_that_nobody_knows_is_shown_as_it_is() -> None:
    (row,) = rows_of([replace(ENTRY, verdict=HOSTILE)], shown())
    assert row.verdict.startswith("<img")
    assert "<img" not in page("incidents", shown(), "", replace(ENTRY, verdict=HOSTILE, job=HOSTILE))  # fmt: skip


def test_the_tab_shows_an_open_incident_and_what_has_it() -> None:
    """In its title, in its icon, and in the attribute by which the script decides whether to notify."""
    calm, alarmed = frame.render("runs", PageRequest(snapshot=shown(training()))), frame.render("runs", PageRequest(snapshot=shown(training(), hanging())))  # fmt: skip
    assert calm is not None
    assert alarmed is not None
    assert "<title>Runs · " in calm
    assert 'id="icon" href="data:,"' in calm
    assert 'data-open=""' in calm
    assert "<title>(1) stalled: pretrain.py · Runs · " in alarmed
    assert 'id="icon" href="data:image/svg+xml,' in alarmed
    assert 'data-open="stalled: pretrain.py"' in alarmed


@pytest.mark.parametrize(("kind", "words"), [("stall", "stalled"), ("slowdown", "slow"), ("abnormal_end", "failed"), ("", "stalled")])  # fmt: skip
def test_the_tab_calls_stalled_only_what_has_stalled(kind: str, words: str) -> None:
    html = page("runs", shown(replace(hanging(), incident_kind=kind)))
    assert f'data-open="{words}: pretrain.py"' in html


def test_an_empty_node_offers_the_demo() -> None:
    html = frame.render("runs", PageRequest(snapshot=shown()))
    assert html is not None
    assert "<code>mldebug demo</code>" in html
