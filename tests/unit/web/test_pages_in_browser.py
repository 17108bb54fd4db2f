"""The web pages in a real browser: readable on a desk and on a phone, live, by keys alone, and never a word to anybody else."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, expect

from mldebug.web import frame
from mldebug_agents.web.listeners import open_tcp
from mldebug_agents.web.server import AgentServer
from shared.incidents import samples
from shared.web.browser import CHROMIUM, chromium, relayed, tab
from shared.web.webpages import LATER, hanging, hostile, pages, shown, store, training

expect.set_options(timeout=20_000)
pytestmark = pytest.mark.skipif(
    not CHROMIUM and not os.environ.get("CI"), reason="chromium is not installed"
)
RUN = "/run?id=7f3a"
MOMENT = datetime.fromtimestamp(LATER, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM, "chromium is not installed"
    with chromium() as one:
        yield one


@pytest.fixture
def served() -> Iterator[tuple[AgentServer, str, str]]:
    """A server with runs and reports; the address of its relay, and a link into it."""
    folder = Path(tempfile.mkdtemp(prefix="mldebug-test-"))
    for number, name in enumerate(samples.ALL):
        store(folder, name, id=f"20261121T0550{number:02d}Z-{number:04x}", job="7f3a")
    try:
        page = shown(training(), hanging(), hostile())
        with pages(folder, page) as server, relayed(folder) as (base, links):
            yield server, base, links[-1]
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["desk", "phone"])
def test_every_page_can_be_read(browser: Browser, served: tuple[AgentServer, str, str], phone: bool, dark: bool) -> None:  # fmt: skip
    _, base, link = served
    with tab(browser, base, phone=phone, dark=dark) as page:
        page.open(link)
        assert page.page.url == f"{base}/runs"
        for path in (*(f"/{name}" for name in frame.pages() if name != "run"), RUN):
            page.open(path)
            assert page.fits(), path
            assert page.page.locator("h1").inner_text()
        ink, paper = (page.page.evaluate(f"getComputedStyle(document.body).{one}") for one in ("color", "backgroundColor"))  # fmt: skip
        assert (_light(paper) < _light(ink)) == dark


def _light(colour: str) -> int:
    return sum(int(part) for part in colour[4:-1].split(","))


def test_the_grid_shows_the_culprit_and_follows_without_a_reload(browser: Browser, served: tuple[AgentServer, str, str]) -> None:  # fmt: skip
    server, base, link = served
    with tab(browser, base) as observed:
        observed.open(link)
        observed.open(RUN)
        page = observed.page
        expect(page.locator(".cell.culprit")).to_have_text("2I")
        page.evaluate("window.same = true")
        page.fill("#filter", "collective")
        expect(page.locator("tbody tr:visible")).to_have_count(7)
        page.locator("#grid a").nth(4).hover()
        server.publish(shown(hanging(culprit=5), at=LATER))
        expect(page.locator(".cell.culprit")).to_have_text("5I")
        expect(page.locator("#as-of time")).to_have_attribute("datetime", MOMENT)  # fmt: skip
        assert page.evaluate("window.same")
        assert page.input_value("#filter") == "collective"
        expect(page.locator("tbody tr:visible")).to_have_count(7)
        server.publish(shown(training(), at=LATER + 5))
        expect(page.locator("#head")).to_contain_text("This run is over")
        assert (
            page.locator(".cell").count() == 0
        )  # nothing of what its ranks did stands there as if they did
        page.locator("#reports a").first.click()
        page.wait_for_url(f"{base}/report?id=*")
        page.locator("a[href^='/run?id=']").click()  # and back to the run, which is still over
        page.wait_for_url(f"{base}/run?id=*")


NOTIFIED = """window.told = []; window.Notification = class {
  static permission = "granted"; static async requestPermission() { return "granted"; }
  constructor(title, more) { window.told.push(`${title}|${more.body}`); } };"""


def test_who_wants_it_is_notified_of_a_new_incident_once(browser: Browser, served: tuple[AgentServer, str, str]) -> None:  # fmt: skip
    server, base, link = served
    server.publish(shown(training(), at=LATER))
    with tab(browser, base) as page:
        page.page.add_init_script(NOTIFIED)
        page.open(link)
        server.publish(shown(training(), hanging(), at=LATER + 5))
        expect(page.page).to_have_title(re.compile(r"^\(1\) stalled: pretrain\.py"))
        assert page.page.evaluate("told") == []  # nobody has asked for it yet
        server.publish(shown(training(), at=LATER + 10))
        expect(page.page).not_to_have_title(re.compile(r"^\(1\)"))
        page.page.get_by_role("button", name="Notify me of incidents").click()
        expect(page.page.locator("#notify")).to_have_text("Notifications are on")
        for later in (15, 20):
            server.publish(shown(training(), hanging(), at=LATER + later))
            expect(page.page).to_have_title(re.compile(r"^\(1\)"))
            expect(page.page.locator("#as-of time")).to_have_attribute(
                "datetime", moment(LATER + later)
            )
        (only,) = page.page.evaluate("told")
        assert only.endswith("|stalled: pretrain.py")


def moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_an_agent_that_is_gone_is_told_and_what_is_shown_stays(browser: Browser, served: tuple[AgentServer, str, str]) -> None:  # fmt: skip
    server, base, link = served
    with tab(browser, base) as page:
        page.open(link)
        server.stop(5)
        expect(page.page.locator("#away")).to_contain_text("The agent does not answer")
        expect(page.page.locator("main")).to_have_css("filter", "grayscale(1)")
        expect(page.page.locator(".run")).to_have_count(3)
        page.errors = [one for one in page.errors if "502" not in one]


def test_what_is_old_is_told_without_a_reload_until_it_is_new(browser: Browser, served: tuple[AgentServer, str, str]) -> None:  # fmt: skip
    server, base, link = served
    with tab(browser, base) as page:
        page.open(link)
        expect(page.page.locator("#stale")).to_have_count(0)
        server.published_at -= 200
        expect(page.page.get_by_role("alert")).to_contain_text("has not looked for 3 min")
        expect(page.page.locator("#runs")).to_have_css("filter", "grayscale(1)")
        server.publish(shown(training(), at=LATER))
        expect(page.page.locator("#stale")).to_have_count(0)


def test_keys_alone_reach_everything(
    browser: Browser, served: tuple[AgentServer, str, str]
) -> None:
    _, base, link = served
    with tab(browser, base) as page:
        page.open(link)
        keys = page.page.keyboard
        keys.press("?")
        expect(page.page.locator("#help")).to_be_visible()
        keys.press("Escape")
        expect(page.page.locator("#help")).to_be_hidden()
        for name, one in frame.pages().items():
            if one.key:
                keys.press("g")
                keys.press(one.key)
                page.page.wait_for_url(f"{base}/{name}")
        page.open("/runs")
        for key in "jjk":
            keys.press(key)
        expect(page.page.locator(".here h2")).to_have_text("pretrain.py")
        keys.press("Enter")
        page.page.wait_for_url(base + RUN)
        keys.press("/")
        keys.type("sleep")
        keys.press("Enter")
        expect(page.page.locator("tbody tr.here")).to_have_attribute("id", "rank-2")
        keys.press("Escape")
        expect(page.page.locator("tbody tr:visible")).to_have_count(8)
        keys.press("u")
        page.page.wait_for_url(f"{base}/runs")
        keys.press("g")
        keys.press("i")
        page.page.wait_for_url(f"{base}/incidents")
        keys.press("/")
        keys.type("mismatch")
        keys.press("Enter")
        keys.press("Enter")
        page.page.wait_for_url(f"{base}/report?id=*")
        expect(page.page.locator(".what").first).to_have_text("Collective mismatch")
        assert page.page.evaluate("document.documentElement.classList.contains('js')")
        keys.press("u")  # its run, which lives
        page.page.wait_for_url(base + RUN)
        page.page.go_back()
        page.page.get_by_role("navigation", name="Pages").get_by_text("GPUs").click()
        page.page.wait_for_url(f"{base}/gpus")


def test_without_javascript_the_pages_say_the_same(browser: Browser, served: tuple[AgentServer, str, str]) -> None:  # fmt: skip
    _, base, link = served
    with tab(browser, base, js=False) as page:
        page.open(link)
        page.page.click("text=pretrain.py")
        assert page.page.url == base + RUN
        assert page.page.locator(".cell.culprit").inner_text().split() == ["2", "I"]
        assert page.page.locator(".js-only:visible").count() == 0


def test_a_link_is_good_once_and_other_users_stay_outside(browser: Browser, served: tuple[AgentServer, str, str]) -> None:  # fmt: skip
    _, base, link = served
    with tab(browser, base) as mine:
        mine.open(link)
        mine.open("/runs")
        assert mine.page.context.cookies()[0]["httpOnly"]
    with tab(browser, base) as other:
        for path in (link, "/runs", "/?key=", "/?key=x"):
            answer = other.page.goto(base + path)
            assert answer is not None
            assert answer.status == 403
        other.errors = [one for one in other.errors if "403" not in one]


def test_the_token_lets_in_by_tcp(browser: Browser, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123\n")
    token.chmod(0o600)
    with open_tcp("127.0.0.1:0") as door:
        port = door.getsockname()[1]
    with (
        pages(tmp_path, shown(training()), listen=f"127.0.0.1:{port}", token_file=token),
        tab(browser, f"http://127.0.0.1:{port}") as page,
    ):
        page.open("/runs")
        page.page.fill("#token", "wrong")
        page.page.keyboard.press("Enter")
        expect(page.page.get_by_role("alert")).to_contain_text("not the agent's token")
        page.page.fill("#token", "0123456789abcdef0123")
        page.page.keyboard.press("Enter")
        expect(page.page.locator(".run h2")).to_have_text("llama-7b")
        page.page.click("text=Log out")
        expect(page.page.locator("#token")).to_be_visible()
        page.errors = [one for one in page.errors if "401" not in one]


@pytest.mark.parametrize("phone", [False, True], ids=["desk", "phone"])
def test_a_thousand_ranks_stay_readable(browser: Browser, served: tuple[AgentServer, str, str], phone: bool) -> None:  # fmt: skip
    server, base, link = served
    server.publish(shown(replace(hanging(1024, 700), id="b1g"), at=LATER))
    with tab(browser, base, phone=phone) as page:
        page.open(link)
        page.open("/run?id=b1g")
        assert page.fits()
        assert page.page.locator(".cell").count() == 1024
        expect(page.page.locator("tbody tr").first).to_contain_text("culprit")
