"""Real Chromium for the tests of pages: what it asks for, what it complains about, and what it shows."""

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

from mldebug_agents.web.connection_limiter import MOST, ConnectionLimiter
from mldebug_agents.web.listeners import open_tcp
from mldebug_agents.web.relay import Relay

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser of Debian's."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page that is watched: its errors, and every request to an origin other than its own."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base
        self.errors: list[str] = []
        self.strangers: list[str] = []
        page.on(
            "console",
            lambda result: self.errors.append(result.text) if result.type == "error" else None,
        )
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda requests: self._count(requests.url))

    def _count(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "data" and f"{parts.scheme}://{parts.netloc}" != self.base:
            self.strangers.append(url)

    def open(self, path: str) -> None:
        """Load a page; it must have come."""
        answer = self.page.goto(self.base + path)
        assert answer is not None
        assert answer.ok, answer.status

    def fits(self) -> bool:
        """Does nothing stick out to the right?"""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@contextmanager
def tab(browser: Browser, base: str, *, phone: bool = False, dark: bool = False, js: bool = True) -> Iterator[Tab]:  # fmt: skip
    """A tab of its own session, which must end without errors and without a request to anybody else."""
    context = browser.new_context(
        viewport=PHONE if phone else DESKTOP,
        color_scheme="dark" if dark else "light",
        is_mobile=phone,
        has_touch=phone,
        java_script_enabled=js,
    )
    context.set_default_timeout(20_000)
    try:
        made = Tab(context.new_page(), base)
        yield made
        assert made.errors == []
        assert made.strangers == []
    finally:
        context.close()


@contextmanager
def relayed(state_dir: Path, *, own_only: bool = False) -> Iterator[tuple[str, list[str]]]:
    """The socket behind a port, as `mldebug web --port` has it; the base address, and the links so far."""
    links: list[str] = []
    door: socket.socket = open_tcp("127.0.0.1:0")
    base = f"http://127.0.0.1:{door.getsockname()[1]}"
    server = Relay(state_dir, links.append, own_only=own_only).server()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [ConnectionLimiter(door, MOST)]}, daemon=True)  # fmt: skip
    thread.start()
    try:
        yield base, links
    finally:
        server.should_exit = True
        thread.join(10)
