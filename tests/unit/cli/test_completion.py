"""What TAB offers at each place of a command line, how soon, and that it neither fails, nor hangs, nor tells of others."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from mldebug.cli import help_texts
from mldebug.cli.commands import share
from mldebug.cli.main import COMPLETION, cli, main
from mldebug.core.plugins import names
from mldebug.incidents.report_store import ReportStore
from mldebug_agents.cli.commands.probes import preflight
from mldebug_agents.cli.commands.support.demo import FAULTS
from mldebug_agents.cli.completion import answer
from mldebug_agents.cli.completion.answer import lines, look_aside, values
from mldebug_agents.cli.completion.request import CompletionRequest, is_plain
from mldebug_agents.cli.completion.table import FILE, read_table, written
from mldebug_agents.probes.node_stages import STAGES
from shared.incidents import samples
from shared.jobs.proctree import as_nobody
from shared.system.hung import hung_mount
from shared.system.patience import PATIENCE
from shared.web.webpages import hanging, hostile, pages, shown

DEADLINE = answer.DEADLINE
MAX_CPU = 5.0  # times what Python and click cost, which are half of a TAB; a crowded machine makes both dear
MAX_HANG = 10.0  # seconds, on a crowded machine, of what takes DEADLINE and the start of Python

OLD, NEW = "20260101T000000Z-old", "20261121T055041Z-new"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowded machine is no state dir that hangs."""
    monkeypatch.setattr(answer, "DEADLINE", 60.0)


def save(state_dir: Path, name: str) -> Path:
    """A report of that id; its folder."""
    report = replace(samples.report(samples.sleeping()), id=name)
    return ReportStore(state_dir).save(report, "", {})


def offered(line: str, shell: str = "zsh") -> list[str]:
    """The values for a line that ends where the cursor is; `<file>` and the like where the shell looks itself."""
    words = line.split(" ")[1:]
    results = [one.split("\t") for one in lines(shell, words)]
    return [value if kind == "plain" else f"<{kind}>" for kind, value, _ in results]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config file of a state dir with two reports."""
    for name in (OLD, NEW):
        save(tmp_path, name)
    file = tmp_path / "c.yaml"
    file.write_text(
        f"agent: {{state_dir: {tmp_path}}}\n"
        "channels: {night: {kind: ping, url: 'http://127.0.0.1/x'}}\n"
    )
    return file


def test_the_table_is_up_to_date(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        FILE.write_text(written(cli), encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == written(cli), (
        "make it anew with: pytest tests/unit/cli/test_completion.py --update-golden"
    )
    assert {verb.name.replace("-", "_") for verb in read_table().verbs} == set(names("commands"))


def test_stored_help_is_what_the_verbs_say(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    if request.config.getoption("--update-golden"):
        help_texts.FILE.write_text(help_texts.written(cli), encoding="utf-8")
    assert help_texts.FILE.read_text(encoding="utf-8") == help_texts.written(cli), (
        "make it anew with: pytest tests/unit/cli/test_completion.py --update-golden"
    )
    for words in (["reports", "list"], ["dump"]):
        assert help_texts.stored_help([*words, "--help"]) == help_texts.stored_help([*words, "-h"])
        assert help_texts.stored_help([*words, "-h"]).startswith(f"Usage: mldebug {words[0]}")
    assert not help_texts.stored_help(["run", "python", "--help"])
    assert not help_texts.stored_help(["dump"])
    assert not help_texts.stored_help(["probe", "--help"]), (
        "a plugin of the reader's own is no less"
    )
    monkeypatch.setenv("COLUMNS", "60")
    assert not help_texts.stored_help(["dump", "--help"]), "it must be folded"


def test_stored_help_does_not_depend_on_which_command_was_called_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Click keeps the help option of the first call, which here has another parent than `mldebug`."""
    before = help_texts.written(cli)
    for verb in (preflight.command, share.command):
        monkeypatch.setattr(verb, "_help_option", None)
        assert "-h, --help" not in CliRunner().invoke(verb, ["--help"]).output
    assert help_texts.written(cli) == before


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "\xff", '{"dump": '])
def test_a_damaged_file_of_help_is_passed_over(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(help_texts, "FILE", tmp_path / "help.json")
    monkeypatch.setenv("COLUMNS", "80")
    assert not help_texts.stored_help(["dump", "--help"]), "there is none"
    help_texts.FILE.write_bytes(text.encode("latin-1"))
    assert not help_texts.stored_help(["dump", "--help"])


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("mldebug rep", ["reports"]),
        ("mldebug demo --fault ", list(FAULTS)),
        ("mldebug demo --fault=st", ["--fault=stopped"]),
        ("mldebug demo --fault sleep --fa", []),
        ("mldebug demo --html ", ["<file>"]),
        ("mldebug check-config ", ["<file>"]),
        ("mldebug switch status --folder ", ["<dir>"]),
        ("mldebug switch k", ["kill"]),
        ("mldebug completion ", ["bash", "zsh", "fish"]),
        ("mldebug probe ", names("probes")),
        ("mldebug probe node --stages ", list(STAGES)),
        ("mldebug probe node --stages driver,ma", ["driver,matmul"]),
        ("mldebug probe collectives --ops all_reduce,all_", ["all_reduce,all_gather", "all_reduce,all_to_all"]),
        ("mldebug probe collectives --through ", ["ssh", "srun"]),
        ("mldebug probe collectives --interface l", ["lo"]),
        ("mldebug run to", ["<command>"]),
        ("mldebug run -- torchrun tr", ["<file>"]),
        ("mldebug dump --watch ", []),
        ("mldebug doctor ", ["--gpus", "--json", "--config", "-h", "--help"]),
        ("mldebug doctor --g", ["--gpus"]),
        ("mldebug --", ["--debug", "--version", "--help"]),
        ("mldebug nonsense ", []),
        ("mldebug nonsense --x ", []),
    ],
)  # fmt: skip
def test_what_may_stand_there_is_offered(line: str, wanted: list[str]) -> None:
    assert offered(line) == wanted


def test_reports_come_newest_first_with_their_sentence(config: Path) -> None:
    result = lines("zsh", ["reports", "--config", str(config), "show", ""])
    assert [one.split("\t")[1] for one in result] == ["latest", NEW, OLD]  # fmt: skip
    assert len(result[1].split("\t")[2]) > 20
    assert offered(f"mldebug reports export --config {config} 2026112") == [NEW]
    assert offered(f"mldebug reports export {NEW} --config {config} ") == ["<file>"]


def test_bash_opens_no_report_and_replaces_only_its_piece_of_a_word(config: Path) -> None:
    line = f"mldebug reports --config={config} show "
    assert lines("bash", [line, ""])[1] == f"plain\t{NEW}\t"
    assert lines("bash", ["mldebug demo --fault=st", "st"]) == ["plain\tstopped\t"]
    assert lines("bash", ["mldebug demo --fault=st", "--fault=st"]) == ["plain\t--fault=stopped\t"]
    assert lines("bash", ["mldebug demo --fault 'st", "st"]) == ["plain\tstopped\t"]


def test_channels_are_those_of_the_config_file(config: Path, tmp_path: Path) -> None:
    assert offered(f"mldebug notify --config {config} --test ") == ["night"]
    config.write_text("channels: [")
    assert offered(f"mldebug notify --config {config} --test ") == []
    assert offered(f"mldebug notify --config {tmp_path}/none --test ") == []


def test_jobs_are_those_that_the_agent_tells_and_nothing_that_a_job_made_up(config: Path) -> None:
    run = hanging()
    with pages(config.parent, shown(run, hostile())):
        result = offered(f"mldebug dump --config {config} --job ")
        assert result == offered(f"mldebug switch kill --config {config} --run ")
    assert {run.id, run.name} <= set(result)
    assert all(map(is_plain, result))
    assert offered(f"mldebug dump --config {config} --job ") == []  # the agent has gone


@pytest.mark.parametrize("word", ["$(reboot)", "`x`", "a b", "a;b", "~root", "-rf", "a\tb", "ü", "", "x" * 300, "*", "a\n"])  # fmt: skip
def test_a_word_that_a_shell_would_act_upon_is_never_typed(word: str) -> None:
    assert not is_plain(word)


def test_reports_of_others_are_not_told() -> None:
    with tempfile.TemporaryDirectory() as name:
        state_dir = Path(name)
        state_dir.chmod(0o755)
        folder = save(state_dir, NEW)
        (state_dir / "c.yaml").write_text(f"agent: {{state_dir: {state_dir}}}\n")
        assert seen_by(os.geteuid(), state_dir) == f"latest {NEW}"
        folder.parent.chmod(0o755)  # who may list them may read no other's
        folder.chmod(0 if os.geteuid() else 0o700)
        assert seen_by(65534, state_dir) == ""
        folder.chmod(0o755)
        folder.parent.chmod(0 if os.geteuid() else 0o711)
        assert seen_by(65534, state_dir) == ""


def seen_by(uid: int, state_dir: Path) -> str:
    """The words that a user is offered; an ordinary user of the tests is nobody to himself."""

    def look() -> str:
        found = values("reports", CompletionRequest(state_dir / "c.yaml", described=True))
        return " ".join(one.word for one in found)

    return as_nobody(look) if os.geteuid() == 0 and uid else look()


@contextmanager
def stuck(state_dir: Path) -> Iterator[None]:
    """A program that has the agent's socket and never answers."""
    with subprocess.Popen(
        [sys.executable, "-c", "import socket,sys,time;s=socket.socket(socket.AF_UNIX);s.bind(sys.argv[1]);s.listen();print(flush=True);time.sleep(600)", str(state_dir / "agent.sock")],
        stdout=subprocess.PIPE,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        program.stdout.readline()
        try:
            yield
        finally:
            program.kill()


def test_the_deadline_is_one_that_a_person_forgives() -> None:
    assert DEADLINE <= 0.7


def test_an_agent_that_does_not_answer_holds_nobody_up(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "DEADLINE", DEADLINE)
    with stuck(config.parent):
        began = time.monotonic()
        assert look_aside("jobs", CompletionRequest(config)) == []
        assert DEADLINE <= time.monotonic() - began < MAX_HANG * PATIENCE


def test_a_state_dir_that_hangs_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hung_mount(tmp_path) as mount:
        save(mount.source, NEW)
        config = tmp_path / "c.yaml"
        config.write_text(f"agent: {{state_dir: {mount.target}}}\n")
        assert [one.word for one in look_aside("reports", CompletionRequest(config))] == [
            "latest",
            NEW,
        ]
        monkeypatch.setattr(answer, "DEADLINE", DEADLINE)
        mount.hang()
        began = time.monotonic()
        assert look_aside("reports", CompletionRequest(config)) == []
        assert DEADLINE <= time.monotonic() - began < MAX_HANG * PATIENCE
        assert tab(f"mldebug reports --config {config} show ") == ""
        assert tab(f"mldebug notify --config {mount.target}/c.yaml --test ") == ""
        assert time.monotonic() - began < 3 * MAX_HANG * PATIENCE


# --- the program itself ----------------------------------------------------------------------------


def tab(line: str, shell: str = "bash", **variables: str) -> str:
    """What the program prints for one TAB, and nothing besides; it ends well whatever is asked."""
    words = [line, ""] if shell == "bash" else line.split(" ")[1:]
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", COMPLETION: shell, **variables}
    done = subprocess.run(
        [sys.executable, "-m", "mldebug", *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    "line",
    [
        "mldebug ",
        "mldebug dump --",
        "mldebug probe node --stages ",
        "mldebug reports --config {} show ",
    ],
)
def test_one_tab_is_cheap(line: str, config: Path) -> None:
    costs, floors = list[float](), list[float]()
    for _ in range(20):  # a crowded machine may not find the reports in time
        before = spent()
        if tab(line.format(config)):
            costs.append(spent() - before)
            before = spent()
            subprocess.run([sys.executable, "-c", "import click"], check=True)
            floors.append(spent() - before)
        if len(costs) == 3:
            break
    assert min(costs) < MAX_CPU * min(floors), (costs, floors)


def spent() -> float:
    """CPU seconds of all children that have ended."""
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


@pytest.mark.parametrize("shell", ["bash", "zsh", "\x1b"])
@pytest.mark.parametrize("line", ["", "mldebug", "mldebug '", 'mldebug "$(', "mldebug reports show \\", "mldebug \udcff", "mldebug --debug x y z", "mldebug dump --job --job --job "])  # fmt: skip
def test_nothing_makes_it_complain(shell: str, line: str) -> None:
    tab(line, shell)


def test_a_broken_installation_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("mldebug_agents.cli.completion.table.FILE", tmp_path / "none.json")
    monkeypatch.setenv(COMPLETION, "zsh")
    assert main(["dem"]) == 0
    assert capsys.readouterr() == ("", "")


def test_only_what_is_needed_is_loaded() -> None:
    code = (
        "import sys; from mldebug.cli.main import main; main(['dump', '--']); print(*sys.modules)"
    )
    env = {**os.environ, COMPLETION: "zsh"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)  # fmt: skip
    loaded = done.stdout.splitlines()[-1].split()
    assert "mldebug_agents.cli.commands.completion" in loaded
    assert not [one for one in loaded if one in ("mldebug_agents.cli.commands.capture.dump", "mldebug.config", "rich", "yaml", "jinja2")]  # fmt: skip


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert out.startswith("#")
    assert f"{COMPLETION}={shell} " in out


def test_another_shell_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "nonsense"]) == 2
    err = capsys.readouterr().err
    assert "'nonsense' is not one of 'bash', 'zsh', 'fish'" in err
    assert len(err.splitlines()) == 2
