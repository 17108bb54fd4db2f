"""The page on which dumps are dropped: what its Python answers, and the page itself, built of npm and PyPI, in a browser without a network."""

import functools
import importlib.util
import json
import os
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest
from playwright.sync_api import expect

from shared.web.browser import CHROMIUM, Tab, chromium

ZONE = Path(__file__).parents[2] / "deploy/site/drop_zone"
STACK = 'Process {pid}: python -u train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread {pid} (idle): "MainThread"\n{frames}\n'
WAITS = "    all_reduce (torch/distributed/distributed_c10d.py:2501)\n    average (train.py:30)\n    <module> (train.py:50)"
SLEEPS = "    load (train.py:7)\n    <module> (train.py:50)"


def module(name: str) -> ModuleType:
    """A file of the drop zone, which is no package."""
    spec = importlib.util.spec_from_file_location(f"drop_zone_{name}", ZONE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def stacks(tmp_path: Path) -> Path:
    """What py-spy printed of four ranks."""
    folder = tmp_path / "stacks"
    folder.mkdir()
    for rank in range(4):
        (folder / f"rank{rank}.txt").write_text(
            STACK.format(pid=100 + rank, frames=SLEEPS if rank == 2 else WAITS)
        )
    return folder


def answer(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(module("judge").judge(folder))
    return found


def test_stacks_are_diagnosed(stacks: Path) -> None:
    found = answer(stacks)
    assert found["command"] == "mldebug diagnose"
    assert "Rank 2 " in found["text"]
    assert "<em>Rank 2</em>" in found["html"]


def test_an_archive_of_them_too(stacks: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    shutil.make_archive(str(tmp_path / "one/stacks"), "zip", stacks)
    assert "Rank 2 " in answer(tmp_path / "one")["text"]


def test_a_log_is_tried_and_what_is_nothing_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(
        "".join(f"step {n}/100 loss 0.{n}\n" for n in range(10, 20))
    )
    found = answer(tmp_path)
    assert (found["command"], found["html"]) == ("mldebug logs try", "")
    assert "step 10 to 19 of 100" in found["text"]
    (tmp_path / "train.log").write_text("hello\n")
    assert answer(tmp_path)["command"] == ""


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and prints nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of the page, freshly built."""
    folder = tmp_path / "zone"
    assert module("build").build(folder) < 20e6
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.long
@pytest.mark.host
@pytest.mark.timeout(400)
@pytest.mark.skipif(
    not os.environ.get("CI") and not (CHROMIUM and shutil.which("npm")),
    reason="needs chromium and npm",
)
def test_dumps_that_are_dropped_are_judged_in_the_browser(served: str, stacks: Path) -> None:
    with chromium() as browser:
        context = browser.new_context()
        page = context.new_page()
        tab = Tab(page, served)
        tab.open("/")
        expect(page.get_by_role("status")).to_contain_text("Ready", timeout=240_000)
        context.set_offline(True)
        page.set_input_files("#files", sorted(stacks.iterdir()))
        expect(page.get_by_role("status")).to_contain_text("Judged in", timeout=120_000)
        expect(page.locator("#text")).to_contain_text("Rank 2 ")
        expect(page.frame_locator("#report").locator("h1 em")).to_contain_text("ank 2")
        if images := os.environ.get("MLDEBUG_TEST_IMAGES"):
            page.screenshot(path=f"{images}/drop-zone.png")
            print(page.get_by_role("status").text_content())
        assert not tab.strangers
