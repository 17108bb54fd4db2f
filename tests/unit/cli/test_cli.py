"""One command line, one exit code, one sentence: the shell around every verb."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import click
import msgspec
import pytest

from mldebug.cli import main as cli
from mldebug.config import schema as config_module
from mldebug.core import files
from mldebug.core.errors import (
    AccessError,
    ConfigError,
    EvidenceError,
    FailedCheckError,
    MldebugError,
    NothingFoundError,
    ToolError,
    UsageError,
)
from mldebug.core.model import Verdict
from mldebug.core.plugins import PACKAGES, load, names
from mldebug.core.report_model import GapView
from mldebug.incidents import report_dirs
from mldebug.incidents.report_store import ReportStore
from mldebug_agents.cli.commands.capture import dump
from mldebug_agents.incidents.manual import Taken
from shared.incidents import samples

Golden = Callable[[str, str], None]
BROKEN = "20200101T000000Z-broken"
VERBS = [name.replace("_", "-") for name in names("commands")]


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("MLDEBUG_DEBUG", raising=False)


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Make `mldebug try-me` call a function."""

    def install(function: Callable[[], object]) -> None:
        command = click.Command("try-me", callback=function)
        monkeypatch.setattr(cli.VerbGroup, "list_commands", lambda *_: ["try-me"])
        monkeypatch.setattr(cli.VerbGroup, "get_command", lambda *_: command)

    return install


def raiser(error: BaseException) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


def test_without_arguments_it_explains_itself(
    capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    assert cli.main([]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {verb} " in printed for verb in VERBS)
    assert max(map(len, printed.splitlines())) <= 80
    golden("help.txt", printed)


def test_the_room_is_full() -> None:
    assert {"check-config", "diagnose", "doctor", "dump", "reports", "status"} <= set(VERBS)


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_explains_itself_in_eighty_columns(
    name: str,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli, "stored_help", lambda _: "")
    # click keeps the help option of a command's first call, which another test may have made without `mldebug`
    for one in vars(load("commands", name.replace("-", "_"))).values():
        if isinstance(one, click.Command):
            monkeypatch.setattr(one, "_help_option", None)
    assert cli.main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"Usage: mldebug {name} ")
    assert max(map(len, printed.splitlines())) <= 80
    golden(f"help-{name}.txt", printed)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("mldebug 0.")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MldebugError("it broke", "mend it"), 3),
        (FailedCheckError("it broke", "mend it"), 1),
        (UsageError("it broke", "mend it"), 2),
        (EvidenceError("it broke", "mend it"), 2),
        (AccessError("it broke", "mend it"), 3),
        (ToolError("it broke", "mend it"), 3),
    ],
)
def test_an_error_is_a_sentence_with_the_way_out_and_its_code(
    error: MldebugError, code: int, verb: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    verb(raiser(error))
    assert cli.main(["try-me"]) == code
    shown = capsys.readouterr()
    assert shown.err == "mldebug: it broke\n  way out: mend it\n"
    assert shown.out == ""


def test_every_problem_of_a_config_has_its_own_line(
    verb: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    verb(raiser(ConfigError(["c.yaml:1: a", "c.yaml:2: b"])))
    assert cli.main(["try-me"]) == 2
    assert capsys.readouterr().err == "mldebug: c.yaml:1: a\nmldebug: c.yaml:2: b\n"


def test_an_error_text_cannot_write_to_the_terminal(
    verb: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    verb(raiser(UsageError("no job '\x1b]0;owned\x07\x1b[31m\u202e'", "\x1b[2J")))
    assert cli.main(["try-me"]) == 2
    assert capsys.readouterr().err == "mldebug: no job ''\n  way out: \n"


def test_a_bug_is_one_sentence_and_a_traceback_only_on_request(
    verb: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verb(raiser(ValueError("oh\x1b[31m no")))
    assert cli.main(["try-me"]) == 70
    assert capsys.readouterr().err.splitlines()[0] == "mldebug: internal error: ValueError: oh no"
    assert cli.main(["--debug", "try-me"]) == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    monkeypatch.setenv("MLDEBUG_DEBUG", "1")
    assert cli.main(["try-me"]) == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda: None, 0),
        (lambda: 1, 1),
        (lambda: sys.exit(3), 3),
        (lambda: sys.exit(), 0),
        (lambda: click.get_current_context().exit(2), 2),
        (raiser(KeyboardInterrupt()), 130),
        (raiser(click.Abort()), 130),
    ],
)
def test_the_exit_code_is_the_command_s(
    function: Callable[[], object], code: int, verb: Callable[..., None]
) -> None:
    verb(function)
    assert cli.main(["try-me"]) == code


@pytest.mark.parametrize(
    ("arguments", "sentence", "way_out"),
    [
        (["dmup"], "there is no command 'dmup'", "did you mean 'dump'?"),
        (["check_config"], "there is no command 'check_config'", "did you mean 'check-config'?"),
        (["xyzzy\x1b[2J"], "there is no command 'xyzzy'", "choose from: "),
        (["--nope"], "No such option", "mldebug --help"),
        (["doctor", "--nope"], "No such option", "mldebug doctor --help"),
        (["check-config"], "name a FILE", "mldebug check-config --help"),
        (["dump", "--ssh"], "--ssh needs --hosts, which names the nodes", "add --hosts"),
        (
            ["dump", "--hosts", "a1"],
            "--hosts needs --ssh, by which it reaches the nodes",
            "add --ssh",
        ),
        (["dump", "--hosts", "a1", "--ssh", "--slurm-job", "7"], "not both", "choose one"),
        (["gpus", "list", "--cluster", "--hosts", "a1"], "only one of", "choose one"),
        (["top", "--once", "--cluster", "--slurm-job", "7"], "only one of", "choose one"),
        (
            ["dump", "--slurm-job", "7", "--pid", "1"],
            "--pid names a process of this node, and other nodes are to be looked at, too",
            "name the job",
        ),
        (["dump", "--hosts", "a[1-", "--ssh"], "is not a list of nodes", "node[1-40,42]"),
        (["dump", "--hosts", "-oProxyCommand=x", "--ssh"], "no name of a host", "node[1-40,42]"),
        (["dump", "--slurm-job", "7; reboot"], "is no job id of Slurm", "squeue --me"),
        (
            ["dump", "--slurm-job", "7", "--wait", "0s"],
            "it may be 1 s to 30 min",
            "write it like 60s",
        ),
    ],
)
def test_wrong_usage_says_what_is_right(
    arguments: list[str], sentence: str, way_out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert sentence in first
    assert way_out in second


@pytest.mark.parametrize("verb", ["trace", "switch", "probe"])
def test_a_verb_of_verbs_alone_shows_its_help_as_it_is(verb: str, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    code = cli.main([verb])
    output = capsys.readouterr()
    shown = output.err or output.out
    assert code == (2 if output.err else 0)
    assert shown.startswith(f"Usage: mldebug {verb} ")
    assert not [line for line in shown.splitlines() if line.startswith("mldebug:")]


def test_on_a_terminal_an_error_goes_on_between_words_and_a_command_stays_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"mldebug reports list --config /{'long/' * 12}file.yaml"
    message = f"{'many words ' * 12}and the {'x' * 90} that is long"
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    cli._say(message, f"give the folder of a report; this says where they are: {command}")
    lines = capsys.readouterr().err.splitlines()
    assert f"    {command}" in lines
    assert [line for line in lines if len(line) > 80] == [f"    {'x' * 90}", f"    {command}"]
    assert " ".join(" ".join(lines).split()).startswith(f"mldebug: {message} way out: give")


def test_a_broken_plugin_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = cli.summary
    monkeypatch.setattr(
        cli,
        "summary",
        lambda kind, name, *found: real(kind, name, *found) if name != "dump" else 1 / 0,
    )
    assert cli.main([]) == 0
    printed = capsys.readouterr().out
    assert "(cannot be loaded: ZeroDivisionError" in printed
    assert "check-config" in printed


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mldebug", *arguments], capture_output=True, text=True, timeout=60,
        env=os.environ | {"COLUMNS": "80"} | environ, check=False,
    )  # fmt: skip


def test_gpus_alone_lists_them() -> None:
    alone, listed = run("gpus"), run("gpus", "list")
    assert alone.returncode == listed.returncode != 2
    assert alone.stderr == listed.stderr


def test_a_reader_that_went_away_is_no_error() -> None:
    outlet, inlet = os.pipe()
    os.close(outlet)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "mldebug", "--help"],
            stdout=inlet,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(inlet)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_terminal_without_unicode_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"agent: {{state_dir: {tmp_path}/ü}}")
    done = run("reports", "--config", str(file), "list", PYTHONIOENCODING="ascii:strict")
    assert (done.returncode, done.stderr) == (0, "")
    assert "/\\xfc/reports" in done.stdout


def test_only_the_verb_that_is_asked_for_gets_imported() -> None:
    code = "import sys; from mldebug.cli.main import main; main(['check-config', '--print']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = done.stdout.split()
    assert "mldebug.cli.commands.check_config" in loaded
    assert not [
        name
        for name in loaded
        if name.startswith(("mldebug_agents.", "mldebug.cli.commands.r", "torch", "psutil"))
        and name not in ("mldebug_agents.cli", *PACKAGES["commands"])  # which are empty
    ]


# --- check-config --------------------------------------------------------------------------------


def test_check_config_accepts_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check-config", "--print"]) == 0
    file = tmp_path / "c.yaml"
    file.write_text(capsys.readouterr().out)
    assert cli.main(["check-config", str(file)]) == 0
    assert capsys.readouterr().out == f"{file} is good\n"


def test_check_config_names_each_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("agent: {state_dri: /x}\ncapture: {deadline: 3}\n")
    assert cli.main(["check-config", str(file)]) == 2
    first, second, way_out = capsys.readouterr().err.splitlines()
    assert first.startswith(f"mldebug: {file}:1: agent.state_dri: ")
    assert second.startswith(f"mldebug: {file}:2: capture.deadline: ")
    assert "check-config --print" in way_out


# --- reports -------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config whose state directory holds two reports and a broken one."""
    archive = ReportStore(tmp_path / "state")
    archive.save(samples.report(samples.sleeping()), "<html>", {})
    hostile = samples.report(samples.hostile())
    archive.save(msgspec.structs.replace(hostile, id="20200101T000001Z-hostile"), "<html>", {})
    broken = archive.folder / BROKEN
    broken.mkdir()
    (broken / "report.json").write_text("{")
    file = tmp_path / "c.yaml"
    file.write_text(f"agent: {{state_dir: {tmp_path}/state}}")
    return file


def reports(config: Path, *arguments: str) -> int:
    return cli.main(["reports", "--config", str(config), *arguments])


def test_reports_list_names_each_with_its_sentence(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reports(config, "list") == 0
    printed = capsys.readouterr().out
    report = samples.report(samples.sleeping())
    assert report.id in printed
    assert report.diagnosis.summary in printed
    assert "    cannot be read: " in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize(("kind", "text"), [("manual", "asked for"), ("stall", "open")])
def test_a_dump_by_hand_is_not_open_for_ever(
    kind: Literal["manual", "stall"], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = msgspec.structs.replace(samples.report(samples.sleeping()), kind=kind, state="open")
    ReportStore(tmp_path / "state").save(made, "<html>", {})
    file = tmp_path / "c.yaml"
    file.write_text(f"agent: {{state_dir: {tmp_path}/state}}")
    assert reports(file, "list") == 0
    _, first, *_ = capsys.readouterr().out.splitlines()
    assert first.endswith(f"  {text}")


def test_reports_list_json_is_an_array(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reports(config, "list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert samples.report(samples.sleeping()).id in [one["id"] for one in listed]


def test_no_reports_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"agent: {{state_dir: {tmp_path}}}")
    assert reports(file, "list") == 0
    assert "mldebug dump" in capsys.readouterr().out
    assert reports(file, "show") == 2
    assert "way out: " in capsys.readouterr().err


def test_reports_show_prints_text_and_json(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = samples.report(samples.sleeping())
    assert reports(config, "show", report.id) == 0
    printed = capsys.readouterr().out
    assert "rank" in printed
    assert f"{report.id}/report.html" in printed
    assert reports(config, "show", report.id, "--json") == 0
    assert json.loads(capsys.readouterr().out)["id"] == report.id


def test_reports_show_finds_the_newest_of_a_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, file = ReportStore(tmp_path / "state"), tmp_path / "c.yaml"
    file.write_text(f"agent: {{state_dir: {tmp_path}/state}}")
    made = samples.report(samples.sleeping())
    for day, job in ((1, "ours"), (2, "ours"), (3, "theirs")):
        of = msgspec.structs.replace(made.job, id=f"{job}-1", name=f"{job}.py")
        one = msgspec.structs.replace(made, id=f"2026010{day}T000001Z-{job}", job=of)
        store.save(one, "<html>", {})
    for name in ("ours.py", "ours-1"):
        assert reports(file, "show", "--job", name, "--json") == 0
        assert json.loads(capsys.readouterr().out)["id"] == "20260102T000001Z-ours"
    assert reports(file, "show", "--job", "nobody") == 2
    assert "there is no report of the job nobody" in capsys.readouterr().err
    assert reports(file, "show", "20260101T000001Z-ours", "--job", "ours.py") == 2
    assert "not by both" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".json", ".html", ".txt"])
def test_reports_export_writes_one_file_and_never_over_another(
    config: Path, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, file = samples.report(samples.sleeping()), tmp_path / f"out{suffix}"
    assert reports(config, "export", report.id, str(file)) == 0
    assert report.diagnosis.summary.split()[0] in file.read_text()
    assert reports(config, "export", report.id, str(file)) == 2
    assert "--force" in capsys.readouterr().err
    assert reports(config, "export", report.id, str(file), "--force") == 0


def test_reports_export_packs_everything(config: Path, tmp_path: Path) -> None:
    report, file = samples.report(samples.sleeping()), tmp_path / "out.tar.gz"
    assert reports(config, "export", report.id, str(file)) == 0
    with tarfile.open(file) as packed:
        assert {f"{report.id}/report.{form}" for form in ("json", "html", "txt")} <= set(
            packed.getnames()
        )


def test_reports_export_refuses_an_unknown_form_and_an_unwritable_place(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reports(config, "export", "latest", str(tmp_path / "out.pdf")) == 2
    assert ".html" in capsys.readouterr().err
    assert reports(config, "export", "latest", str(tmp_path / "no" / "out.json")) == 3
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], True),
        (["--job", "train.py"], True),
        (["--job", "other.py"], False),
        (["--verdict", "rank_waiting"], True),
        (["--verdict", "gpu_fault"], False),
        (["--since", "36500d"], True),
        (["--since", "1 m 30 s"], False),
        (["--since", "36500d", "--job", "train.py", "--verdict", "rank_waiting"], True),
    ],
)
@pytest.mark.parametrize("form", ["table", "wide", "name", "json"])
def test_a_list_shows_what_is_asked_for_in_each_form(
    config: Path, words: list[str], shown: bool, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = samples.report(samples.sleeping())
    assert reports(config, "list", "-o", form, *words) == 0
    printed = capsys.readouterr().out
    assert (report.id in printed) is shown
    broken = [BROKEN] * (words in ([], ["--since", "36500d"]))
    if form in ("name", "json"):
        ids = printed.split() if form == "name" else [one["id"] for one in json.loads(printed)]
        others = [one for one in ids if not one.endswith("-hostile")]
        assert others == [report.id] * shown + broken
    if shown and form in ("table", "wide"):
        head, row = printed.splitlines()[:2]
        assert head.split() == ["ID", "AGE", "JOB", "VERDICT", "STATE"]
        assert [head.index("JOB"), head.index("VERDICT")] == [
            row.index("train.py"),
            row.index("rank_waiting"),
        ]
        assert (report.diagnosis.summary[:30] in printed) is (form == "wide")


@pytest.mark.parametrize(
    ("limit", "rows", "older"),
    [
        ((), 20, "… and 5 older"),
        (("--limit", "3"), 3, "… and 22 older"),
        (("--limit", "0"), 25, ""),
    ],
)
def test_a_table_shows_the_newest(
    limit: tuple[str, ...],
    rows: int,
    older: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = ReportStore(tmp_path / "state")
    for number in range(25):
        one = msgspec.structs.replace(
            samples.report(samples.sleeping()), id=f"20260101T0000{number:02}Z-abc"
        )
        store.save(one, "<html>", {})
    file = tmp_path / "c.yaml"
    file.write_text(f"agent: {{state_dir: {tmp_path}/state}}")
    assert reports(file, "list", "-o", "table", *limit) == 0
    printed = capsys.readouterr().out
    ids = [line.split()[0] for line in printed.splitlines() if line.startswith("2026")]
    assert ids == [f"20260101T0000{number:02}Z-abc" for number in range(24, 24 - rows, -1)]
    assert ("older" in printed) == bool(older)
    assert older in printed
    assert reports(file, "list", "-o", "name", *limit) == 0
    assert len(capsys.readouterr().out.split()) == 25


def test_a_job_that_went_on_is_listed_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = samples.report(samples.sleeping())
    went_on = msgspec.structs.replace(made.diagnosis, works=True, verdict=Verdict.UNKNOWN)
    ReportStore(tmp_path / "state").save(
        msgspec.structs.replace(made, diagnosis=went_on), "<html>", {}
    )
    file = tmp_path / "c.yaml"
    file.write_text(f"agent: {{state_dir: {tmp_path}/state}}")
    assert reports(file, "list") == 0
    assert "not stuck (" in capsys.readouterr().out


def test_a_wrong_filter_is_said(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reports(config, "list", "--since", "yesterday") == 2
    assert "is not a duration" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["reports", "list", "--config", "F"],
        ["reports", "--config", "F", "list"],
        ["reports", "--config", "F"],
        ["reports", "show", "latest", "--config", "F"],
        ["reports", "show", "--config", "F", "latest"],
        ["reports", "show", "--config", "F"],
        ["reports", "--config", "F", "show", "latest"],
        ["reports", "--config", "/nonexistent", "show", "--config", "F"],
    ],
)
def test_the_config_may_stand_anywhere(
    config: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([str(config) if word == "F" else word for word in words]) == 0
    assert samples.report(samples.sleeping()).id in capsys.readouterr().out


def test_what_is_suggested_is_typed_with_the_config(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reports(config, "show", "1999") == 2
    entry = capsys.readouterr().err.splitlines()[1].partition("with: mldebug ")[2]
    assert cli.main(shlex.split(entry)) == 0
    listed = capsys.readouterr().out.splitlines()[-1].strip()
    assert cli.main(shlex.split(listed.removeprefix("mldebug "))) == 0


def test_an_empty_archive_suggests_a_dump_with_the_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my config.yaml"
    file.write_text(f"agent: {{state_dir: {tmp_path}}}")
    assert reports(file, "list") == 0
    assert capsys.readouterr().out.rstrip().endswith(f"mldebug dump --config '{file}'")
    assert reports(file, "show") == 2
    assert f"mldebug dump --config '{file}'" in capsys.readouterr().err


def test_without_a_config_the_reports_of_the_service_are_found_too(
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(report_dirs, "SYSTEM_STATE_DIR", tmp_path / "state")
    monkeypatch.setattr(config_module, "SYSTEM_STATE_DIR", tmp_path / "own")
    report = samples.report(samples.sleeping())
    assert cli.main(["reports", "show", report.id]) == 0
    assert str(tmp_path / "state") in capsys.readouterr().out
    assert cli.main(["reports", "list"]) == 0
    printed = capsys.readouterr().out
    assert f"There is no report in {tmp_path}/own" in printed
    assert report.id in printed


def test_an_exported_end_can_be_judged_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = Path(__file__).parents[2] / "fixtures" / "exits" / "reports" / "sigkill"
    (tmp_path / "reports").mkdir()
    report = json.loads((recorded / "report.json").read_text())
    shutil.copytree(recorded, tmp_path / "reports" / report["id"])
    file, packed = tmp_path / "c.yaml", tmp_path / "out.tar.gz"
    file.write_text(f"agent: {{state_dir: {tmp_path}}}")
    assert reports(file, "export", "latest", str(packed)) == 0
    with tarfile.open(packed) as opened:
        opened.extractall(tmp_path, filter="data")
    capsys.readouterr()
    assert cli.main(["diagnose", str(tmp_path / report["id"]), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["diagnosis"] == report["diagnosis"] | {
        "works": False
    }


@pytest.mark.parametrize("words", [["reports", "list"], ["reports", "show"]])
def test_a_reader_that_leaves_is_no_stall(config: Path, words: list[str]) -> None:
    outlet, inlet = os.pipe()
    os.close(outlet)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "mldebug", *words, "--config", str(config)],
            stdout=inlet, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(inlet)
    assert (done.returncode, done.stderr) == (141, b"")


# --- diagnose ------------------------------------------------------------------------------------


def diagnosed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    """The exit code, and what stands on stderr: a sentence and the way out, no control characters."""
    code = cli.main(["diagnose", *arguments])
    lines = capsys.readouterr().err.splitlines()
    assert all(line.isprintable() for line in lines)
    return code, lines


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("rank0.txt", b"\x00\xff\x1b[2J garbage", "rank0.txt holds no stacks: it says"),
        ("rank0.json", b"[{]", "rank0.json holds no stacks"),
        ("rank0.txt", b"", "rank0.txt holds no stacks: it is empty"),
        ("notes.txt", b"x", "holds nothing to judge: no capture-*.json, ending-*.json"),
        ("capture-n.json", b"\x00\xff garbage", "capture-n.json is malformed"),
        ("capture-n.json", b'{"node": "n", "taken_at"', "capture-n.json is malformed"),
        ("capture-n17.json", b"garbage", "capture-n17.json is malformed"),
        ("ending-n.json", b"", "ending-n.json is malformed"),
        ("capture-n.json", b'{"node":"n","taken_at":1.0,"job":{"id":"j","name":"x","launcher":"x"}}', "shows no rank"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_judged_says_why_and_the_way_out(
    name: str, content: bytes, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    code, (first, second) = diagnosed(capsys, str(tmp_path))
    assert code == 2
    assert text in first
    assert second.startswith("  way out: ")


def test_what_is_no_folder_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    file.write_text("{}")
    code, (first, second) = diagnosed(capsys, str(file))
    assert (code, first) == (2, f"mldebug: {file} is not a folder")
    assert second.endswith(f"the folder that it lies in: {tmp_path}")
    code, (first, second) = diagnosed(capsys, str(tmp_path / "no\x1b[2Jsuch"))
    assert (code, first) == (2, f"mldebug: {tmp_path}/nosuch does not exist")
    assert second.endswith("mldebug reports list")


def test_a_file_that_is_far_too_large_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "capture-n.json").open("wb") as file:
        file.truncate(files.MAX_FILE_BYTES + 1)
    code, (first, _) = diagnosed(capsys, str(tmp_path))
    assert code == 2
    assert "more than 67,108,864" in first


def test_evidence_that_this_user_may_not_read_is_a_missing_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    really = os.listdir

    def closed(path: Path | str = ".") -> list[str]:
        if Path(path).is_relative_to(tmp_path):
            raise PermissionError(13, "Permission denied")
        return really(path)

    monkeypatch.setattr(os, "listdir", closed)
    code, (first, second) = diagnosed(capsys, str(tmp_path))
    assert code == 3
    assert first == f"mldebug: this user may not read {tmp_path}/evidence"
    assert second == "  way out: ask as the owner of the job, or as root"


def test_one_bad_dump_of_many_is_a_gap_to_look_at_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps = Path(__file__).parents[2] / "fixtures" / "h200" / "hang-sleep"
    for rank in (0, 1):
        copy = dumps / f"pyspy-sleep-r{rank}.txt"
        (tmp_path / f"rank{rank}.txt").write_bytes(copy.read_bytes())
    (tmp_path / "rank2.txt").write_text("Error: Permission denied\n")
    assert cli.main(["diagnose", "--json", str(tmp_path)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["diagnosis"]["culprits"] == []  # rank 1 may poll for rank 2
    assert report["diagnosis"]["summary"].startswith(
        "Rank 2 has no dump that could be read: look at it first; rank 1 does nothing in slow_data_loader (train.py:7)"
    )
    assert [(gap["rank"], gap["what"]) for gap in report["gaps"]] == [(2, "stacks")]
    assert "rank2.txt holds none: it says 'Error: Permission denied'" in report["gaps"][0]["reason"]
    assert report["ranks"][2]["class"] == "unclear"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["help"], ["--help"]),
        (["help", "dump"], ["dump", "--help"]),
        (["help", "reports", "show"], ["reports", "show", "--help"]),
        (["version"], ["--version"]),
        (["-V"], ["--version"]),
    ],
)
def test_what_people_type_first_is_understood(
    typed: list[str], meant: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(meant) == 0
    wanted = capsys.readouterr().out
    assert cli.main(typed) == 0
    assert capsys.readouterr().out == wanted
    assert cli.main(["help", "nonsense"]) == 2
    assert "there is no command 'nonsense'" in capsys.readouterr().err


def test_dump_takes_the_job_as_it_is_and_two_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[str | None] = []
    monkeypatch.setattr(dump, "_elsewhere", lambda own, job, here_only: jobs.append(job))
    monkeypatch.setattr(dump, "_here", lambda *_, **__: ())
    for arguments in (["one.py"], ["--job", "one.py"], ["one.py", "--job", "one.py"]):
        assert cli.main(["dump", *arguments]) == 0
    assert jobs == ["one.py"] * 3
    assert cli.main(["dump", "one.py", "--job", "two.py"]) == 2
    assert "two jobs are named: one.py and two.py" in capsys.readouterr().err


def test_an_empty_node_pages_nobody(
    capsys: pytest.CaptureFixture[str], verb: Callable[[Callable[[], object]], None]
) -> None:
    verb(raiser(NothingFoundError("no training job runs on this node", "is it elsewhere?")))
    assert cli.main(["try-me"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        "mldebug: no training job runs on this node\n  way out: is it elsewhere?\n",
    )


def test_a_job_of_which_no_stack_could_be_had_is_not_fine() -> None:
    """3, not 0: without a stack "nothing is stuck" was never seen."""
    report = samples.report(samples.sleeping())
    judgement = samples.sleeping().judgement
    blind = msgspec.structs.replace(
        report,
        ranks=tuple(msgspec.structs.replace(rank, threads=()) for rank in report.ranks),
        gaps=(
            GapView(
                what="py-spy stack", reason="missing", rank=0, pid=1, way_out="pip install py-spy"
            ),
        ),
    )
    for value, stalled, code in ((report, False, 0), (blind, False, 3), (blind, True, 1)):
        one = Taken(value, "", msgspec.structs.replace(judgement, stalled=stalled), None, "")
        assert dump._exit_code([one]) == code
