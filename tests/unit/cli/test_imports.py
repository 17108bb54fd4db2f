"""What a start of `mldebug` imports: the same everywhere, so it shows where a start has become slow; `tests/bench/starts.py` measures it."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from mldebug.core.plugins import PACKAGES, load, names, summary

LIST = "import sys\nfrom mldebug.cli.main import main\ncode = main()\nprint(*sys.modules, file=sys.stderr)\n"
# What belongs to others than who asks: servers, other nodes, pages, and the agent itself
HEAVY = ("asyncio", "starlette", "uvicorn", "cryptography", "prometheus_client", "sqlite3", "ClusterShell.Task", "mldebug_agents.agent.loop")  # fmt: skip


def imported(*arguments: str) -> set[str]:
    """The modules that this command line imports."""
    done = subprocess.run([sys.executable, "-c", LIST, *arguments], check=True, capture_output=True, text=True)  # fmt: skip
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


def test_a_list_of_reports_imports_no_templates() -> None:
    modules = imported("reports", "list")
    assert not modules & {"jinja2", "mldebug.incidents.report.html"}


@pytest.mark.parametrize("kind", ["commands", "probes", "launchers", "metrics"])
def test_a_summary_that_is_read_without_an_import_is_the_docstring(kind: str) -> None:
    for name in names(kind):
        assert summary(kind, name) == (load(kind, name).__doc__ or "").strip().splitlines()[0]
