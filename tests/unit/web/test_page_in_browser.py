"""The pages about storage, GPUs and probes in a real browser: what is bad is seen first, on a desk and on a phone, and follows."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, expect

from mldebug.status.snapshot import Snapshot
from mldebug_agents.web.server import AgentServer
from shared.system.patience import PATIENCE
from shared.web import pagedata
from shared.web.browser import CHROMIUM, Tab, chromium, relayed, tab
from shared.web.webpages import LATER, pages
from shared.web.webtext import HOSTILE

expect.set_options(timeout=20_000)
pytestmark = pytest.mark.skipif(
    not CHROMIUM and not os.environ.get("CI"), reason="chromium is not installed"
)
FIRST = {
    "storage": (".alarms li", "/data (nfs01:/data) has not answered"),
    "gpus": (".board h2", "GPU 5"),
    "probes": (".probe .name", "all_reduce"),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM, "chromium is not installed"
    with chromium() as one:
        yield one


@pytest.fixture
def served() -> Iterator[tuple[AgentServer, str, str]]:
    """A server; the address of its relay, and a link into it."""
    folder = Path(tempfile.mkdtemp(prefix="mldebug-test-"))
    try:
        with pages(folder, whole()) as server, relayed(folder) as (base, links):
            yield server, base, links[-1]
    finally:
        shutil.rmtree(folder)


def whole() -> Snapshot:
    """A node with all three."""
    disks, cards = pagedata.storage(), pagedata.gpus()
    run = replace(disks.runs[0], gpus=cards.runs[0].gpus, gpu_states=cards.runs[0].gpu_states)
    return replace(cards, runs=(run,), storage=disks.storage, memory=disks.memory, probes=pagedata.history())  # fmt: skip


def picture(given: Tab, name: str) -> None:
    """For docs/images, where somebody asks for it."""
    if folder := os.environ.get("MLDEBUG_TEST_IMAGES"):
        given.page.screenshot(path=f"{folder}/web-{name}.png")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["desk", "phone"])
@pytest.mark.parametrize("name", FIRST)
def test_what_is_bad_is_seen_without_scrolling(browser: Browser, served: tuple[AgentServer, str, str], name: str, phone: bool, dark: bool) -> None:  # fmt: skip
    _, base, link = served
    what, words = FIRST[name]
    with tab(browser, base, phone=phone, dark=dark) as page:
        page.open(link)
        page.open(f"/{name}")
        assert page.fits()
        first = page.page.locator(what).first
        expect(first).to_contain_text(words)
        expect(first).to_be_in_viewport()
        expect(page.page.locator("h1 em")).to_be_in_viewport()
        expect(page.page.locator("nav a").last).to_be_in_viewport(ratio=1)
        picture(page, f"{name}{'-phone' if phone else ''}{'-dark' if dark else ''}")


def test_bars_and_lines_are_drawn_though_no_style_attribute_is_allowed(browser: Browser, served: tuple[AgentServer, str, str]) -> None:  # fmt: skip
    _, base, link = served
    with tab(browser, base) as page:
        page.open(link)
        page.open("/storage")
        bar = page.page.locator("#group-1 .item").nth(1)
        whole_, full = (bar.locator(f".{one}").bounding_box() for one in ("rest", "full"))
        assert whole_ is not None
        assert full is not None
        assert full["width"] / whole_["width"] == pytest.approx(0.71, abs=0.01)
        page.open("/probes")
        box = page.page.locator(".spark polyline").first.bounding_box()
        assert box is not None
        assert box["width"] > 100
        assert box["height"] > 10  # it has fallen


def test_the_pages_follow_and_keep_what_was_opened_and_filtered(browser: Browser, served: tuple[AgentServer, str, str]) -> None:  # fmt: skip
    server, base, link = served
    with tab(browser, base) as observed:
        observed.open(link)
        page = observed.page
        observed.open("/gpus")
        page.evaluate("window.same = true")
        expect(page.locator(".board")).to_have_count(8)
        calm = replace(whole(), at=LATER, gpus=replace(whole().gpus, gpus=(pagedata.gpu(0),), lost=()), gpu_count=None, gpu_watch=None, health=())  # fmt: skip
        server.publish(calm)
        expect(page.locator(".board")).to_have_count(1)
        assert page.evaluate("window.same")
        observed.open("/storage")
        page.locator("summary").click()
        expect(page.locator("details li").first).to_be_visible()
        page.fill("#filter", "llama")
        server.publish(replace(whole(), at=LATER + 3, storage=None))
        expect(page.locator("#group-1")).to_have_count(0)
        expect(page.locator("details li").first).to_be_visible()
        assert page.input_value("#filter") == "llama"
        expect(page.locator("#memory .item:visible")).to_have_count(0)


def test_keys_reach_the_pages_and_walk_over_their_rows(browser: Browser, served: tuple[AgentServer, str, str]) -> None:  # fmt: skip
    _, base, link = served
    with tab(browser, base) as page:
        page.open(link)
        keys = page.page.keyboard
        for key, name in (("s", "storage"), ("c", "gpus"), ("p", "probes")):
            keys.press("g")
            keys.press(key)
            page.page.wait_for_url(f"{base}/{name}")
            expect(page.page.locator("nav [aria-current]")).to_have_attribute("href", f"/{name}")
        for key in "jj":
            keys.press(key)
        expect(page.page.locator(".here")).to_contain_text("all_gather")
        keys.press("/")
        keys.type("Ring")
        expect(page.page.locator(".probe:visible")).to_have_count(1)
        expect(page.page.locator("h2.series:visible")).to_have_count(1)
        keys.press("Escape")
        expect(page.page.locator(".probe:visible")).to_have_count(8)


def test_without_gpus_and_probes_each_page_is_one_sentence(browser: Browser, served: tuple[AgentServer, str, str]) -> None:  # fmt: skip
    server, base, link = served
    server.publish(replace(pagedata.quiet(), at=LATER))
    with tab(browser, base, phone=True) as page:
        page.open(link)
        for name, words in (("gpus", "No GPU here"), ("probes", "not known"), ("storage", "Nothing is known yet")):  # fmt: skip
            page.open(f"/{name}")
            expect(page.page.locator("#head")).to_contain_text(words)


@pytest.mark.parametrize("phone", [False, True], ids=["desk", "phone"])
def test_a_thousand_ranks_and_names_that_mean_harm_fit(browser: Browser, served: tuple[AgentServer, str, str], phone: bool) -> None:  # fmt: skip
    server, base, link = served
    big = pagedata.storage(ranks=1024, writers=1024)
    card = pagedata.gpu(0, name=HOSTILE * 9, bus_id=HOSTILE)
    run = replace(big.runs[0], name=HOSTILE * 3)
    server.publish(replace(big, at=LATER, runs=(run,), gpus=replace(whole().gpus, gpus=(card,))))
    with tab(browser, base, phone=phone) as page:
        page.open(link)
        for name in FIRST:
            page.open(f"/{name}")
            assert page.fits(), name
        page.open("/storage")
        assert page.page.locator("tbody tr").count() == 1024
        took = page.page.evaluate("() => { const at = performance.now(); const box = document.querySelector('#filter'); box.value = 'rank 7'; box.dispatchEvent(new Event('input', {bubbles: true})); document.body.offsetHeight; return performance.now() - at; }")  # fmt: skip
        assert took < 3000 * PATIENCE  # milliseconds; measured 40 to 150
