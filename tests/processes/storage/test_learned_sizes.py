"""A real job under a real agent: the directory that it writes to is watched without configuration, exported, and stands on the page."""

import json
import re
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from mldebug.core.units import size_words
from mldebug.storage.filesystems.state import Row
from mldebug_agents.web.unix_http import UnixConnection
from processes.harness import Plan, folder_for, free_port, mldebug, wait_for
from processes.incidents.test_full_disks import FillingJob
from processes.incidents.watching import RunningAgent, settings, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
need_torch("the job trains with PyTorch")

CONFIG = "storage: {interval: 2s}\ncheckpoints: {interval: 2s, settle: 5s}\n"


def tree_of(agent: RunningAgent, place: Path) -> Row | None:
    """What is known of the size of this directory."""
    snapshot = agent.snapshot()
    rows = snapshot.storage.rows.get("trees", ()) if snapshot and snapshot.storage else ()
    return next((one for one in rows if one["path"] == str(place) and one["how"] == "watched"), None)  # fmt: skip


def page_of(agent: RunningAgent) -> str:
    """The page "Usage" as the agent serves it."""
    with closing(UnixConnection(agent.state)) as connection:
        connection.request("GET", "/usage")
        return connection.getresponse().read().decode()


def test_where_a_run_writes_is_watched_without_configuration_and_stands_on_the_page() -> None:
    port = free_port()
    with (
        folder_for(Plan().user) as folder,
        folder_for(Plan().user) as own,
        watching(own, settings(own, listen=f"127.0.0.1:{port}") + CONFIG) as agent,
    ):
        job = FillingJob(folder, folder / "ckpt", 1, "file")
        try:
            job.start()
            first = wait_for("its size", lambda: tree_of(agent, folder), 120)
            more = wait_for(
                "growth by events",
                lambda: (one := tree_of(agent, folder)) and one["bytes"] > first["bytes"] and one,
                60,
            )  # fmt: skip
            assert more["job"] in {run.id for run in agent.snapshot().runs}  # type: ignore[union-attr]
            saved = wait_for("whole checkpoints", lambda: re.search(r"step-\d+\.pt, 1 MiB, .* old", page_of(agent)), 60)  # fmt: skip
            assert saved
            page = page_of(agent)
            assert str(folder) in page
            assert "Nothing is ever deleted from here" in page
            answer = mldebug(job, "usage", "--keep", "1", "--json", "--config", str(agent.config))
            assert answer.code == 0, answer
            usage = json.loads(answer.stdout)
            assert [one["path"] for one in usage["trees"]] == [str(folder / "ckpt")], answer.stdout
            (mine,) = (one for one in usage["folders"] if one["has_checkpoints"])
            assert any("fills_disk.py" in run for run in mine["runs"]), (
                "by a run that the agent knows"
            )
            assert re.search(r"step-\d+\.pt", usage["could_go"][0]["path"]), answer.stdout
            assert usage["retention"][0]["frees"] > 1 << 20
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                metrics = answer.read().decode()
            path = re.escape(str(folder))
            found = re.search(rf'mldebug_tree_bytes{{[^}}]*path="{path}"[^}}]*}} (\S+)', metrics)
            assert found, [line for line in metrics.splitlines() if "mldebug_tree" in line]
            assert float(found[1]) >= first["bytes"], size_words(float(found[1]))
        finally:
            job.end()
