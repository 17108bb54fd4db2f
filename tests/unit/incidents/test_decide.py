"""What a report says to do, why other ranks are not to blame, and the strip under its headline."""

import re

from msgspec.structs import replace

from mldebug.core.model import Confidence, Role, Verdict
from mldebug.core.report_model import Report, SourceView
from mldebug.incidents.course import strip
from mldebug.incidents.decide import (
    decisions,
    ends_at,
    not_blamed,
    numbered,
    source_of,
    to_look_closer,
)
from mldebug.incidents.report.html import render_html
from mldebug.incidents.report.text import report_lines
from mldebug.incidents.report.wording import title
from shared.incidents import samples

SOURCE = SourceView(path="/home/ada/train.py", line=7, first=5, lines=("def f():", "    x = 1", "    time.sleep(9)", "</pre><script>", ""))  # fmt: skip


def sleeping(**changes: object) -> Report:
    """A stall in which rank 3 sleeps, with its source lines."""
    made = samples.report(samples.sleeping())
    ranks = tuple(replace(one, source=SOURCE if one.culprit else None) for one in made.ranks)
    return replace(made, **({"ranks": ranks} | changes))


def titles(report: Report) -> list[str]:
    return [one.title for one in decisions(report)]


def with_timeout(seconds: float | None, **changes: object) -> Report:
    made = sleeping(**changes)
    return replace(made, stall=replace(made.stall, collective_timeout_seconds=seconds))


def test_a_stall_says_what_to_open_whom_to_write_and_how_to_stop() -> None:
    made = sleeping()
    assert titles(made) == ["Open train.py:7", "Write to ada", "Stop it where it was started", "Read the runbook"]  # fmt: skip
    opened, letter, *_ = decisions(made)
    assert opened.command == "/home/ada/train.py:7"
    assert letter.message == (
        "Your job train.py on gpu-17 has made no step since 2026-11-21 05:49:41 UTC: rank 3 (pid 41003 on gpu-17) "
        "sleeps in slow_data_loader (train.py:7); ranks 0-2,4-7 wait for it in all_reduce. "
        f"Report: {made.id}"
    )


def test_a_stalled_job_is_never_told_to_save() -> None:
    assert not [one for one in decisions(sleeping()) if "switch" in one.command]
    slow = sleeping(kind="slowdown")
    assert [one.command for one in decisions(slow) if one.title == "Save and stop"] == [f"mldebug switch kill --run {slow.job.id}"]  # fmt: skip


def test_a_run_that_is_over_is_not_told_to_stop() -> None:
    """The next run of the script may have the same id by then, and nothing be wrong with it."""
    for kind in ("slowdown", "stall"):
        over = sleeping(kind=kind, state="ended")
        assert not {"Save and stop", "Stop it where it was started"} & {*titles(over)}


def test_a_checkpoint_is_promised_to_nobody() -> None:
    (stop,) = (one for one in decisions(sleeping()) if one.title == "Stop it where it was started")
    assert stop.words.endswith("Started again, it begins at its last checkpoint, if it has written one and loads it.")  # fmt: skip


def test_slurm_cancels_by_its_own_number() -> None:
    made = sleeping()
    slurm = replace(made, job=replace(made.job, launcher="slurm"))
    assert [one.command for one in decisions(slurm) if one.title == "Cancel it"] == ["squeue -u ada  # its number, for: scancel NUMBER"]  # fmt: skip


def test_a_node_is_drained_only_on_direct_evidence_against_it() -> None:
    made = sleeping()
    fault = replace(made.diagnosis, verdict=Verdict.GPU_FAULT)
    job = replace(made.job, launcher="slurm")
    (drain,) = (one for one in decisions(replace(made, diagnosis=fault, job=job)) if "out of service" in one.title)  # fmt: skip
    assert drain.title == "Take gpu-17 out of service"
    assert drain.command.startswith("scontrol update NodeName=gpu-17 State=DRAIN Reason='mldebug: ")
    guess = replace(fault, confidence=Confidence.MEDIUM)
    for spared in (made, replace(made, diagnosis=guess)):
        assert "Take gpu-17 out of service" not in titles(spared)


def test_nothing_is_to_do_where_the_job_goes_on() -> None:
    made = sleeping()
    assert decisions(replace(made, state="recovered")) == ()
    assert decisions(replace(made, diagnosis=replace(made.diagnosis, works=True))) == ()


def test_it_says_until_when_to_wait_only_where_the_hook_has_said_it() -> None:
    made = with_timeout(600.0)
    assert "It is safe to wait until 2026-11-21 05:59:41 UTC" in titles(made)
    assert "of all ranks after 10 min, so not before then, unless a group of fewer has a shorter timeout" in next(one.words for one in decisions(made) if "wait" in one.title)  # fmt: skip
    for silent in (with_timeout(None), with_timeout(600.0, state="ended"), with_timeout(600.0, kind="slowdown")):  # fmt: skip
        assert ends_at(silent) is None
        assert not [one for one in titles(silent) if "wait" in one]


def test_a_timeout_on_another_day_is_shown_with_its_date() -> None:
    assert re.search(r">05:59:41</time>", render_html(with_timeout(600.0)))
    assert re.search(r">2026-11-22 05:49:41</time>", render_html(with_timeout(86_400.0)))


def test_what_it_has_just_done_is_no_next_step() -> None:
    for name, make in samples.ALL.items():
        report = samples.report(make())
        typed = [*report.diagnosis.next_steps, *(one.command for one in decisions(report))]
        assert not [one for one in typed if "py-spy dump --nonblocking" in one or "wchan" in one], (
            name
        )


def test_five_source_lines_stand_with_the_culprit() -> None:
    made = sleeping()
    found = source_of(made)
    assert found is not None
    assert found[0].rank == 3
    assert [(number, here) for number, _, here in numbered(found[1])] == [(" 5", False), (" 6", False), (" 7", True), (" 8", False), (" 9", False)]  # fmt: skip
    html = render_html(made)
    assert '<span class="here"> 7 &gt;     time.sleep(9)</span>' in html
    assert "</pre><script>" not in html
    assert "     7 >     time.sleep(9)" in list(report_lines(made))


def test_no_command_prints_the_source_lines_that_stand_there_already() -> None:
    shown, other = (
        f"sed -n '1,9p' /home/ada/train.py  # rank 3 stands at line {line}" for line in (7, 70)
    )
    made = sleeping()
    made = replace(made, diagnosis=replace(made.diagnosis, next_steps=(shown, other)))
    assert to_look_closer(made) == (other,)
    assert shown not in render_html(made)
    assert f"  {shown}" not in list(report_lines(made))
    bare = replace(made, ranks=tuple(replace(one, source=None) for one in made.ranks))
    assert to_look_closer(bare) == (shown, other)


def test_every_rank_has_a_reason_why_it_is_not_named() -> None:
    (victims,) = not_blamed(sleeping())
    assert victims == ("0-2,4-7", 7, "each waits in all_reduce (train.py:31): only other ranks can end that wait, so it is a victim")  # fmt: skip
    made = sleeping()
    ranks = (
        *made.ranks[:5],
        replace(made.ranks[5], role=Role.INERT, doing="sleeps too"),
        *made.ranks[6:],
    )
    folded = not_blamed(replace(made, ranks=ranks))
    assert [(one.ranks, one.size) for one in folded] == [("0-2,4,6-7", 6), ("5", 1)]
    assert folded[1].why.startswith("sleeps too: it is not cleared")
    assert not_blamed(samples.report(samples.unknown())) == ()


def test_the_strip_goes_from_the_last_step_to_the_collective_timeout() -> None:
    drawn = strip(with_timeout(600.0))
    assert drawn is not None
    assert [(one.what, one.clock, one.after) for one in drawn.moments] == [
        ("last step", "05:49:41", ""),
        ("suspected", "05:50:11", "+30 s"),
        ("stalled", "05:50:41", "+30 s"),
        ("captured", "05:50:41", ""),
    ]
    assert drawn.until == "2026-11-21T05:59:41.250Z"
    over = strip(with_timeout(600.0, state="recovered"))
    assert over is not None
    assert over.until == ""
    assert "went on" in [one.what for one in over.moments]
    assert strip(samples.report(samples.sleeping(), timeout=None)) is None


def test_no_title_of_a_verdict_says_what_its_victims_do() -> None:
    assert title(Verdict.RANK_WAITING) == "Rank stuck"
    assert not [verdict for verdict in Verdict if "wait" in title(verdict).lower()]
