"""The web pages of a real agent that watches a real job, in a real browser."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from processes.harness import MLDEBUG, Plan, User, clean_environment, folder_for, running, wait_for
from processes.incidents.watching import settings, watching
from processes.needs import need_torch
from shared.web.browser import CHROMIUM, chromium, tab

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not CHROMIUM and not os.environ.get("CI"), reason="chromium is not installed"),
]  # fmt: skip
need_torch("the scenarios train with PyTorch")
REPOSITORY = Path(__file__).parents[3]
# A picture for README shows no folder of the machine on which it was made
ANYWHERE = """here => { const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) walk.currentNode.data = walk.currentNode.data.replaceAll(here + "/tests/jobs", "/home/ada/training"); }"""


@contextmanager
def web(folder: Path, config: Path) -> Iterator[tuple[str, str]]:
    """`mldebug web --port 0`: the base address and the link; it has to end by Ctrl-C."""
    file = folder / "web.out"
    with file.open("wb") as out:
        process = subprocess.Popen(
            [*MLDEBUG, "web", "--port", "0", "--config", str(config)],
            stdout=out, stderr=subprocess.STDOUT, cwd=folder, env=clean_environment(folder),
        )  # fmt: skip
    try:
        link = wait_for("the link", lambda: [word for word in file.read_text().split() if word.startswith("http://")], 30)[0]  # fmt: skip
        yield link.partition("/?")[0], "/?" + link.partition("/?")[2]
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 0, file.read_text()
    finally:
        process.kill()
        process.wait(15)


def picture_of_report(browser: Browser, file: Path, images: Path) -> None:
    """The file itself, as somebody sees it who was sent it."""
    with tab(browser, "file://") as reader:
        reader.open(str(file))
        reader.page.evaluate(ANYWHERE, str(REPOSITORY))
        clip = {"x": 0.0, "y": 0.0, "width": 1280.0, "height": 1180.0}
        reader.page.screenshot(path=images / "report.png", full_page=True, clip=clip)  # type: ignore[arg-type]


def test_a_person_follows_a_hang_from_the_first_page_to_the_report() -> None:
    with (
        folder_for(User()) as folder,
        watching(folder, settings(folder, stall="{timeout: 6s, interval: 1s}")) as agent,
        running(Plan("sleep", after=200)) as job,
        web(folder, agent.config) as (base, link),
        chromium() as browser,
        tab(browser, base, phone=True) as phone,
        tab(browser, base, dark=True) as desk,
    ):
        wait_for("the agent sees steps", lambda: (result := agent.run_of(job)) and result.step, 60)
        desk.open(link)
        page = desk.page
        expect(page.locator(".run.good")).to_contain_text("4 of 4 ranks", timeout=60_000)
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        expect(page.locator(".cell")).to_have_count(4)
        expect(page.locator(".what.good")).to_contain_text("no alarm")
        page.evaluate("window.same = true")
        job.wait_until_stuck()
        expect(page.locator(".cell.culprit")).to_contain_text("2", timeout=90_000)
        expect(page.locator(".cell.r-waiting")).to_have_count(3)
        expect(page.locator(".finding")).to_contain_text("Rank 2 sleeps")
        assert page.evaluate("window.same"), "the page was loaded again"
        if images := os.environ.get("MLDEBUG_TEST_IMAGES"):
            page.screenshot(path=f"{images}/web-run.png")
        page.get_by_text("The whole report").click(timeout=30_000)
        page.wait_for_url(f"{base}/report?id=*")
        expect(page.locator("h1 em")).to_contain_text("ank 2")
        expect(page.get_by_role("navigation", name="Where you are").get_by_role("link")).to_have_text(["Incidents", "train.py"])  # fmt: skip
        if images:
            (file,) = agent.state.glob("reports/[!.]*/report.html")
            picture_of_report(browser, file, Path(images))
        wait_for("a second link", lambda: (folder / "web.out").read_text().count("?key=") == 2, 30)
        second = (folder / "web.out").read_text().split()[-1]
        phone.open(second.removeprefix(base))
        phone.open("/incidents")
        expect(phone.page.locator(".incident.open")).to_contain_text("Rank 2 sleeps")
        assert phone.fits()
        if images:
            phone.page.screenshot(path=f"{images}/web-phone.png")
