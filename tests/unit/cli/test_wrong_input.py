"""Every verb, called wrongly or where there is nothing: an exit code that keeps the contract (1 is for a stall or a failed check alone), and
a sentence on stderr with the way out.

The verbs and their options are those of the table that TAB completion reads, so a new verb is tried without a line here.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mldebug.cli import main as cli
from mldebug.core.errors import ExitCode
from mldebug_agents.cli.completion import table

VERBS = Path(table.__file__).with_name("verbs.json")
# that work, or wait, where nothing is wrong with how they were called
WORKING = {"agent", "demo", "hub", "mcp", "run", "trace run", "support-bundle", "up", "completion", "preflight"}  # fmt: skip
# what a checkpoint or a log is not is a failed check; a folder that a job could not use, too
JUDGING = {"logs try", "preflight"}


class Verb(NamedTuple):
    """A verb with its words, and the options and arguments that it takes."""

    words: tuple[str, ...]
    parameters: tuple[dict[str, Any], ...]

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        return {one["names"][0]: one for one in self.parameters if "names" in one}

    def arguments(self, path: str) -> list[str]:
        """A word for each argument; `path` where a file or a folder is meant."""
        own = [one for one in self.parameters if "names" not in one]
        return [self._argument(one, path) for one in own if one.get("looked") != "jobs"]

    def _argument(self, one: dict[str, Any], path: str) -> str:
        if one.get("paths"):
            return path
        return str((one.get("words") or ["999999"])[0]) if isinstance(one.get("words"), list) else "999999"  # fmt: skip


def leaves(node: dict[str, Any], words: tuple[str, ...] = ()) -> Iterator[Verb]:
    """The verbs that do something themselves."""
    below = node.get("verbs", [])
    if words and (not below or node["name"] == "reports"):
        yield Verb(words, tuple(node.get("parameters", [])))
    for one in below:
        yield from leaves(one, (*words, one["name"]))


ALL = list(leaves(json.loads(VERBS.read_text("utf-8"))))
NAMED = {" ".join(one.words): one for one in ALL}
WITH_PATH = [name for name, one in NAMED.items() if name not in WORKING and one.arguments("/") != one.arguments("/x")]  # fmt: skip
# Those that look at the jobs of this node find whatever runs beside the tests, and may find it stuck
AT_JOBS = {name for name, one in NAMED.items() if any(it.get("looked") == "jobs" for it in one.parameters)}  # fmt: skip
QUIET = [name for name in NAMED if name not in WORKING | set(WITH_PATH) | AT_JOBS and not name.startswith("probe ")]  # fmt: skip


@pytest.fixture(autouse=True)
def nobody_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user without an agent, a report or a hub, on a terminal of 80 columns."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("MLDEBUG_DEBUG", raising=False)
    monkeypatch.chdir(home)


class Outcome(NamedTuple):
    code: int
    err: str


def say(capfd: pytest.CaptureFixture[str], *words: str) -> Outcome:
    """Call it; whatever comes of it keeps the contract, and an error has a way out."""
    code = cli.main(words)
    shown = capfd.readouterr()
    assert code in (ExitCode.FINE, ExitCode.FOUND, ExitCode.USAGE, ExitCode.MISSING), shown.err
    assert "Traceback" not in shown.err + shown.out
    if code in (ExitCode.USAGE, ExitCode.MISSING) and not shown.out:
        lines = shown.err.splitlines()
        assert lines[0].startswith("mldebug: ")
        assert len(lines[0]) > len("mldebug: ") + 10
        assert any(line.startswith("  way out: ") and len(line) > 15 for line in lines), shown.err
    return Outcome(code, shown.err)


def test_all_verbs_are_tried() -> None:
    assert len(NAMED) > 45
    assert {"dump", "trace show", "fleet note", "reports"} <= NAMED.keys()
    assert {"checkpoints", "diagnose", "trace merge", "usage"} <= set(WITH_PATH)
    assert NAMED.keys() >= WORKING
    assert {"dump", "slow", "status"} <= AT_JOBS
    assert len(QUIET) > 15
    assert not JUDGING - NAMED.keys()


@pytest.mark.parametrize("name", NAMED)
def test_an_unknown_option_is_named(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    answer = say(capfd, *NAMED[name].words, "--no-such-option")
    assert answer.code == ExitCode.USAGE
    assert "--no-such-option" in answer.err
    assert f"mldebug {name} --help" in answer.err


@pytest.mark.parametrize("name", [name for name, one in NAMED.items() if "--config" in one.options])
@pytest.mark.parametrize("kind", ["missing", "folder", "wrong"])
def test_a_config_that_cannot_be_read_is_named(
    name: str, kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "of-mine.yaml"
    if kind == "folder":
        file.mkdir()
    elif kind == "wrong":
        file.write_text("agnt: {listen: 3}\n")
    needed = {"notify": ("--test", "ops"), "gpus release": ("--end",)}.get(name, ())
    verb = NAMED[name]
    answer = say(capfd, *verb.words, "--config", str(file), *needed, *verb.arguments(str(tmp_path / "a.txt")))  # fmt: skip
    assert answer.code == ExitCode.USAGE
    assert "of-mine.yaml" in answer.err


@pytest.mark.parametrize("name", WITH_PATH)
def test_a_path_where_nothing_is_is_named(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    needed = ("-o", "out.json") if name == "trace export" else ()
    answer = say(capfd, *NAMED[name].words, *needed, *NAMED[name].arguments(str(tmp_path / "nowhere.html")))  # fmt: skip
    assert answer.code in (ExitCode.USAGE, ExitCode.MISSING)


@pytest.mark.parametrize("name", WITH_PATH)
@pytest.mark.parametrize("what", ["empty", "noise"])
def test_a_path_that_holds_something_else_is_told_so(
    name: str, what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / what
    if what == "empty":
        path.mkdir()
    else:
        path.write_text("hello\nworld\n")
    needed = ("-o", "out.json") if name == "trace export" else ()
    answer = say(capfd, *NAMED[name].words, *needed, *NAMED[name].arguments(str(path)))
    assert answer.code != ExitCode.FOUND or name in JUDGING


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", WITH_PATH)
def test_a_path_that_may_not_be_read_is_told_so(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path / "file.txt", tmp_path / "folder"):
        path.mkdir() if path.suffix == "" else path.write_text("x")
        path.chmod(0)
        answer = say(capfd, *NAMED[name].words, *NAMED[name].arguments(str(path)))
        assert answer.code in (ExitCode.USAGE, ExitCode.MISSING)


@pytest.mark.parametrize("name", QUIET)
def test_where_nothing_is_nobody_is_called(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    answer = say(capfd, *NAMED[name].words, *NAMED[name].arguments("x"))
    assert answer.code != ExitCode.FOUND, answer.err


@pytest.mark.parametrize("name", [name for name, one in NAMED.items() if "--hosts" in one.options and name not in ("top", "probe curve")])  # fmt: skip
def test_a_host_that_nobody_knows_is_named(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    verb = NAMED[name]
    ssh = ("--ssh",) if "--ssh" in verb.options else ()
    answer = say(capfd, *verb.words, "--hosts", "nowhere.invalid", *ssh)
    assert answer.code == (ExitCode.FOUND if name in JUDGING else ExitCode.MISSING)
    assert "hostname it" not in answer.err


@pytest.mark.parametrize("name", [name for name, one in NAMED.items() if "--job" in one.options and name not in JUDGING])  # fmt: skip
def test_a_job_that_is_not_here_is_no_stall(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    answer = say(capfd, *NAMED[name].words, "--job", "zzz")
    assert answer.code != ExitCode.FOUND


@pytest.mark.parametrize("name", [name for name, one in NAMED.items() if "--slurm-job" in one.options and name != "top"])  # fmt: skip
def test_a_slurm_that_does_not_answer_is_no_stall(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact' >&2\nexit 1\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    answer = say(capfd, *NAMED[name].words, "--slurm-job", "123")
    assert answer.code == ExitCode.MISSING
    assert "squeue failed" in answer.err
    assert "`scontrol ping`" in answer.err


@pytest.mark.parametrize(
    ("words", "code", "sentences"),
    [
        (("checkpoints", "FILE"), 2, ("is a file, and no folder", "name the folder that the framework saves into")),
        (("checkpoints", "FILE/of"), 2, ("does not exist",)),
        (("completion",), 2, ("Choose from: bash, zsh, fish",)),
        (("notify", "--test", "ops"), 2, ("there is no /etc/mldebug/mldebug.yaml here", "--config FILE")),
        (("notify", "--config", "CONFIG"), 2, ("which channel is to be tried?", "add --test NAME: choose from: ops")),
        (("notify", "--config", "CONFIG", "--test", "opps"), 2, ("there is no channel 'opps' in CONFIG", "choose from: ops")),
        (("gpus", "release", "--end"), 3, ("no agent runs here", "start one: mldebug up")),
        (("trace", "attach", "4194305"), 3, ()),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_the_way_out(
    words: tuple[str, ...], code: int, sentences: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    file, config = tmp_path / "a.txt", tmp_path / "own.yaml"
    file.write_text("hello\n")
    config.write_text("channels: {ops: {kind: webhook, url: 'http://127.0.0.1:1/'}}\n")
    named = {"FILE": str(file), "FILE/of": str(file.with_name("nowhere")), "CONFIG": str(config)}
    answer = say(capfd, *(named.get(word, word) for word in words))
    assert answer.code == code
    for one in sentences:
        assert one.replace("CONFIG", str(config)) in answer.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_checkpoints_that_may_not_be_read_are_a_missing_right(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    tmp_path.chmod(0)
    assert say(capfd, "checkpoints", str(tmp_path)).code == ExitCode.MISSING
    tmp_path.chmod(0o700)
