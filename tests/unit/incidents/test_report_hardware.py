"""What the kernel and the driver said stands in the report, once."""

import msgspec

from mldebug.capture.frames import last_frame
from mldebug.core.model import Fault, NodeCapture
from mldebug.core.report_model import Report
from mldebug.diagnosis.diagnose import diagnose
from mldebug.diagnosis.exits.judgement import with_gaps, without_processes
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.incidents.report.build import build_report
from mldebug.incidents.report.hardware import hardware_lines
from mldebug.incidents.report.html import render_html
from mldebug.incidents.report.text import report_lines
from shared.incidents import samples

AT = samples.TAKEN_AT
XID = Fault(
    kind="xid", at=AT - 5000, words="Xid 63 (row remapped) on GPU 0000:4b:00.0", tier="warning", rank=2, by="gpu",
    gpu=2, uuid="GPU-2", advice="drain the node and reset this GPU",
)  # fmt: skip
KILL = Fault(
    kind="oom_kill", at=AT - 60, words="the kernel killed a process for memory", tier="fatal"
)
LONG_AGO = msgspec.structs.replace(KILL, at=AT - 5000)
FORGED = msgspec.structs.replace(XID, at=AT - 4000, words="Xid <b>79</b>", trusted=False, advice="")


def captured(*faults: Fault) -> NodeCapture:
    return msgspec.structs.replace(samples.sleeping().captures[0], faults=faults)


def reported(*faults: Fault) -> Report:
    capture = captured(*faults)
    like = samples.report(samples.sleeping())
    return build_report(
        diagnose([capture]),
        (capture,),
        kind="manual",
        trigger="manual",
        detected_at=AT,
        reported_at=AT,
        stall=like.stall,
        versions={},
    )


def test_what_was_said_against_ranks_is_told_and_what_is_far_away_is_not() -> None:
    assert [line.partition(": ")[2] for line in reported(KILL, XID, LONG_AGO).hardware] == [
        "Xid 63 (row remapped) on GPU 0000:4b:00.0, rank 2 → drain the node and reset this GPU",
        "the kernel killed a process for memory",
    ]


def test_a_rank_is_told_with_its_last_python_frame_and_how_sure_it_is() -> None:
    guessed = msgspec.structs.replace(XID, by="environment", at=AT - 60)
    capture = captured(guessed)
    shown = next(one for one in capture.ranks if one.process.stacks)
    fault = msgspec.structs.replace(guessed, rank=shown.identity.rank)
    (line,) = hardware_lines([captured(fault)], diagnose([capture]).diagnosis)
    frame = last_frame(shown.process.stacks, shown.process.pid)
    assert frame
    assert f", probably rank {fault.rank}, last Python frame {frame} → " in line


def test_what_one_read_alone_told_is_said_so_until_another_confirms_it() -> None:
    once = msgspec.structs.replace(XID, confirmed=False)
    diagnosis = diagnose([captured()]).diagnosis
    (unsure,) = hardware_lines([captured(once)], diagnosis)
    (sure,) = hardware_lines([captured(once), captured(XID)], diagnosis)
    assert "rank 2 (one read alone told it) → drain" in unsure
    assert "rank 2 → drain" in sure


def test_what_the_verdict_rests_on_is_not_told_twice() -> None:
    capture = captured(XID)
    diagnosis = diagnose([capture]).diagnosis
    assert len(hardware_lines([capture, capture], diagnosis)) == 1
    known = msgspec.structs.replace(diagnosis, evidence=(f"{XID.words}, 5 s before",))
    assert hardware_lines([capture], known) == ()


def test_text_and_html_show_it_and_a_forgery_is_called_one() -> None:
    report = reported(XID, FORGED)
    text, html = "\n".join(report_lines(report, 200)), render_html(report)
    assert "GPUs and kernel\n  - " in text
    assert "Xid 63 (row remapped)" in text
    assert "written by a program and not by the kernel" in text
    assert "<h3>GPUs and kernel</h3>" in html
    assert "<b>79</b>" not in html
    assert "GPUs and kernel" not in "\n".join(report_lines(reported(), 200)) + render_html(reported())  # fmt: skip


def test_what_was_known_at_the_end_is_in_the_report_of_the_end() -> None:
    job = captured().job
    bare = without_processes(AttemptExit(job=job, faults=(XID, KILL)), AT, {})
    assert bare.faults == (XID, KILL)
    assert with_gaps(captured(XID), AttemptExit(job=job, faults=(XID,))).faults == (XID,)


def test_a_report_of_an_earlier_version_is_read() -> None:
    stored = msgspec.json.decode(msgspec.json.encode(reported()))
    del stored["hardware"], stored["xid_catalogue"]
    assert msgspec.convert(stored, Report).hardware == ()


def test_a_storm_is_bounded() -> None:
    many = [msgspec.structs.replace(XID, at=AT - one, words=f"Xid {one}") for one in range(500)]
    lines = reported(*many).hardware
    assert len(lines) == 20
    assert "Xid 0," in lines[-1]


def test_a_report_says_which_catalogue_judged_its_xids() -> None:
    one = msgspec.structs.replace(XID, catalogue="2026-11-21")
    report = reported(one, KILL)

    assert report.xid_catalogue == "2026-11-21"
    assert "  What the Xids mean: catalogue 2026-11-21" in list(report_lines(report))
    assert "<dt>Xid catalogue</dt><dd>2026-11-21</dd>" in render_html(report)
    older = msgspec.structs.replace(one, words="Xid 64", at=AT - 4900, catalogue="2026-01-01")
    assert reported(one, older).xid_catalogue == "2026-01-01, 2026-11-21"


def test_a_report_without_an_xid_names_no_catalogue() -> None:
    """Nor does one whose Xid is not told: of nobody in particular, and hours ago."""
    far = msgspec.structs.replace(XID, rank=None, catalogue="2026-11-21")

    assert reported(KILL).xid_catalogue == reported(far).xid_catalogue == ""
    assert not [line for line in report_lines(reported(KILL)) if "catalogue" in line]
