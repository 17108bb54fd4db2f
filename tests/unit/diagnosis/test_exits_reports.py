"""What people read of an abnormal end: the timeline of exits, text, HTML, and the same verdict again from evidence.

The folders in tests/fixtures/exits/reports were written by an agent beside real torchrun jobs.
"""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len

from mldebug.cli import main as cli
from mldebug.cli.commands.diagnose import judge, read_evidence
from mldebug.core.errors import EvidenceError
from mldebug.core.model import Job, RankIdentity
from mldebug.core.report_model import Report
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import (
    AttemptExit,
    LauncherFailure,
    LauncherWords,
    RankError,
    RankExit,
)
from mldebug.diagnosis.exits.timeline import MAX_SINGLE, UNKNOWN, exit_events
from mldebug.incidents.incident import Incident, add_exit, add_timeline, close_incident
from mldebug.incidents.judge import judge as judge_incident
from mldebug.incidents.report.build import write_report
from mldebug.incidents.report.exit_story import last_words, story
from mldebug.incidents.report.html import render_html
from mldebug.incidents.report.sanitize import tidy
from mldebug.incidents.report.text import report_lines
from shared.system.patience import PATIENCE

RECORDED = Path(__file__).parents[2] / "fixtures" / "exits" / "reports"
NAMES = sorted(folder.name for folder in RECORDED.iterdir())
ONE, TERM, KILL = 1 << 8, 15, 9
NOON = 1_795_262_400.0  # 2026-11-21T12:00:00Z
OWN = RankError(error="ValueError: bad shard 7", lines=("ValueError: bad shard 7",), source="its own output")  # fmt: skip


def stored(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RECORDED / name / "report.json").read_text())
    return document


def rejudged(name: str) -> Report:
    return judge(read_evidence(RECORDED / name)).report


def exits_of(*exits: RankExit, size: int = 0, **more: object) -> AttemptExit:
    size = size or len(exits)
    known = tuple(
        RankIdentity(rank=rank, world_size=size, pid=100 + rank, node="n1") for rank in range(size)
    )
    job = Job(id="1a2b3c", name="train.py", launcher="torchrun", world_size=size, nodes=("n1",))
    return msgspec.structs.replace(AttemptExit(job=job, identities=known, exits=exits), **more)


def gone(rank: int, status: int | None, after: float = 0.0, **more: object) -> RankExit:
    one = RankExit(
        rank=rank, pid=100 + rank, at=NOON + after, moment=int(after * 1000), status=status,
        source="exit status of the process",
    )  # fmt: skip
    return msgspec.structs.replace(one, **more)


def report_of(ending: AttemptExit) -> Report:
    """The report as the agent writes it."""
    at = NOON + 5
    new = Incident(id="x", key="x", job_id="x", detected_at=at, kind="abnormal_end")
    incident = close_incident(
        add_exit(new, ending, at, judge_exit(ending).sentence), "ended", at, "over"
    )
    return write_report(incident, judge_incident(incident), at)


# --- judged again ---------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "evidence"])
@pytest.mark.parametrize("name", NAMES)
def test_stored_evidence_gives_the_same_verdict_again(name: str, place: str) -> None:
    again = judge(read_evidence(RECORDED / name / place))
    document = json.loads(msgspec.json.encode(again.report))
    assert document["kind"] == "abnormal_end"
    assert document["diagnosis"] == stored(name)["diagnosis"] | {"works": False}
    assert document["groups"] == stored(name)["groups"]
    for row, known in zip(document["ranks"], stored(name)["ranks"], strict=True):
        assert {key: row[key] for key in known} == known  # later versions tell more
    assert again.found


@pytest.mark.parametrize("name", NAMES)
def test_diagnose_says_by_its_exit_code_that_something_was_found(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["diagnose", str(RECORDED / name), "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["diagnosis"]["culprits"][0]["rank"] == 1


def test_an_end_from_outside_is_no_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ending = exits_of(gone(0, TERM), gone(1, TERM))
    (tmp_path / "ending-n1.json").write_bytes(msgspec.json.encode(ending))
    assert cli.main(["diagnose", str(tmp_path)]) == 0
    assert "ended by a signal from outside" in capsys.readouterr().out.lower()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "malformed"),
        (b"{}", "malformed"),
        (b"\x00\xff\xfe garbage", "malformed"),
        (b"[" * 100_000, "malformed"),
        (exits_of(gone(0, ONE), gone(9, ONE)), "says 2 ranks and shows rank 9"),
        (exits_of(gone(0, -5)), "the exit status word -5"),
        (exits_of(gone(0, ONE, at=1e300)), "which is no time"),
        (exits_of(size=3), "tells of no exit"),
    ],
)
def test_evidence_that_cannot_be_is_a_sentence(
    tmp_path: Path, content: bytes | AttemptExit, text: str
) -> None:
    data = content if isinstance(content, bytes) else msgspec.json.encode(content)
    (tmp_path / "ending-n1.json").write_bytes(data)
    with pytest.raises(EvidenceError) as caught:
        read_evidence(tmp_path)
    assert "ending-n1.json" in caught.value.message
    assert text in caught.value.message
    assert caught.value.way_out


def test_evidence_of_neither_kind_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing of ours")
    with pytest.raises(EvidenceError) as caught:
        read_evidence(tmp_path)
    assert "holds nothing to judge: no capture-*.json, ending-*.json, or stacks" in str(
        caught.value
    )
    assert "mldebug reports list" in caught.value.way_out


def test_ends_of_several_nodes_are_not_thrown_together(tmp_path: Path) -> None:
    for node in ("n1", "n2"):
        ending = msgspec.json.encode(exits_of(gone(0, ONE)))
        (tmp_path / f"ending-{node}.json").write_bytes(ending)
    with pytest.raises(EvidenceError, match="on 2 nodes"):
        read_evidence(tmp_path)


# --- the timeline ---------------------------------------------------------------------------------


def test_every_exit_is_told_in_order_with_status_and_source() -> None:
    words = LauncherWords(failures=(LauncherFailure(pid=101, local_rank=1, status=ONE),))
    events = list(
        exit_events(
            exits_of(
                gone(1, None, 0.5), gone(0, TERM, 0.75), gone(2, TERM, 0.75), gone(3, None, at=0.0, moment=None),
                words=words,
            ),
            {1},
            NOON + 9,
        )
    )  # fmt: skip
    assert [(one.at[11:23], one.what, one.source) for one in events] == [
        ("12:00:00.500", "rank 1 (pid 101): exit status 1", "the launcher's log"),
        ("12:00:00.750", "rank 0 (pid 100): killed by SIGTERM (15)", "the kernel"),
        ("12:00:00.750", "rank 2 (pid 102): killed by SIGTERM (15), at the same moment", "the kernel"),
        ("12:00:00.750", "rank 3 (pid 103): exit unknown, noticed afterwards", UNKNOWN),
    ]  # fmt: skip


def test_an_order_that_is_known_is_not_turned_round_by_a_clock() -> None:
    ending = exits_of(gone(1, ONE, 3.0, moment=1), gone(0, TERM, 1.0, moment=2))
    events = list(exit_events(ending, (), NOON))
    assert [one.what[:6] for one in events] == ["rank 1", "rank 0"]
    assert events[0].at == events[1].at


def test_exits_without_any_time_stand_where_they_were_noticed() -> None:
    (event,) = exit_events(exits_of(gone(0, ONE, at=0.0, moment=None)), (), NOON)
    assert event.at == "2026-11-21T12:00:00.000Z"


def test_what_was_noted_of_an_exit_while_the_incident_was_open_is_told_once() -> None:
    at = NOON + 5
    new = Incident(id="x", key="x", job_id="x", detected_at=at, kind="abnormal_end")
    one = add_timeline(new, NOON - 60, "rank 0 ended: exit status 1")  # of an earlier attempt
    one = add_timeline(one, NOON + 7, "rank 0 ended: killed by SIGTERM")
    one = add_exit(one, exits_of(gone(1, ONE), gone(0, TERM, 7.0), errors={1: OWN}), at, "x")
    report = write_report(one, judge_incident(one), at)
    assert [event.what for event in report.timeline] == [
        "rank 0 ended: exit status 1",
        "rank 1 (pid 101): exit status 1",
        "x",
        "rank 0 (pid 100): killed by SIGTERM (15)",
    ]


def many(size: int = 8192) -> AttemptExit:
    """All but rank 4711 lose their peer, each with a port of its own in its words."""
    first = gone(4711, ONE, 0.0)
    others = [
        gone(rank, ONE if rank % 2 else TERM, 1 + rank / 1000)
        for rank in range(size)
        if rank != 4711
    ]
    errors = {
        one.rank: RankError(error=f"RuntimeError: Connection closed by peer [10.0.0.1]:{one.rank}", source="its own output", blames_peer=True)
        for one in others
        if one.status == ONE
    }  # fmt: skip
    return exits_of(first, *others, size=size, errors=errors | {4711: OWN})


def test_eight_thousand_exits_are_folded() -> None:
    ending = many()
    started = time.process_time()
    report = report_of(ending)
    html = render_html(report)
    spent = time.process_time() - started
    lines = list(report_lines(report))

    assert report.timeline[0].what == "rank 4711 (pid 4811): exit status 1"
    assert len(report.timeline) <= MAX_SINGLE + 6
    folded = [event.what for event in report.timeline if event.what.startswith("ranks ")]
    assert [re.findall(r"\(([\d,]+) ranks\)", what) for what in folded] == [["4,080"], ["4,080"]]
    assert [group.count for group in report.groups] == [1, 4095, 4096]
    assert len(report.diagnosis.evidence) < 16
    assert len(report.diagnosis.summary) < 300
    assert len(html.encode()) < 3_000_000
    assert len(lines) < 60
    assert spent < 4.0 * PATIENCE


def test_the_exit_of_the_culprit_is_listed_however_late_it_came() -> None:
    exits = [gone(rank, TERM, rank / 10) for rank in range(200)]
    events = list(exit_events(exits_of(*exits), {150}, NOON))
    assert "rank 150 (pid 250): killed by SIGTERM (15)" in [event.what for event in events]


# --- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_text_is_as_recorded(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"ending-{name}.txt", "".join(f"{line}\n" for line in report_lines(rejudged(name))))


@pytest.mark.parametrize("width", [40, 61, 80, 200])
@pytest.mark.parametrize("name", NAMES)
def test_no_line_but_a_command_is_wider_than_asked(name: str, width: int) -> None:
    report = rejudged(name)
    steps = {f"  {tidy(step)}" for step in report.diagnosis.next_steps}
    lines = [line for line in report_lines(report, width) if line not in steps]
    assert max(cell_len(line) for line in lines) <= width
    assert len(lines) < len(list(report_lines(report, width)))


def test_first_comes_who_failed_first_then_why_then_the_rest() -> None:
    text = "\n".join(report_lines(rejudged("lost-peers")))
    places = [
        text.index(part)
        for part in (
            "First to fail\n> rank 1",
            "Last lines of rank 1, from its own output\n",
            "  | ValueError: bad shard 7",
            "rank 1 (pid",
            "The others, as a consequence\n",
            "Next\n",
        )
    ]
    assert places == sorted(places)


def test_lines_that_bear_no_rank_are_not_called_the_ranks_own() -> None:
    text = "\n".join(report_lines(rejudged("traceback")))
    assert "Last lines of the job's log (they bear no rank's mark)" in text
    assert "Last lines of rank" not in text


def test_where_nobody_is_named_nobody_is_marked() -> None:
    report = report_of(exits_of(gone(0, ONE), gone(1, ONE, moment=0)))
    text = "\n".join(report_lines(report))
    assert report.diagnosis.culprits == ()
    assert "nobody is named" in text
    assert "How the ranks ended" in text
    assert last_words(report) is None
    assert not any(event.culprit for event in story(report).first)


def test_what_to_type_next_can_be_typed() -> None:
    for report in (
        report_of(exits_of(gone(0, ONE), gone(1, ONE, moment=0))),
        report_of(many(5000)),
    ):
        assert not any("LOG" in step for step in report.diagnosis.next_steps)


# --- HTML -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_sections_without_content_are_not_there(name: str) -> None:
    html = render_html(rejudged(name))
    for empty in ("No stack could be taken", "no stack<", "No gap:", "<h3>Captures</h3><ol class=\"timeline\"></ol>"):  # fmt: skip
        assert empty not in html
    assert ('id="stacks"' in html) == (name == "others-live-on")
    targets = set(re.findall(r'<a href="#([a-z]+)"', html))
    assert targets <= set(re.findall(r'id="([^"]+)"', html))
    assert "story" in targets


def test_the_last_lines_are_in_the_first_screen() -> None:
    html = render_html(rejudged("lost-peers"))
    head = html[html.index("<main") : html.index('id="story"')]
    assert "First to fail" in head
    assert "Last lines of rank 1, from its own output" in head
    assert "ValueError: bad shard 7\n</pre>" in head


def test_the_exit_of_the_first_rank_is_marked_and_many_are_folded() -> None:
    html = render_html(report_of(many(5000)))
    marked = re.findall(r'<li class="first"><time>([^<]+)</time><span>([^<]+) <', html)
    assert marked == [("12:00:00.000", "rank 4711 (pid 4811): exit status 1")]
    assert "more events</summary>" in html


def test_what_a_rank_printed_is_never_markup() -> None:
    evil = "<script>alert(1)</script>\x1b[2J"
    error = RankError(error=f"ValueError: {evil}", lines=(evil,), source=evil)
    report = report_of(exits_of(gone(1, ONE, source=evil), gone(0, TERM, 1.0), errors={1: error}))
    html = render_html(report)
    assert "<script>alert" not in html
    assert "\x1b" not in html
    assert all(line.isprintable() for line in report_lines(report))
