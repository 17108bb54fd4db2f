"""The report as text, on terminals and in files."""

import io
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from mldebug.incidents.decide import decisions
from mldebug.incidents.report.sanitize import tidy
from mldebug.incidents.report.text import print_report, report_lines
from shared.incidents import samples

WIDTHS = (40, 61, 80, 200)


@pytest.mark.parametrize("name", samples.ALL)
def test_text_is_as_recorded(name: str, golden: Callable[[str, str], None]) -> None:
    lines = report_lines(samples.report(samples.ALL[name]()))
    golden(f"report-{name}.txt", "".join(f"{line}\n" for line in lines))


def test_eight_thousand_ranks_fit_a_screen_or_two(golden: Callable[[str, str], None]) -> None:
    lines = list(report_lines(samples.report(samples.huge())))
    assert len(lines) < 40
    golden("report-huge.txt", "".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [*samples.ALL])
def test_no_line_but_a_command_is_wider_than_asked(name: str, width: int) -> None:
    report = samples.report(samples.ALL[name]())
    typed = (*report.diagnosis.next_steps, *(one.command for one in decisions(report)))
    steps = {f"  {tidy(step)}" for step in typed}
    lines = [line for line in report_lines(report, width) if line not in steps]
    assert max(cell_len(line) for line in lines) <= width
    assert len(lines) < len(list(report_lines(report, width)))


def test_wide_characters_count_twice() -> None:
    made = samples.sleeping()
    diagnosis = made.judgement.diagnosis
    report = replace(
        samples.report(made), diagnosis=replace(diagnosis, summary="訓練が止まった" * 20)
    )
    lines = list(report_lines(report, 41))
    assert max(cell_len(line) for line in lines) <= 41
    assert "".join(lines).count("訓") == 20


def test_verdict_comes_first() -> None:
    lines = list(report_lines(samples.report(samples.sleeping())))
    assert lines[0] == "Rank stuck · confidence high"
    assert lines[1].startswith("rank 3 (pid 41003 on gpu-17) sleeps in slow_data_loader")


def test_a_report_read_from_disk_cannot_drive_the_terminal() -> None:
    report = samples.report(samples.sleeping())
    evil = replace(report.diagnosis, summary="\x1b[2Jgone\x07 [bold]x[/bold] \u202e")
    for line in report_lines(replace(report, diagnosis=evil)):
        assert line.isprintable()


def printed(terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, color_system="standard", width=80)
    print_report(samples.report(samples.hostile()), console)
    return out.getvalue()


def test_colours_only_on_a_terminal() -> None:
    assert "\x1b[" in printed(terminal=True)
    assert "\x1b" not in printed(terminal=False)


def test_markup_from_a_job_stays_text() -> None:
    plain = printed(terminal=False)
    assert "[bold red]" in plain
    lines = report_lines(samples.report(samples.hostile()))
    assert plain == "".join(f"{line}\n" for line in lines)
