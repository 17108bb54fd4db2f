"""A hostile page in the browser of somebody who is logged in: it can neither read, embed nor change anything, under whatever name it has."""

import http.server
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, sync_playwright

from mldebug_agents.web.listeners import open_tcp
from shared.web.browser import ARGUMENTS, CHROMIUM
from shared.web.webpages import hanging, pages, shown

pytestmark = pytest.mark.skipif(
    not CHROMIUM and not os.environ.get("CI"), reason="chromium is not installed"
)
TOKEN = "0123456789abcdef0123"
RENAMED = f"{platform.node().partition('.')[0]}.evil.example"
PAGE = """<!doctype html><script>
const put = (tag, fields) => new Promise(done => {
  const made = Object.assign(document.createElement(tag), fields);
  made.onload = () => done("got it"); made.onerror = () => done("");
  document.head.append(made);
});
const opens = link => new Promise(done => { link.onopen = () => done("open"); link.onerror = () => done(""); });
const attack = async (at, paths, doors) => {
  const got = {}, note = async (what, way) => { try { const it = await way(); if (it) got[what] = it; } catch { /* as it should be */ } };
  for (const path of paths) {
    await note(`read ${path}`, async () => (await fetch(at + path, { credentials: "include" })).text());
    await note(`embed ${path}`, async () => (await fetch(at + path, { mode: "no-cors", credentials: "include" })).type);
    await note(`script ${path}`, () => put("script", { src: at + path }));
    await note(`style ${path}`, () => put("link", { rel: "stylesheet", href: at + path }));
    await note(`image ${path}`, () => put("img", { src: at + path }));
  }
  await note("websocket", () => opens(new WebSocket(at.replace("http", "ws") + "/runs")));
  await note("events", () => opens(new EventSource(at + "/runs")));
  const frame = document.body.appendChild(document.createElement("iframe"));
  await note("frame", () => new Promise(done => { frame.onload = () => done(frame.contentDocument && frame.contentDocument.title); frame.src = at + "/runs"; }));
  for (const path of doors) await note(`post ${path}`, async () => { await fetch(at + path, { method: "POST", mode: "no-cors", credentials: "include", body: "token=x" }); });
  const other = open(at + "/runs");
  await new Promise(done => setTimeout(done, 1500));
  await note("window", () => other.closed ? "" : other.document.title);
  return got;
};
</script><body>"""


class EvilPage(http.server.BaseHTTPRequestHandler):
    """Answers everything with the page."""

    def do_GET(self) -> None:
        """The page."""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def evil_site() -> Iterator[int]:
    """The port of a site of the attacker's."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), EvilPage) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        try:
            yield site.server_address[1]
        finally:
            site.shutdown()


@pytest.fixture
def logged_in(tmp_path: Path) -> Iterator[tuple[BrowserContext, str]]:
    """A browser that is logged in at an agent, whose address is second; the attacker's names lead to this machine."""
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    with open_tcp("127.0.0.1:0") as door:
        at = f"127.0.0.1:{door.getsockname()[1]}"
    names = ",".join(f"MAP {name} 127.0.0.1" for name in ("evil.example", RENAMED))
    with (
        pages(tmp_path, shown(hanging()), listen=at, token_file=token),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*ARGUMENTS, f"--host-resolver-rules={names}"]
        )
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://{at}/login")
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_url("**/runs")
        try:
            yield context, f"http://{at}"
        finally:
            browser.close()


@pytest.mark.parametrize("name", ["evil.example", "localhost"])  # the second: another port's page
def test_another_site_s_page_gets_and_does_nothing(
    logged_in: tuple[BrowserContext, str], name: str
) -> None:
    context, at = logged_in
    with evil_site() as port:
        page = context.new_page()
        page.goto(f"http://{name}:{port}/")
        paths = ["/metrics", "/healthz", "/runs", "/look.js", "/report?id=x", "/api/v1/status", "/"]
        doors = ["/login", "/logout", "/api/v1/alerts"]
        got = page.evaluate("([at, paths, doors]) => attack(at, paths, doors)", [at, paths, doors])
    assert got == {}
    own = context.pages[0]
    own.reload()
    assert own.url == f"{at}/runs"  # nobody has logged him out


def test_a_name_that_is_pointed_here_reads_nothing(logged_in: tuple[BrowserContext, str]) -> None:
    """Its owner chooses what comes before his domain: this node's name, too, under which a browser got the metrics."""
    context, at = logged_in
    page = context.new_page()
    for name in ("evil.example", RENAMED):
        for path in ("/metrics", "/runs", "/login"):
            answer = page.goto(f"http://{name}:{at.rpartition(':')[2]}{path}")
            assert answer is not None
            assert answer.status == 421
            assert "llama" not in answer.text()
            assert "mldebug_" not in answer.text()
