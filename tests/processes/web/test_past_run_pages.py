"""The pages of runs that are over, by a real agent: a torchrun job that ends by itself, one whose rank is killed, and an agent that starts
again afterwards.
"""

import os
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from processes.harness import Plan, RunningJob, folder_for, running, wait_for
from processes.harness import User as Somebody
from processes.incidents.watching import RunningAgent, settings, watching
from processes.needs import need_torch
from processes.web.test_web import web
from shared.web.browser import CHROMIUM, Tab, chromium, tab

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not CHROMIUM and not os.environ.get("CI"), reason="chromium is not installed"),
]  # fmt: skip
need_torch("the scenarios train with PyTorch")
STEPS = 120
SOON = 60_000  # milliseconds, within which an open page has become another
LIVES = "--pace", "0.25"


def open_run(agent: RunningAgent, job: RunningJob, desk: Tab) -> str:
    """Open the page of a run that makes steps, and return its id."""
    run = wait_for("steps", lambda: (one := agent.run_of(job)) and one.step and one, 90)
    desk.open(f"/run?id={run.id}")
    expect(desk.page.locator(".cell")).to_have_count(2, timeout=SOON)
    desk.page.evaluate("window.same = true")
    return str(run.id)


def fact(page: Page, name: str) -> str:
    """The value of one of the facts below the headline."""
    return (
        page.locator(".facts div", has=page.get_by_text(name, exact=True))
        .locator("dd")
        .inner_text()
    )


def state(page: Page) -> str:
    return page.get_by_role("status").first.inner_text()


def picture(page: Page, name: str) -> None:
    if images := os.environ.get("MLDEBUG_TEST_IMAGES"):
        page.screenshot(path=f"{images}/{name}.png", full_page=True)


def test_the_page_of_a_run_stays_when_the_run_is_over_and_when_the_agent_has_started_again() -> (
    None
):
    config = "{timeout: 15s, interval: 1s}"
    with folder_for(Somebody()) as folder, chromium() as browser:
        with (
            watching(folder, settings(folder, stall=config)) as agent,
            web(folder, agent.config) as (base, link),
            tab(browser, base) as desk,
        ):
            desk.open(link)
            well = _ends_by_itself(agent, desk)
            failed = _is_killed(agent, desk)
            expect(desk.page.locator("h1")).to_contain_text("train.py")
        Path(folder / "web.out").unlink()
        with (
            watching(folder, settings(folder, stall=config)) as agent,
            web(folder, agent.config) as (base, link),
            tab(browser, base, phone=True, dark=True) as phone,
        ):
            phone.open(link)
            _are_still_there(phone, well, failed)


def _ends_by_itself(agent: RunningAgent, desk: Tab) -> str:
    """Its open page turns into that of a run that is over, without being loaded again."""
    page = desk.page
    with running(Plan(world_size=2, options=("--steps", str(STEPS), *LIVES))) as job:
        id = open_run(agent, job, desk)
        assert job.started[0].wait(120) == 0, job.tail()
        last = re.findall(r"^step (\d+) loss ([\d.]+)", job.log.read_text(), re.MULTILINE)[-1]
    expect(page.get_by_role("status").first).to_contain_text("This run is over", timeout=SOON)
    expect(page.get_by_role("status").first).to_contain_text("It ended well", timeout=SOON)
    assert page.evaluate("window.same"), "the page was loaded again"
    assert page.locator(".cell").count() == 0
    assert (fact(page, "Last step"), float(fact(page, "Last loss"))) == (last[0], pytest.approx(float(last[1]), rel=1e-3))  # fmt: skip
    assert fact(page, "Ranks") == "2"
    for chart in ("loss", "seconds per step"):
        expect(page.locator("#history").get_by_text(chart, exact=True)).to_be_visible()
    expect(page.locator("#reports")).to_contain_text("There is none.")
    picture(page, "past-run-well")
    return id


def _is_killed(agent: RunningAgent, desk: Tab) -> str:
    """Its page says so, and leads to the report, which leads back."""
    page = desk.page
    with running(Plan(world_size=2, options=LIVES)) as job:
        id = open_run(agent, job, desk)
        job.wait_for_step(STEPS)
        os.kill(job.ranks[1], signal.SIGKILL)
        assert job.started[0].wait(120) != 0
    expect(page.get_by_role("status").first).to_contain_text("It failed", timeout=SOON)
    expect(page.get_by_role("status").first).to_contain_text("SIGKILL")
    assert page.evaluate("window.same"), "the page was loaded again"
    expect(page.locator("#reports a").first).to_be_visible(timeout=SOON)
    picture(page, "past-run-failed")
    page.locator("#reports a").first.click()
    page.wait_for_url("**/report?id=*")
    expect(page.locator("h1 em")).to_contain_text("ank 1")
    page.locator(f'a[href*="/run?id={id}"]').first.click()
    page.wait_for_url(f"**/run?id={id}*")
    return id


def _are_still_there(phone: Tab, well: str, failed: str) -> None:
    phone.open("/")
    for id, words in ((well, "ended well"), (failed, "failed")):
        expect(phone.page.locator(f'#past a[href="/run?id={id}"]').first).to_be_visible()
        expect(phone.page.locator("#past")).to_contain_text(words)
    for id, words in ((well, "It ended well"), (failed, "It failed")):
        phone.open(f"/run?id={id}")
        assert words in state(phone.page)
        expect(phone.page.locator("#history").get_by_text("loss", exact=True)).to_be_visible()
        assert phone.fits()
    picture(phone.page, "past-run-phone")
