"""Who sees which pages: at the socket, by TCP with the token, and whom another site's page sends."""

import http.client
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from mldebug.web import frame
from mldebug_agents.web import report_cache
from mldebug_agents.web.access.same_origin import hostname, own_names, refused_origin
from mldebug_agents.web.access.sessions import ALL_TRIES, LIFE, MOST, TRIES, Sessions
from mldebug_agents.web.listeners import open_unix
from mldebug_agents.web.report_cache import ReportCache
from mldebug_agents.web.unix_http import UnixConnection
from shared.incidents import samples
from shared.web.webpages import HOSTILE, LATER, hanging, hostile, pages, shown, store, training

SAMPLES = list(samples.ALL)
TOKEN = "0123456789abcdef0123"
NOBODY = 65534
Answer = tuple[int, dict[str, str], str]
AS = """
import os, socket, sys
from pathlib import Path
place, path = sys.argv[1:]
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
link = socket.socket(socket.AF_UNIX)
link.connect(place + "/agent.sock")
link.sendall(f"GET {path} HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n".encode())
sys.stdout.buffer.write(link.makefile("rb").read())
"""
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A state dir that others may pass through."""
    path = Path(tempfile.mkdtemp(prefix="mldebug-test-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def tcp(folder: Path) -> Iterator[tuple[str, int]]:
    """A server with a token; its address."""
    write_token(folder / "token")
    port = free_port()
    with pages(folder, shown(training()), listen=f"127.0.0.1:{port}", token_file=folder / "token"):
        yield "127.0.0.1", port


def write_token(file: Path, mode: int = 0o600, token: str = TOKEN) -> Path:
    file.write_text(f"{token}\n")
    file.chmod(mode)
    return file


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def answer_to(link: http.client.HTTPConnection, method: str, path: str, body: str | None, headers: dict[str, str]) -> Answer:  # fmt: skip
    link.request(method, path, body, headers)
    answer = link.getresponse()
    text = answer.read().decode()
    link.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text


def at_socket(folder: Path, path: str, method: str = "GET", **headers: str) -> Answer:
    return answer_to(UnixConnection(folder), method, path, None, {k.replace("_", "-"): v for k, v in headers.items()})  # fmt: skip


def by_tcp(at: tuple[str, int], path: str, method: str = "GET", body: str | None = None, **headers: str) -> Answer:  # fmt: skip
    sent = {k.replace("_", "-"): v for k, v in headers.items()}
    return answer_to(http.client.HTTPConnection(*at, timeout=60), method, path, body, sent)


def log_in(at: tuple[str, int], token: str = TOKEN, **headers: str) -> Answer:
    return by_tcp(at, "/login", "POST", f"token={quote(token)}", **headers)


def cookie_of(answer: Answer) -> str:
    return answer[1]["set-cookie"].partition(";")[0]


# --- at the socket -------------------------------------------------------------------------------


def test_the_agents_user_sees_all_runs_and_reports(folder: Path) -> None:
    name = store(folder, SAMPLES[0])
    with pages(folder, shown(training(), hanging())):
        assert at_socket(folder, "/")[1]["location"] == "/runs"
        assert "llama-7b" in at_socket(folder, "/runs")[2]
        assert f"/report?id={name}" in at_socket(folder, "/incidents")[2]
        status, headers, html = at_socket(folder, f"/report?id={name}")
    assert status == 200
    for one in frame.pages():
        assert (f'<a href="/{one}"' in html) == bool(frame.pages()[one].key)
    assert '<a href="/run?id=7f3a">' in html
    assert "script-src 'sha256-" in headers["content-security-policy"]
    assert headers["content-security-policy"].endswith("frame-ancestors 'none'")


def test_a_report_leads_to_the_page_of_its_run_also_once_that_is_over(folder: Path) -> None:
    name = store(folder, SAMPLES[0])
    with pages(folder, shown()) as server:
        _, before, html = at_socket(folder, f"/report?id={name}")
        assert '<a href="/incidents">Incidents</a>' in html
        assert "/run?id=7f3a" in html
        assert at_socket(folder, "/run?id=7f3a")[0] == 200
        server.publish(shown(hanging()))
        _, after, html = at_socket(folder, f"/report?id={name}")
        assert "/run?id=7f3a" in html
    assert before["etag"] == after["etag"]


@root_only
def test_an_ordinary_user_sees_his_own_runs_and_reports_only(folder: Path) -> None:
    roots = store(folder, SAMPLES[0], id="20261121T055041Z-r00t")
    his = store(folder, SAMPLES[1], id="20261121T055042Z-n0b0")
    os.chown(folder / "reports" / his, NOBODY, -1)
    mine = replace(training(), id="mine", name="of-nobody", uid=NOBODY)

    def observed(path: str) -> str:
        argv = [sys.executable, "-c", AS, str(folder), path]
        return subprocess.run(argv, check=True, capture_output=True, timeout=60, cwd="/").stdout.decode()  # fmt: skip

    with pages(folder, shown(mine, hanging())):
        runs, incidents = observed("/runs"), observed("/incidents")
        assert "of-nobody" in runs
        assert "pretrain.py" not in runs
        assert "It hides 1 run of other users" in runs
        assert his in incidents
        assert roots not in incidents
        assert observed("/run?id=7f3a").startswith("HTTP/1.1 404")
        assert observed(f"/report?id={his}").startswith("HTTP/1.1 200")
        refused, absent = (
            observed(f"/report?id={roots}"),
            observed("/report?id=20261121T055041Z-none"),
        )
    assert refused.startswith("HTTP/1.1 404")
    assert refused.partition("\r\n\r\n")[2] == absent.partition("\r\n\r\n")[2].replace("none", "r00t")  # fmt: skip


def test_every_answer_has_the_headers_that_keep_others_out(folder: Path) -> None:
    with pages(folder, shown(training())):
        for path in ("/", "/runs", "/run?id=no", "/report?id=no", "/look.css", "/look.js"):
            headers = at_socket(folder, path)[1]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "same-origin"
            assert headers["x-frame-options"] == "DENY"
        for path in ("/healthz", "/readyz", "/metrics", "/api/v1/status", "/no"):
            headers = at_socket(folder, path)[1]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cross-origin-resource-policy"] == "same-origin"
        policy = at_socket(folder, "/runs")[1]["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


def test_nothing_new_costs_no_page(folder: Path) -> None:
    name = store(folder, SAMPLES[0])
    with pages(folder, shown(hanging())) as server:
        for path in ("/runs", "/run?id=7f3a", "/incidents", f"/report?id={name}"):
            tag = at_socket(folder, path)[1]["etag"]
            status, headers, body = at_socket(folder, path, if_none_match=tag)
            assert (status, headers["etag"], body) == (304, tag, "")
        tag = at_socket(folder, "/runs")[1]["etag"]
        server.publish(shown(hanging(), at=LATER))
        assert at_socket(folder, "/runs", if_none_match=tag)[0] == 200
        tag = at_socket(folder, "/incidents")[1]["etag"]
        store(folder, SAMPLES[1], id="20261122T055041Z-abcd")
        assert at_socket(folder, "/incidents", if_none_match=tag)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "localhost.evil.example", "10.0.0.7", "[fe80::1]", ""])  # fmt: skip
def test_a_name_that_is_rebound_to_the_port_gets_nothing(folder: Path, host: str) -> None:
    with pages(folder, shown(training())):
        for path in ("/runs", "/api/v1/status", "/metrics", "/look.js"):
            status, _, text = at_socket(folder, path, host=host)
            assert status == (200 if not host else 403)
            assert ("llama" in text) == (not host and path != "/look.js")


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080", "[::1]:1", "LocalHost", "a.localhost"])  # fmt: skip
def test_names_of_the_loopback_are_served(folder: Path, host: str) -> None:
    with pages(folder, shown(training())):
        assert at_socket(folder, "/runs", host=host)[0] == 200


def test_a_browser_cannot_have_anything_done_at_the_socket(folder: Path) -> None:
    """A forwarded port makes the socket reachable for every page that the person opens."""
    done: list[object] = []
    with pages(folder, shown()) as server:
        server.verbs["/api/v1/verb"] = lambda requests: done.append(requests)
        server.serve_socket(_again(folder))
        for headers in (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": "http://localhost"},
            {"sec_fetch_site": "cross-site"},
        ):
            assert at_socket(folder, "/api/v1/verb", "POST", **headers)[0] == 403
        assert done == []
        assert at_socket(folder, "/api/v1/verb", "POST")[0] == 200  # mldebug's own command
    assert len(done) == 1


def _again(folder: Path) -> socket.socket:
    (folder / "agent.sock").unlink()
    return open_unix(folder)


@pytest.mark.parametrize("mode", ["no-cors", "cors", "same-origin"])
def test_another_sites_page_cannot_read_or_embed_one(folder: Path, mode: str) -> None:
    with pages(folder, shown(training())):
        sent = {"sec_fetch_site": "cross-site", "sec_fetch_mode": mode}
        assert at_socket(folder, "/api/v1/status", **sent)[0] == 403
        assert at_socket(folder, "/runs", sec_fetch_site="cross-site", sec_fetch_mode="navigate")[0] == 200  # fmt: skip


def test_before_the_first_look_a_sentence_comes(folder: Path) -> None:
    with pages(folder, shown()) as server:
        server.snapshot = None
        status, _, text = at_socket(folder, "/runs")
    assert status == 503
    assert "has not looked yet" in text


def test_an_agent_that_no_longer_looks_is_told_on_every_page(folder: Path) -> None:
    """Its doors answer from threads of their own, also while its main loop hangs."""
    words = "The agent has not looked for 3 min: what it says is old"
    with pages(folder, shown(hanging())) as server:
        paths = [*(f"/{name}" for name in frame.pages() if name != "run"), "/run?id=7f3a"]
        fresh = [at_socket(folder, path) for path in paths]
        server.published_at -= 200
        for path, (_, headers, before) in zip(paths, fresh, strict=True):
            status, _, text = at_socket(folder, path, if_none_match=headers["etag"])
            assert (status, words in text, words in before) == (200, True, False)
        server.publish(shown(hanging(), replay="yesterday"))
        server.published_at -= 200
        assert words not in at_socket(folder, "/runs")[2]


def test_of_a_run_that_is_over_the_reports_are_left(folder: Path) -> None:
    name, other = store(folder, SAMPLES[0]), store(folder, SAMPLES[1], job="b", id="20261122T0-b")
    with pages(folder, shown()):
        status, _, text = at_socket(folder, "/run?id=7f3a")
        assert (status, "This run is over" in text) == (200, True)
        assert "No figures of it are kept." in text
        assert f"/report?id={name}" in text
        assert other not in text
        for path in ("/run?id=", "/run?id=no", "/run"):
            status, _, text = at_socket(folder, path)
            assert (status, "/report?id=" in text) == (404, False)


# --- hostile content -----------------------------------------------------------------------------


def test_ids_with_anything_in_them_find_their_run(folder: Path) -> None:
    with pages(folder, shown(hostile())):
        assert at_socket(folder, f"/run?id={quote(hostile().id)}")[0] == 200


@pytest.mark.parametrize(
    "id", ["../../etc/passwd", "..", ".", "a/../b", "%00", "latest", "x" * 5000, HOSTILE, ""]
)
def test_a_report_has_no_other_name_than_its_id(folder: Path, id: str) -> None:
    store(folder, SAMPLES[0])
    with pages(folder, shown()):
        status, _, text = at_socket(folder, f"/report?id={quote(id)}")
    assert status == 404
    assert "<img" not in text


def test_what_an_owner_puts_in_place_of_his_report_is_not_served(folder: Path) -> None:
    name = store(folder, SAMPLES[0])
    place = folder / "reports" / name
    (place / "report.html").write_text("<script>alert(1)</script>PLANTED")
    with pages(folder, shown()):
        assert "PLANTED" not in at_socket(folder, f"/report?id={name}")[2]
        secret = folder / "secret"
        secret.write_text('{"schema": "PLANTED"}')
        (place / "report.json").unlink()
        (place / "report.json").symlink_to(secret)
        status, _, text = at_socket(folder, f"/report?id={name}")
        assert (status, "PLANTED" in text) == (404, False)
        assert "symbolic link" in at_socket(folder, "/incidents")[2]
        (place / "report.json").unlink()
        os.mkfifo(place / "report.json")
        assert at_socket(folder, f"/report?id={name}")[0] == 404


def test_a_report_that_is_too_large_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    name = store(folder, SAMPLES[0])
    monkeypatch.setattr(report_cache, "MAX_JSON", 100)
    with pages(folder, shown()):
        status, _, text = at_socket(folder, f"/report?id={name}")
    assert status == 404
    assert f"mldebug reports show {name}" in text


def test_a_state_dir_that_hangs_costs_seconds_and_few_threads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    ready, free = threading.Semaphore(0), threading.Event()
    monkeypatch.setattr(report_cache, "PATIENCE", 0.2)

    def hang(self: ReportCache, uid: int | None) -> tuple[()]:
        ready.release()
        free.wait(60)
        return ()

    monkeypatch.setattr(ReportCache, "_list", hang)
    with pages(folder, shown(training())):
        for _ in range(report_cache.HANGING + 3):
            status, _, text = at_socket(folder, "/incidents")
            assert status == 200
            assert "the reports could not be read in time" in text
        assert (
            sum(one.name == "mldebug-reports" for one in threading.enumerate())
            == report_cache.HANGING
        )
        free.set()


# --- by TCP --------------------------------------------------------------------------------------


def test_without_a_token_tcp_says_how_to_get_there(folder: Path) -> None:
    port = free_port()
    with pages(folder, shown(training()), listen=f"127.0.0.1:{port}"):
        for path in ("/", "/runs", "/incidents", "/report?id=x", "/login"):
            status, _, text = by_tcp(("127.0.0.1", port), path)
            assert status == 403
            assert "mldebug web" in text
        assert log_in(("127.0.0.1", port))[0] == 403
        assert by_tcp(("127.0.0.1", port), "/metrics")[0] == 200


def test_the_token_opens_a_session_which_the_cookie_keeps(tcp: tuple[str, int]) -> None:
    assert by_tcp(tcp, "/runs")[1]["location"] == "/login"
    assert 'name="token"' in by_tcp(tcp, "/login")[2]
    answer = log_in(tcp)
    assert (answer[0], answer[1]["location"]) == (303, "/runs")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(answer[1]["set-cookie"].split("; "))
    page = by_tcp(tcp, "/runs", cookie=cookie_of(answer))
    assert page[0] == 200
    assert "llama-7b" in page[2]
    assert "Log out" in page[2]
    assert by_tcp(tcp, "/logout", "POST", "", cookie=cookie_of(answer))[0] == 303
    assert by_tcp(tcp, "/runs", cookie=cookie_of(answer))[0] == 303


def test_behind_a_proxy_with_tls_the_session_never_travels_in_the_clear(tcp: tuple[str, int]) -> None:  # fmt: skip
    for scheme in ("https", "http"):
        answer = log_in(tcp, host="localhost", origin=f"{scheme}://localhost")
        assert ("Secure" in answer[1]["set-cookie"].split("; ")) == (scheme == "https")


def test_sessions_of_two_nodes_that_are_forwarded_do_not_meet(tcp: tuple[str, int]) -> None:
    """A browser has one jar of cookies for all ports of a host."""
    one, other = (log_in(tcp, host=f"localhost:{port}") for port in (8080, 8081))
    both = f"{cookie_of(one)}; {cookie_of(other)}"
    assert cookie_of(one).partition("=")[0] != cookie_of(other).partition("=")[0]
    for port in (8080, 8081):
        assert by_tcp(tcp, "/runs", cookie=both, host=f"localhost:{port}")[0] == 200
    assert by_tcp(tcp, "/runs", cookie=cookie_of(one), host="localhost:8081")[0] == 303


@pytest.mark.parametrize("value", ["", "x", "é", "a b", "=;;="])
def test_a_wrong_cookie_is_none(tcp: tuple[str, int], value: str) -> None:
    cookie = f"mldebug_{tcp[1]}={value}".encode().decode("latin-1")
    assert by_tcp(tcp, "/runs", cookie=cookie)[0] == 303


def test_a_program_shows_the_token_in_a_header(tcp: tuple[str, int]) -> None:
    assert by_tcp(tcp, "/runs", authorization=f"Bearer {TOKEN}")[0] == 200
    assert by_tcp(tcp, "/runs", authorization=f"Bearer {TOKEN}x")[0] == 401
    assert by_tcp(tcp, "/runs", authorization=TOKEN)[0] == 401


def test_whoever_guesses_has_few_tries(tcp: tuple[str, int]) -> None:
    for _ in range(TRIES):
        answer = log_in(tcp, "wrong")
        assert answer[0] == 401
        assert "set-cookie" not in answer[1]
    assert log_in(tcp, "wrong")[0] == 429
    assert by_tcp(tcp, "/runs", authorization=f"Bearer {TOKEN}x")[0] == 429
    assert by_tcp(tcp, "/api/v1/alerts", "POST", "{}", authorization="Bearer x")[0] == 429
    assert log_in(tcp)[0] == 303  # whoever guesses at this address shuts nobody out
    assert by_tcp(tcp, "/runs", authorization=f"Bearer {TOKEN}")[0] == 200


def test_the_route_for_alerts_has_as_few_tries(tcp: tuple[str, int]) -> None:
    post = lambda shown: by_tcp(tcp, "/api/v1/alerts", "POST", "{}", authorization=shown)[0]
    assert [post("Bearer wrong") for _ in range(TRIES + 2)] == [401] * TRIES + [429] * 2
    assert post(f"Bearer {TOKEN}") not in (401, 429)
    assert log_in(tcp, "wrong")[0] == 429


def test_public_metrics_name_nobody_but_for_who_has_the_token(tcp: tuple[str, int]) -> None:
    job = training()
    hidden = by_tcp(tcp, "/metrics")
    assert hidden[0] == 200
    assert ',name="~' in hidden[2]
    assert f'run="{job.id}",user="~' in hidden[2]
    assert job.name not in hidden[2]
    assert by_tcp(tcp, "/metrics")[2].count("~") == hidden[2].count("~")
    assert f'name="{job.name}"' in by_tcp(tcp, "/metrics", authorization=f"Bearer {TOKEN}")[2]
    refused = [by_tcp(tcp, "/metrics", authorization="Bearer x")[0] for _ in range(TRIES + 1)]
    assert refused == [401] * TRIES + [429]
    assert by_tcp(tcp, "/metrics")[0] == 200


def test_a_site_may_show_the_names(folder: Path) -> None:
    port, job = free_port(), training()
    with pages(folder, shown(job), listen=f"127.0.0.1:{port}", public_names=True):
        assert f'name="{job.name}"' in by_tcp(("127.0.0.1", port), "/metrics")[2]


@pytest.mark.parametrize(
    ("agent", "host", "status"),
    [
        ("Mozilla/5.0 (X11)", "evil.example", 421),
        ("Mozilla/5.0 (X11)", f"{platform.node()}.evil.example", 421),
        ("Mozilla/5.0 (X11)", "127.0.0.1", 200),
        ("Prometheus/3.0", "mldebug-agents.monitoring.svc", 200),
        ("", "evil.example", 200),
    ],
)
def test_a_browser_under_another_name_gets_no_metrics(
    tcp: tuple[str, int], agent: str, host: str, status: int
) -> None:
    code, _, text = by_tcp(tcp, "/metrics", user_agent=agent, host=host)
    assert code == status
    assert ("/etc/hosts" in text) == (status == 421)  # it says under which name it would be


def test_a_new_token_ends_all_sessions(tcp: tuple[str, int], folder: Path) -> None:
    cookie = cookie_of(log_in(tcp))
    (folder / "token").write_text("another-token-0123456789\n")
    assert by_tcp(tcp, "/runs", cookie=cookie)[0] == 303
    (folder / "token").unlink()
    assert by_tcp(tcp, "/runs", cookie=cookie)[0] == 503


@pytest.mark.parametrize(("mode", "status"), [(0o600, 200), (0o640, 200), (0o644, 503), (0o602, 503), (0o620, 503)])  # fmt: skip
def test_a_token_that_others_may_read_or_change_counts_for_nobody(
    tcp: tuple[str, int], folder: Path, mode: int, status: int
) -> None:
    """By header, as a login, for all names in /metrics; and a group that was given the file may read it: Prometheus' own."""
    write_token(folder / "token", mode)
    shown = {"authorization": f"Bearer {TOKEN}"}
    assert by_tcp(tcp, "/runs", **shown)[0] == status
    assert log_in(tcp)[0] == (303 if status == 200 else status)
    assert ("llama-7b" in by_tcp(tcp, "/metrics", **shown)[2]) == (status == 200)


def test_the_log_says_why_a_token_counts_for_nobody(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = write_token(folder / "token", 0o644)
    with pages(folder, shown(training()), listen=f"127.0.0.1:{free_port()}", token_file=token):
        assert f"{token} can be read by others; way out: chmod 600 {token}" in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    "headers",
    [{"origin": "https://evil.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"}],
)
def test_another_site_can_neither_log_in_nor_out(tcp: tuple[str, int], headers: dict[str, str]) -> None:  # fmt: skip
    assert log_in(tcp, **headers)[0] == 403
    cookie = cookie_of(log_in(tcp, origin=f"http://{tcp[0]}:{tcp[1]}"))
    assert by_tcp(tcp, "/logout", "POST", "", cookie=cookie, **headers)[0] == 403
    assert by_tcp(tcp, "/runs", cookie=cookie)[0] == 200


def test_a_foreign_name_is_refused_also_with_the_token(tcp: tuple[str, int]) -> None:
    answer = by_tcp(tcp, "/runs", authorization=f"Bearer {TOKEN}", host="evil.example")
    assert answer[0] == 421
    assert "llama" not in answer[2]
    assert "/etc/hosts" in answer[2]


def test_a_body_that_is_no_token_is_not_read_to_its_end(tcp: tuple[str, int]) -> None:
    assert log_in(tcp, "x" * 100_000)[0] == 413
    assert by_tcp(tcp, "/login", "POST", "token=" + "&a=" * 50)[0] == 401


@pytest.mark.parametrize("path", ["/login", "/logout", "/api/v1/alerts"])
def test_who_hangs_up_in_the_middle_of_a_request_writes_nothing_into_the_log(
    tcp: tuple[str, int], path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each was a traceback: whoever reaches the port could fill the log."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 99\r\n\r\n"  # fmt: skip
    for _ in range(20):
        with socket.create_connection(tcp, timeout=30) as link:
            link.sendall(head.encode() + b"token=")
    assert by_tcp(tcp, "/healthz")[0] == 200
    assert by_tcp(tcp, "/runs")[0] == 303  # all that came before is done
    assert "Traceback" not in caplog.text
    assert not [one for one in caplog.records if one.exc_info]


def test_pages_are_only_looked_at(tcp: tuple[str, int]) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert by_tcp(tcp, "/runs", method, "", authorization=f"Bearer {TOKEN}")[0] == 405


# --- the parts -----------------------------------------------------------------------------------


def test_sessions_end_and_the_oldest_give_way() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    first = sessions.open(TOKEN)
    assert sessions.holds(first, TOKEN)
    assert not sessions.holds(first, "other")
    for _ in range(MOST):
        last = sessions.open(TOKEN)
    assert not sessions.holds(first, TOKEN)
    now[0] = LIFE
    assert not sessions.holds(last, TOKEN)


def test_all_addresses_of_one_network_of_ipv6_have_the_tries_of_one() -> None:
    """One machine has 2 to the power of 64 of them."""
    sessions = Sessions()
    tried = [sessions.tries(f"2001:db8::{one:x}", right=False) for one in range(TRIES + 3)]
    assert tried == [True] * TRIES + [False] * 3
    assert sessions.tries("2001:db8:0:1::1", right=False)


def test_tries_are_counted_by_address_and_in_all_and_forgotten() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    for number in range(ALL_TRIES):
        assert sessions.tries(f"a{number}", right=False)
    assert not sessions.tries("new", right=False)
    assert sessions.tries("new", right=True)
    now[0] = 61.0
    for _ in range(TRIES):
        assert sessions.tries("new", right=False)
    assert not sessions.tries("new", right=False)
    assert sessions.tries("new", right=True)
    assert sessions.tries("other", right=False)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        *(
            ("LocalHost:80", "localhost"),
            ("[::1]:80", "::1"),
            ("[::1]", "::1"),
            ("a.b.", "a.b"),
            ("a:b", ""),
            ("::1", ""),
        ),
        *(
            ("[::1]evil.example", ""),
            ("[::1", ""),
            ("[::1].evil.example:80", ""),
            ("[::1]:evil", ""),
            ("[127.0.0.1]", "127.0.0.1"),
        ),
        *(("127.0.0.1:80:90", ""), ("localhost:\u0663", "")),
    ],
)
def test_the_name_in_a_host_header(host: str, name: str) -> None:
    assert hostname(host) == name


@pytest.mark.parametrize(
    ("host", "fine"),
    [("n1", True), ("n1.cluster.example:9753", True), ("N1.Internal.", True), ("10.2.3.4:9753", True), ("[fd00::1]:1", True),
     ("n1.rack.example", True), ("n2", False), ("evil.example", False), ("n1.evil.example", False),
     ("n1.cluster.example.evil.example", False), ("n1@evil", False), ("n1 .x", False), ("", True)],
)  # fmt: skip
def test_by_tcp_this_nodes_names_and_any_address_will_do(
    host: str, fine: bool, tmp_path: Path
) -> None:
    """Of its names only those below a domain that this node is in: anybody can call a machine of his own n1.evil.example, and point
    that here when the page is open.
    """
    (tmp_path / "resolv.conf").write_text(
        "nameserver 10.0.0.1\nsearch cluster.example. corp.example\n"
    )
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n10.2.3.4\tn1.rack.example n1 # n1.evil.example\n")  # fmt: skip
    why = refused_origin(
        {"host": host}, local=False, names=lambda: own_names("n1.internal", tmp_path)
    )
    assert (why == "") == fine


def test_a_node_without_a_domain_has_its_name_alone(tmp_path: Path) -> None:
    assert own_names("n1", tmp_path) == {"n1"}
    assert own_names("", tmp_path) == set()


def test_names_are_learnt_anew_when_hosts_changes_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody may ask, and a cluster's hosts is long."""
    (tmp_path / "hosts").write_text("10.0.0.1 n1.first.example\n")
    assert own_names("n1", tmp_path) == {"n1", "n1.first.example"}
    read: list[Path] = []
    real = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda file, **more: read.append(file) or real(file, **more)
    )
    for _ in range(20):
        assert own_names("n1", tmp_path) == {"n1", "n1.first.example"}
    assert read == []
    (tmp_path / "hosts").write_text("10.0.0.1 n1.second-one.example\n")
    assert own_names("n1", tmp_path) == {"n1", "n1.second-one.example"}
    assert read


def test_names_are_not_asked_for_where_an_address_is_used() -> None:
    def names() -> set[str]:
        raise AssertionError

    for host in ("10.2.3.4:9753", "localhost", "[fe80::1%25eth0]:1"):
        assert refused_origin({"host": host}, local=False, names=names) == ""
