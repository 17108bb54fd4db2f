"""What a start of `mldebug` imports: the same everywhere, so it shows where a start has become slow; `tests/bench/starts.py` measures it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from mldebug.config.schema import AgentConfig
from mldebug.core.model import Job
from mldebug.core.plugins import PACKAGES, load, names, summary
from mldebug.status.snapshot import FoundJobs
from mldebug_agents.web.listeners import open_unix
from mldebug_agents.web.server import AgentServer
from shared.web.snapshots import moving, snapshot

MAIN = "import sys\nfrom mldebug.cli.main import main\ncode = main()\n"
LIST = MAIN + "print(*sys.modules, file=sys.stderr)\n"
MOST_OF_STATUS = 165  # modules of ours
# What belongs to others than who asks: servers, other nodes, pages, and the agent itself
HEAVY = ("asyncio", "starlette", "uvicorn", "cryptography", "prometheus_client", "sqlite3", "ClusterShell.Task", "mldebug_agents.agent.loop")  # fmt: skip


def imported(*arguments: str, first: str = "") -> set[str]:
    """The modules that this command line imports, where this code has run first."""
    done = subprocess.run([sys.executable, "-c", first + LIST, *arguments], check=True, capture_output=True, text=True)  # fmt: skip
    assert done.stdout
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("words", [(), ("dump",), ("reports", "list"), ("probe", "collectives")])
def test_help_imports_no_verb(words: tuple[str, ...]) -> None:
    modules = imported(*words, "--help")
    ours = {one for one in modules if one.startswith("mldebug")}
    assert ours <= {
        *("mldebug", "mldebug.cli", "mldebug.cli.main", *PACKAGES["commands"]),
        "mldebug.cli.help_texts",
        *("mldebug.core", "mldebug.core.errors", "mldebug.core.plugins", "mldebug.core.redact"),
        *("mldebug_agents", "mldebug_agents.cli"),
    }
    assert not modules & {*HEAVY, "jinja2", "rich", "yaml", "ssl", "http"}


@pytest.mark.parametrize("folder", PACKAGES["commands"])
def test_a_folder_of_verbs_imports_nothing_by_itself(folder: str) -> None:
    """Every start imports all of them, to know which verbs there are."""
    (docstring,) = ast.parse(Path(import_module(folder).__file__ or "").read_text()).body
    assert isinstance(docstring, ast.Expr)


@pytest.mark.parametrize("arguments", [("status",), ("reports", "list")])
def test_a_look_at_this_node_imports_no_server(arguments: tuple[str, ...]) -> None:
    """`status` looks for itself where no agent runs, with the tools of the agent: its state is one of them."""
    allowed = {"sqlite3"} if arguments == ("status",) else set()
    assert not imported(*arguments) & set(HEAVY) - allowed


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    """The configuration of an agent that answers, and watches a job."""
    server = AgentServer(AgentConfig(state_dir=tmp_path, listen=""))
    run = moving("1a2b3c")
    job = Job(id=run.id, name="found.py", launcher="torchrun", launcher_pid=4711)
    server.publish(snapshot(run, found=FoundJobs(at=1.0, jobs=(job,))))
    server.serve_socket(open_unix(tmp_path))
    file = tmp_path / "mldebug.yaml"
    file.write_text(f"agent: {{state_dir: {tmp_path}}}\n")
    yield file
    server.stop(5)


CURRENT = "import mldebug_agents.cli.current_jobs as jobs\njobs.are_current = lambda *_: {}\n"


@pytest.mark.parametrize("form", ["wide", "table", "name"])
def test_status_imports_little_where_the_agent_answers(config: Path, form: str) -> None:
    """Counted, since a time depends on the machine: 558 before, and 609 ms of CPU time in place of 214."""
    modules = imported("status", "-o", form, "--config", str(config), first=CURRENT.format(True))
    assert not modules & {*HEAVY, "sqlite3", "jinja2", "mldebug_agents.cli.node_search"}
    assert len([one for one in modules if one.startswith("mldebug")]) <= MOST_OF_STATUS


@pytest.mark.parametrize("how", ["what it found is old", "json"])
def test_status_searches_for_itself_where_that_may_show_more(config: Path, how: str) -> None:
    words = ("status", "--config", str(config), *(("--json",) if how == "json" else ()))
    modules = imported(*words, first=CURRENT.format(how == "json"))
    assert "mldebug_agents.cli.node_search" in modules


def test_status_shows_what_the_agent_has_found(config: Path) -> None:
    words = [sys.executable, "-c", CURRENT.format(True) + MAIN, "status", "--config", str(config)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert "found.py  id 1a2b3c" in done.stdout
    assert "launcher pid 4711" in done.stdout
    assert "an agent watches them" in done.stdout


def test_a_list_of_reports_imports_nothing_that_shows_one() -> None:
    modules = imported("reports", "list")
    assert "mldebug.incidents.report_dirs" in modules
    assert not modules & {
        "jinja2",
        "mldebug.incidents.report.html",
        "mldebug.incidents.report.text",
    }
    assert not [one for one in modules if one.startswith("mldebug.diagnosis.exits.words")]


@pytest.mark.parametrize("kind", ["commands", "probes", "launchers", "metrics"])
def test_a_summary_that_is_read_without_an_import_is_the_docstring(kind: str) -> None:
    for name in names(kind):
        assert summary(kind, name) == (load(kind, name).__doc__ or "").strip().splitlines()[0]
