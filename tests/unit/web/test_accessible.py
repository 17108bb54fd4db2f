"""What pages and reports owe to screen readers, keyboards and weak eyes: WCAG 2.2 AA, as axe-core finds it in a real browser."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Page

from mldebug.incidents.report.html import render_html
from mldebug.status.snapshot import Snapshot
from shared.incidents import samples
from shared.web import pagedata
from shared.web.browser import CHROMIUM, chromium, relayed, tab
from shared.web.webpages import hanging, hostile, pages, shown, store, training
from unit.web.test_page_in_browser import whole

pytestmark = pytest.mark.skipif(
    not CHROMIUM and not os.environ.get("CI"), reason="chromium is not installed"
)
AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
LOOKS = pytest.mark.parametrize(("phone", "dark"), [(False, False), (True, True)], ids=["desk", "phone-dark"])  # fmt: skip
RUNS, RUN, BOARDS = ("/runs", "/incidents"), ("/run?id=7f3a",), ("/storage", "/gpus", "/probes")
WORLDS: dict[str, tuple[Callable[[], Snapshot], tuple[str, ...]]] = {
    "runs": (lambda: shown(training(), hanging(), hostile()), (*RUNS, *RUN)),
    "many ranks": (lambda: shown(hanging(70)), RUN),
    "node": (whole, BOARDS),
    "nothing": (pagedata.quiet, (*RUNS, *BOARDS)),
}
REPORTS = {"sleeping": samples.sleeping, "huge": lambda: samples.huge(384, 211)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM, "chromium is not installed"
    with chromium() as one:
        yield one


def found(page: Page) -> list[tuple[str, list[str]]]:
    """What axe-core complains about, and where."""
    page.evaluate(AXE)
    result = page.evaluate("rules => axe.run(document, {runOnly: rules})", RULES)
    assert result["passes"]
    return [(one["id"], [str(node["target"]) for node in one["nodes"]]) for one in result["violations"]]  # fmt: skip


@LOOKS
@pytest.mark.parametrize("name", WORLDS)
def test_every_page_is_for_everybody(browser: Browser, name: str, phone: bool, dark: bool) -> None:
    result, paths = WORLDS[name]
    folder = Path(tempfile.mkdtemp(prefix="mldebug-test-"))
    try:
        report = store(folder, "sleeping")
        with (
            pages(folder, result()) as server,
            relayed(folder) as (base, links),
            tab(browser, base, phone=phone, dark=dark) as page,
        ):
            page.open(links[-1])
            server.published_at -= 200 * (name == "runs")  # it says that it is old
            for path in (*paths, *([f"/report?id={report}"] if name == "runs" else [])):
                page.open(path)
                assert found(page.page) == [], path
                assert page.fits(), path
    finally:
        shutil.rmtree(folder)


@LOOKS
@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_for_everybody(browser: Browser, name: str, phone: bool, dark: bool, tmp_path: Path) -> None:  # fmt: skip
    file = tmp_path / "report.html"
    file.write_text(render_html(samples.report(REPORTS[name]())))
    with tab(browser, "file://", phone=phone, dark=dark) as page:
        page.open(str(file))
        assert page.fits()
        assert found(page.page) == []


def test_of_a_long_log_its_end_is_seen(browser: Browser, tmp_path: Path) -> None:
    made = samples.report(samples.sleeping())
    culprit = next(one for one in made.ranks if one.culprit)
    long = replace(culprit, log=tuple(f"line {number}" for number in range(60)))
    file = tmp_path / "report.html"
    file.write_text(render_html(replace(made, ranks=(long,))))
    with tab(browser, "file://", js=False) as page:
        page.open(str(file))
        log = page.page.locator(".full .log").last
        first, last = log.evaluate(
            "log => { const range = document.createRange(), text = log.firstChild, box = log.getBoundingClientRect();"
            " const inside = from => { range.setStart(text, from); range.setEnd(text, from + 6); const at = range.getBoundingClientRect();"
            " return at.top >= box.top && at.bottom <= box.bottom; };"
            " return [inside(0), inside(text.length - 8)]; }"
        )
        assert (first, last) == (False, True)
