"""The hub's pages in a real browser: words of nodes and jobs are shown and nothing in them runs; pages of another site, and names that
are pointed here, get nothing and do nothing.
"""

import os
import platform
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, sync_playwright

from mldebug.config.schema import Config
from mldebug.fleet.batches import batch_of, packed
from mldebug.fleet.hub_model import ReceivedBatch
from mldebug_agents.fleet.hub.process import Hub
from mldebug_agents.fleet.places import (
    HOURS,
    INCIDENTS,
    JOBS,
    LEMONS,
    NODES,
    NOTES,
    SENDERS,
    SIMILAR,
)
from shared.fleet.fleet_events import NOW, attempt, fault, gpu, health, incident, job, probe
from shared.web.browser import ARGUMENTS, CHROMIUM, Tab
from unit.fleet.test_people import TOKEN, config, hub
from unit.web.test_hostile_page import evil_site

__all__ = ["config", "hub"]

pytestmark = pytest.mark.skipif(
    not CHROMIUM and not os.environ.get("CI"), reason="chromium is not installed"
)
PAGES = ("/", "/incidents", "/incidents?words=GPU", "/goodput", "/goodput?by=job")
ANSWERS = (LEMONS, JOBS, NODES, INCIDENTS, SENDERS, HOURS)
RENAMED = f"{platform.node().partition('.')[0]}.evil.example"
SLY = (
    "<script>window.hit=1</script>",
    "<img src=x onerror=window.hit=1>",
    "\"><svg/onload=window.hit=1><a href='javascript:window.hit=1'>",
    "' onmouseover='window.hit=1' x='",
    "javascript:window.hit=1//",
    "</title></style></textarea><script>window.hit=1</script>",
    "{{7*7}}${7*7}<!--",
    "\u202e\u2066<b>reversed",
)
"""What nodes and jobs are called, and what they say."""


def hostile(node: str) -> Iterator[Any]:
    """Events of one node with such words wherever they may stand."""
    for number, word in enumerate(SLY):
        run = f"r{number}"
        yield attempt(node, job=word, run=run, subject=f"attempt/{run}/0", user=word[:60], script=word, began=NOW + number)  # fmt: skip
        yield incident(f"i{number}", node, job=word, run=run, sentence=f"GPU {word}", at=NOW + number)  # fmt: skip
        yield job(node, job=word, user=word[:60], subject=f"job/{number}")
        part = gpu(number, word[:60])
        yield health(node, NOW - 99 + number, part)
        yield fault(node, NOW - 50 + number, part, sentence=word, reason_code=word[:60])
        yield probe(node, op=word[:60], subject=f"probe/{number}")


@pytest.fixture
def logged_in(hub: Hub, config: Config) -> Iterator[tuple[BrowserContext, str]]:
    """A browser that is logged in at a hub with such events; the attacker's names lead to this machine."""
    took = 0
    for event in hostile("n1"):
        answer = hub.intake.take(ReceivedBatch(batch_of(packed("n1", "1", [event], {})), "", "10.0.0.1"))  # fmt: skip
        took += answer.stored
    assert took > 3 * len(SLY), "the hub took too few of them for this to show anything"
    names = ",".join(f"MAP {name} 127.0.0.1" for name in ("evil.example", RENAMED))
    at = f"http://{config.hub.pages}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*ARGUMENTS, f"--host-resolver-rules={names}"]
        )
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{at}/login")
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{at}/")
        try:
            yield context, at
        finally:
            browser.close()


def test_words_of_nodes_and_jobs_are_shown_and_nothing_in_them_runs(
    logged_in: tuple[BrowserContext, str],
) -> None:
    context, at = logged_in
    shown = 0
    for path in PAGES:
        one = Tab(context.new_page(), at)
        one.open(path)
        text = one.page.inner_text("body")
        shown += sum(word in text for word in SLY[:4])
        for link in one.page.query_selector_all("a[href]"):
            assert (link.get_attribute("href") or "").partition(":")[0] != "javascript"
        one.page.evaluate("document.querySelectorAll('*').forEach(each => each.dispatchEvent(new MouseEvent('mouseover')))")  # fmt: skip
        assert one.page.evaluate("window.hit") is None, path
        assert one.errors == []
        assert one.strangers == []
    assert shown > len(PAGES)


def test_another_site_s_page_gets_and_does_nothing(
    logged_in: tuple[BrowserContext, str],
) -> None:
    context, at = logged_in
    with evil_site() as port:
        page = context.new_page()
        page.goto(f"http://evil.example:{port}/")
        doors = ["/login", "/logout", NOTES]
        got = page.evaluate("([at, paths, doors]) => attack(at, paths, doors)", [at, ["/metrics", *PAGES, *ANSWERS], doors])  # fmt: skip
        form = f'<form id=f method=post enctype=text/plain action="{at}{NOTES}"><input name=\'{{"incident":"i1","text":"\' value=\'forged"}}\'></form>'
        page.set_content(form)
        page.evaluate("document.getElementById('f').submit()")
        page.wait_for_load_state()
        assert "forged" not in page.inner_text("body")
    assert got == {}
    notes = context.request.get(f"{at}{SIMILAR}?incident=i1").text()
    assert '"notes"' in notes
    assert "forged" not in notes
    own = context.pages[0]
    own.reload()
    assert own.url == f"{at}/"  # nobody has logged him out


def test_a_name_that_is_pointed_here_reads_nothing(logged_in: tuple[BrowserContext, str]) -> None:
    context, at = logged_in
    page = context.new_page()
    for name in ("evil.example", RENAMED):
        for path in ("/metrics", "/", "/login", *ANSWERS):
            answer = page.goto(f"http://{name}:{at.rpartition(':')[2]}{path}")
            assert answer is not None
            assert answer.status == 421, path
            assert "mldebug_" not in answer.text()
            assert "train.py" not in answer.text()
