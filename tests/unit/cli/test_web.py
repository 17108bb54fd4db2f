"""`mldebug web`: the way in, and who stays outside of the port that it opens."""

import http.client
import secrets
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from mldebug.cli.main import main
from mldebug_agents.web import peer_protocol
from mldebug_agents.web.connection_limiter import MOST
from mldebug_agents.web.listeners import way_in
from shared.web.browser import relayed
from shared.web.webpages import pages, shown, training


def ask(base: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:  # fmt: skip
    link = http.client.HTTPConnection(base.removeprefix("http://"), timeout=60)
    link.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    answer = link.getresponse()
    cases = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()
    link.close()
    return cases


def test_without_an_agent_it_says_what_to_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    config = tmp_path / "c.yaml"
    config.write_text(f"agent: {{state_dir: {tmp_path}}}\n")
    assert main(["web", "--config", str(config)]) == 3
    err = capsys.readouterr().err
    assert "no agent runs here" in err
    assert f"mldebug up --config {config}" in err


def test_it_prints_the_line_to_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"agent: {{state_dir: {tmp_path}, listen: ''}}\n")
    with pages(tmp_path, shown()):
        assert main(["web", "--config", str(config)]) == 0
    assert f"ssh -N -L 8080:{tmp_path}/agent.sock " in capsys.readouterr().out


@pytest.mark.parametrize("path", ["/" + "x" * 120, "/odd:place"])
def test_a_socket_that_ssh_cannot_name_is_reached_by_a_port(path: str) -> None:
    text = "\n".join(way_in(Path(path), None))
    assert "ssh -N -L 8080:127.0.0.1:8080 " in text
    assert "mldebug web --port 8080" in text


def test_only_a_browser_with_the_link_gets_in_and_it_is_good_once(tmp_path: Path) -> None:
    with pages(tmp_path, shown(training())), relayed(tmp_path) as (base, links):
        for path in ("/runs", "/api/v1/status", "/metrics", "/?key=", "/?key=%C3%A9"):  # fmt: skip
            assert ask(base, path)[0] == 403
        status, headers, _ = ask(base, links[0])
        cookie = headers["set-cookie"].partition(";")[0]
        assert status == 303
        assert "HttpOnly" in headers["set-cookie"]
        assert "SameSite=strict" in headers["set-cookie"]
        assert ask(base, links[0])[0] == 403
        assert len(links) == 2
        assert "llama-7b" in ask(base, "/runs", cookie=cookie)[2]
        assert ask(base, "/runs", cookie="mldebug=x")[0] == 403
        assert ask(base, "/runs", cookie=cookie, host="evil.example")[0] == 403
        assert ask(base, "/runs", "POST", cookie=cookie)[0] == 405
        tag = ask(base, "/runs", cookie=cookie)[1]["etag"]
        assert ask(base, "/runs", cookie=cookie, if_none_match=tag)[0] == 304
    assert links[0] != links[1]


def test_an_agent_that_is_gone_is_told(tmp_path: Path) -> None:
    with pages(tmp_path, shown()) as server, relayed(tmp_path) as (base, links):
        cookie = ask(base, links[0])[1]["set-cookie"].partition(";")[0]
        server.stop(5)
        assert ask(base, "/runs", cookie=cookie)[0] == 502


def test_two_browsers_that_open_a_link_at_once_are_not_both_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    made = secrets.token_urlsafe

    def slowly(size: int) -> str:
        time.sleep(0.1)  # the other one asks meanwhile
        return made(size)

    with relayed(tmp_path) as (base, links), ThreadPoolExecutor(8) as browsers:
        monkeypatch.setattr(secrets, "token_urlsafe", slowly)
        items = list(browsers.map(lambda _: ask(base, links[0])[0], range(8)))
    assert sorted(items) == [303] + 7 * [403]


def test_a_path_is_handed_on_as_it_was_sent(tmp_path: Path) -> None:
    with pages(tmp_path, shown(training())), relayed(tmp_path) as (base, links):
        cookie = ask(base, links[0])[1]["set-cookie"].partition(";")[0]
        for path in ("/%C3%A9", "/runs%20x", "/%0d%0aX:%20y", "/%2e%2e/runs", "/run?id=%C3%A9"):
            assert ask(base, path, cookie=cookie)[0] == 404, path


def test_whoever_connects_and_asks_nothing_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(peer_protocol, "FIRST_WORDS", 1.0)
    with pages(tmp_path, shown(training())), relayed(tmp_path) as (base, links), ExitStack() as idle:  # fmt: skip
        cookie = ask(base, links[0])[1]["set-cookie"].partition(";")[0]
        at = ("127.0.0.1", int(base.rpartition(":")[2]))
        silent = [idle.enter_context(socket.create_connection(at, 10)) for _ in range(2 * MOST)]
        assert ask(base, "/runs", cookie=cookie)[0] == 200
        assert [one.recv(1) for one in silent] == 2 * MOST * [b""]  # all of them are sent away
