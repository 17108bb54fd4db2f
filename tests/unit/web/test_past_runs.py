"""The page of a run outlives the run: what it shows of one that is over, from whatever is kept of it, and who may see that."""

from msgspec.structs import replace

from mldebug.goodput.account.job_goodput import AttemptGoodput, JobGoodput
from mldebug.goodput.scalars.history import HistoryTable, RunHistory
from mldebug.incidents.report_entry import ReportEntry
from mldebug.jobs.run_records.model import RunRecord, StoredRecord
from mldebug.status.snapshot import Snapshot
from mldebug.web import frame
from mldebug.web.page import PageRequest
from mldebug.web.past_runs import past_page, past_rows
from mldebug_agents.web.peer_credentials import PeerCredentials, view
from shared.goodput.histories import history, made
from shared.web.snapshots import AT, moving, snapshot
from shared.web.webtext import HOSTILE, text_of

RECORD = RunRecord(
    run="5c01", name="train.py", user="ada", uid=1000, script="train.py", world_size=4, started_at=AT - 5400, last_at=AT - 3600,
    is_over=True, outcome="killed by SIGKILL (9) (1 of 4 ranks)",
)  # fmt: skip
ATTEMPT = AttemptGoodput(run="5c01", began=AT - 5400, ended=AT - 3600, sentence="71 % productive; 9 % stalls", outcome="failed", gpu_seconds={"productive": 5112.0, "stall": 648.0})  # fmt: skip
JOB = JobGoodput(name="train.py", user="ada", uid=1000, began=AT - 5400, at=AT - 3600, attempts=1, newest=(ATTEMPT,))  # fmt: skip
REPORT = ReportEntry(id="20261121T055041Z-1a2b3c", verdict="out_of_memory", confidence="high", job="train.py", job_id="5c01", state="ended", sentence="rank 2 was killed for memory", time="2026-11-21T05:50:41Z", kind="abnormal_end", user="ada", ranks=4)  # fmt: skip


def observed_history() -> RunHistory:
    """A history with what the agent saw of the run beside its figures."""
    table = HistoryTable()
    for n in range(60):
        table.add(AT - 5400 + 30 * n, n, {"silence_seconds": 0.4 if n < 50 else 30.0 * (n - 49), "gpu_busy_percent": 96.0 if n < 50 else 0.0, "waiting_percent": 0.0 if n < 50 else 75.0})  # fmt: skip
    columns = {name: tuple(column) for name, column in table.columns.items()}
    return replace(history(uid=1000), activity_times=tuple(table.times), activity=columns)


def kept(**changes: object) -> Snapshot:
    whole = replace(snapshot(moving("7f3a")), histories=(observed_history(),), run_records=(StoredRecord.of(RECORD),), goodput=(JOB,))  # fmt: skip
    return replace(whole, at=AT, **changes)


def page(found: Snapshot, id: str = "5c01", *entries: ReportEntry) -> str:
    return frame.render("run", PageRequest(snapshot=found, id=id, entries=entries)) or ""


def test_a_run_that_is_over_shows_its_charts_goodput_end_and_reports() -> None:
    html = page(kept(), "5c01", REPORT)
    text = text_of(html)
    for wanted in ("loss", "seconds per step", "seconds without progress", "GPUs busy, %", "ranks that wait, %"):  # fmt: skip
        assert f"<b>{wanted}</b>" in html
    assert "This run is over: it ended at" in text
    assert ", 1 h ago. It failed: killed by SIGKILL (9) (1 of 4 ranks)." in text
    assert "failed after 30 min: 71 % productive; 9 % stalls" in text
    assert "Ran for 30 min" in text
    assert "/report?id=20261121T055041Z-1a2b3c" in html
    assert 'class="cell' not in html


def test_each_thing_that_is_kept_is_shown_without_the_others() -> None:
    alone = {
        "histories": (observed_history(),),
        "run_records": (StoredRecord.of(RECORD),),
        "goodput": (JOB,),
    }
    for name, value in alone.items():
        found = kept(**(dict.fromkeys(alone, ()) | {name: value}))
        text = text_of(page(found))
        assert "This run is over" in text, name
        assert ("No figures of it are kept." in text) == (name != "histories"), name
    nothing = kept(**dict.fromkeys(alone, ()))
    assert page(nothing) == ""
    assert "This run is over" in text_of(page(nothing, "5c01", REPORT))
    assert page(nothing, "", REPORT) == ""


def test_a_run_of_seconds_says_that_it_was_too_short_for_charts() -> None:
    table = HistoryTable()
    table.add(AT - 3600, 5, {"loss": 2.0})
    text = text_of(page(kept(histories=(made("5c01", table),))))
    assert "It was too short for charts." in text
    assert "No figures of it are kept." not in text


def test_a_run_that_lives_has_its_own_page() -> None:
    found = kept()
    assert past_page(PageRequest(snapshot=found, id="7f3a")) is None
    assert 'class="cell' in page(found, "7f3a")


def test_the_page_runs_lists_past_runs_the_newest_first_and_not_without_end() -> None:
    tables = HistoryTable(times=[AT - 100.0, AT - 50.0], steps=[1, 2], columns={"loss": [2.0, 1.0]})
    many = tuple(made(f"run{n}", replace(tables, times=[AT - 100.0 - n, AT - 50.0 - n])) for n in range(40))  # fmt: skip
    found = kept(histories=many, run_records=(), goodput=())
    rows = past_rows(found, 20)
    assert [one.id for one in rows] == [f"run{n}" for n in range(20)]
    html = frame.render("runs", PageRequest(snapshot=found)) or ""
    assert html.count('href="/run?id=run') == 20
    assert html.index('id="runs"') < html.index('id="past"')
    assert 'id="past"' not in (frame.render("runs", PageRequest(snapshot=snapshot(moving()))) or "")


def test_other_users_do_not_see_it() -> None:
    for uid, shown in ((1000, True), (1001, False)):
        found = view(kept(), PeerCredentials(pid=1, uid=uid), None)
        assert bool(page(found)) == shown
        assert bool(past_rows(found, 20)) == shown


def test_nothing_of_a_job_becomes_markup() -> None:
    record = replace(RECORD, name=HOSTILE, user=HOSTILE, script=HOSTILE, outcome=HOSTILE)
    found = kept(run_records=(StoredRecord.of(record),), goodput=())
    for html in (page(found), frame.render("runs", PageRequest(snapshot=found)) or ""):
        assert "<script>alert" not in html
        assert "<img" not in html
