"""The documentation site of deploy/site/: it is built without a warning, whole, asks nobody else, and opens from disk and on a phone."""

import functools
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

import outside
from shared.web.browser import CHROMIUM, chromium, tab

ROOT = Path(__file__).parents[2]
CONFIG = "deploy/site/mkdocs.yml"
ELSEWHERE = re.compile(
    r"<(?:script|link|img|iframe|source)[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>"
)
IN_BROWSER = pytest.mark.skipif(not CHROMIUM and not os.environ.get("CI"), reason="chromium is not installed")  # fmt: skip
WIDE = ("index", "rights", "settings", "metrics", "seeds", "runbooks/MldebugRunStalled")


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(root / CONFIG), "-d", str(site)]  # fmt: skip
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120, env=environ)  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Silent(SimpleHTTPRequestHandler):
    """Files without a log."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site behind a port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's own."""
    with chromium() as made:
        yield made


def article(page: Path) -> str:
    """What a page says, without its code."""
    found = re.search(r"<article.*</article>", page.read_text(encoding="utf-8"), re.DOTALL)
    return re.sub(r"<(pre|code).*?</\1>", "", found[0] if found else "", flags=re.DOTALL)


def copied(root: Path) -> Path:
    """The checkout, of which the docs may be changed."""
    for name in ("docs", "deploy/site"):
        shutil.copytree(ROOT / name, root / name)
    for folder in (ROOT, ROOT / "deploy"):
        for one in folder.iterdir():
            copy = root / one.relative_to(ROOT)
            if not copy.exists():
                copy.symlink_to(one)
    return root


def test_every_page_is_there_and_none_is_raw_markdown(site: Path) -> None:
    for source in (ROOT / "docs").rglob("*.md"):
        name = source.relative_to(ROOT / "docs").as_posix().replace("README.md", "index.md")
        result = article(site / name.replace(".md", ".html"))
        assert result.count("<h1") == 1, name
        assert not re.findall(r"\n[-*] \w.*|\n\d\. \w.*|.*\*\*.*|.*```.*|^\|.*", result), name


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    assert not [found for page in pages for found in ELSEWHERE.findall(page.read_text())]


def test_a_bad_link_a_bad_anchor_and_a_page_in_no_menu_fail(tmp_path: Path) -> None:
    root = copied(tmp_path / "checkout")
    (root / "docs/lost.md").write_text("# Lost\n\n[a](gone.md) [b](rights.md#gone) [c](../deploy/gone.yaml) [d](../deploy/README.md#gone)\n")  # fmt: skip
    done = build(root, tmp_path / "site")
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert done.returncode == 1
    assert "  - lost.md" in done.stderr
    for target in ("gone.md", "rights.md#gone", "../deploy/gone.yaml", "service.md#gone"):
        assert [line for line in warnings if f"'{target}'" in line], (target, done.stderr)


@pytest.mark.parametrize(
    ("source", "link", "page"),
    [
        ("docs/web.md", "actions.md#rights", "actions.md#rights"),
        ("docs/web.md", "../deploy/README.md", "service.md"),
        ("docs/runbooks/README.md", "../../deploy/prometheus/alerts.yaml", "../files/deploy/prometheus/alerts.yaml.md"),
        ("docs/across-nodes.md", "../README.md#the-agent", "overview.md#the-agent"),
        ("CHANGELOG.md", "docs/hook.md#cost", "hook.md#cost"),
        ("deploy/prometheus/README.md", "../../docs/runbooks/", "runbooks/README.md"),
        ("docs/web.md", "https://example.org/a", "https://example.org/a"),
        ("docs/web.md", "../../outside.md", "../../outside.md"),
    ],
)  # fmt: skip
def test_a_link_leads_to_the_same_on_a_git_host_and_in_the_site(source: str, link: str, page: str) -> None:  # fmt: skip
    assert outside.rewritten(f"see [it]({link}).", source) == f"see [it]({page})."


def found(page: Page, words: str) -> list[str]:
    """The paths of the pages that a search finds."""
    page.locator(".md-search__input").press_sequentially(words)  # it looks when a key goes up
    results = page.locator(".md-search-result__item a.md-search-result__link")
    expect(results.first).to_be_visible()
    return [urlsplit(str(one.get_property("href"))).path for one in results.element_handles()]


@IN_BROWSER
@pytest.mark.parametrize(("phone", "dark"), [(False, False), (True, True)])
def test_pages_fit_and_ask_nobody_else(address: str, browser: Browser, phone: bool, dark: bool) -> None:  # fmt: skip
    with tab(browser, address, phone=phone, dark=dark) as shown:
        for name in WIDE:
            shown.open(f"/{name}.html")
            assert shown.fits(), name
        scheme = shown.page.locator("body").get_attribute("data-md-color-scheme")
        assert scheme == ("slate" if dark else "default")


@IN_BROWSER
def test_the_search_finds_a_verdict(site: Path, address: str, browser: Browser) -> None:
    with tab(browser, address) as shown:
        shown.open("/")
        paths = found(shown.page, "rank_waiting")
        assert "/verdicts.html" in paths
        for path in paths:
            assert "rank_waiting" in (site / path.lstrip("/")).read_text(encoding="utf-8")


@IN_BROWSER
def test_it_opens_from_disk_and_searches_there(site: Path, browser: Browser) -> None:
    with tab(browser, "file://") as shown:
        shown.page.goto(f"{site.as_uri()}/runbooks/MldebugRunStalled.html")
        shown.page.locator(".md-tabs").get_by_role("link", name="Reference").click()
        expect(shown.page.locator("h1")).to_contain_text("Commands")
        assert f"{site}/settings.html" in found(shown.page, "init_timeout")
