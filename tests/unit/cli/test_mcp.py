"""`mldebug mcp`, asked by the client of the package `mcp`; its tools and errors also without that package."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mldebug.cli.main import main
from mldebug.incidents.report.html import render_html
from mldebug.incidents.report_store import ReportStore
from mldebug_agents.cli.commands.support import mcp as verb
from mldebug_agents.cli.commands.support.mcp import McpTools
from mldebug_agents.system.spawn import Completed, FakeSpawner, Spawner
from shared.incidents import samples
from shared.web.webpages import pages, shown, training

OFFERED = ["status", "reports", "report", "diagnose", "flight_recorder", "metrics"]


class RefusedError(Exception):
    """Stands for the package's error."""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config whose state dir has one report."""
    made = samples.report(samples.sleeping())
    ReportStore(tmp_path / "state").save(made, render_html(made), {})
    file = tmp_path / "c.yaml"
    file.write_text(f"agent: {{state_dir: {tmp_path / 'state'}, listen: ''}}\n")
    return file


class Registry:
    """Notes what a server would be given."""

    def __init__(self) -> None:
        self.tools: list[str] = []
        self.resources: list[str] = []

    def tool(self) -> Callable[[Callable[..., str]], None]:
        return lambda function: self.tools.append(function.__name__)

    def resource(self, uri: str, **_: str) -> Callable[[object], None]:
        return lambda _: self.resources.append(uri)


@pytest.mark.parametrize("allow", [False, True])
def test_it_reads_only_unless_it_is_allowed_more(allow: bool) -> None:
    registry = Registry()
    with Spawner() as spawner:
        McpTools(spawner, None, RefusedError).offer(registry, allow_dump=allow)
    assert registry.tools == ([*OFFERED, "dump"] if allow else OFFERED)
    assert registry.resources == ["mldebug://status", "mldebug://reports", "mldebug://reports/{id}"]


def test_a_tool_returns_what_the_command_prints(config: Path) -> None:
    with Spawner() as spawner:
        tools = McpTools(spawner, config, RefusedError)
        (entry,) = json.loads(tools.reports(verdict="rank_waiting"))
        assert json.loads(tools.reports(verdict="gpu_fault")) == []
        assert json.loads(tools.report(entry["id"]))["diagnosis"]["verdict"] == "rank_waiting"


@pytest.mark.parametrize("tool", ["diagnose", "flight_recorder"])
def test_a_path_means_what_it_means_where_the_server_was_started(tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Programs are started in `/`: a path goes to them as a whole one."""
    spawner = FakeSpawner(lambda argv: Completed(argv=argv, returncode=0, stdout=b"{}"))
    monkeypatch.chdir(tmp_path)
    getattr(McpTools(spawner, None, RefusedError), tool)("dumps")
    ((*_, last),) = spawner.calls
    assert last == str(tmp_path / "dumps")


@pytest.mark.parametrize("wanted", ["--help", "--json", "-x", "no-such-report"])
def test_what_it_is_given_is_never_an_option(config: Path, wanted: str) -> None:
    with Spawner() as spawner, pytest.raises(RefusedError, match="report"):
        McpTools(spawner, config, RefusedError).report(wanted)


def test_metrics_come_from_the_agent_s_socket(config: Path, tmp_path: Path) -> None:
    with Spawner() as spawner:
        tools = McpTools(spawner, config, RefusedError)
        with pytest.raises(RefusedError, match="mldebug up"):
            tools.metrics()
        with pages(tmp_path / "state", shown(training())):
            assert "mldebug_run_step" in tools.metrics()


def test_without_the_package_it_says_what_to_install(config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(verb, "SERVERS", (("mldebug.no_such_module", "Server"),))
    assert main(["mcp", "--config", str(config)]) == 3
    assert "pip install 'mcp>=1.10'" in capsys.readouterr().err


@pytest.mark.skipif(find_spec("mcp") is None, reason="the package mcp is not installed")
def test_a_real_client_lists_and_calls_the_tools(config: Path) -> None:
    package: Any = pytest.importorskip("mcp")
    stdio: Any = pytest.importorskip("mcp.client.stdio")
    server = package.StdioServerParameters(
        command=sys.executable,
        args=["-m", "mldebug", "mcp", "--config", str(config)],
        env=dict(os.environ),
    )

    async def ask() -> tuple[list[str], str, Any, str]:
        async with (
            stdio.stdio_client(server) as streams,
            package.ClientSession(*streams) as session,
        ):
            await session.initialize()
            names = [tool.name for tool in (await session.list_tools()).tools]
            listed = await session.call_tool("reports", {})
            refused = await session.call_tool("report", {"id": "--help"})
            resource = await session.read_resource("mldebug://reports/latest")
            return names, listed.content[0].text, refused, resource.contents[0].text

    names, listed, refused, resource = asyncio.run(ask())
    assert names == OFFERED
    assert json.loads(listed)[0]["verdict"] == "rank_waiting"
    assert "report" in refused.content[0].text
    assert json.loads(resource)["diagnosis"]["verdict"] == "rank_waiting"
